"""Sets of ordinals and lists of bounds, as small as what is unfinished."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field

from snowmelt.errors import check


@dataclass(slots=True)
class RangeSet:
    """A set of whole numbers kept as ranges. Chunks are adopted nearly in order, so there are few ranges: one per gap."""

    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    """Each range's last number."""

    def __contains__(self, ordinal: int) -> bool:
        index = bisect_right(self.starts, ordinal) - 1
        return index >= 0 and ordinal <= self.ends[index]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self.starts, self.ends, strict=True)

    @property
    def count(self) -> int:
        """How many numbers there are."""
        return sum(last - first + 1 for first, last in self)

    def add(self, ordinal: int) -> None:
        """Adding a number twice changes nothing."""
        if ordinal in self:
            return
        index = bisect_right(self.starts, ordinal)
        joins_left = index > 0 and self.ends[index - 1] == ordinal - 1
        joins_right = index < len(self.starts) and self.starts[index] == ordinal + 1
        if joins_left and joins_right:
            self.ends[index - 1] = self.ends[index]
            del self.starts[index], self.ends[index]
        elif joins_left:
            self.ends[index - 1] = ordinal
        elif joins_right:
            self.starts[index] = ordinal
        else:
            self.starts.insert(index, ordinal)
            self.ends.insert(index, ordinal)

    def first_missing(self, start: int) -> int:
        """The least number from `start` on that is not in the set."""
        index = bisect_right(self.starts, start) - 1
        return self.ends[index] + 1 if index >= 0 and start <= self.ends[index] else start


@dataclass(slots=True)
class Bounds:
    """The upper bounds of chunks, packed. `forget` drops those of the finished chunks at the beginning."""

    first: int = 1
    """The ordinal of the first bound that is held."""
    data: bytearray = field(default_factory=bytearray)
    ends: array[int] = field(default_factory=lambda: array("Q"))

    @property
    def last(self) -> int:
        """The ordinal of the last chunk that has a bound."""
        return self.first + len(self.ends) - 1

    def extend(self, uppers: tuple[bytes, ...]) -> None:
        end = len(self.data)
        for upper in uppers:
            self.data += upper
            end += len(upper)
            self.ends.append(end)

    def upper(self, ordinal: int) -> bytes:
        check(self.first <= ordinal <= self.last, "a bound is asked for that is not held", f"{ordinal} of {self.first}..{self.last}")
        index = ordinal - self.first
        return bytes(self.data[self.ends[index - 1] if index else 0 : self.ends[index]])

    def forget(self, below: int) -> None:
        """Drop the bounds of ordinals below `below`. Does nothing until they are half of what is held: each drop copies the rest."""
        drop = min(below, self.last + 1) - self.first
        if drop <= 0 or drop * 2 < len(self.ends):
            return
        start = self.ends[drop - 1]
        del self.data[:start]
        self.ends = array("Q", [end - start for end in self.ends[drop:]])
        self.first += drop
