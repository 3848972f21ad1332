"""A tiering service as the machines want to be moved, and Fluss' own beside it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from snowmelt.errors import Fenced, OutcomeUnknown, SourceDrift, Unavailable
from snowmelt.model.fluss import Bucket
from snowmelt.tiering import fence
from snowmelt.tiering.fence import KnownToFluss, Tiered
from snowmelt.tiering.offsets import Offsets
from snowmelt.tiering.round_steps import (
    Absent,
    BucketRead,
    CheckTable,
    Clean,
    Cleaned,
    Commit,
    CommitPrepared,
    Confirm,
    Failed,
    LakeCommitted,
    LeaseSnapshots,
    ListBuckets,
    LogsListed,
    Look,
    LookBack,
    Looked,
    NewestConfirmed,
    Outcome,
    Overtaken,
    Prepare,
    ReadSplits,
    Report,
    RoundReported,
    SnapshotsLeased,
    SplitsRead,
    Step,
    TableSeen,
    Tell,
    Told,
    Unclear,
)
from snowmelt.tiering.rounds import ENDS, Round, RoundState
from snowmelt.tiering.splits import Budget, LogSplit, SnapshotSplit, Split
from tests.sim.lake import Violation
from tests.sim.store import Steps
from tests.sim_tiering.fluss import Refused, Table
from tests.sim_tiering.lake import Row

if TYPE_CHECKING:
    from tests.sim_tiering.world import World

BEAT_MS = 25_000
ROUNDS_MAX = 2
TELLINGS_MAX = 2


@dataclass(slots=True)
class Running:
    """A round, and under which numbers it was handed out."""

    round: Round
    table: str
    epoch: int
    owner: int
    restarts: int
    staged: set[str] = field(default_factory=set)
    unclear: bool = False
    untold: int = 0
    reporting: bool = False
    """It is not renewed any more."""


class Service:
    """It has no state but its rounds."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.paused_until_ms = 0
        self.running: list[Running] = []

    def serve(self) -> Steps[None]:
        world = self.world
        beat_ms = 0
        while True:
            yield
            if world.now_ms - beat_ms < BEAT_MS:
                continue
            beat_ms = world.now_ms
            yield from self.beat()
            if len(self.running) < ROUNDS_MAX:
                try:
                    handed = yield from world.faulty.call(lambda: world.fluss.request(world.now_ms))
                except (Unavailable, OutcomeUnknown):
                    continue
                if handed is not None:
                    self.begin(*handed)

    def begin(self, table: Table, epoch: int, owner: int, restarts: int) -> None:
        world = self.world
        budget = Budget(rows_max=world.profile.rows_max, bytes_max=1 << 20, row_bytes=1)
        round_ = Round(table.table_id, table.schema_id, keyed=table.keyed, budget=budget, handed_out_ms=world.now_ms)
        running = Running(round_, table.name, epoch, owner, restarts)
        self.running.append(running)
        world.spawn(self, self.go(running))

    def beat(self) -> Steps[None]:
        world, sent_ms = self.world, self.world.now_ms
        for running in list(self.running):
            machine = running.round
            if running.reporting:
                continue
            try:
                yield from world.faulty.call(
                    lambda machine=machine, running=running: world.fluss.renew(machine.table_id, running.epoch, world.now_ms)  # type: ignore[misc]
                )
                machine.heard(sent_ms)
            except Refused:
                world.counts["refused"] += 1
                machine.lost()
            except (Unavailable, OutcomeUnknown):
                continue

    def go(self, running: Running) -> Steps[None]:
        machine = running.round
        while machine.state not in ENDS:
            step = machine.next_step(self.world.now_ms)
            self.world.counts[type(step).__name__] += 1
            self.world.counts["Repair"] += machine.state is RoundState.UNTOLD
            try:
                outcome = yield from self.perform(running, step)
                self.world.spite(self)
                if machine.state not in ENDS or isinstance(outcome, RoundReported):
                    machine.take(outcome)
            except (Refused, Unavailable, OutcomeUnknown):
                machine.take(Failed())
            except SourceDrift as error:
                self.world.on_stop(running, error)
                machine.take(Failed())
            yield
        self.running.remove(running)
        self.world.on_end(running)

    # ---- steps

    def perform(self, running: Running, step: Step) -> Steps[Outcome]:
        world, fluss, machine = self.world, self.world.fluss, running.round
        faulty, table_id = world.faulty, machine.table_id
        match step:
            case Look():
                known = yield from faulty.read(lambda: self.known(table_id))
                lake = yield from faulty.read(lambda: world.lake(running.table).view())
                offsets = None if lake.newest is None else world.offsets(running.table, lake.newest)
                return Looked(lake, offsets, known)
            case ListBuckets():
                return LogsListed((yield from faulty.read(lambda: fluss.logs(table_id))))
            case LeaseSnapshots(wanted):
                newer = {log.bucket: log.snapshot for log in (yield from faulty.read(lambda: fluss.logs(table_id)))}
                return SnapshotsLeased({bucket: newer.get(bucket) or wanted[bucket] for bucket in wanted})
            case ReadSplits(splits):
                return (yield from self.read(running, splits))
            case CheckTable():
                table = yield from faulty.read(lambda: fluss.tables.get(running.table))
                return TableSeen(None, 0) if table is None else TableSeen(table.table_id, table.schema_id)
            case Prepare(offsets):
                path = yield from faulty.call(lambda: fluss.prepare(offsets))
                return CommitPrepared(path, fluss.files[path])
            case Commit() | LookBack():
                return (yield from self.commit(running, step))
            case Confirm():
                return NewestConfirmed((yield from faulty.read(lambda: world.lake(running.table).newest())))
            case Tell(tiered, _, keep_from):
                return (yield from self.tell(running, tiered, keep_from))
            case Clean(messages):
                written = world.lakes_by_identity[running_identity(messages)] if messages else None
                for message in messages:
                    yield
                    name = message.decode()
                    assert written is not None
                    if name not in written.referenced():
                        written.storage.pop(name, None)
                return Cleaned()
            case Report(finished, more):
                return (yield from self.report(running, finished, more))

    def known(self, table_id: int) -> KnownToFluss | None:
        """What it has no file of any more, by a late word, it is told anew like what it never heard of."""
        try:
            return self.world.fluss.known(table_id)
        except Refused:
            return None

    def read(self, running: Running, splits: tuple[Split, ...]) -> Steps[SplitsRead | Failed]:
        world, rng = self.world, self.world.rng
        reads: list[BucketRead] = []
        for split in splits:
            yield
            table = world.fluss.by_id(running.round.table_id)
            if table is None or rng.random() < world.profile.task_failure:
                return Failed(tuple(message for read in reads for message in read.messages))
            lake = world.lake(running.table)
            number = lake.next_number(split.bucket)
            yield
            if split.bucket not in table.logs:
                reads.append(BucketRead(split.bucket, None, ()))
                continue
            match split:
                case SnapshotSplit(copy):
                    bucket = copy.bucket
                    rows = [(copy.offset, key, value) for key, value in table.fold(bucket, copy.offset).items()]
                    reached = copy.offset
                case LogSplit(bucket, start, stop):
                    if table.earliest[bucket] > start:
                        return Failed(tuple(message for read in reads for message in read.messages))
                    reached = stop if rng.random() < 0.9 else rng.randint(start, stop)
                    changes = enumerate(table.logs[bucket][start:reached], start)
                    rows = [(offset, *change) for offset, change in changes if change is not None]
            staged = tuple(Row(bucket, offset, key, value, number + place) for place, (offset, key, value) in enumerate(rows))
            messages: tuple[bytes, ...] = ()
            if staged:
                name = f"{lake.identity}/{world.nonce()}"
                lake.storage[name] = staged
                running.staged.add(name)
                messages = (name.encode(),)
            reads.append(BucketRead(bucket, reached, messages))
        return SplitsRead(reads)

    def judge(self, step: Commit | LookBack, running: Running) -> fence.PublishRound | fence.RoundInLake:
        return fence.judge(step.base, step.path, self.world.lake(running.table).view())

    def commit(self, running: Running, step: Commit | LookBack) -> Steps[Outcome]:
        world = self.world
        while True:
            yield
            try:
                verdict = self.judge(step, running)
            except Fenced:
                return Overtaken()
            if isinstance(verdict, fence.RoundInLake):
                return LakeCommitted(verdict.snapshot)
            if isinstance(step, LookBack):
                return Absent()
            world.spite(self)
            files = tuple(message.decode() for message in step.messages)
            # What is on its way to a table that is gone lands nowhere.
            act = partial(world.publish, world.lake(running.table), running.table, verdict.on, step.path, files)
            try:
                if (yield from world.faulty.call(act)):
                    return LakeCommitted(verdict.on + 1)
            except (Unavailable, OutcomeUnknown):
                running.unclear = True
                return Unclear()

    def tell(self, running: Running, tiered: Tiered, keep_from: int | None) -> Steps[Told | Failed]:
        world = self.world
        try:
            yield from world.faulty.call(lambda: world.fluss.tell(running.round.table_id, tiered, keep_from))
        except (Unavailable, OutcomeUnknown):
            running.untold += 1
            if running.untold < TELLINGS_MAX:
                return Told(False)
            world.counts["Left untold"] += running.round.state is RoundState.NEWEST
            return Failed()
        except Refused:
            # There is no such table any more, and nobody to be told.
            return Told(True)
        return Told(True)

    def report(self, running: Running, finished: bool, more: bool) -> Steps[RoundReported]:
        world, table_id = self.world, running.round.table_id
        running.reporting = True
        while True:
            try:
                yield from world.faulty.call(lambda: world.report(running, table_id, finished, more))
                return RoundReported()
            except Refused:
                return RoundReported()
            except (Unavailable, OutcomeUnknown):
                continue


def running_identity(messages: tuple[bytes, ...]) -> str:
    """Of the lake table that files were staged in; it may be gone, and another of its name be there."""
    return messages[0].decode().partition("/")[0]


class Flink(Service):
    """Fluss' own service: it starts from what Fluss knows, names the buckets with rows alone, and asks once whether Fluss missed something.

    What it asks and what it does lie apart, which is a hole of its own that nobody else can close; here it is lucky, and they don't.
    """

    def go(self, running: Running) -> Steps[None]:
        yield from self.round(running)
        self.running.remove(running)

    def round(self, running: Running) -> Steps[None]:
        world, fluss, table_id = self.world, self.world.fluss, running.round.table_id
        known = self.known(table_id)
        base = known.snapshot if known is not None else 0
        starts: dict[Bucket, int] = dict(known.ends) if known is not None else {}
        yield
        table, lake = fluss.by_id(table_id), world.lakes.get(running.table)
        if table is None or lake is None:
            return
        files: list[str] = []
        ends: dict[Bucket, int] = {}
        for bucket, log in list(table.logs.items()):
            yield
            copy, start = table.copies.get(bucket), starts.get(bucket)
            number = lake.next_number(bucket)
            if bucket not in table.logs:
                continue
            if start is None and table.keyed and copy is not None:
                rows = [(copy.offset, key, value) for key, value in table.fold(bucket, copy.offset).items()]
                end = copy.offset
            else:
                start = table.first[bucket] if start is None else start
                end = len(log)
                rows = [(offset, *change) for offset, change in enumerate(log[start:end], start) if change is not None]
            yield
            if rows:
                name = f"{lake.identity}/{world.nonce()}"
                lake.storage[name] = tuple(Row(bucket, offset, key, value, number + at) for at, (offset, key, value) in enumerate(rows))
                files.append(name)
                ends[bucket] = end
        yield
        standing, newest = fluss.standings.get(table_id), lake.newest()
        mine = standing is not None and standing.owner == running.owner and standing.state == "tiering"
        missing = newest is not None and newest.snapshot != base
        if newest is None and lake.expired:
            # It would bring all again, from the beginning or from what Fluss last heard.
            mine = False
        if not mine or missing or world.lakes.get(running.table) is not lake or not files:
            if mine and newest is not None and missing:
                fluss.tell(table_id, newest, -1)
            for name in files:
                lake.storage.pop(name)
            if mine:
                (fluss.fail if missing else self.done)(table_id, running.epoch)
            return
        try:
            path = fluss.prepare(Offsets(table_id, ends))
        except Refused:
            return
        if not world.publish(lake, running.table, lake.latest, path, tuple(files)):
            raise Violation("the lucky one was not")
        tiered = Tiered(lake.latest, path)
        yield
        yield
        try:
            # A late word of its would delete the file of a newer one, for it says nothing of what is to be kept.
            if lake.newest() == tiered:
                fluss.tell(table_id, tiered, None)
            yield
            self.done(table_id, running.epoch)
        except Refused:
            return

    def done(self, table_id: int, epoch: int) -> None:
        self.world.fluss.finish(table_id, epoch, self.world.now_ms, more=False)
