"""A round whose every step has any outcome, with heartbeats that are answered, refused or lost at any time."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from snowmelt.errors import SourceDrift
from snowmelt.model.fluss import Bucket, KvSnapshot
from snowmelt.tiering.fence import KnownToFluss, LakeView, Tiered
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
from snowmelt.tiering.rounds import ENDS, SILENCE_MS_MAX, Round
from snowmelt.tiering.splits import BucketLog, Budget, LogSplit, SnapshotSplit

TABLE, SCHEMA = 5, 1
A, B = Bucket(TABLE, 0), Bucket(TABLE, 1)
BEFORE = Offsets(TABLE, {A: 10})
NEWEST = Tiered(3, "p3")
LAKE = LakeView(identity="u", schema=0, latest=3, whole_from=1, tiered=(NEWEST,), rows=True)


class Rounds(RuleBasedStateMachine):
    """The shell's side: it does each step, or fails in it, and keeps what it saw."""

    @initialize()
    def begin(self) -> None:
        self.now_ms = self.heard_ms = 0
        self.round = Round(TABLE, SCHEMA, keyed=True, budget=Budget(100, 100, 1), handed_out_ms=0)
        self.lost = False
        self.staged: set[bytes] = set()
        self.unclear = self.in_the_lake = False
        self.newest = NEWEST

    # ---- the shell

    @precondition(lambda self: self.round.state not in ENDS)
    @rule(data=st.data(), slept_ms=st.sampled_from([0, 0, 1_000, 30_000, SILENCE_MS_MAX]), refused=st.sampled_from([False] * 9 + [True]))
    def goes_on(self, data: st.DataObject, slept_ms: int, refused: bool) -> None:
        """A step, with some time before it, and while it is under way perhaps a heartbeat that is refused."""
        self.now_ms += slept_ms
        step = self.next_step()
        if refused:
            self.lost = True
            self.round.lost()
        outcome = self.outcome(step, data)
        if self.round.state in ENDS and not isinstance(outcome, RoundReported):
            return
        try:
            self.round.take(outcome)
        except SourceDrift:
            self.round.take(Failed())

    def next_step(self) -> Step:
        step = self.round.next_step(self.now_ms)
        self.lost = self.lost or not self.round.owned
        match step:
            case Commit():
                assert not self.lost, "a commit begins of a table that is not ours"
                assert self.now_ms - self.heard_ms <= SILENCE_MS_MAX, "a commit begins after too long a silence"
                assert set(step.messages) == self.staged
            case Clean(messages):
                assert not self.in_the_lake, "files are deleted that the lake has"
                assert not (messages and self.unclear), "files are deleted that may land late"
                assert self.unclear or set(messages) == self.staged, "files stay"
            case Report():
                assert not self.lost, "a table is reported that is not ours"
                assert step.finished == (self.in_the_lake or not self.staged) or not step.finished
            case Tell(tiered, _, keep_from):
                assert tiered == self.newest, "Fluss is told of what is not the newest"
                assert keep_from in (-1, NEWEST.snapshot)
            case _:
                pass
        return step

    def outcome(self, step: Step, data: st.DataObject) -> Outcome:
        draw = data.draw
        before_the_commit = isinstance(step, Look | ListBuckets | LeaseSnapshots | ReadSplits | CheckTable | Prepare)
        if before_the_commit and draw(st.integers(0, 15)) == 15:
            return self.fails(step)
        match step:
            case Look():
                known = draw(st.sampled_from([*[KnownToFluss(3, BEFORE.ends)] * 4, None, KnownToFluss(2, {})]))
                return Looked(LAKE, BEFORE, known)
            case Tell():
                return draw(st.sampled_from([Told(True), Told(False), Failed()]))
            case ListBuckets():
                copy = draw(st.sampled_from([None, KvSnapshot(B, 1, 20)]))
                return LogsListed(
                    [BucketLog(A, draw(st.sampled_from([0, 10, 0, 10, 11])), draw(st.integers(11, 20))), BucketLog(B, 0, 30, copy)]
                )
            case LeaseSnapshots(wanted):
                return SnapshotsLeased(wanted)
            case ReadSplits(splits):
                reads = []
                for split in splits:
                    match split:
                        case SnapshotSplit(copied):
                            reached = copied.offset
                        case LogSplit(_, start, stop):
                            reached = draw(st.integers(start, stop))
                    moved = reached != BEFORE.ends.get(split.bucket)
                    messages = (str(split.bucket).encode(),) if moved and draw(st.booleans()) else ()
                    reads.append(BucketRead(split.bucket, reached, messages))
                    self.staged.update(messages)
                return SplitsRead(reads)
            case CheckTable():
                return TableSeen(TABLE, draw(st.sampled_from([SCHEMA, SCHEMA, SCHEMA, 2])))
            case Prepare(offsets):
                return CommitPrepared("p4", offsets)
            case Commit():
                return self.commits(draw(st.sampled_from(["done", "done but lost", "not done", "fenced"])))
            case LookBack():
                return LakeCommitted(4) if self.in_the_lake else draw(st.sampled_from([Absent(), Overtaken()]))
            case Confirm():
                if self.in_the_lake and draw(st.booleans()):
                    self.newest = Tiered(5, "p5")
                return NewestConfirmed(self.newest)
            case Clean():
                return Cleaned()
            case Report():
                return RoundReported()

    def commits(self, fate: str) -> Outcome:
        if fate == "fenced":
            return Overtaken()
        if fate.startswith("done"):
            self.in_the_lake, self.newest = True, Tiered(4, "p4")
        if fate == "done":
            return LakeCommitted(4)
        self.unclear = True
        return Unclear()

    def fails(self, step: Step) -> Outcome:
        if isinstance(step, ReadSplits):
            self.staged.add(b"half")
            return Failed((b"half",))
        return Failed()

    # ---- the coordinator

    @rule()
    def is_heard(self) -> None:
        self.heard_ms = self.now_ms
        self.round.heard(self.now_ms)

    @invariant()
    def a_lease_is_let_go_of_only_when_the_lake_has_what_it_protects(self) -> None:
        assert not getattr(self, "round", None) or not self.round.committed or self.in_the_lake


Rounds.TestCase.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
TestRounds = Rounds.TestCase
