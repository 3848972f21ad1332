"""Facts about a table and its chunks.

A *durable* fact is part of an intent and is true once that intent is won, whichever driver wrote it. A *passing* fact is known to one
driver only and ends with it: the reads that it has under way. `Covered` and `Released` are neither: they follow from done epochs. So a
restart folds the durable facts of the intents, and repeats the reads that were under way.
"""

from __future__ import annotations

from dataclasses import dataclass

from snowmelt.model.moment import TimeMs
from snowmelt.model.numbers import BEGINNING, EpochNumber, LogOffset
from snowmelt.model.table import TableId

OUTSIDE = 0
"""The ordinal of the keys below a table's least and above its greatest one: a chunk without rows, adopted first. A table that is not
copied in chunks has only this one, with all its rows."""


@dataclass(frozen=True, slots=True, order=True)
class Incarnation:
    """The life of a table from `Found` or `Reborn` to the next `Reborn`. Reads, marks and bounds belong to one incarnation and end with it.

    `Truncated` empties a live table, which has no reads, and does not end its incarnation. Nor does `Recopied`.
    """

    table: TableId
    number: int
    """The epoch that it began in. So no number is used twice, and none must be remembered after the table is gone."""

    def __str__(self) -> str:
        return f"{self.table}#{self.number}"


@dataclass(frozen=True, slots=True)
class KeyEnds:
    """The least and the greatest key of a table when they were read. They are opaque here: the database orders keys."""

    least: bytes
    greatest: bytes


@dataclass(frozen=True, slots=True)
class Found:
    """A table is captured from now on, into the lake table `target`. `keyed`: rows of one key replace each other there.

    The same epoch empties, at `at`, what the lake has of a former table with this name. Reads must show everything up to `at`: otherwise
    their rows would come before the emptying.
    """

    incarnation: Incarnation
    target: str
    keyed: bool
    schema: int
    at: LogOffset = BEGINNING


@dataclass(frozen=True, slots=True)
class Reborn:
    """The table was emptied, dropped and created again, or renamed into its name, at offset `at`: all its reads are void."""

    incarnation: Incarnation
    at: LogOffset
    schema: int
    asked: bool = False
    """An operator asked for it; no statement of the log did it. Only this brings back a table that was set aside."""


@dataclass(frozen=True, slots=True)
class Truncated:
    """A live table was emptied at `at`. The epoch of this fact overwrites it with what follows."""

    incarnation: Incarnation
    at: LogOffset


@dataclass(frozen=True, slots=True)
class Gone:
    """The table was dropped at `at`."""

    incarnation: Incarnation
    at: LogOffset


@dataclass(frozen=True, slots=True)
class Reshaped:
    """The table has another schema from `at` on."""

    incarnation: Incarnation
    at: LogOffset
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
    """Of the task run that wrote these files."""
    visible: LogOffset
    high: LogOffset
    extent: KeyEnds | None = None
    """For OUTSIDE: the extent; None for a table without rows, and for one that is read whole."""


@dataclass(frozen=True, slots=True)
class Recopied:
    """A live table is read again, and the read replaces the lake's rows. Reads must show everything up to `at`, the offset of the cause."""

    incarnation: Incarnation
    at: LogOffset


@dataclass(frozen=True, slots=True)
class SetAside:
    """The table can't continue, and the others can: from this epoch on nothing of it reaches the lake, where it stays as it is."""

    incarnation: Incarnation
    at: LogOffset
    """Its changes after this offset are not in the lake."""
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
    """Counted by the driver. The names of its files have it, with the driver's generation."""
    visible: LogOffset
    era: int
    """The era of the server that is read. A read of another server can't be joined with this one's log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    """The read succeeded. It contains nothing after `high`, and its mark says for any change up to there whether it has it."""

    incarnation: Incarnation
    ordinal: int
    job: int
    nonce: str
    high: LogOffset
    exact: bool
    """The mark decides for every change, so no change comes twice."""
    schema: int
    files: tuple[str, ...]
    extent: KeyEnds | None = None
    """As in `Adopted`."""


@dataclass(frozen=True, slots=True)
class GivenBack:
    """The read is void: it failed, took too long, or the table changed meanwhile. The chunk is read again."""

    incarnation: Incarnation
    ordinal: int
    job: int
    why: str


@dataclass(frozen=True, slots=True)
class Covered:
    """Epoch `epoch`, which ends at `upto`, is done."""

    epoch: EpochNumber
    upto: LogOffset


@dataclass(frozen=True, slots=True)
class Released:
    """The bounds and marks of a table are released, or everything of one that is gone: no plan can ask for them again."""

    incarnation: Incarnation


Passing = Launched | Reported | GivenBack
Fact = Durable | Passing | Covered | Released
