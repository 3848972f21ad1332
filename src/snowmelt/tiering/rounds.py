"""One round of one table, from its hand-out by the Fluss coordinator to its end.

States. `ROUND` says which turn leads where. A state says what is true, and in each there is one next step, which the shell does and
whose outcome it gives back. Nothing of it is durable: all that a later round needs is in the lake and in Fluss, so a service that dies
anywhere leaves nothing but staged files, which no snapshot names.

Must never happen. A plan before Fluss knows of the lake's newest tiered snapshot: PREPARE merges over what Fluss knows. A read of a KV
snapshot that is not leased. PREPARE of less than all buckets' offsets: Fluss may have gone back by then, through the late word of a
round that slept. A lake commit begun more than `SILENCE_MS_MAX` after the last heartbeat that was answered was sent, or after an
answer that names an error: the table is another service's by then, or will be. Files deleted that the lake may yet get: those of
a commit whose answer was lost, which may land late, stay. A word to Fluss about a snapshot that is not the lake's newest tiered one. A
report of a table that is no longer ours: after a restart of the coordinator epochs repeat, and it would be taken for the new owner's.

None of this keeps a round that slept from committing late; what does is `fence.judge`, in every try of the commit.

Memory. A split and an offset per bucket, and what its writer has left, some hundred bytes a file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Final, TypeVar, assert_never

from snowmelt.errors import Corrupt, InvariantBroken, SourceDrift, check
from snowmelt.model.fluss import Bucket, KvSnapshot
from snowmelt.tiering.fence import KnownToFluss, LakeView, Start, Tiered, Untold, decide_start
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
from snowmelt.tiering.splits import BucketLog, Budget, SnapshotSplit, SplitPlan, plan_splits

_T = TypeVar("_T")
SILENCE_MS_MAX: Final = 90_000
"""The coordinator hands a table out again after 120 s, which can't be set."""
KEEP_ALL: Final = -1
"""Fluss' word for it. What is kept so goes with the next word that names a snapshot to keep from."""


class RoundState(Enum):
    """Known to this service alone."""

    HANDED_OUT = "handed out"
    UNTOLD = "Fluss does not know of the lake's newest"
    SEEN = "seen"
    DOUBTED = "doubted"
    PLANNED = "planned"
    LEASED = "leased"
    STAGED = "staged"
    CHECKED = "checked"
    PREPARED = "prepared"
    UNSURE = "unsure"
    COMMITTED = "committed"
    NEWEST = "the lake's newest"
    TOLD = "told"
    VOID = "void"
    GIVEN_UP = "given up"
    FINISHED = "finished"
    FAILED = "failed"
    FENCED = "fenced"


class RoundTrigger(Enum):
    MISSED = "a tiered snapshot is unknown to Fluss"
    REPAIRED = "Fluss was told of it"
    LOOKED = "lake and Fluss agree"
    DOUBTED = "lake and log do not meet"
    PLANNED = "there is something to read"
    LEASED = "every KV snapshot is held"
    READ = "every split was read"
    NOTHING = "nothing moved"
    SAME = "table and schema are the same"
    PREPARED = "Fluss wrote the offsets"
    BEGUN = "the commit begins"
    IN_THE_LAKE = "the lake has it"
    UNKNOWN = "the answer was lost"
    NOT_THERE = "the lake does not have it"
    STILL_NEWEST = "no newer round followed"
    OVERTAKEN = "a newer round followed"
    TOLD = "Fluss knows"
    REPORTED = "reported"
    FAILED = "a step failed"
    PRECEDED = "another round came first"
    LOST = "the table is no longer ours"
    CLEANED = "our files are deleted"


_BEFORE_THE_COMMIT: Final = (
    RoundState.HANDED_OUT,
    RoundState.UNTOLD,
    RoundState.SEEN,
    RoundState.DOUBTED,
    RoundState.PLANNED,
    RoundState.LEASED,
    RoundState.STAGED,
    RoundState.CHECKED,
    RoundState.PREPARED,
)
"""While nothing of the round can be in the lake."""

ROUND: Final[dict[tuple[RoundState, RoundTrigger], RoundState]] = {
    (RoundState.HANDED_OUT, RoundTrigger.MISSED): RoundState.UNTOLD,
    (RoundState.UNTOLD, RoundTrigger.REPAIRED): RoundState.HANDED_OUT,
    (RoundState.HANDED_OUT, RoundTrigger.LOOKED): RoundState.SEEN,
    (RoundState.SEEN, RoundTrigger.PLANNED): RoundState.PLANNED,
    (RoundState.SEEN, RoundTrigger.NOTHING): RoundState.TOLD,
    # Rows are lost, or only we were slow: another round came in between, and the log was cut after it.
    (RoundState.SEEN, RoundTrigger.DOUBTED): RoundState.DOUBTED,
    (RoundState.DOUBTED, RoundTrigger.OVERTAKEN): RoundState.VOID,
    (RoundState.PLANNED, RoundTrigger.LEASED): RoundState.LEASED,
    (RoundState.LEASED, RoundTrigger.READ): RoundState.STAGED,
    (RoundState.LEASED, RoundTrigger.NOTHING): RoundState.TOLD,
    (RoundState.STAGED, RoundTrigger.SAME): RoundState.CHECKED,
    (RoundState.CHECKED, RoundTrigger.PREPARED): RoundState.PREPARED,
    # From here on the lake may have it, whatever becomes of us.
    (RoundState.PREPARED, RoundTrigger.BEGUN): RoundState.UNSURE,
    (RoundState.UNSURE, RoundTrigger.UNKNOWN): RoundState.UNSURE,
    (RoundState.UNSURE, RoundTrigger.IN_THE_LAKE): RoundState.COMMITTED,
    (RoundState.UNSURE, RoundTrigger.NOT_THERE): RoundState.PREPARED,
    (RoundState.UNSURE, RoundTrigger.PRECEDED): RoundState.VOID,
    (RoundState.COMMITTED, RoundTrigger.STILL_NEWEST): RoundState.NEWEST,
    (RoundState.COMMITTED, RoundTrigger.OVERTAKEN): RoundState.TOLD,
    (RoundState.NEWEST, RoundTrigger.TOLD): RoundState.TOLD,
    (RoundState.NEWEST, RoundTrigger.UNKNOWN): RoundState.COMMITTED,
    # The lake has it, so nothing is cleaned. The next round tells Fluss first.
    (RoundState.NEWEST, RoundTrigger.FAILED): RoundState.GIVEN_UP,
    (RoundState.TOLD, RoundTrigger.REPORTED): RoundState.FINISHED,
    (RoundState.TOLD, RoundTrigger.LOST): RoundState.FENCED,
    (RoundState.VOID, RoundTrigger.CLEANED): RoundState.GIVEN_UP,
    (RoundState.GIVEN_UP, RoundTrigger.REPORTED): RoundState.FAILED,
    (RoundState.GIVEN_UP, RoundTrigger.LOST): RoundState.FENCED,
    **{(state, RoundTrigger.FAILED): RoundState.VOID for state in _BEFORE_THE_COMMIT},
    **{(state, RoundTrigger.LOST): RoundState.VOID for state in _BEFORE_THE_COMMIT},
}

ENDS: Final = (RoundState.FINISHED, RoundState.FAILED, RoundState.FENCED)


class Round:
    """A round. `next_step` and `take` alternate; `heard` and `lost` come at any time."""

    def __init__(self, table_id: int, schema_id: int, *, keyed: bool, budget: Budget, handed_out_ms: int) -> None:
        self.table_id = table_id
        self.schema_id = schema_id
        self.state = RoundState.HANDED_OUT
        self.owned = True
        """The table is ours, as far as we know."""
        self._keyed = keyed
        self._budget = budget
        self._heard_ms = handed_out_ms
        self._missed: Tiered | None = None
        self._newest: Tiered | None = None
        self._doubt: SourceDrift | None = None
        self._start: Start | None = None
        self._plan: SplitPlan | None = None
        self._ends: dict[Bucket, int] = {}
        self._timestamps: dict[Bucket, int] = {}
        self._messages: tuple[bytes, ...] = ()
        self._path = ""
        self._unclear = False
        self._snapshot = 0

    # ---- hearing

    def heard(self, sent_ms: int) -> None:
        """A heartbeat that was sent at `sent_ms` was answered without an error for this table."""
        self._heard_ms = max(self._heard_ms, sent_ms)

    def lost(self) -> None:
        """An answer names an error for this table (50, 23 or 7), or none came for too long: it is not ours any more."""
        self.owned = False
        self._settle()

    def silent(self, now_ms: int) -> bool:
        """Whether the coordinator fell silent for too long before the commit, so that another service may have the table."""
        return self.state in _BEFORE_THE_COMMIT and now_ms - self._heard_ms > SILENCE_MS_MAX

    # ---- step by step

    def next_step(self, now_ms: int) -> Step:
        """What is to be done now. Asked again without an outcome in between it is the same, unless the coordinator fell silent; but after
        a commit that was begun the next step looks back for it."""
        if self.silent(now_ms):
            self.lost()
        match self.state:
            case RoundState.HANDED_OUT:
                return Look()
            case RoundState.UNTOLD:
                return Tell(_there(self._missed), {}, KEEP_ALL)
            case RoundState.SEEN:
                return ListBuckets()
            case RoundState.PLANNED:
                return LeaseSnapshots(self._wanted())
            case RoundState.LEASED:
                return ReadSplits(_there(self._plan).splits)
            case RoundState.STAGED:
                return CheckTable()
            case RoundState.CHECKED:
                return Prepare(self._offsets())
            case RoundState.PREPARED:
                self._move(RoundTrigger.BEGUN)
                return Commit(_there(self._start).base, self._path, self._messages)
            case RoundState.UNSURE:
                return LookBack(_there(self._start).base, self._path)
            case RoundState.COMMITTED | RoundState.DOUBTED:
                return Confirm()
            case RoundState.NEWEST:
                keep_from = KEEP_ALL if self._newest is None else self._newest.snapshot
                return Tell(Tiered(self._snapshot, self._path), dict(self._ends), keep_from)
            case RoundState.TOLD:
                return Report(finished=True, more=self._more())
            case RoundState.VOID:
                return Clean(() if self._unclear else self._messages)
            case RoundState.GIVEN_UP:
                return Report(finished=False, more=False)
            case RoundState.FINISHED | RoundState.FAILED | RoundState.FENCED:
                raise InvariantBroken("a round continues after its end", detail=self.state.value)
            case _ as never:
                assert_never(never)

    def take(self, outcome: Outcome) -> None:
        """What came of the step. After `lost` the outcome of a step that was under way is still to be given: its files are known by it.

        An outcome that ends the round raises (`SourceDrift`, `Corrupt`) and changes nothing; then `Failed` is to follow.
        """
        match outcome:
            case Looked(lake, offsets, known):
                if self._still(RoundState.HANDED_OUT):
                    self._look(lake, offsets, known)
            case Told(known):
                self._told(known)
            case LogsListed(logs):
                if self._still(RoundState.SEEN):
                    self._plan_on(logs)
            case SnapshotsLeased(held):
                if self._still(RoundState.PLANNED):
                    self._hold(held)
            case SplitsRead(reads):
                self._messages = tuple(message for read in reads for message in read.messages)
                if self._still(RoundState.LEASED):
                    self._stage(reads)
            case TableSeen(table_id, schema_id):
                if self._still(RoundState.STAGED):
                    same = (table_id, schema_id) == (self.table_id, self.schema_id)
                    self._move(RoundTrigger.SAME if same else RoundTrigger.FAILED)
            case CommitPrepared(path, written):
                if self._still(RoundState.CHECKED):
                    self._prepared(path, written)
            case LakeCommitted(snapshot):
                self._snapshot = snapshot
                self._move(RoundTrigger.IN_THE_LAKE)
            case Unclear():
                self._unclear = True
                self._move(RoundTrigger.UNKNOWN)
            case Absent():
                self._move(RoundTrigger.NOT_THERE)
            case Overtaken():
                self._move(RoundTrigger.PRECEDED)
            case NewestConfirmed(newest):
                self._confirm(newest)
            case Cleaned():
                self._messages = ()
                self._move(RoundTrigger.CLEANED)
            case RoundReported():
                # Lost while it was under way: the new owner of the table has heard nothing of us.
                if self.state is not RoundState.FENCED:
                    self._move(RoundTrigger.REPORTED)
            case Failed(messages):
                self._messages = self._messages or messages
                if self.state is not RoundState.VOID:
                    self._move(RoundTrigger.FAILED)
            case _ as never:
                assert_never(never)

    @property
    def committed(self) -> Mapping[Bucket, int]:
        """What the lake has by this round, once it has it: these buckets' leases, where they still are held, are no longer needed."""
        over = (RoundState.COMMITTED, RoundState.NEWEST, RoundState.TOLD, RoundState.FINISHED)
        return self._ends if self.state in over else {}

    @property
    def timestamps_ms(self) -> Mapping[Bucket, int]:
        """The greatest of each bucket's rows in this round, for Fluss' metrics."""
        return self._timestamps

    # ---- outcomes

    def _look(self, lake: LakeView, offsets: Offsets | None, known: KnownToFluss | None) -> None:
        found = decide_start(self.table_id, lake, offsets, known)
        self._newest = lake.newest
        if isinstance(found, Untold):
            self._missed = found.tiered
            self._move(RoundTrigger.MISSED)
        else:
            self._start = found
            self._move(RoundTrigger.LOOKED)

    def _told(self, known: bool) -> None:
        if self.state is RoundState.NEWEST:
            self._move(RoundTrigger.TOLD if known else RoundTrigger.UNKNOWN)
        elif self._still(RoundState.UNTOLD):
            # Whether it was heard or not, the next look tells.
            self._move(RoundTrigger.REPAIRED)

    def _plan_on(self, logs: Sequence[BucketLog]) -> None:
        starts = _there(self._start).offsets.ends
        try:
            plan = plan_splits(keyed=self._keyed, starts=starts, logs=logs, budget=self._budget)
        except SourceDrift as error:
            self._doubt = error
            self._move(RoundTrigger.DOUBTED)
            return
        self._plan = plan
        self._move(RoundTrigger.PLANNED if plan.splits else RoundTrigger.NOTHING)
        if plan.splits and not self._wanted():
            self._move(RoundTrigger.LEASED)

    def _confirm(self, newest: Tiered | None) -> None:
        if self.state is RoundState.COMMITTED:
            ours = newest == Tiered(self._snapshot, self._path)
            self._move(RoundTrigger.STILL_NEWEST if ours else RoundTrigger.OVERTAKEN)
        elif self._still(RoundState.DOUBTED):
            if newest == self._newest:
                raise _there(self._doubt)
            self._move(RoundTrigger.OVERTAKEN)

    def _wanted(self) -> dict[Bucket, KvSnapshot]:
        return {split.bucket: split.snapshot for split in _there(self._plan).splits if isinstance(split, SnapshotSplit)}

    def _hold(self, held: Mapping[Bucket, KvSnapshot]) -> None:
        plan = _there(self._plan)
        wanted = self._wanted()
        check(held.keys() == wanted.keys(), "other buckets are held than were to be")
        for bucket, snapshot in held.items():
            check(snapshot.offset >= wanted[bucket].offset, "an older KV snapshot is held than was to be", str(bucket))
        splits = (SnapshotSplit(held[split.bucket]) if isinstance(split, SnapshotSplit) else split for split in plan.splits)
        self._plan = SplitPlan(tuple(splits), plan.more)
        self._move(RoundTrigger.LEASED)

    def _stage(self, reads: Sequence[BucketRead]) -> None:
        splits = {split.bucket: split for split in _there(self._plan).splits}
        check(len(reads) == len(splits), "a split was read twice, or not at all", f"{len(reads)} of {len(splits)}")
        starts = _there(self._start).offsets.ends
        for read in reads:
            check(read.bucket in splits, "a split was read that is not in the plan", str(read.bucket))
            split = splits.pop(read.bucket)
            if read.reached is None:
                check(not read.messages, "a partition is gone and has files", str(read.bucket))
                continue
            if isinstance(split, SnapshotSplit):
                check(read.reached == split.snapshot.offset, "a KV snapshot was read in part", str(read.bucket))
            else:
                check(split.start <= read.reached <= split.stop, "a range was read beyond its ends", str(read.bucket))
            if read.reached != starts.get(read.bucket):
                self._ends[read.bucket] = read.reached
                self._timestamps[read.bucket] = read.timestamp_ms
            else:
                check(not read.messages, "a bucket did not move and has files", str(read.bucket))
        self._move(RoundTrigger.READ if self._ends else RoundTrigger.NOTHING)

    def _offsets(self) -> Offsets:
        return _there(self._start).offsets.moved(self._ends)

    def _prepared(self, path: str, written: Offsets) -> None:
        if not written.says(self._offsets()):
            # Nothing is committed with it; but an operator should find out why.
            raise Corrupt("Fluss wrote other offsets than it was given", detail=path)
        check(path != "", "a file of offsets has no name")
        self._path = path
        self._move(RoundTrigger.PREPARED)

    # ---- small things

    def _more(self) -> bool:
        return self._plan is not None and self._plan.more and bool(self._ends)

    def _still(self, state: RoundState) -> bool:
        """Whether the round still is where an outcome belongs; if it was lost meanwhile, nothing follows from it but cleaning."""
        if self.state is RoundState.VOID:
            return False
        check(self.state is state, "an outcome is of another step", f"{self.state.value}, not {state.value}")
        return True

    def _move(self, trigger: RoundTrigger) -> None:
        to = ROUND.get((self.state, trigger))
        if to is None:
            raise InvariantBroken("invalid transition of a round", detail=f"{self.state.value}: {trigger.value}")
        self.state = to
        self._settle()

    def _settle(self) -> None:
        """A table that is not ours any more ends the round wherever the lake can't have it, and is not reported."""
        if not self.owned and (self.state, RoundTrigger.LOST) in ROUND:
            self._move(RoundTrigger.LOST)


def _there(value: _T | None) -> _T:
    if value is None:
        raise InvariantBroken("a round lacks what an earlier step brings")
    return value
