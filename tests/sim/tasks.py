"""Tasks in the simulated world: what reads a chunk, and what reads the log. They know nothing of their driver but where to report to,
and may outlive it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from snowmelt.commit.checks import Message, StagedFile
from snowmelt.commit.cleaning import Leftovers
from snowmelt.commit.records import Staged, StagedFor, StagedName
from snowmelt.driving.sharing import LogShare, LogWork
from snowmelt.model import sequence
from snowmelt.model.position import Position
from snowmelt.model.table import TableId
from snowmelt.planning.epochs import Adopting, EpochPlan, Rule, Span
from snowmelt.planning.facts import OUTSIDE, KeyEnds, Launched
from snowmelt.relay.retention import Decided, Effect
from tests.kit.emitting import emits
from tests.sim.database import Change, Read, Transaction
from tests.sim.lake import Row
from tests.sim.store import Steps

if TYPE_CHECKING:
    from tests.sim.world import World


def aside(number: int) -> str:
    """The name of what lies aside."""
    return f"held-{number}"


def packed(key: int) -> bytes:
    return key.to_bytes(2, "big")


class Job:
    """One run of an epoch's log job. Its tasks answer here, whether anybody still listens or not."""

    def __init__(self, plan: EpochPlan) -> None:
        self.plan = plan
        self.writers = 0
        """How many tasks it has."""
        self.messages: list[Message] = []
        self.failed = False
        self.stuck: TableId | None = None
        """The table of which a task says that it can't go on."""


class Tasks:
    """Of one driver."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.generation = 0
        self.inbox: list[tuple[Launched, str, Position, Read | None, KeyEnds | None, tuple[str, ...]]] = []
        self.leftovers = Leftovers()
        self.job: Job | None = None

    def read_chunk(self, launch: Launched, span: Span | None, extent: KeyEnds | None) -> Steps[None]:
        """A task of the chunk lane. It knows nothing of the driver but where to report to."""
        world, db, rng = self.world, self.world.db, self.world.rng
        table, nonce = launch.incarnation.table, world.nonce()
        yield
        opened = (db.era, frozenset(db.visible), db.end, db.log[-1].number if db.log else 0, db.shown())
        covered = opened[1]
        statements = world.emptied_by(table)
        yield
        if world.profile.statements and rng.random() < world.profile.spite:
            # The shape is looked up after the snapshot opened, and changes right then.
            db.state(Effect.RESHAPES, world.time_ms, [table])
        schema = db.schemas[table]
        shown = world.emptied_by(table)
        failed = db.era != opened[0] or db.era != launch.era or shown != statements or rng.random() < world.profile.task_failure
        high, high_number, contains = opened[2], opened[3], covered
        if world.profile.marks == "positions":
            high = opened[4]
        if world.profile.marks == "gtids":
            # MySQL with GTIDs: the set is read before the snapshot opens, the end of the log after it.
            high, high_number, contains = db.end, db.log[-1].number if db.log else 0, frozenset(db.visible)
        rows = db.rows(table, contains)
        if launch.ordinal == OUTSIDE:
            extent = KeyEnds(packed(min(rows)), packed(max(rows))) if rows else None
            rows = {}
        else:
            rows = {key: value for key, value in rows.items() if world.within(key, span, extent)}
        read = None if failed else Read(rows, contains, covered, high, high_number, schema)
        yield
        files: tuple[str, ...] = ()
        if read is not None:
            world.reads[nonce] = read
            if rows:
                target = world.target_of(table)
                name = str(StagedName(self.generation, StagedFor.CHUNK, launch.job, nonce, target))
                kept = tuple(Row((str(table), key), sequence.of_chunk(launch.visible), value, f"r{nonce}") for key, value in rows.items())
                files = tuple(world.lakes[target].stage(name, kept))
        yield
        if rng.random() < 0.1:
            # It is slow to answer.
            for _ in range(rng.randint(1, 60)):
                yield
        if files:
            self.leftovers.reported(world.target_of(table), Staged(files, (), 0))
        for _ in range(2 if rng.random() < 0.1 else 1):
            self.inbox.append((launch, nonce, high, read, extent if launch.ordinal == OUTSIDE else None, files))
            yield

    def log_task(self, job: Job, writer: int, work: LogWork, names: list[str], committed: dict[int, Decided]) -> Steps[None]:
        world, rng, plan = self.world, self.world.rng, job.plan
        share, rules = work.share, work.rules
        yield
        runs = 2 if rng.random() < world.profile.task_failure else 1
        for run in range(runs):
            nonce = world.nonce()
            rows: dict[str, list[Row]] = {}
            for one in work.emptied:
                row = Row((str(one.table), -1), sequence.of_change(one.at), None, f"emptied {one.at}")
                rows.setdefault(one.target, []).append(row)
            for name in names:
                data = world.store.data.get(name)
                if data is None:
                    if self.job is job and not job.failed:
                        world.missing_segment(self, name)
                    job.failed = True
                    return
                for offset, transaction, position in data[1]:
                    if not share.after < offset <= share.upto:
                        continue
                    changes: tuple[Change, ...] | None = transaction.changes
                    if transaction.committed:
                        changes = self.take_back(committed[offset], data[1])
                    if changes is None:
                        if self.job is job and not job.failed:
                            world.missing_segment(self, aside(committed[offset].group.number))
                        job.failed = True
                        return
                    self.emit(replace(transaction, changes=changes), offset, position, work, rows)
            yield
            files = []
            for target, kept in rows.items():
                lake = world.lakes[target]
                name = str(StagedName(self.generation, StagedFor.EPOCH, plan.epoch, nonce, target))
                staged = lake.stage(name, tuple({row.key: row for row in kept}.values()) if lake.keyed else tuple(kept))
                files += [StagedFile(target, one, share.after) for one in staged]
                yield
            if run + 1 < runs:
                if rng.random() < 0.5:
                    world.spawn(None, self.answer_late(job, self.answer(job, writer, files)), "late answer")
                continue
            if rng.random() < world.profile.task_failure:
                job.failed = True
                return
            emitting = sorted(name for name, rule in rules.items() if rule.emits_all or rule.adopted or rule.adopting)
            if emitting and rng.random() < world.profile.stuck * 0.1:
                job.stuck, job.failed = rng.choice(emitting), True
                return
            yield
            job.messages.append(self.answer(job, writer, files))

    def answer(self, job: Job, writer: int, files: list[StagedFile]) -> Message:
        return Message(generation=self.generation, epoch=job.plan.epoch, writer=writer, files=tuple(files))

    def answer_late(self, job: Job, message: Message) -> Steps[None]:
        """The answer of a task that was run again. Its job may have another by then, or be over, and the next epoch's be under way."""
        for _ in range(self.world.rng.randint(0, 40)):
            yield
        if self.job is not None and (self.job is job or self.job.plan.epoch != job.plan.epoch):
            self.job.messages.append(message)

    def take_back(self, decided: Decided, rows: tuple[tuple[int, Transaction, Position], ...]) -> tuple[Change, ...] | None:
        """What a prepared transaction changes: from where it lies aside, or from the segment that has both of its phases."""
        if decided.aside:
            return self.world.store.data.get(aside(decided.group.number))
        return next(one.prepares for at, one, _ in rows if at == decided.group.offset)

    def emit(self, transaction: Transaction, offset: int, position: Position, work: LogWork, rows: dict[str, list[Row]]) -> None:
        world = self.world
        numbers: Counter[TableId] = Counter()
        for change in transaction.changes:
            numbers[change.table] += 1
            rule = work.rules.get(change.table)
            if rule is None or not self.is_mine(work.share, change, numbers[change.table]):
                continue
            key = self.judged_by(change)
            adopting = next((one for one in rule.adopting if world.within(key, one.span, rule.extent or one.reading.extent)), None)
            adopted = self.adopted(key, rule)
            covered = self.covered(transaction.number, position)
            keyed = world.lakes[world.target_of(change.table)].keyed
            if emits(rule, offset=offset, adopted=adopted, adopting=adopting, keyed=keyed, covered=covered):
                row = Row((str(change.table), change.key), sequence.of_change(offset), change.value, f"t{transaction.number}")
                rows.setdefault(world.target_of(change.table), []).append(row)

    def is_mine(self, share: LogShare, change: Change, number: int) -> bool:
        """Whether this task writes a row of a transaction that several tasks have: all rows of a key are one task's. `number`: of the row
        among those of its table, which is enough where each row is one of its own."""
        if not self.world.lakes[self.world.target_of(change.table)].keyed:
            return number // 2 % share.parts == share.part
        return change.key % share.parts == share.part

    def judged_by(self, change: Change) -> int:
        """The key that says to which chunk a change belongs. An UPDATE of the key is two changes, each with a key of its own."""
        return change.key

    def covered(self, number: int, position: Position) -> Callable[[Adopting], bool]:
        """What the read's mark says of a transaction. A position says it only of the log that it is a position of."""
        reads = self.world.reads
        if self.world.profile.marks == "positions":
            at = (position.file, position.offset)
            return lambda adopting: at <= (reads[adopting.reading.nonce].high.file, reads[adopting.reading.nonce].high.offset)
        return lambda adopting: number in reads[adopting.reading.nonce].covered

    def adopted(self, key: int, rule: Rule) -> bool:
        if rule.extent is None:
            return rule.outside
        if self.world.within(key, None, rule.extent):
            return rule.outside
        return any(self.world.within(key, span, rule.extent) for span in rule.adopted)
