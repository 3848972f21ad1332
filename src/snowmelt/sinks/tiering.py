"""What tiering may know of the lake tables of Fluss tables. `sinks.registry` opens them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol

import pyarrow as pa

from snowmelt.tiering.fence import Base, LakeView
from snowmelt.tiering.offsets import Offsets


@dataclass(frozen=True, slots=True)
class LakeColumn:
    name: str
    type: str | dict[str, Any]
    """Paimon's as its schema files have it, with whether it may be NULL: `BIGINT NOT NULL`. Fields of rows have no ids yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeShape:
    """A Fluss table as its lake table has to be."""

    columns: tuple[LakeColumn, ...]
    key: tuple[str, ...] = ()
    partition_key: tuple[str, ...] = ()
    bucket_key: tuple[str, ...] = ()
    """Empty: rows are anywhere."""
    buckets: int = 1
    properties: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Fluss' own and the user's. Those that begin with `paimon.` are meant for the lake."""


class TieringWriter(Protocol):
    """Writes one bucket's rows, in a task. Not shared; call `finish` or `abandon` once."""

    @property
    def rows(self) -> int:
        """How many were written."""
        ...

    def write(self, batch: pa.RecordBatch) -> None:
        """Rows as they are read from Fluss, in the order of the log: the table's columns, `__offset`, `__timestamp`, `_kind`."""
        ...

    def finish(self) -> tuple[bytes, ...]:
        """What is staged, durable, for the commit; nothing where no row came."""
        ...

    def abandon(self) -> None:
        """Files that were written stay, for the cleaner. Twice is fine."""
        ...


class TieringSink(Protocol):
    """The lake tables of one warehouse. Open it in the process that uses it. The lake commit is the fence of a round (`tiering.fence`)."""

    def check_writable(self) -> None:
        """`InvalidConfig` or `Unavailable` if not."""
        ...

    def is_at(self, warehouse: str) -> bool:
        """Whether this is the warehouse of that address."""
        ...

    def ensure(self, target: str, shape: LakeShape) -> None:
        """The lake table is there and fits, made if need be; durable on return. `InvalidConfig`: it is another."""
        ...

    def fits(self, target: str, shape: LakeShape) -> bool:
        """Whether the lake table is there. `InvalidConfig`: it is another."""
        ...

    def view(self, target: str, base: int | None = None) -> LakeView:
        """The table at its newest snapshot, and the tiering user's newest one, or all of its that are above `base`."""
        ...

    def offsets(self, path: str) -> Offsets:
        """What a file of offsets says. Its address is Fluss' own, of a local folder or a bucket."""
        ...

    def writer(self, target: str, bucket: int, prefix: str) -> TieringWriter:
        """For one bucket of the Fluss table, or of one of its partitions. `prefix`: of the names of its files, tells the round."""
        ...

    def commit(self, target: str, base: Base, path: str, messages: Sequence[bytes]) -> int:
        """Publish a round on its base, once. Returns the snapshot that has it, durable. Twice is fine.

        `Fenced`: another round came first, or the table is another; nothing of ours is in it. Any other error leaves open whether it
        happened: then `look_back`.
        """
        ...

    def look_back(self, target: str, base: Base, path: str) -> int | None:
        """The snapshot that has a round, or None: it may be published still. `Fenced` as `commit`."""
        ...

    def clean(self, target: str, identity: str, messages: Sequence[bytes]) -> None:
        """Delete what a round staged in a table, but for what a snapshot, tag or branch of it refers to. Twice is fine."""
        ...
