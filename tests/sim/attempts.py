"""What no right shell does, tried in any state that a driver comes to: all of it must be refused and change nothing, so that the world goes
on as if it had not been tried. Of itself none of this happens here, so that no one would miss a guard against it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from snowmelt.commit.checks import refusal
from snowmelt.commit.coordinator import Coordinator, DonePut, ListenersRan, Stage
from snowmelt.commit.ledger import Ledger
from snowmelt.commit.records import Done
from snowmelt.commit.summary import summarise
from snowmelt.errors import Corrupt, InvariantBroken, SourceDrift
from snowmelt.model.position import Position
from snowmelt.planning.facts import Adopted, Found, GivenBack, Incarnation, Reborn, Recopied, Released, Reported, Split
from snowmelt.planning.tables import Table, TablePhase, Tables
from snowmelt.relay.retention import Relay
from tests.sim.lake import Violation
from tests.sim.tasks import Job, packed

if TYPE_CHECKING:
    from tests.sim.world import World


class Attempts:
    def __init__(self, world: World, chance: Random) -> None:
        self.world = world
        self.chance = chance

    @classmethod
    def some(cls, world: World) -> Attempts | None:
        chance = Random(f"attempts {world.seed}")
        return cls(world, chance) if chance.random() < 0.25 else None

    def happen(self) -> None:
        newest = self.world.newest_driver() if self.chance.random() < 0.02 else None
        if newest is None:
            return
        machines = newest.machines
        assert machines is not None
        self.world.counts["attempts"] += 1
        for table in list(machines.ledger.tables):
            attempt_table(machines.ledger.tables, table)
        attempt_reads(machines.ledger.tables)
        attempt_ledger(machines.ledger, self.world)
        attempt_commit(machines.commit, self.world)
        attempt_relay(machines.relay)
        if newest.staged is not None:
            attempt_job(newest.staged, newest.ledger.tables)


def refused(what: str, act: Callable[[], object]) -> None:
    try:
        act()
    except (InvariantBroken, Corrupt, SourceDrift):
        return
    raise Violation(f"not refused: {what}")


def attempt_table(tables: Tables, table: Table) -> None:
    incarnation, number = table.incarnation, table.incarnation.number
    refused(f"{incarnation} is found twice", lambda: tables.apply(Found(incarnation, table.target, table.keyed, table.schema, 0)))
    refused(f"{incarnation} is reborn as itself", lambda: tables.apply(Reborn(incarnation, table.since, table.schema), number))
    if table.phase is TablePhase.RELEASED and not table.keyed:
        refused(f"{incarnation} is read again in place", lambda: tables.apply(Recopied(incarnation, table.since), number))
    if table.phase not in (TablePhase.STREAMING, TablePhase.GONE):
        phase = table.phase
        tables.apply(Released(incarnation))
        if table.phase is not phase:
            raise Violation(f"{incarnation} is released twice, and was {phase.value}")
    if table.copy is None:
        refused(f"the chunks of {incarnation}, which it has no more", lambda: tables.copy_of(incarnation))
        return
    bounds, greatest = table.copy.bounds, table.copy.extent.greatest if table.copy.extent is not None else packed(1)
    for ordinal in (bounds.first - 1, bounds.last + 1):
        refused(f"bound {ordinal} of {incarnation}", lambda ordinal=ordinal: bounds.upper(ordinal))  # type: ignore[misc]
    if table.phase is TablePhase.SPLITTING:
        gap, short = Split(incarnation, bounds.last + 2, (greatest,), False), Split(incarnation, bounds.last + 1, (packed(0),), True)
        refused(f"bounds of {incarnation} after a gap", lambda: tables.apply(gap, number))
        if greatest != packed(0):
            refused(f"bounds of {incarnation} that end early", lambda: tables.apply(short, number))
    else:
        late = Split(incarnation, bounds.last + 1, (greatest,), False)
        refused(f"bounds of {incarnation}, which is {table.phase.value}", lambda: tables.apply(late, number))
    for _, last in table.copy.adopted:
        if tables.reading(incarnation, last) is None:
            again = Adopted(incarnation=incarnation, ordinal=last, nonce="again", visible=0, high=0, extent=table.copy.extent)
            refused(f"chunk {last} of {incarnation} is adopted twice", lambda again=again: tables.apply(again, number))  # type: ignore[misc]


def attempt_reads(tables: Tables) -> None:
    reading = next(tables.readings(), None)
    if reading is not None:
        launch = reading.launch
        other = GivenBack(launch.incarnation, launch.ordinal, launch.job + 1, "of another job")
        refused(f"a fact of job {other.job}, not {launch.job}", lambda: tables.apply(other))
        over = Incarnation(launch.incarnation.table, launch.incarnation.number - 1)
        late = Reported(
            incarnation=over,
            ordinal=launch.ordinal,
            job=launch.job,
            nonce="late",
            high=launch.visible,
            exact=True,
            schema=0,
            files=(),
            extent=None,
        )
        if tables.decide_report(late):
            raise Violation(f"a report for {over} counts, which is over")


def attempt_ledger(ledger: Ledger, world: World) -> None:
    intent = world.intents.get(ledger.epoch)
    if intent is None:
        return
    follows = replace(intent, epoch=ledger.epoch + 1, after=ledger.upto, upto=ledger.upto, facts=(), entries=())
    if ledger.open is not None:
        refused("a summary of an open epoch", lambda: summarise(ledger))
        refused("an intent after one that is not done", lambda: ledger.apply_intent(follows))
        refused("done of another intent", lambda: ledger.apply_done(Done(ledger.epoch, "another", (), "")))
    else:
        gap = replace(follows, after=ledger.upto + 1, upto=ledger.upto + 1)
        refused("an intent after a gap", lambda: ledger.apply_intent(gap))


def attempt_commit(commit: Coordinator, world: World) -> None:
    ledger, stage, named = commit.ledger, commit.stage, commit.named
    intent = world.intents.get(ledger.epoch)
    if intent is None:
        return
    follows = replace(
        intent, epoch=ledger.epoch + 1, generation=commit.generation, after=ledger.upto, upto=ledger.upto, facts=(), entries=intent.entries
    )
    step = commit.next_step()
    if stage is not Stage.FREE:
        refused("an intent while another is under way", lambda: commit.offer(follows, ledger.identity))
    elif commit.offer(follows, "another"):
        raise Violation("not refused: an intent that was planned from another than the newest")
    if stage is not Stage.LISTENING:
        refused(f"listeners ran, and the commit is {stage.value}", lambda: commit.apply(ListenersRan("")))
    if stage is Stage.CLOSING:
        refused("another intent is done", lambda: commit.apply(DonePut(Done(ledger.epoch, "another", (), ""))))
    if (commit.stage, commit.next_step()) != (stage, step) or not named >= commit.named:
        raise Violation(f"what was refused has changed the commit, which was {stage.value}")


def attempt_relay(relay: Relay) -> None:
    if relay.floor > 0:
        refused("log below the floor", lambda: relay.covering(relay.floor - 1, relay.end))
    if (newest := relay.newest) is not None:
        begins = Position(newest.ends.file, newest.ends.offset + 1, newest.ends.era)
        sealed = relay.decide_record(newest.generation, "attempt", begins, begins, (), ())
        refused("a segment that leaves out some of the log", lambda: relay.apply(sealed))
        begins = Position(1, 4, newest.ends.era + 1, "others")
        other = relay.decide_record(newest.generation, "attempt", begins, begins, (), ())
        refused("a segment of a server that has other transactions", lambda: relay.apply(other))


def attempt_job(job: Job, tables: Tables) -> None:
    plan, messages, writers = job.plan, list(job.messages), job.writers
    if not messages or refusal(plan, messages, writers=writers, tables=tables) is not None:
        return
    first, last = messages[0], messages[-1]
    wrong = {
        "another epoch's": [replace(first, epoch=first.epoch + 1), *messages[1:]],
        "one too few": messages[1:],
        "one twice": [*messages, first],
    }
    if len(messages) > 1 and first.files:
        wrong["a file twice"] = [*messages[:-1], replace(last, files=first.files)]
    for what, answers in wrong.items():
        if refusal(plan, answers, writers=writers, tables=tables) is None:
            raise Violation(f"not refused: answers of a job, {what}")
