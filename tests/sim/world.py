"""The simulated world: one seed, a virtual clock, everything that can happen, and the oracles beside it.

In it live a model database, a store, a lake, and drivers with their captures, tasks and commits. In each step one of them goes on
by a step or a few, or something happens to them: a transaction, a statement, a fail-over, a compaction, a crash, a pause after
which a driver goes on as a zombie. The second part of a run is quiet: no more faults, and whatever the first part left must come
to its end.

The oracles know what no driver does: the whole log, what each read contained, which record was first. They fold the intents by
rules of their own.
"""

from __future__ import annotations

import zlib
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from snowmelt.commit.cleaning import CleaningView
from snowmelt.commit.coordinator import Stage
from snowmelt.commit.publish import NOT_KNOWN
from snowmelt.commit.records import Done, Entry, Intent, StagedFor, StagedName
from snowmelt.driving import letting_go
from snowmelt.errors import Corrupt, Fenced, InvariantBroken, SnowmeltError, SourceDrift
from snowmelt.model.table import TableId
from snowmelt.planning.epochs import Span
from snowmelt.planning.facts import OUTSIDE, Adopted, Found, Gone, KeyEnds, Reborn, Recopied, Reshaped, SetAside, Split, Truncated
from snowmelt.planning.tables import TablePhase
from snowmelt.relay.retention import Effect, Relay, SegmentRecord
from tests.sim.attempts import Attempts
from tests.sim.care import Care
from tests.sim.database import STEP_MS, Database, Read, Transaction, rows_of
from tests.sim.driver import Driver
from tests.sim.foreign import Foreign
from tests.sim.lake import LakeTable, Violation
from tests.sim.listening import Tags
from tests.sim.noticing import Hook
from tests.sim.shared import Shared
from tests.sim.store import Faulty, Steps, Store, T, move

A, B, C, D = (TableId("db", name) for name in "abcd")
TARGETS = {A: "a", B: "b", C: "c", D: "d"}
"""`c` is append-only. A lake table has one source, but in some worlds (`World.shared`)."""
BEGIN_MS = 1_800_000_000_000
QUIET_STEPS_MAX = 30_000
PAUSES = (20, 100, 400)
"""Of a driver, in steps, each of which is a second to it: some outlast every time-out."""


@dataclass(frozen=True, slots=True)
class Profile:
    """How hostile this world is."""

    tables: tuple[TableId, ...]
    keys: int
    steps: int
    marks: str
    """What a read tells of itself: `sets` of transactions, exact, as PostgreSQL does; `positions`, exact, as MariaDB; `gtids`, which
    leave something open, as MySQL."""
    faults: float
    task_failure: float
    give_back: float
    crash: float
    pause: float
    spite: float
    """Pauses right when something has become true."""
    statements: float
    two_phases: float
    """Transactions that are prepared, and committed or rolled back some time later."""
    fail_over: float
    compact: float
    foreign_expiry: bool
    stuck: float
    """A task that says of one table that it can't go on."""
    breaks: float
    """Statements that change rows and leave the log without them, among all statements."""
    ask: float
    """How many drivers are started by somebody who asks for what is set aside."""
    exclude: float
    """A table that is set aside is excluded and included again."""
    trim: float
    show: float
    """How soon what is logged becomes visible."""
    epoch_bytes: int
    running_max: int
    burst: int
    """How many steps one of them goes on before another has its turn."""


def draw(rng: Random) -> Profile:
    """A world of some kind. Each danger is absent from some worlds, so that it does not hide another one."""

    def some(rate: float, often: float = 0.5) -> float:
        return rate * rng.uniform(0.5, 2) if rng.random() < often else 0.0

    return Profile(
        tables=rng.choice(((A,), (A,), (A, B), (A, B), (C,), (A, C), (A, B, D))),
        keys=rng.choice((4, 6, 8)),
        steps=rng.choice((800, 1600, 2400)),
        marks=rng.choice(("sets", "positions", "gtids")),
        faults=some(0.08),
        task_failure=some(0.08),
        give_back=some(0.02),
        crash=some(0.003),
        pause=some(0.006),
        spite=some(0.04),
        statements=some(0.03),
        two_phases=some(0.2, 0.4),
        fail_over=some(0.006, 0.3),
        compact=some(0.03),
        foreign_expiry=rng.random() < 0.1,
        stuck=some(0.1),
        breaks=some(0.3),
        ask=rng.choice((0.0, 0.3, 0.9)),
        exclude=some(0.005, 0.2),
        trim=rng.choice((0.0, 0.2, 0.9)),
        show=rng.choice((0.02, 0.08, 0.2)),
        epoch_bytes=rng.choice((4, 12, 40)),
        running_max=rng.choice((1, 3, 6)),
        burst=rng.choice((1, 4, 12)),
    )


@dataclass(slots=True)
class Truth:
    """What the intents have made true of a table, by the oracles' own count."""

    incarnation: int
    since: int = 0
    past: Counter[tuple[int, int | None, str]] = field(default_factory=Counter)
    """Of a change table: what the lake had of it before it was emptied or made anew, and the row that says so."""
    extent: KeyEnds | None = None
    uppers: list[int] = field(default_factory=list)
    adopted: dict[int, str | None] = field(default_factory=dict)
    """Which keys the lake has, and from which read; None: from the log alone."""
    gone: bool = False
    recopying: bool = False
    """Its rows were rewritten, and not all of them were read again."""
    begun: int = 0
    """Where this incarnation began, or its last copy."""
    adopted_in: int = 0
    """The last epoch that adopted a chunk."""
    high: int = 0
    """Up to where the log the adopted reads show something of it."""
    read_again: set[int] = field(default_factory=set)
    aside: tuple[bytes, list[tuple[Any, ...]]] | None = None
    """What the lake had of it when it was set aside, and has to have until it comes back."""


@dataclass(slots=True)
class Actor:
    driver: Driver | None
    name: str
    steps: Generator[None, None, Any]


class World:
    def __init__(self, seed: int, driver: Callable[[World], Driver] = Driver) -> None:
        self.seed = seed
        self.rng = rng = Random(seed)
        self.profile = draw(rng)
        self.shared = Shared.some(self)
        self.targets = TARGETS if self.shared is None else TARGETS | {B: "a"}
        self.driver = driver
        self.clock = 0
        self.trace = 0
        self.told: list[str] | None = None
        """The trace in words, if somebody wants to read it."""
        self.late: list[Callable[[], object]] = []
        self.faulty = Faulty(rng, self.profile.faults, self.late)
        self.store = Store(self.faulty, self.won)
        self.db = Database(rng, list(self.profile.tables), self.profile.keys, self.profile.marks == "positions")
        chance = Random(f"large {seed}")
        self.db.large = chance if chance.random() < 0.4 else None
        self.share_bytes_min = chance.choice((1, 4, 20))
        """Less than this of the log is not worth a task of its own."""
        self.db.keeps_locks = chance.random() < 0.6
        self.db.begin()
        self.db.renames = self.shared is None
        names = sorted({self.targets[table] for table in self.profile.tables})
        self.lakes = {name: LakeTable(name, name != "c", rng, lambda: self.time_ms) for name in names}
        self.actors: list[Actor] = []
        self.drivers: list[Driver] = []
        # Of a chance of its own, so that each seed's other dangers stay what they are.
        self.in_folder = Random(f"folder {seed}").random() < 0.3
        """Whether the log is kept in a folder, which has one owner at a time; else in a bucket, which has no lock."""
        self.folder_owner: Driver | None = None
        self.rude = Random(f"rude {seed}").random() < 0.3
        """Whether others expire what a consumer holds."""
        chance = Random(f"maintained {seed}")
        self.maintained = chance if chance.random() < 0.2 else None
        """Others compact and expire right behind some publishes, and every driver dies there."""
        chance = Random(f"ripe {seed}")
        self.ripe = chance if chance.random() < 0.2 and self.shared is None else None
        """Every table is live before anything bad happens, and changed as a whole now and then: in a hostile world few become live."""
        chance = Random(f"full {seed}")
        self.full = chance if chance.random() < 0.3 else None
        """The log's disk is full now and then."""
        self.early = Random(f"early {seed}").random() < 0.2 and C not in self.profile.tables
        """Reads are adopted that show more than the epoch's end, of a keyed table, whose log makes good for it later. Release is the
        second guard: it waits for the log."""
        self.eager = Random(f"eager {seed}").random() < 0.3 and self.profile.statements == 0.0 and self.full is None
        """Epochs are planned from an intent that is asked for. What was planned from one that lost is the second guard's to drop."""
        if self.early:
            # The log lags, and little keeps chunks from being read while it does.
            rare = {"task_failure": 0.0, "give_back": 0.0, "stuck": 0.0, "statements": 0.0}
            self.profile = replace(self.profile, epoch_bytes=1, trim=0.9, running_max=6, show=0.2, **rare)
        self.attempts = Attempts.some(self)
        self.foreign = Foreign.some(self)
        self.care = Care.some(self)
        if self.care is not None and self.ripe is None and self.shared is None:
            self.ripe = self.care.wants_ripe()
        self.nonces = 0
        self.reads: dict[str, Read] = {}
        self.segment_numbers: dict[str, int] = {}
        self.stopped = ""
        """Why the pipeline stopped for good, where a world may make it."""
        # What the oracles know.
        self.generation = 0
        self.log: list[tuple[int, Transaction]] = []
        """The log as the relay has it, by offset."""
        self.offsets: list[int] = []
        self.sealed: set[int] = set()
        self.intents: dict[int, Intent] = {}
        self.dones: dict[int, Done] = {}
        self.truths: dict[TableId, Truth] = {}
        self.published: dict[tuple[str, int], str] = {}
        self.tags = Tags(self)
        self.hook = Hook(self)
        self.watermarks: dict[str, int] = {}
        self.claimed: dict[int, dict[str, int]] = {}
        self.asked: set[tuple[int, TableId]] = set()
        """Requests that were heard, by generation and table."""
        self.counts: Counter[str] = Counter()

    # ---- running

    def run(self) -> None:
        """Live through the seed. An oracle that is not content raises `Violation`."""
        self.start_driver()
        profile, rng, full = self.profile, self.rng, self.full
        if self.ripe is not None:
            for _ in range(2 * self.db.keys):
                self.db.write(self.time_ms)
                self.db.show()
            self.calm_down()
            self.come_to_rest()
            self.profile, self.faulty.rate, self.full = profile, profile.faults, full
        for _ in range(profile.steps):
            if self.stopped:
                return
            self.clock += 1
            chance = rng.random()
            if chance < 0.72:
                self.go_on()
            else:
                self.happen(rng.random())
        self.calm_down()
        # Half of the worlds end with somebody who asks for all that is set aside; in the others it stays so.
        self.profile = replace(self.profile, ask=0.0 if self.shared is not None else rng.choice((0.0, 1.0)))
        for driver in self.drivers:
            driver.paused_until = 0
        self.end_quietly()

    def calm_down(self) -> None:
        self.faulty.rate, self.full = 0.0, None
        self.profile = replace(
            self.profile, task_failure=0.0, give_back=0.0, spite=0.0, stuck=0.0, exclude=0.0, epoch_bytes=1000, running_max=6
        )

    def happen(self, chance: float) -> None:
        profile, rng, db = self.profile, self.rng, self.db
        if chance < 0.25:
            db.write(self.time_ms, prepare=rng.random() < profile.two_phases)
        if rng.random() < profile.two_phases * 0.2:
            db.decide(self.time_ms)
        if chance < profile.show * 4:
            db.show()
        if rng.random() < profile.statements:
            others = (Effect.EMPTIES, Effect.EMPTIES, Effect.REWRITES, Effect.RESHAPES, Effect.DROPS, Effect.MAKES, Effect.MAKES)
            db.state(Effect.BREAKS if rng.random() < profile.breaks else rng.choice(others), self.time_ms)
        if self.ripe is not None and self.ripe.random() < 0.01:
            self.change_one_that_is_live()
        if self.shared is not None:
            self.shared.happen()
        if self.attempts is not None:
            self.attempts.happen()
        if rng.random() < 0.01:
            db.rotate()
        if rng.random() < profile.fail_over:
            self.say("fail-over")
            db.fail_over()
        if self.late and rng.random() < 0.1:
            self.late.pop(rng.randrange(len(self.late)))()
        if rng.random() < profile.compact:
            self.maintain()
        if rng.random() < profile.crash * 4:
            self.crash()
        if rng.random() < profile.pause * 4:
            self.pause()
        if not self.drivers or rng.random() < 0.002:
            self.start_driver()

    def go_on(self) -> None:
        """One actor goes on by one step."""
        ready = [actor for actor in self.actors if actor.driver is None or actor.driver.paused_until <= self.clock]
        if ready:
            actor = self.rng.choice(ready)
            for _ in range(1 + int(self.rng.random() * self.profile.burst)):
                if not self.step(actor) or (actor.driver is not None and (actor.driver.dead or actor.driver.paused_until > self.clock)):
                    break

    def step(self, actor: Actor) -> bool:
        """False: the actor has come to its end."""
        try:
            next(actor.steps)
            return True
        except StopIteration:
            self.actors.remove(actor)
        except Fenced as error:
            if self.foreign is not None and self.foreign.expects(error):
                self.stopped = str(error)
                return False
            self.say(f"fenced {actor.driver and actor.driver.generation}")
            if actor.driver is not None and actor.driver.generation == self.generation:
                # Every older one is fenced, too, and ends as soon as it goes on.
                raise Violation(f"the newest driver ends by itself, and none is left: {error}") from error
            self.counts["fenced"] += 1
            self.end(actor)
        except InvariantBroken as error:
            raise Violation(f"a guard of ours: {error}") from error
        except (Corrupt, SourceDrift) as error:
            self.on_stop(actor, error)
        return False

    def on_stop(self, actor: Actor, error: SnowmeltError) -> None:
        driver = actor.driver
        if self.foreign is not None and self.foreign.expects(error):
            self.stopped = str(error)
        elif driver is not None and driver.generation < self.generation:
            if "does not have what the store says" in error.fact:
                raise Violation(f"a driver that a newer one has passed is told of a store that was restored: {error}") from error
            # A stale driver may find things gone; it is about to be told.
            self.end(actor)
        elif any(lake.rude_expiry for lake in self.lakes.values()) and error.fact == NOT_KNOWN:
            self.counts["stopped by foreign expiry"] += 1
            self.stopped = str(error)
        else:
            raise Violation(f"the newest driver stopped: {error}") from error

    def end(self, actor: Actor) -> None:
        if actor.driver is None:
            self.actors.remove(actor)
        else:
            self.drop(actor.driver)

    def drop(self, driver: Driver) -> None:
        driver.dead = True
        self.actors = [actor for actor in self.actors if actor.driver is not driver]
        self.drivers = [other for other in self.drivers if other is not driver]

    def spawn(self, driver: Driver | None, steps: Generator[None, None, Any], name: str) -> None:
        self.actors.append(Actor(driver, name, steps))

    def start_driver(self) -> None:
        driver = self.driver(self)
        self.drivers.append(driver)
        self.spawn(driver, driver.boot(), "boot")

    def crash(self) -> None:
        if self.drivers:
            driver = self.rng.choice(self.drivers)
            self.say(f"crash {driver.generation}")
            self.drop(driver)

    def pause(self) -> None:
        """A driver stands still, and often another is started meanwhile: then it comes back as a zombie."""
        if self.drivers:
            driver = self.rng.choice(self.drivers)
            driver.paused_until = self.clock + self.rng.choice(PAUSES)
            self.say(f"pause {driver.generation}")
            if self.rng.random() < 0.7:
                self.start_driver()

    def maintain(self) -> None:
        lake = self.rng.choice(list(self.lakes.values()))
        if self.care is not None:
            self.care.others(lake)
            return
        ours = not self.profile.foreign_expiry or self.rng.random() < 0.5
        lake.compact(ours, f"compact-{self.nonce()}")
        if self.rng.random() < 0.5:
            lake.expire(ours, rude=self.rude)

    def sweep(self, driver: Driver, standing: CleaningView) -> None:
        """Clean, in tasks, which may be late and outlive the driver. Out of spite older drivers go on just then, and this one does not."""
        for lake in self.lakes.values():
            if self.full is not None or self.rng.random() < 0.3:
                view = letting_go.of_table(standing, driver.ledger, lake.name)
                self.spawn(None, move(letting_go.sweep(lake.name, view), driver.act_in_lake), "sweep")
        if driver.generation == self.generation and len(self.drivers) > 1 and self.rng.random() < 5 * self.profile.spite:
            for other in self.drivers:
                other.paused_until = self.clock + self.rng.choice(PAUSES[:2]) if other is driver else 0

    def change_one_that_is_live(self) -> None:
        """A table that is live is truncated or rewritten, as soon as all who write have committed."""
        assert self.ripe is not None
        newest = self.newest_driver()
        live = [table.incarnation.table for table in newest.ledger.tables if table.phase is TablePhase.RELEASED] if newest else []
        if live:
            while self.db.hidden:
                self.db.show()
            self.db.state(self.ripe.choice((Effect.EMPTIES, Effect.REWRITES)), self.time_ms, [self.ripe.choice(live)])

    def end_quietly(self) -> None:
        """Nothing bad happens any more; all must come to its end."""
        while self.db.prepared:
            self.db.decide(self.time_ms)
        while self.db.hidden:
            self.db.show()
        for act in self.late:
            act()
        self.late.clear()
        if not self.drivers or self.profile.ask or self.rng.random() < 0.5:
            self.start_driver()
        self.hook.away = Random(f"hook {self.seed}").random() < 0.2
        self.come_to_rest()
        if self.eager and not self.stopped:
            # The job of a plan that followed a lost intent may have held log when the last epoch was done, and left files.
            # The next epoch lets go of both.
            self.db.write(self.time_ms)
            while self.db.hidden:
                self.db.show()
            self.come_to_rest()
        if self.care is not None:
            self.care.hostile = False
        if not self.stopped:
            self.check_end()
            if self.foreign is not None:
                self.foreign.happen()

    def come_to_rest(self) -> None:
        for step in range(QUIET_STEPS_MAX):
            self.clock += 1
            if self.stopped:
                return
            if not self.drivers:
                self.start_driver()
            if step % 50 == 0 and self.settled():
                return
            self.go_on()
        raise Violation(f"it does not come to its end: {self.where()}")

    def settled(self) -> bool:
        newest = self.newest_driver()
        if newest is None or newest.coordinator.stage is not Stage.FREE or newest.staged is not None or newest.busy:
            return False
        end = self.offsets[-1] if self.offsets else 0
        if len(self.drivers) > 1 or len(self.log) != len(self.db.log) or newest.ledger.done_upto != end:
            return False
        if any(truth.recopying and not truth.gone and truth.aside is None for truth in self.truths.values()):
            return False
        there = {table for table in self.db.tables if table not in self.db.gone}
        known = {table.incarnation.table: table for table in newest.ledger.tables}
        return all(table in known and known[table].phase in (TablePhase.RELEASED, TablePhase.SET_ASIDE) for table in there)

    def where(self) -> str:
        newest = self.newest_driver()
        if newest is None:
            return "no driver"
        phases = {str(table.incarnation): table.phase.value for table in newest.ledger.tables}
        machine = newest.coordinator.stage.value
        return f"{phases} {machine} upto {newest.ledger.upto} of {self.offsets[-1:]} {len(self.drivers)} drivers"

    def newest_driver(self) -> Driver | None:
        found = [driver for driver in self.drivers if driver.generation == self.generation and driver.machines is not None]
        return found[0] if found else None

    # ---- for those who live here

    @property
    def time_ms(self) -> int:
        """By the database's clock."""
        return BEGIN_MS + self.clock * STEP_MS

    def say(self, text: str) -> None:
        self.trace = zlib.crc32(text.encode(), self.trace)
        if self.told is not None:
            self.told.append(f"{self.clock:6} {text}")

    def nonce(self) -> str:
        self.nonces += 1
        return f"n{self.nonces}"

    def target_of(self, table: TableId) -> str:
        return self.targets[table]

    def within(self, key: int, span: Span | None, extent: KeyEnds | None) -> bool:
        """Whether a key lies in a span, or, for None, outside of the extent."""
        least, greatest = (int.from_bytes(end, "big") for end in (extent.least, extent.greatest)) if extent else (1, 0)
        inside = least <= key <= greatest
        if span is None:
            return not inside
        above = int.from_bytes(span.above, "big") if span.above is not None else least - 1
        return inside and above < key <= int.from_bytes(span.upto, "big")

    def database_after(self, number: int, count: int) -> list[Transaction]:
        """What a dump from behind a transaction sends: the next ones, of one file."""
        log, places = self.db.log, self.db.places
        start = bisect_right(log, number, key=lambda transaction: transaction.number)
        taken = log[start : start + 1]
        for transaction in log[start + 1 : start + count]:
            if places[transaction.number][0] != places[taken[-1].number][1]:
                break
            taken.append(transaction)
        return taken

    def numbers_upto(self, number: int) -> list[int]:
        return [transaction.number for transaction in self.db.log if transaction.number <= number]

    def earlier_cut(self, relay: Relay, after: int, upto: int) -> int:
        """Some cut in (after, upto], where an epoch or a task may end as well."""
        cuts = relay.cuts_between(after, upto)
        return self.rng.choice(cuts) if cuts else upto

    def as_of(self, table: TableId, offset: int) -> tuple[bool, int]:
        """Whether a table exists at an offset of the log, and its schema there: what a schema history tells."""
        there, schema = True, 0
        for at, transaction in self.log:
            if at > offset:
                break
            for name, effect, now in transaction.statements:
                if name == table:
                    there, schema = effect is not Effect.DROPS, now
        return there, schema

    def emptied_by(self, table: TableId) -> list[int]:
        """The visible statements that a read of a table may not straddle."""
        db = self.db
        stated = (t for t in db.log if t.statements and t.number in db.visible)
        return [t.number for t in stated if any(one is not Effect.RESHAPES for one in t.effects(table))]

    def missing_segment(self, driver: Driver, name: str) -> None:
        if driver.generation == self.generation and not driver.dead:
            raise Violation(f"the log was let go of before it was read: {name}")

    def publish(self, generation: int, intent: Intent, entry: Entry, on: int) -> bool:
        """The exclusive create of a lake snapshot, with an oracle behind it."""
        lake = self.lakes[entry.target]
        if not lake.publish(on, (intent.epoch, intent.identity), entry.empties, entry.files):
            return False
        self.counts["publish"] += 1
        self.say(f"publish {entry.target} {intent.epoch} by {generation}")
        first = self.intents[intent.epoch]
        if first.identity != intent.identity:
            raise Violation(f"epoch {intent.epoch} has two owners: {first.identity} and {intent.identity}")
        if (entry.target, intent.epoch) in self.published:
            raise Violation(f"{entry.target}: epoch {intent.epoch} is published twice")
        self.published[entry.target, intent.epoch] = intent.identity
        self.check_table(entry.target, intent.upto)
        if self.foreign is not None:
            self.foreign.at_publish(entry)
        if self.maintained is not None and not self.rude and self.maintained.random() < 0.3:
            lake.compact(False, f"compact-{self.nonce()}")
            for _ in range(3):
                lake.expire(False)
            for driver in list(self.drivers):
                self.drop(driver)
        return True

    # ---- oracles

    def won(self, kind: str, number: int, record: Any) -> None:
        """A record became true."""
        if self.rng.random() < self.profile.spite:
            for driver in self.drivers:
                driver.paused_until = self.clock + self.rng.choice(PAUSES)
            self.start_driver()
        match record:
            case SegmentRecord():
                self.counts["put aside"] += len(record.put_aside)
                self.check_sealed(record)
            case Intent():
                self.say(f"intent {number} of {record.identity} ({record.after}, {record.upto}]")
                if number not in self.intents:
                    self.fold(record)
                if self.foreign is not None:
                    self.foreign.at_intent(record)
            case Done():
                self.say(f"done {number}")
                if self.foreign is not None:
                    self.foreign.at_done(record, self.store)
                if number not in self.dones:
                    self.check_done(record)
            case str() if kind == "generation":
                self.generation = number

    def check_sealed(self, sealed: SegmentRecord) -> None:
        if sealed.number in self.sealed:
            # Trimmed, and put again by a driver that does not know yet: nobody reads it.
            return
        self.sealed.add(sealed.number)
        if sealed.name not in self.store.data:
            raise Violation(f"segment {sealed.number} has no data")
        data = [(offset, transaction) for offset, transaction, _ in self.store.data[sealed.name][1]]
        if sealed.first != (self.offsets[-1] if self.offsets else 0):
            raise Violation(f"segment {sealed.number} leaves a gap or overlaps")
        numbers = [transaction.number for _, transaction in self.log[-1:]] + [transaction.number for _, transaction in data]
        log = [transaction.number for transaction in self.db.log]
        start = log.index(numbers[0]) if numbers[0] in log else 0
        if log[start : start + len(numbers)] != numbers or (not self.log and start):
            raise Violation(f"segment {sealed.number} is not what the log has: {numbers}")
        self.log.extend(data)
        self.offsets.extend(offset for offset, _ in data)

    def fold(self, intent: Intent) -> None:
        before = self.intents.get(intent.epoch - 1)
        if intent.epoch > 1 and (before is None or before.upto != intent.after or before.epoch not in self.dones):
            raise Violation(f"intent {intent.epoch} does not follow")
        self.intents[intent.epoch] = intent
        for entry in intent.entries:
            self.check_order(entry)
        keys = range(self.db.keys)
        for fact in intent.facts:
            table = fact.incarnation.table
            if not isinstance(fact, Found) and table not in self.truths:
                raise Violation(f"intent {intent.epoch} speaks of {table}, which is not there")
            self.counts[type(fact).__name__] += 1
            if isinstance(fact, Reborn | Truncated | Recopied | Gone):
                self.check_begins(fact, intent)
            match fact:
                case Found(incarnation, at=at):
                    self.truths[table] = Truth(incarnation.number, past=self.past(table, at, found=True), begun=at)
                case Reshaped(_, at) if self.truths[table].aside is None:
                    after = self.log[bisect_right(self.offsets, at) : bisect_right(self.offsets, intent.upto)]
                    if any(change.table == table for _, transaction in after for change in transaction.changes):
                        raise Violation(f"epoch {intent.epoch} has rows of {table} after a change of their shape")
                case Reborn(incarnation, at):
                    self.check_asked(fact, intent)
                    self.counts["back"] += self.truths[table].aside is not None
                    self.truths[table] = Truth(incarnation.number, since=at, past=self.past(table, at), begun=at)
                case Truncated(_, at):
                    truth = self.truths[table]
                    truth.past = self.past(table, at)
                    truth.since, truth.adopted = at, dict.fromkeys(keys)
                case Gone(_, at):
                    truth = self.truths[table]
                    truth.gone, truth.since = True, at
                case Recopied(_, at):
                    truth = self.truths[table]
                    truth.begun, truth.adopted_in, truth.high = at, 0, 0
                    truth.extent, truth.uppers, truth.recopying, truth.read_again = None, [], True, set()
                case SetAside():
                    self.truths[table].aside = self.held(table)
                case Split(_, _, uppers):
                    self.truths[table].uppers.extend(int.from_bytes(upper, "big") for upper in uppers)
                case Adopted(ordinal=ordinal, nonce=nonce, high=high, extent=extent):
                    truth = self.truths[table]
                    truth.adopted_in, truth.high = intent.epoch, max(truth.high, high)
                    self.check_read(fact, intent)
                    self.adopt(truth, ordinal, nonce, extent)
                case _:
                    pass

    def held(self, table: TableId) -> tuple[bytes, list[tuple[Any, ...]]]:
        """What a reader of the lake gets of a table: its columns and its rows."""
        lake = self.lakes[self.targets[table]]
        rows = lake.merged().values() if lake.keyed else lake.rows()
        return lake.shape, sorted((row.key, row.sequence, row.origin) for row in rows if row.key[0] == str(table))

    def past(self, table: TableId, at: int, *, found: bool = False) -> Counter[tuple[int, int | None, str]]:
        """What a change table keeps of a table that is emptied, or made anew, at an offset."""
        lake = self.lakes[self.targets[table]]
        if lake.keyed:
            return Counter()
        past = self.appended(table)
        # One that is found says so only where the lake has had a table of its name.
        if not found or any(target == lake.name for target, _ in self.published):
            past[-1, None, f"emptied {at}"] += 1
        return past

    def appended(self, table: TableId) -> Counter[tuple[int, int | None, str]]:
        return Counter((row.key[1], row.value, row.origin) for row in self.lakes[self.targets[table]].rows() if row.key[0] == str(table))

    def check_begins(self, fact: Reborn | Truncated | Recopied | Gone, intent: Intent) -> None:
        """A statement about a whole table comes before all rows of it: those of before it are another epoch's."""
        table = fact.incarnation.table
        before = self.log[bisect_right(self.offsets, intent.after) : bisect_left(self.offsets, fact.at)]
        if any(change.table == table for _, transaction in before for change in transaction.changes):
            raise Violation(f"epoch {intent.epoch} has rows of {table} before the statement at {fact.at}")

    def check_asked(self, fact: Reborn, intent: Intent) -> None:
        """What a driver was asked for once it does once."""
        if fact.asked and (asked := (intent.generation, fact.incarnation.table)) in self.asked:
            raise Violation(f"{fact.incarnation} is made again for a request that was heard: {asked}")
        if fact.asked:
            self.asked.add((intent.generation, fact.incarnation.table))

    def check_order(self, entry: Entry) -> None:
        """Files of chunks come first, then those of the log in its order."""
        lake = self.lakes[entry.target]
        of_buckets: dict[int, list[tuple[bool, int]]] = {}
        for name in entry.files:
            log, rows = StagedName.parse(name).waits_for is not StagedFor.CHUNK, lake.storage.get(name, ())
            first = min((row.sequence for row in rows), default=0) if log else 0
            of_buckets.setdefault(lake.bucket_of(rows), []).append((log, first))
        if any(firsts != sorted(firsts) for firsts in of_buckets.values()):
            raise Violation(f"{entry.target}: files are not in the order of the log: {entry.files}")

    def check_read(self, fact: Adopted, intent: Intent) -> None:
        """What an epoch adopts was read in one shape and of one table, and of it all that the lane drops is known."""
        table, read = fact.incarnation.table, self.reads[fact.nonce]
        if read.schema != self.as_of(table, intent.upto)[1]:
            raise Violation(f"epoch {intent.epoch} adopts a read of {table} in shape {read.schema}")
        low, high = bisect_right(self.offsets, fact.visible), bisect_right(self.offsets, intent.upto)
        if any(transaction.effects(table) for _, transaction in self.log[low:high]):
            raise Violation(f"epoch {intent.epoch} adopts a read of {table} over a statement")
        if not self.lakes[self.targets[table]].keyed and not read.contains <= read.covered:
            raise Violation(f"epoch {intent.epoch} appends a read of {table} that has more than it says")

    def adopt(self, truth: Truth, ordinal: int, nonce: str, extent: KeyEnds | None) -> None:
        if truth.aside is not None:
            raise Violation(f"chunk {ordinal} is adopted of a table that is set aside")
        if ordinal == OUTSIDE:
            truth.extent = extent
            span = None
        elif ordinal > len(truth.uppers):
            raise Violation(f"chunk {ordinal} is adopted and has no bounds")
        else:
            above = truth.uppers[ordinal - 2] if ordinal > 1 else None
            span = Span(None if above is None else above.to_bytes(2, "big"), truth.uppers[ordinal - 1].to_bytes(2, "big"))
        for key in range(self.db.keys):
            if self.within(key, span, truth.extent):
                if not truth.recopying and key in truth.adopted:
                    raise Violation(f"key {key} is adopted twice")
                truth.adopted[key] = nonce
                truth.read_again.add(key)
        if truth.recopying and len(truth.read_again) == self.db.keys:
            truth.recopying = False

    def check_table(self, target: str, upto: int) -> None:
        """The lake equals the source at `upto`, for every key that was adopted, and has nothing else."""
        lake = self.lakes[target]
        end = bisect_right(self.offsets, upto)
        for table, truth in self.truths.items():
            if self.targets[table] != target or truth.gone:
                continue
            if truth.aside is not None:
                if self.held(table) != truth.aside:
                    raise Violation(f"{table} is set aside, and at {upto} the lake has {self.held(table)}, no longer {truth.aside}")
                continue
            if self.early and upto < truth.high:
                continue
            if lake.keyed:
                rows = rows_of(table, (transaction for _, transaction in self.log[:end]))
                expected = {key: value for key, value in rows.items() if key in truth.adopted}
                got = {key: row.value for (source, key), row in lake.merged().items() if source == str(table)}
                if truth.recopying:
                    # What was not read again may have the value from before it was rewritten. Inserts and deletes the log tells.
                    got = {key: value if key in truth.read_again else expected.get(key, value) for key, value in got.items()}
                if got != expected:
                    raise Violation(f"{table} at {upto}: the lake has {got}, the source {expected}")
            else:
                self.check_appended(table, truth, end)

    def check_appended(self, table: TableId, truth: Truth, end: int) -> None:
        """Each change once, and each row of a read once."""
        expected = Counter(truth.past)
        for key, nonce in truth.adopted.items():
            if nonce is not None and key in self.reads[nonce].rows:
                expected[key, self.reads[nonce].rows[key], f"r{nonce}"] += 1
        for offset, transaction in self.log[:end]:
            for change in transaction.changes:
                if change.table != table or change.key not in truth.adopted or offset <= truth.since:
                    continue
                nonce = truth.adopted[change.key]
                if nonce is None or transaction.number not in self.reads[nonce].contains:
                    expected[change.key, change.value, f"t{transaction.number}"] += 1
        got = self.appended(table)
        if got != expected:
            more, less = (sorted(some.elements(), key=str) for some in (got - expected, expected - got))
            raise Violation(f"{table}: appended {more} too often, {less} too seldom")

    def check_done(self, done: Done) -> None:
        self.dones[done.epoch] = done
        intent = self.intents[done.epoch]
        for entry in intent.entries:
            if (entry.target, done.epoch) not in self.published:
                raise Violation(f"epoch {done.epoch} is done and {entry.target} does not have it")
            if entry.new_schema is not None and self.lakes[entry.target].schema < entry.new_schema:
                raise Violation(f"epoch {done.epoch} is done and {entry.target} has not its schema")
            rows = (row for name in entry.files for row in self.lakes[entry.target].storage.get(name, ()))
            if not self.early and any(row.sequence > intent.sequence_max for row in rows):
                raise Violation(f"epoch {done.epoch} holds greater sequences than it says")
        self.tags.check_done(done)
        self.hook.check_done(done)
        for target, time_ms in self.claimed[done.epoch].items():
            before = self.watermarks.get(target)
            if before is not None and time_ms < before:
                raise Violation(f"the watermark of {target} went back")
            if before is None or time_ms > before:
                self.check_watermark(target, time_ms, intent)
            self.check_complete(target)
        for target in self.watermarks.keys() - self.claimed[done.epoch].keys():
            sources = [one for table, one in self.truths.items() if self.targets[table] == target and not one.gone]
            if sources and all(one.aside is not None or (len(one.adopted) == self.db.keys and not one.recopying) for one in sources):
                raise Violation(f"{target} has lost its watermark although it has all of each source")
        self.watermarks = dict(self.claimed[done.epoch])

    def claim_watermarks(self, epoch: int, watermarks: dict[str, int]) -> None:
        """What a driver takes them to be once the epoch is done. Every driver that closes it must see the same."""
        if self.claimed.setdefault(epoch, watermarks) != watermarks:
            raise Violation(f"two drivers see other watermarks in epoch {epoch}")

    def check_watermark(self, target: str, time_ms: int, intent: Intent) -> None:
        """Where it moved, every source of the table is in the lake up to then."""
        if any(truth.aside is not None and self.targets[table] == target and not truth.gone for table, truth in self.truths.items()):
            raise Violation(f"the watermark of {target} moved though a source is set aside")
        if intent.time_ms is None or time_ms > intent.time_ms:
            raise Violation(f"the watermark of {target} is ahead of the log")
        # The log is in the order of commits, so the first that the lake lacks is the earliest.
        missing = self.db.log[bisect_right(self.offsets, intent.upto) :]
        if missing and missing[0].time_ms < time_ms:
            raise Violation(f"the watermark of {target} has passed a transaction that the lake lacks")

    def check_complete(self, target: str) -> None:
        """A lake table that has a watermark has all of each source."""
        for table, truth in self.truths.items():
            counts = self.targets[table] == target and not truth.gone and truth.aside is None
            if counts and len(truth.adopted) < self.db.keys:
                raise Violation(f"{target} has a watermark and not all of {table}")

    def check_end(self) -> None:
        """All is quiet: the lake is the database, and nothing is left over."""
        for target in self.lakes:
            self.check_table(target, self.offsets[-1] if self.offsets else 0)
        for table in self.db.tables:
            aside = table in self.truths and self.truths[table].aside is not None
            if table not in self.db.gone and self.lakes[self.targets[table]].keyed and not aside:
                live = self.db.rows(table, self.db.visible)
                got = {key: row.value for (source, key), row in self.lakes[self.targets[table]].merged().items() if source == str(table)}
                if got != live:
                    raise Violation(f"{table} in the end: the lake has {got}, the database {live}")
                if self.lakes[self.targets[table]].shape != f"shape {self.db.schemas[table]}".encode():
                    raise Violation(
                        f"{table} in the end: the lake has {self.lakes[self.targets[table]].shape!r}, the database {self.db.schemas[table]}"
                    )
        newest = self.newest_driver()
        if newest is not None:
            # Sweeps come to their end.
            finish(newest.tidy())
            assert newest.machines is not None
            standing = finish(move(letting_go.stand(newest.machines), newest.act))
            for target in self.lakes:
                view = letting_go.of_table(standing, newest.ledger, target)
                finish(move(letting_go.sweep(target, view), newest.act_in_lake))
            self.check_leftovers(newest)
            if self.care is not None:
                self.care.check_end(newest)
            self.end_calls(newest)
        self.hook.check_end()
        self.tags.check_end()
        self.counts["epochs"] += len(self.intents)

    def end_calls(self, newest: Driver) -> None:
        """Notices come to their end, by another driver if none could be given by this one. That one may find an epoch of a driver before
        it open, and gives its notice when it has rolled it forward."""
        if self.hook.away:
            self.hook.away = False
            self.drop(newest)
            self.come_to_rest()
            while any(actor.name == "boot" for actor in self.actors):
                self.go_on()
        for driver in self.drivers:
            finish(driver.caller.work())

    def check_leftovers(self, driver: Driver) -> None:
        """What is not in use was let go of: files, segments, metadata."""
        held = {segment.name for segment in driver.relay.segments}
        aside = [name for name in self.store.data if name.startswith("held-")]
        if aside:
            raise Violation(f"prepared transactions are left over: {aside}")
        # Which data the record has that the newest intent names is known only where the record is held.
        unknown = {driver.ledger.done_segment} - {segment.number for segment in driver.relay.segments}
        left = [name for name in self.store.data if name not in held and self.segment_numbers[name] not in unknown]
        if left:
            raise Violation(f"segments are left over: {left}")
        if any(segment.last < driver.ledger.done_upto for segment in driver.relay.segments):
            raise Violation("the relay holds what a done epoch has passed")
        last = self.intents[driver.ledger.epoch].time_ms if driver.ledger.epoch in self.intents else None
        resting = {self.targets[table] for table, truth in self.truths.items() if truth.aside is not None}
        for target in {self.targets[table] for table in self.db.tables if table not in self.db.gone} - resting:
            if last is not None and self.watermarks.get(target, -1) < last:
                raise Violation(f"the watermark of {target} stands still")
        for lake in self.lakes.values():
            # What a driver staged may be named by an intent of it as long as no newer driver has won one.
            over = [name for name in lake.storage if name.startswith("sm-") and name not in lake.referenced()]
            own = {driver.generation}.difference({driver.ledger.generation})
            if self.care is not None:
                rewrites = {name for name in over if StagedName.parse(name).waits_for is StagedFor.REWRITE}
                if left := [name for name in rewrites if self.care.is_left_over(lake, StagedName.parse(name), driver)]:
                    raise Violation(f"{lake.name}: files of rewrites are left over: {left}")
                over = [name for name in over if name not in rewrites]
            wrote = {name: StagedName.parse(name).generation for name in over}
            staged = [name for name in over if wrote[name] < driver.ledger.generation or wrote[name] in own]
            if staged:
                raise Violation(f"{lake.name}: staged files are left over: {staged}")
        numbers = {segment.number for segment in driver.relay.segments} | {driver.ledger.done_segment}
        records = [number for kind, number in self.store.records if kind == "relay" and number not in numbers]
        if records:
            raise Violation(f"records of the relay are left over: {records}")
        if any(True for _ in driver.ledger.tables.readings()):
            raise Violation("a read is under way although every table is released")


def finish(steps: Steps[T]) -> T:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


def live(seed: int, driver: Callable[[World], Driver] = Driver) -> World:
    """Live through a seed and give back the world, or raise `Violation`."""
    world = World(seed, driver)
    world.run()
    return world
