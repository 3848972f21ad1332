"""How far a lake table has its Fluss table, per bucket.

Laws:
- An offset is exclusive: the lake has everything below it, and the next round begins at it. Ranges are half-open everywhere.
- The Fluss coordinator writes the file of offsets, and a lake snapshot names it. It is parsed strictly. Unknown content is an error and
  never means "nothing was tiered", because that would tier all rows again.
- A bucket that a file does not name was never tiered. A missing *file* does not mean that.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from snowmelt.errors import Corrupt, check
from snowmelt.model.fluss import NEVER, Bucket

_VERSION: Final = 1
_LONG_MAX: Final = 2**63 - 1
_BUCKETS_MAX: Final = 1 << 20
"""For a whole file: far above what Fluss allows, and too little to fill the memory."""


@dataclass(frozen=True, slots=True)
class Offsets:
    """The content of a file of offsets: the table, and the next offset of each bucket."""

    table_id: int
    ends: Mapping[Bucket, int]

    def moved(self, ends: Mapping[Bucket, int]) -> Offsets:
        """With new offsets for these buckets. All others are kept, so that a merge over an older file can't take one back."""
        for bucket, end in ends.items():
            check(end >= self.ends.get(bucket, 0), "an offset would go back", f"{bucket}: from {self.ends.get(bucket)} to {end}")
        return Offsets(self.table_id, {**self.ends, **ends})

    def says(self, wanted: Offsets) -> bool:
        """Whether all wanted offsets are here, and equal. There may be others, of dropped partitions."""
        return self.table_id == wanted.table_id and all(self.ends.get(bucket) == end for bucket, end in wanted.ends.items())


def parse_offsets(content: bytes, name: str) -> Offsets:
    """The file `name`, as Fluss 0.9 writes it."""
    try:
        found = json.loads(content)
    except ValueError as error:
        raise _unreadable(name, "it is no JSON") from error
    known = {"version", "table_id", "bucket_offsets", "partition_offsets"}
    if not isinstance(found, dict) or not found.keys() <= known:
        raise _unreadable(name, "it has other fields than are known")
    if _whole(found.get("version"), name) != _VERSION:
        raise _unreadable(name, f"its version is not {_VERSION}")
    table_id = _whole(found.get("table_id"), name)
    if "bucket_offsets" in found and "partition_offsets" in found:
        raise _unreadable(name, "it is of a table with partitions and of one without")
    ends = _ends(found.get("bucket_offsets", []), table_id, None, name)
    partitions = found.get("partition_offsets", [])
    if not isinstance(partitions, list):
        raise _unreadable(name, "its partitions are no list")
    seen: set[int] = set()
    for part in partitions:
        if not isinstance(part, dict) or part.keys() != {"partition_id", "bucket_offsets"}:
            raise _unreadable(name, "a partition has other fields than are known")
        partition = _whole(part["partition_id"], name)
        if partition in seen:
            raise _unreadable(name, "a partition is there twice")
        seen.add(partition)
        ends |= _ends(part["bucket_offsets"], table_id, partition, name)
        if len(ends) > _BUCKETS_MAX:
            raise _unreadable(name, "it has too many buckets")
    return Offsets(table_id, ends)


def _ends(found: Any, table_id: int, partition: int | None, name: str) -> dict[Bucket, int]:
    """The index in the list is the bucket number; NEVER stands for an unknown bucket."""
    if not isinstance(found, list) or len(found) > _BUCKETS_MAX:
        raise _unreadable(name, "its offsets are no list, or too long a one")
    numbers = ((place, _whole(offset, name, NEVER)) for place, offset in enumerate(found))
    return {Bucket(table_id, place, partition): offset for place, offset in numbers if offset != NEVER}


def _whole(found: Any, name: str, least: int = 0) -> int:
    # JSON's true is an int in Python.
    if type(found) is not int or not least <= found <= _LONG_MAX:
        raise _unreadable(name, "a number is none, or out of range")
    return found


def _unreadable(name: str, why: str) -> Corrupt:
    return Corrupt("a file of Fluss offsets can't be read", detail=f"{name}: {why}", hint="is it damaged, or of another version of Fluss?")
