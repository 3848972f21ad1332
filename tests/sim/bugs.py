"""Bugs that were thought of, planted in the machines or in a driver, to see that an oracle catches each."""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

from snowmelt.commit import cleaning, listeners, notices, publish
from snowmelt.commit.cleaning import CleaningView
from snowmelt.commit.coordinator import Coordinator, Stage
from snowmelt.commit.ledger import Ledger
from snowmelt.commit.listeners import Reached
from snowmelt.commit.notices import ListenerProgress, Notice
from snowmelt.commit.publish import LastCommit
from snowmelt.commit.records import Entry, Intent, StagedFor, StagedName
from snowmelt.driving import boot, committing, entries, letting_go, listening, loading, sharing
from snowmelt.driving.committing import CommitEntries, TellListeners, WinIntent
from snowmelt.driving.sharing import LogShare
from snowmelt.driving.steps import NewestGeneration, Request
from snowmelt.driving.steps import Steps as Moved
from snowmelt.errors import Fenced, OutcomeUnknown, Unavailable
from snowmelt.maintenance import compaction, expiry, publishing
from snowmelt.maintenance.expiry import GoingFiles
from snowmelt.maintenance.files import TableHistory
from snowmelt.maintenance.publishing import RewritePast
from snowmelt.model import sequence
from snowmelt.model.position import Position
from snowmelt.planning import epochs as planning
from snowmelt.planning.epochs import Adopting, EpochPlan, Rule
from snowmelt.planning.facts import Adopted, Durable, GivenBack, Reported
from snowmelt.planning.tables import Copy, Reading, Table, TablePhase, Tables
from snowmelt.relay import retention
from snowmelt.relay.retention import Prepared, Relay
from snowmelt.relay.takeover import Waiting
from tests.kit.emitting import emits
from tests.sim import lanes, tasks, upkeep
from tests.sim.database import Change
from tests.sim.driver import Driver
from tests.sim.lake import Row
from tests.sim.noticing import HOOK, Caller
from tests.sim.store import Steps, move
from tests.sim.tasks import Job
from tests.sim.world import World


class AdoptsAtTheIntent(Driver):
    """Whatever was read by the time of the intent is adopted, although the log tasks have dropped its changes."""

    def offer(self, job: Job) -> Steps[bool]:
        plan = job.plan
        planned = {(fact.incarnation, fact.ordinal) for fact in plan.facts if isinstance(fact, Adopted)}
        late = []
        for reading in self.ledger.tables.readings():
            report = reading.report
            if report is not None and report.high <= plan.upto and (report.incarnation, report.ordinal) not in planned:
                visible = reading.launch.visible
                late.append(
                    Adopted(
                        incarnation=report.incarnation,
                        ordinal=report.ordinal,
                        nonce=report.nonce,
                        visible=visible,
                        high=report.high,
                        extent=report.extent,
                    )
                )
        job.plan = replace(plan, facts=(*plan.facts, *late))
        return (yield from super().offer(job))


class ReadsAgainFromTheLaunch(Driver):
    """The adopting epoch emits from where the log lane stood at the launch, not from `V`."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.stood: dict[int, int] = {}

    def launch(self) -> Steps[None]:
        before = self.jobs
        yield from super().launch()
        for job in range(before + 1, self.jobs + 1):
            self.stood[job] = self.ledger.upto

    def plan_epoch(self, upto: int, proposals: list[Durable]) -> EpochPlan:
        plan = super().plan_epoch(upto, proposals)
        rules = {}
        for name, rule in plan.rules.items():
            adopting = tuple(replace(one, visible=max(one.visible, self.stood.get(one.reading.job, 0))) for one in rule.adopting)
            rules[name] = replace(rule, adopting=adopting)
        return replace(plan, rules=rules)


class GivesUpWaiting(Driver):
    """A driver ends where the one before it does not end within a minute: it is paused, and ends when it goes on."""

    def decide_wait(self, **waiting: Any) -> Waiting:
        if waiting["waited_ms"] > 60_000:
            raise Fenced("another driver of this pipeline does not end")
        return super().decide_wait(**waiting)


class HoldsNothing(Driver):
    """Others may expire the snapshot that tells of an epoch before that is done."""

    def hold(self, entry: Entry) -> Steps[None]:
        yield


class SharesByRows(Driver):
    """Of a transaction that several tasks have each writes some rows, whatever their keys are."""

    def is_mine(self, share: LogShare, change: Change, number: int) -> bool:
        return number % share.parts == share.part


class WritesAll(Driver):
    """Each task of a transaction that several have writes all of it."""

    def is_mine(self, share: LogShare, change: Change, number: int) -> bool:
        return True


class JudgesByTheOldKey(Driver):
    """An UPDATE of the key is judged as one change, by the chunk where its row was."""

    def judged_by(self, change: Change) -> int:
        return change.key if change.came_from is None else change.came_from


class TellsOnce(Driver):
    """Who rolls an older driver's intent forward takes it that the listeners were told."""

    def act(self, request: Request[Any]) -> Steps[Any]:
        if isinstance(request, TellListeners) and request.step.intent.generation < self.generation:
            yield
            return request.step.state
        return (yield from super().act(request))


class CleansWhileOpen(Driver):
    """Staged files are judged before the open intent is committed, and its files are not named.

    The steps have a guard against each of the two: they judge once an epoch is done, and they name the files of an intent that is
    open. One of them is enough, so that a bug takes both away.
    """

    def act(self, request: Request[Any]) -> Steps[Any]:
        if isinstance(request, CommitEntries):
            assert self.machines is not None
            standing = yield from move(letting_go.stand(self.machines), self.act)
            unnamed = replace(standing, named=frozenset())
            for work in request.works:
                self.world.spawn(None, move(letting_go.sweep(work.entry.target, unnamed), self.act_in_lake), "sweep")
        return (yield from super().act(request))


def end_of_the_log(relay: Relay, shown: Position) -> int | None:
    return relay.cut_at_or_below(relay.end)


def statements_share(tables: Tables, relay: Relay, after: int, bytes_max: int) -> int:
    """An epoch takes statements as they come, with rows before one that empties and behind one that reshapes."""
    first = relay.next_cut(after)
    return after if first is None else max(first, relay.cut_at_or_below(after + bytes_max) or first)


def chunk_files_go(name: StagedName, standing: CleaningView) -> bool:
    """A chunk's files are judged like an epoch's: an intent exists that does not name them."""
    return str(name) not in standing.named and (name.waits_for is StagedFor.CHUNK or name.number <= standing.epoch)


def open_files_go(name: StagedName, standing: CleaningView) -> bool:
    """What an older driver staged for the epoch that is open goes when a newer one takes over."""
    if name.waits_for is StagedFor.EPOCH and name.generation < standing.generation:
        return str(name) not in standing.named and name.number <= standing.epoch + 1
    return deletable(name, standing)


deletable = cleaning.deletable


class IgnoresOlderReports(Driver):
    """Who rolls an older driver's intent forward does not believe in its chunks."""

    def boot(self) -> Steps[None]:
        def apply_intent(ledger: Ledger, intent: Intent) -> None:
            if self.machines is not None or intent.epoch in self.world.dones or intent.generation >= self.generation:
                return applied(ledger, intent)
            facts = tuple(fact for fact in intent.facts if not isinstance(fact, Adopted))
            return applied(ledger, replace(intent, facts=facts))

        applied = Ledger.apply_intent
        booting = super().boot()
        while True:
            with mock.patch.object(Ledger, "apply_intent", apply_intent):
                try:
                    next(booting)
                except StopIteration:
                    return
            yield


class LetsGoAtTheIntent(Driver):
    def act(self, request: Request[Any]) -> Steps[Any]:
        if isinstance(request, WinIntent):
            intent, relay = request.intent, self.relay
            relay.raise_floor(relay.decide_floor(intent.upto, self.ledger.tables.lowest_visible()))
            for sealed in (gone := relay.deletable(intent.segment)):
                yield from self.world.store.delete_data(sealed.name)
            relay.forget(gone)
        return (yield from super().act(request))


def floor_of_done(relay: Relay, done_upto: int, lowest_visible: int | None) -> int:
    return max(relay.floor, done_upto)


def prepared_in_what_is_held(relay: Relay) -> tuple[Prepared, ...]:
    """What is prepared is forgotten with its segment."""
    return tuple(group for group in PREPARED(relay) if any(one.first < group.offset <= one.last for one in relay.segments))


PREPARED: Callable[[Relay], tuple[Prepared, ...]] = Relay.prepared.fget  # type: ignore[attr-defined]


def over_when_decided(relay: Relay) -> list[Prepared]:
    """What lies aside goes as soon as the log says what became of it."""
    return [decided.group for sealed in relay.segments for decided in sealed.decided if decided.aside]


def time_of_the_log(relay: Relay, offset: int, now_ms: int) -> int | None:
    return relay.time_at(offset)


class AsksOnce(Driver):
    """Whether the epoch is there is asked before the first try, and not again."""

    def commit_table(self, intent: Intent, entry: Entry) -> Steps[int]:
        world, lake = self.world, self.world.lakes[entry.target]
        view = yield from world.faulty.read(lambda: lake.view(entry.base, entry.files))
        if isinstance(verdict := publish.judge(intent, entry, view), publish.EpochInLake):
            return verdict.snapshot
        while True:
            on = yield from world.faulty.read(lambda: lake.newest)
            try:
                if (yield from self.publish(intent, entry, on)):
                    break
            except (Unavailable, OutcomeUnknown):
                continue
        while publish.judge_schema(entry, *(yield from world.faulty.read(lambda: (lake.schema, lake.shape)))):
            lake.alter(entry.schema, entry.new_schema or 0, entry.shape)
        return on + 1


class CommitsAgain(Driver):
    """A lost reply is taken for a lost request."""

    def publish(self, intent: Intent, entry: Entry, on: int) -> Steps[bool]:
        lake = self.world.lakes[entry.target]
        while True:
            try:
                return (yield from super().publish(intent, entry, on))
            except (Unavailable, OutcomeUnknown):
                on = yield from self.world.faulty.read(lambda: lake.newest)


class PlansFromTheJob(Driver):
    """The next epoch is planned from what was staged, before it is known whose intent won."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.hoped: Ledger | None = None

    def offer(self, job: Job) -> Steps[bool]:
        taken = yield from super().offer(job)
        if taken:
            self.hoped = copy.deepcopy(self.ledger)
            self.hoped.open = None
            self.hoped.apply_intent(self.coordinator._offered[0])
        return taken

    def plan_epoch(self, upto: int, proposals: list[Durable]) -> EpochPlan:
        machine, ledger = self.coordinator, self.ledger
        if self.hoped is None or machine.stage not in (Stage.ASKING, Stage.READING_BACK):
            return super().plan_epoch(upto, proposals)
        machine.ledger = self.hoped
        try:
            return super().plan_epoch(planning.choose_end(self.hoped.tables, self.relay, self.hoped.upto, 12), proposals)
        finally:
            machine.ledger = ledger


def may_plan(machine: Coordinator) -> bool:
    return machine.stage in (Stage.ASKING, Stage.READING_BACK) or PLANS(machine)


PLANS: Callable[[Coordinator], bool] = Coordinator.may_plan.fget  # type: ignore[attr-defined]


def offer(machine: Coordinator, intent: Intent, follows: str) -> bool:
    return OFFERS(machine, intent, machine.ledger.identity)


OFFERS = Coordinator.offer


class TrustsItsGeneration(Driver):
    def act(self, request: Request[Any]) -> Steps[Any]:
        if isinstance(request, NewestGeneration):
            yield
            return self.generation
        return (yield from super().act(request))


class StartsUnasked(Driver):
    """Whether it is still the newest is not asked after the records were loaded."""

    def act(self, request: Request[Any]) -> Steps[Any]:
        if isinstance(request, NewestGeneration) and self.machines is None:
            yield
            return self.generation
        return (yield from super().act(request))


def statements_pass(tables: Tables, relay: Relay, reading: Reading, report: Reported, **others: int) -> bool | GivenBack:
    """Nobody looks whether the table was changed as a whole while it was read."""
    with mock.patch.object(Relay, "statements", return_value=[]):
        return JUDGES(tables, relay, reading, report, **others)


JUDGES = planning.judge_reading


class DoubtsSecondPhases(Driver):
    """Of a second phase it is never believed that a read has it. So it comes again; what the read has of later changes does not."""

    def covered(self, number: int, position: Position) -> Callable[[Adopting], bool]:
        if any(one.decides for one in self.world.db.log if one.number == number):
            return lambda adopting: False
        return super().covered(number, position)


def load_and_forget() -> Moved[Ledger]:
    """A driver that starts takes a table that is set aside for one that is live."""
    ledger = yield from LOADS()
    for table in ledger.tables:
        if table.phase is TablePhase.SET_ASIDE:
            table.phase, table.aside = TablePhase.RELEASED, None
    return ledger


LOADS = boot.load


def lives_on(table: Table) -> bool:
    return table.phase is TablePhase.SET_ASIDE or LIVE(table)


LIVE = Table.live.__get__


def rests_while_read_again(table: Table) -> bool:
    return LIVE(table) and (table.copy is None or not table.copy.replaces)


def emits_behind_the_read(rule: Rule, *, offset: int, adopting: Adopting | None, **others: Any) -> bool:
    if adopting is not None and adopting.replaces:
        return offset > adopting.visible
    return emits(rule, offset=offset, adopting=adopting, **others)


def reached_before(ledger: Ledger, committed: Mapping[str, int]) -> dict[str, Reached]:
    return REACHED(ledger, {})


REACHED = Ledger.decide_reached


def taken_when_given(caller: Caller, notice: Notice) -> dict[str, ListenerProgress]:
    GIVE(caller, notice)
    return {HOOK: ListenerProgress(notice.epoch)}


GIVE = Caller.give


def asks_the_mark(rule: Rule, *, keyed: bool, **others: Any) -> bool:
    return emits(rule, keyed=False, **others)


def rewritten(function: Callable[..., Any], old: str, new: str) -> Callable[..., Any]:
    """A function that ships, with one text of its source in place of another."""
    source = inspect.getsource(function)
    assert source.count(old) == 1, (function, old)
    names = dict(vars(sys.modules[function.__module__]))
    exec(compile("from __future__ import annotations\n" + source.replace(old, new), f"<{function.__name__}, planted>", "exec"), names)
    return names[function.__name__]  # type: ignore[no-any-return]


def planted(owner: Any, name: str, old: str, new: str, *, user: Any = None, hint: int = 0) -> Bug:
    """`user`: the module that imports the function by its name, where that is not its own."""
    return Bug(rewrites=((user or owner, name, getattr(owner, name), old, new),), hint=hint)


def later_wins(row: Row, other: Row) -> bool:
    return True


def carries_nothing(marker: LastCommit | None) -> None:
    return None


def nobody_fences(past: RewritePast, files: Iterable[str], generation: int) -> str:
    return ""


def forgets_what_was_lifted(going: GoingFiles, number: int, *, brought: Set[str], removed: Mapping[str, int]) -> None:
    COMMITS(going, number, brought=frozenset(), removed=removed)


COMMITS = GoingFiles.commit


def marked_goes(function: Callable[..., Any]) -> Callable[..., Any]:
    """An expiry that takes no snapshot for one of ours."""

    def asked(history: TableHistory, *others: Any, **more: Any) -> Any:
        snapshots = tuple(replace(facts, epoch=None) for facts in history.snapshots)
        return function(replace(history, snapshots=snapshots), *others, **more)

    return asked


@dataclass(frozen=True)
class Bug:
    driver: type[Driver] = Driver
    patches: tuple[tuple[Any, str, Any], ...] = field(default=())
    rewrites: tuple[tuple[Any, str, Callable[..., Any], str, str], ...] = field(default=())
    """Functions with one text of their source in place of another. Looked up when the bug is planted, so that a mutant of the same line
    is no reason why this file can't be loaded."""
    hint: int = 0
    """A seed near which it was seen: the search begins there."""

    @contextmanager
    def planted(self) -> Iterator[type[Driver]]:
        with ExitStack() as stack:
            for owner, name, value in self.patches:
                stack.enter_context(mock.patch.object(owner, name, value))
            for owner, name, function, old, new in self.rewrites:
                stack.enter_context(mock.patch.object(owner, name, rewritten(function, old, new)))
            yield self.driver


def judged_by(deletable: Callable[[StagedName, CleaningView], bool]) -> Bug:
    return Bug(patches=((cleaning, "deletable", deletable), (letting_go, "deletable", deletable)))


BUGS = {
    "adoption decided at the intent": Bug(AdoptsAtTheIntent),
    "low end at the launch's s instead of V": Bug(ReadsAgainFromTheLaunch),
    "end of log taken as visible": Bug(patches=((planning, "visible_cut", end_of_the_log),)),
    "statements share an epoch with rows between them": Bug(patches=((planning, "choose_end", statements_share),)),
    "chunk file cleaned and adopted later": Bug(
        patches=(
            (cleaning, "deletable", chunk_files_go),
            (letting_go, "deletable", chunk_files_go),
        )
    ),
    "files of the open epoch cleaned": Bug(
        patches=(
            (cleaning, "deletable", open_files_go),
            (letting_go, "deletable", open_files_go),
        )
    ),
    "file deleted that a won intent names": Bug(patches=((cleaning.Leftovers, "won", lambda leftovers, intent: None),)),
    "no _seq": Bug(patches=((sequence, "of_change", lambda offset: 0), (sequence, "of_chunk", lambda visible: 0))),
    "reports of an older generation in an intent ignored": Bug(IgnoresOlderReports),
    "release at the intent instead of at done": Bug(LetsGoAtTheIntent),
    "release of log without coverage": Bug(patches=((Relay, "decide_floor", floor_of_done),)),
    "release of metadata without coverage": Bug(patches=((Copy, "finished", property(lambda copy: copy.complete)),)),
    "watermark of a time that is still to come": Bug(patches=((Relay, "committed_by", time_of_the_log),)),
    "filter asked before instead of inside each commit try": Bug(AsksOnce),
    "re-commit after a lost reply": Bug(CommitsAgain),
    "next epoch planned from a job instead of from the won intent": Bug(
        PlansFromTheJob, ((Coordinator, "may_plan", property(may_plan)), (Coordinator, "offer", offer))
    ),
    "prepared transaction forgotten with its segment": Bug(patches=((Relay, "prepared", property(prepared_in_what_is_held)),)),
    "prepared transaction let go of when it is decided": Bug(patches=((Relay, "over", property(over_when_decided)),)),
    "second phase emitted again without what follows it": Bug(DoubtsSecondPhases, patches=((tasks, "emits", asks_the_mark),)),
    "table set aside that still writes": Bug(patches=((Table, "live", property(lives_on)),)),
    "table set aside forgotten at a restart": Bug(patches=((boot, "load", load_and_forget),)),
    "generation not re-read after a won intent": Bug(TrustsItsGeneration),
    # Not asked for, but found or feared while the machines were written.
    "generation not re-read after a start": Bug(StartsUnasked),
    "chunk adopted across a statement": Bug(patches=((planning, "judge_reading", statements_pass),)),
    "snapshots published without a hold on them": Bug(HoldsNothing),
    "takeover given up while the older driver is paused": Bug(GivesUpWaiting),
    # In the order of steps that ships (`snowmelt.driving`).
    "boot: the state is loaded before the generation is taken": planted(
        boot, "boot", "    ledger = yield from load()\n", "    ledger = before\n"
    ),
    "boot: the chain is taken over without the record that the newest intent ends in": planted(
        loading, "take_over_log", "needs_before(chain, ledger.upto)", "False", user=boot
    ),
    "boot: a chain that has nothing after the newest intent's record is taken for empty": planted(
        loading, "take_over_log", "if ledger.segment and needs_before", "if ledger.segment and chain and needs_before", user=boot
    ),
    "entries: a table that is set aside gets the columns of its source": planted(
        entries, "targets_of", "if fact.incarnation.table in untouched:", "if False:"
    ),
    "entries: a table that is made anew is not emptied": planted(entries, "_begin_anew", "if one.keyed and holds:", "if False:"),
    "entries: a table that is truncated is not emptied": planted(
        entries, "targets_of", "(str(incarnation.table),) if one.keyed else ()", "()"
    ),
    "entries: what a chunk's read staged is left out": planted(committing, "build", "one.files += rows.files", "pass"),
    "commit: a job is offered of which something is missing": planted(
        committing, "offer", "    if refused is not None:\n        return refused\n", ""
    ),
    "listeners: not told of an epoch that is rolled forward": Bug(TellsOnce),
    "listeners: a tag that could not be made is forgotten": planted(listening, "_tag", ".difference(made)", ".difference(step.reached)"),
    "listeners: their state is thrown away": planted(
        committing,
        "step",
        "ListenersRan((yield from TellListeners(listeners)))",
        'ListenersRan((yield from TellListeners(listeners)) and "")',
    ),
    "listeners: a driver that begins does not look what is owed": planted(
        listening, "remind", "    if ledger.open is None:", "    if False:"
    ),
    "listeners: what was given counts as taken": Bug(patches=((Caller, "give", taken_when_given),)),
    "listeners: the notice of an epoch that brings nothing is not kept": planted(
        notices, "decide_notice", "return decide_reminder(before, reached)", "return None", user=listening
    ),
    "listeners: an hour has its tag before it is over": planted(
        listeners, "decide_tags", "end = table.watermark_ms -", "end = length + table.watermark_ms -", user=listening
    ),
    "listeners: a tag names the snapshot before the epoch's": Bug(patches=((Ledger, "decide_reached", reached_before),)),
    # Of what a database and its log really do.
    "large transaction: rows of a key are written by several tasks": Bug(SharesByRows),
    "large transaction: every task writes all of it": Bug(WritesAll),
    "large transaction: tasks are told of parts that no task has": planted(
        sharing, "shares_of", "for part in range(parts)]", "for part in range(1)]"
    ),
    "log job: what the epochs before have passed is not read again": planted(
        sharing, "divide", "[LogWork(share, again) for share in", "[LogWork(share, {}) for share in", user=lanes
    ),
    "log job: nobody writes that a change table was emptied": planted(
        sharing, "divide", "[LogWork(first.share, first.rules, emptied)]", "[first]", user=lanes
    ),
    "prepared transaction: its tables were replaced before its COMMIT, and keep its rows": Bug(
        patches=((retention, "_moved", lambda group, statements, before: group),)
    ),
    "key change: judged by the old key alone": Bug(JudgesByTheOldKey),
    "table read again: nothing is emitted meanwhile": Bug(patches=((Table, "live", property(rests_while_read_again)),)),
    "table read again: what comes before its reads is not emitted": Bug(patches=((tasks, "emits", emits_behind_the_read),), hint=400),
    "table read again: its reads win over what is later": Bug(patches=((sequence, "of_chunk", lambda visible: 2 * visible + 41),)),
    "let go: before the done record": planted(
        committing,
        "step",
        "            machine.apply(DonePut(",
        "            yield from let_go(machines, leftovers)\n            machine.apply(DonePut(",
    ),
    "let go: of log that a chunk's read needs": planted(letting_go, "let_go_of_log", "        needed.append(visible)\n", "        pass\n"),
    "let go: of log that a job reads": planted(letting_go, "let_go_of_log", "[*(yield from AskUnderWay()).reads_from]", "[]"),
    "let go: records up to the newest summary": planted(letting_go, "sum_up", "number + 2 - SUMMARIES_KEPT", "number + 1"),
    "cleaning: a sweep does not ask what the lake refers to": planted(
        letting_go, "sweep", "standing.named | (yield from ListReferenced(target))", "standing.named"
    ),
    "cleaning: files are judged while their intent is open, which is not asked for their names": Bug(CleansWhileOpen),
    "cleaning: a chunk under way is not": planted(
        letting_go, "stand", "{reading.launch.job for reading in ledger.tables.readings()}", "set()"
    ),
    "cleaning: data of segments that are held goes": planted(
        letting_go, "sweep_log", "min(held[0].number, done) if held else 0", "held[-1].number + 1 if held else 0"
    ),
    # Of maintenance (`snowmelt.maintenance`).
    "compaction: _seq is ignored": Bug(patches=((upkeep, "wins", later_wins),), hint=179),
    "compaction: a delete is dropped while an older run may have its row": planted(
        compaction, "_merge", "drops_deletes=taken == len(runs)", "drops_deletes=True", hint=9
    ),
    "compaction: our marker is lost": Bug(patches=((upkeep, "carried", carries_nothing),)),
    "compaction: published over a TRUNCATE": planted(
        publishing, "misplaced", "    if not inputs <= {file.name for file in there}:", "    if False:", hint=14
    ),
    "compaction: published by a zombie after a takeover": Bug(patches=((publishing, "fenced", nobody_fences),), hint=92),
    "compaction: a lost reply is taken for a give-up": planted(
        publishing, "look_back", "elif note.rewrite == rewrite:", "elif False:", hint=87
    ),
    "compaction: the output has the level of files with the same keys": Bug(
        rewrites=(
            (compaction, "_merge", compaction._merge, "runs[taken].level - 1", "runs[taken].level"),
            (publishing, "misplaced", publishing.misplaced, "if any(_overlap(file, other)", "if False and any(_overlap(file, other)"),
        ),
        hint=9,
    ),
    "expiry: files of a tag go": Bug(patches=((GoingFiles, "tags_to_ask", lambda going, tags: set()),)),
    "expiry: our newest snapshot goes": Bug(
        patches=(
            (expiry, "plan_expiry", marked_goes(expiry.plan_expiry)),
            (expiry, "count_removable", marked_goes(expiry.count_removable)),
        ),
        hint=74,
    ),
    "expiry: files go that a later snapshot has on another level": Bug(patches=((GoingFiles, "commit", forgets_what_was_lifted),), hint=15),
    "cleaning: an orphan may be named by an open intent": Bug(patches=((upkeep, "may_be_named", lambda name, view: False),), hint=7),
    "cleaning: what waits to be published is not asked for": Bug(
        rewrites=(
            (letting_go, "stand", letting_go.stand, "rewrites=asked.rewrites", "rewrites=type(asked.rewrites)(asked.rewrites.newest)"),
        ),
        hint=206,
    ),
}
