"""How a table gets another number of buckets while its pipeline runs.

States. Of one request, known to one driver alone. Nothing of it is durable but the request, its answer, and the intent that does it.

Must never happen. An entry lacks a row of the lake table, or has files by the old number. A delete goes and leaves an older row. Rows
are offered that were read before an epoch emptied the table.

Memory. The names of the table's files, and of what was staged.

Laws.
- All files of the table are rewritten, in rounds. The first ones run beside the epochs. While they run, epochs bring more files, which
  the next round takes.
- The last look is taken while no epoch is planned, staged or open (`closed`). So nothing is staged by the old number any more, and what
  is offered is all that the table has.
- A file that was rewritten must still be there at each later look. If another program has compacted it, a delete may be gone with the
  row that it deleted, and ours would be back. Then all of it begins again.
- A table that is being copied has reads that are staged by the old number. So it waits until the table is live.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from snowmelt.commit.records import Staged
from snowmelt.errors import InvariantBroken, check
from snowmelt.maintenance.compaction import LEVEL_MAX
from snowmelt.maintenance.files import BucketFiles, Rewrite, TableFiles

CLOSE_BYTES: Final = 64 << 20
"""If no more than this is left, epochs can wait for it."""
ROUNDS_MAX: Final = 5
"""Rounds beside the epochs. Where the table grows as fast as it is rewritten, epochs have to wait in the end."""
FAILURES_MAX: Final = 5
"""After as many in all the request is refused."""


class RescaleState(Enum):
    WAITING = "waiting"
    LOOKING = "looking"
    REWRITING = "rewriting"
    CLOSING = "closing"
    LAST_LOOK = "last look"
    LAST_ROUND = "last round"
    OFFERING = "offering"
    OFFERED = "offered"
    DISCARDING = "discarding"
    DONE = "done"
    REFUSED = "refused"


class RescaleTrigger(Enum):
    LIVE = "the table is live"
    MUCH_LEFT = "much is left to rewrite"
    LITTLE_LEFT = "little is left to rewrite"
    REWRITTEN = "a round is staged"
    AT_REST = "no epoch is under way"
    SOME_LEFT = "some is left to rewrite"
    NONE_LEFT = "all is rewritten"
    TAKEN = "it is offered"
    DONE = "the table has the number"
    LOST = "its epoch was dropped"
    CHANGED = "what was rewritten is not the table's any more"
    FAILED = "it failed"
    DISCARDED = "what was staged is deleted"
    TOO_OFTEN = "it failed too often"


_S, _T = RescaleState, RescaleTrigger
RESCALE: Final[dict[tuple[RescaleState, RescaleTrigger], RescaleState]] = {
    (_S.WAITING, _T.LIVE): _S.LOOKING,
    (_S.LOOKING, _T.MUCH_LEFT): _S.REWRITING,
    (_S.LOOKING, _T.LITTLE_LEFT): _S.CLOSING,
    (_S.REWRITING, _T.REWRITTEN): _S.LOOKING,
    (_S.CLOSING, _T.AT_REST): _S.LAST_LOOK,
    (_S.LAST_LOOK, _T.SOME_LEFT): _S.LAST_ROUND,
    (_S.LAST_LOOK, _T.NONE_LEFT): _S.OFFERING,
    (_S.LAST_ROUND, _T.REWRITTEN): _S.LAST_LOOK,
    (_S.OFFERING, _T.TAKEN): _S.OFFERED,
    (_S.OFFERED, _T.DONE): _S.DONE,
    (_S.OFFERED, _T.LOST): _S.DISCARDING,
    **{(state, _T.CHANGED): _S.DISCARDING for state in (_S.LOOKING, _S.REWRITING, _S.CLOSING, _S.LAST_LOOK, _S.LAST_ROUND, _S.OFFERING)},
    **{(state, _T.FAILED): _S.DISCARDING for state in (_S.LOOKING, _S.REWRITING, _S.LAST_LOOK, _S.LAST_ROUND, _S.OFFERING)},
    (_S.DISCARDING, _T.DISCARDED): _S.WAITING,
    (_S.DISCARDING, _T.TOO_OFTEN): _S.REFUSED,
}


@dataclass(frozen=True, slots=True)
class RescaleRequest:
    """What an operator asked for."""

    target: str
    buckets: int


# ---- steps, each done once; then its outcome is told


@dataclass(frozen=True, slots=True)
class LookAtTable:
    """See which files the table has (`Rescale.saw`)."""


@dataclass(frozen=True, slots=True)
class RewriteInto:
    """Stage them by the new number (`Rescale.rewrote`), in tasks."""

    works: tuple[Rewrite, ...]


@dataclass(frozen=True, slots=True)
class OfferAll:
    """Make an epoch of it (`Rescale.took`)."""

    staged: tuple[Staged, ...]
    snapshot: int
    """The newest one, whose rows they are."""


@dataclass(frozen=True, slots=True)
class DiscardAll:
    """Delete what was staged. No intent will name it."""

    staged: tuple[Staged, ...]


RescaleStep = LookAtTable | RewriteInto | OfferAll | DiscardAll


class Rescale:
    """One request of one driver."""

    def __init__(self, request: RescaleRequest, *, tasks_max: int, file_bytes: int) -> None:
        """`tasks_max`: how many buckets are rewritten at once."""
        check(tasks_max > 0, "a rescale has no task")
        self.request = request
        self.state = RescaleState.WAITING
        self.failures = 0
        self.why = ""
        """What went wrong last."""
        self._tasks_max = tasks_max
        self._file_bytes = file_bytes
        self._asked = False
        """The shell was given a step and has not told its outcome."""
        self._incarnation = 0
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._identity = ""
        self._snapshot = self._rounds = 0
        self._covered: set[str] = set()
        self._places: set[tuple[tuple[object, ...], int]] = set()
        """Buckets that had a round."""
        self._works: list[Rewrite] = []
        """What is left of the round."""
        self._staged: list[Staged] = []

    @property
    def closed(self) -> bool:
        """Whether no epoch may be planned."""
        return self.state in (_S.CLOSING, _S.LAST_LOOK, _S.LAST_ROUND, _S.OFFERING, _S.OFFERED)

    @property
    def over(self) -> bool:
        return self.state in (_S.DONE, _S.REFUSED)

    @property
    def begun(self) -> bool:
        """Whether other maintenance of the table must rest."""
        return self.state is not _S.WAITING and not self.over

    # ---- deciding

    def next_step(self, *, incarnation: int | None, at_rest: bool) -> RescaleStep | None:
        """What is to be done now. `incarnation`: of the table, if it is live, else None. `at_rest`: no epoch is planned, staged or open."""
        if self._asked:
            return None
        if self.state is _S.WAITING:
            if incarnation is None:
                return None
            self._incarnation = incarnation
            self._move(_T.LIVE)
        elif incarnation != self._incarnation and (self.state, _T.CHANGED) in RESCALE:
            self._move(_T.CHANGED)
        if self.state is _S.CLOSING and at_rest:
            self._move(_T.AT_REST)
        self._asked = True
        match self.state:
            case _S.LOOKING | _S.LAST_LOOK:
                return LookAtTable()
            case _S.REWRITING | _S.LAST_ROUND:
                return RewriteInto(tuple(self._works[: self._tasks_max]))
            case _S.OFFERING:
                return OfferAll(tuple(self._staged), self._snapshot)
            case _S.DISCARDING:
                return DiscardAll(tuple(self._staged))
            case _:
                self._asked = False
                return None

    # ---- outcomes

    def saw(self, files: TableFiles) -> None:
        self._asked = False
        there = {file.name for bucket in files.buckets for file in bucket.files}
        if not self._covered <= there or (self._identity and files.identity != self._identity):
            self.why = "the table's files were compacted or removed meanwhile"
            self.failures += 1
            self._move(_T.CHANGED)
            return
        self._identity, self._snapshot = files.identity, files.snapshot
        self._works = list(self._round(files))
        left = sum(file.size_bytes for bucket in files.buckets for file in bucket.files if file.name not in self._covered)
        if self.state is _S.LAST_LOOK:
            self._move(_T.SOME_LEFT if self._works else _T.NONE_LEFT)
        elif left > CLOSE_BYTES and self._rounds < ROUNDS_MAX:
            self._rounds += 1
            self._move(_T.MUCH_LEFT)
        else:
            self._move(_T.LITTLE_LEFT)

    def rewrote(self, staged: Sequence[Staged]) -> None:
        self._asked = False
        done, self._works = self._works[: len(staged)], self._works[len(staged) :]
        self._staged += staged
        for work in done:
            self._covered.update(work.inputs)
            self._places.add((work.partition, work.bucket))
        if not self._works:
            self._move(_T.REWRITTEN)

    def took(self) -> None:
        """The staged files are an intent's, if that is won."""
        self._asked = False
        self._move(_T.TAKEN)

    def ended(self, *, won: bool) -> None:
        """No epoch is under way any more. `won`: the one that was offered is done. Otherwise no intent will ever name what was staged."""
        if not won:
            self.why = "its epoch was dropped, because its table or another one changed meanwhile"
            self.failures += 1
        self._move(_T.DONE if won else _T.LOST)

    def failed(self, why: str) -> None:
        """The step that was asked for; nothing came of it."""
        self._asked = False
        self.why = why
        self.failures += 1
        self._move(_T.FAILED)

    def discarded(self) -> None:
        self._asked = False
        self._begin_anew()
        self._move(_T.TOO_OFTEN if self.failures >= FAILURES_MAX else _T.DISCARDED)

    def _round(self, files: TableFiles) -> Iterator[Rewrite]:
        for bucket in files.buckets:
            inputs = tuple(file.name for file in bucket.files if file.name not in self._covered)
            if inputs:
                yield self._work(files, bucket, inputs)

    def _work(self, files: TableFiles, bucket: BucketFiles, inputs: tuple[str, ...]) -> Rewrite:
        first = (bucket.partition, bucket.bucket) not in self._places
        return Rewrite(
            target=self.request.target,
            identity=files.identity,
            schema=files.schema,
            snapshot=files.snapshot,
            partition=bucket.partition,
            bucket=bucket.bucket,
            inputs=inputs,
            # Rows of later rounds lie over those of the first.
            level=LEVEL_MAX if first else 0,
            drops_deletes=first,
            file_bytes=self._file_bytes,
        )

    def _move(self, trigger: RescaleTrigger) -> None:
        state = RESCALE.get((self.state, trigger))
        if state is None:
            raise InvariantBroken("invalid transition of a rescale", detail=f"{self.request.target} is {self.state.value}: {trigger.value}")
        self.state = state
