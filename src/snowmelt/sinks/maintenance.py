"""What maintenance may ask of a sink's tables. `sinks.registry` opens it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from snowmelt.commit.records import Staged
from snowmelt.maintenance.files import Rewrite, TableFiles, TableHistory
from snowmelt.model.moment import TimeMs
from snowmelt.model.numbers import GenerationNumber


@dataclass(frozen=True, slots=True)
class GivenUp:
    """A rewrite was not published and never will be. Its files are to be deleted."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Expired:
    """What an expiry removed."""

    snapshots: int
    files: int
    size_bytes: int


class ExpiryPoint(StrEnum):
    """How far an expiry is, for what watches it."""

    SNAPSHOTS_GONE = "expiry-snapshots-gone"
    """Nothing is deleted that only they named."""
    FILES_GOING = "expiry-files-going"
    """The first data file is deleted, and others are not."""
    FILES_GONE = "expiry-files-gone"
    """All data files are deleted, and no manifest."""


def unwatched(_point: ExpiryPoint) -> None:
    """Nothing watches."""


class Maintenance(Protocol):
    """Maintains the tables of one warehouse. Open it in the process that uses it. Each method may be called twice, also at once from two
    processes, and what it has answered is durable. It may race with any program that writes to, compacts or expires the table: the one that
    loses gives up. Retry `Unavailable`; stop with the table on `SourceDrift`."""

    def files(self, target: str) -> TableFiles:
        """The table's files as of its newest snapshot. Costs what its manifests have."""
        ...

    def rewrite(self, work: Rewrite, prefix: str) -> Staged:
        """In a task: merge the inputs into new files, named by `prefix`, in bounded memory. Nothing refers to them yet.
        `Unavailable`: an input is gone, or has newer columns than `work` was planned with."""
        ...

    def redistribute(self, work: Rewrite, buckets: int, prefix: str) -> Staged:
        """In a task: as `rewrite`, but the new files are of as many buckets, by the keys of their rows. They are true once an intent names
        them, with `Sink.rescale`. `work.level` is that of output whose keys no other output can have."""
        ...

    def publish(self, work: Sequence[Rewrite], staged: Sequence[Staged], *, generation: GenerationNumber) -> int | GivenUp:
        """Put the outputs in place of the inputs, in one snapshot on top of whatever is newest; the snapshot's number. All rewrites are of
        one table. Gives up if an input is not in the newest snapshot any more, if the table is another one, or if a driver of a newer
        generation has committed to it. After a lost answer the same call tells."""
        ...

    def history(self, target: str) -> TableHistory: ...

    def expire(self, target: str, numbers: Sequence[int], *, identity: str, reached: Callable[[ExpiryPoint], None] = unwatched) -> Expired:
        """Remove these snapshots, the oldest first and without a gap from the oldest on, and the files that no remaining snapshot, tag or
        branch names. A snapshot's own file goes before what only it named, so that a crash leaves orphans and never holes. Holders are
        read again right before: what has got one meanwhile stays, and all that is newer. `identity` is that of the history which they are
        from: nothing goes from another table of this name. `reached` is told how far it is."""
        ...

    def orphans(self, target: str, *, before_ms: TimeMs, ours: Callable[[str], bool]) -> Iterable[str]:
        """Files in the table's folders, data and metadata alike, that nothing refers to and that were last written before `before_ms`.
        `ours`: a staged file of ours that an intent may still name, which is never an orphan."""
        ...

    def delete(self, target: str, paths: Iterable[str]) -> int:
        """Delete such orphans. Absent ones are fine. Returns how many were there."""
        ...
