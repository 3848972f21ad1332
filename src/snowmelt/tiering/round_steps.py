"""The steps that a round asks its shell for, and the outcomes that the shell gives back. Values alone: `rounds` has the machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from snowmelt.model.fluss import Bucket, KvSnapshot
from snowmelt.tiering.fence import Base, KnownToFluss, LakeView, Tiered
from snowmelt.tiering.offsets import Offsets
from snowmelt.tiering.splits import BucketLog, Split


@dataclass(frozen=True, slots=True)
class Look:
    """Ask Fluss what it knows, *then* look at the lake table and its newest file of offsets: the other way round Fluss may have learned
    of a snapshot that we did not see, and the lake would seem to have lost it. Where Fluss names offsets whose file it has deleted, by a
    late word, it knows nothing, and will be told anew."""


@dataclass(frozen=True, slots=True)
class Tell:
    """Tell Fluss of a lake snapshot (COMMIT). What an earlier round left untold has no `ends` to say: its file has them.

    Fluss deletes the files of offsets of all that it knew before `keep_from`, and of all, this one's own included, if nothing is said.
    A word that is repeated, or comes late, must not take the file that the lake's newest snapshot names.
    """

    tiered: Tiered
    ends: Mapping[Bucket, int]
    keep_from: int


@dataclass(frozen=True, slots=True)
class ListBuckets:
    """List every bucket's log and newest KV snapshot, at the same coordinator."""


@dataclass(frozen=True, slots=True)
class LeaseSnapshots:
    """Have these held, verified. Which snapshots they are in the end is the outcome: a newer one may have come."""

    wanted: Mapping[Bucket, KvSnapshot]


@dataclass(frozen=True, slots=True)
class ReadSplits:
    """Read and stage, in tasks. Files are written by writers that were opened after the round's look at the lake."""

    splits: tuple[Split, ...]


@dataclass(frozen=True, slots=True)
class CheckTable:
    """Ask Fluss for the table's id and schema id, by its path."""


@dataclass(frozen=True, slots=True)
class Prepare:
    """Have Fluss write these offsets (PREPARE), and read back what it wrote."""

    offsets: Offsets


@dataclass(frozen=True, slots=True)
class Commit:
    """Commit to the lake, as `fence.judge` says. Empty where buckets moved without rows."""

    base: Base
    path: str
    messages: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class LookBack:
    """Judge once more whether the lake has it. To be repeated until the lake answers."""

    base: Base
    path: str


@dataclass(frozen=True, slots=True)
class Confirm:
    """Look which is the newest tiered snapshot."""


@dataclass(frozen=True, slots=True)
class Clean:
    """Delete what the round staged, but for what a snapshot refers to."""

    messages: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """With a heartbeat, until it is answered: finished or failed. `more`: due again at once."""

    finished: bool
    more: bool


Step = Look | Tell | ListBuckets | LeaseSnapshots | ReadSplits | CheckTable | Prepare | Commit | LookBack | Confirm | Clean | Report


@dataclass(frozen=True, slots=True)
class Looked:
    lake: LakeView
    offsets: Offsets | None
    """What the file says that the newest tiered snapshot names."""
    known: KnownToFluss | None


@dataclass(frozen=True, slots=True)
class Told:
    known: bool
    """False: the answer was lost, and Fluss is told again. Where that would not help, `Failed` follows."""


@dataclass(frozen=True, slots=True)
class LogsListed:
    logs: Sequence[BucketLog]


@dataclass(frozen=True, slots=True)
class SnapshotsLeased:
    held: Mapping[Bucket, KvSnapshot]


@dataclass(frozen=True, slots=True)
class BucketRead:
    """What became of a split."""

    bucket: Bucket
    reached: int | None
    """After the last row that was read; None: the partition is gone, and nothing was staged."""
    messages: tuple[bytes, ...]
    timestamp_ms: int = -1
    """The greatest of its rows."""


@dataclass(frozen=True, slots=True)
class SplitsRead:
    reads: Sequence[BucketRead]


@dataclass(frozen=True, slots=True)
class TableSeen:
    table_id: int | None
    """None: there is no such table."""
    schema_id: int


@dataclass(frozen=True, slots=True)
class CommitPrepared:
    path: str
    written: Offsets


@dataclass(frozen=True, slots=True)
class LakeCommitted:
    """The lake has it, found so by the commit or when looking back."""

    snapshot: int


@dataclass(frozen=True, slots=True)
class Unclear:
    """The commit did not say what came of it. Every error of it but `Fenced` is one of these."""


@dataclass(frozen=True, slots=True)
class Absent:
    """Looked back: the lake does not have it, and it may be tried again. Where that would not help, `Failed` follows."""


@dataclass(frozen=True, slots=True)
class Overtaken:
    """`Fenced` by the lake, at the commit or when looking back."""


@dataclass(frozen=True, slots=True)
class NewestConfirmed:
    newest: Tiered | None


@dataclass(frozen=True, slots=True)
class Cleaned:
    pass


@dataclass(frozen=True, slots=True)
class RoundReported:
    pass


@dataclass(frozen=True, slots=True)
class Failed:
    """The step can't be done. `messages`: what was staged for all that."""

    messages: tuple[bytes, ...] = ()


Outcome = (
    Looked
    | Told
    | LogsListed
    | SnapshotsLeased
    | SplitsRead
    | TableSeen
    | CommitPrepared
    | LakeCommitted
    | Unclear
    | Absent
    | Overtaken
    | NewestConfirmed
    | Cleaned
    | RoundReported
    | Failed
)
