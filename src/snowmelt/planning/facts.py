"""What can become true of a table and its chunks.

A *durable* fact rides in an intent and is true once that intent is won, whoever wrote it. A *passing* fact is known to one
driver only and dies with it: the reads that it has under way. So a restart folds the durable facts of the intents, and whatever was
being read is read again.
"""

from __future__ import annotations

from dataclasses import dataclass

from snowmelt.model.moment import TimeMs
from snowmelt.model.table import TableId

OUTSIDE = 0
"""The ordinal of everything below a table's least and above its greatest key: a chunk without rows, adopted first. Of a table that is not
copied in chunks it is the only one, and has all rows."""


@dataclass(frozen=True, slots=True, order=True)
class Incarnation:
    """A table between two events that empty it. Reads, marks and bounds belong to one; none outlives it."""

    table: TableId
    number: int
    """The epoch that it began in: so no number comes twice, and none needs to be remembered when a table is gone."""

    def __str__(self) -> str:
        return f"{self.table}#{self.number}"


@dataclass(frozen=True, slots=True)
class KeyEnds:
    """The least and the greatest key that a table had when its ends were read. They are opaque here: the database orders keys."""

    least: bytes
    greatest: bytes


@dataclass(frozen=True, slots=True)
class Found:
    """A table is captured from now on, into the lake table `target`. `keyed`: rows of one key replace each other there.

    What the lake has of a table that had this name is emptied by the same epoch, at `at`. Reads must show everything up to there: rows of
    one that shows less would lie before the emptying.
    """

    incarnation: Incarnation
    target: str
    keyed: bool
    schema: int
    at: int = 0


@dataclass(frozen=True, slots=True)
class Reborn:
    """The table was emptied, dropped and made again, or renamed into its name, at offset `at`: all that was read is void."""

    incarnation: Incarnation
    at: int
    schema: int
    asked: bool = False
    """An operator asked for it. No statement of the log did it, and it is what brings a table back that was set aside."""


@dataclass(frozen=True, slots=True)
class Truncated:
    """A live table was emptied at `at`. The epoch that says so overwrites it with what follows."""

    incarnation: Incarnation
    at: int


@dataclass(frozen=True, slots=True)
class Gone:
    """The table was dropped at `at`."""

    incarnation: Incarnation
    at: int


@dataclass(frozen=True, slots=True)
class Reshaped:
    """The table has another schema from `at` on."""

    incarnation: Incarnation
    at: int
    schema: int


@dataclass(frozen=True, slots=True)
class Split:
    """The next chunks of a table by their upper bounds, in key order, from ordinal `first` on. `complete`: there are no more."""

    incarnation: Incarnation
    first: int
    uppers: tuple[bytes, ...]
    complete: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopted:
    """The rows of one read of a chunk are in the lake from this epoch on."""

    incarnation: Incarnation
    ordinal: int
    nonce: str
    """Of the run of the task whose files these are."""
    visible: int
    high: int
    extent: KeyEnds | None = None
    """Of OUTSIDE: what it lies outside of; None for a table without rows, and for one that is read whole."""


@dataclass(frozen=True, slots=True)
class Recopied:
    """A live table is read again, replacing what the lake has. Reads must show everything up to `at`, where the cause lies."""

    incarnation: Incarnation
    at: int


@dataclass(frozen=True, slots=True)
class SetAside:
    """The table can't go on, and the others can: from this epoch on nothing of it reaches the lake, where it stays as it is."""

    incarnation: Incarnation
    at: int
    """What the log says of it after this offset is not in the lake."""
    time_ms: TimeMs
    """When the last transaction up to there was committed."""
    why: str


Durable = Found | Reborn | Truncated | Gone | Reshaped | Split | Adopted | Recopied | SetAside


@dataclass(frozen=True, slots=True)
class Launched:
    """A read of a chunk was started by this driver. The relay keeps everything above `visible` until it is over."""

    incarnation: Incarnation
    ordinal: int
    job: int
    """Counted by the driver. Names of its files carry it, with the driver's generation."""
    visible: int
    era: int
    """Of the server that it is read from. A read of another server can't be joined with this one's log."""


@dataclass(frozen=True, slots=True)
class Reported:
    """The read ended well. It contains nothing beyond `high`, and its mark says of any change up to there whether it does."""

    incarnation: Incarnation
    ordinal: int
    job: int
    nonce: str
    high: int
    exact: bool
    """The mark leaves nothing open, so that no change comes twice."""
    schema: int
    files: tuple[str, ...]
    extent: KeyEnds | None = None
    """As in `Adopted`."""


@dataclass(frozen=True, slots=True)
class GivenBack:
    """The read is void: it failed, took too long, or the table changed under it. The chunk is to be read again."""

    incarnation: Incarnation
    ordinal: int
    job: int
    why: str


@dataclass(frozen=True, slots=True)
class Covered:
    """Epoch `epoch`, which ends at `upto`, is done."""

    epoch: int
    upto: int


@dataclass(frozen=True, slots=True)
class Released:
    """Bounds and marks of a table are let go of, or all of one that is gone: no plan can ask for them again."""

    incarnation: Incarnation


Passing = Launched | Reported | GivenBack
Fact = Durable | Passing | Covered | Released
