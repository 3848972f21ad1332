"""What `verify` asks (`contract.comparing`): rows of the server as hashes, and the same of rows that the lake has.

The server's half is `server_hash`. It knows nothing of our decoders, or both sides could be wrong alike. A server that has a hash function
computes it itself, and sends sums instead of rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa

from snowmelt.databases.comparing.classes import Classes, Parting, Sums, remainders_for
from snowmelt.databases.comparing.digests import Hash, digest_rows, hashes
from snowmelt.databases.comparing.rows import Detail, Hashes, RowHashes, SourceRows
from snowmelt.databases.contract.tables import ReadMark
from snowmelt.errors import SourceDrift
from snowmelt.model.patterns import TablePredicate
from snowmelt.model.position import Position
from snowmelt.model.table import TableId
from tests.kit.small.server import Definition, Row, log_after, transactions

if TYPE_CHECKING:
    from tests.kit.small.database import SmallTable


@dataclass(frozen=True, slots=True)
class SmallComparing:
    ignores_case: ClassVar[bool] = False
    folder: Path
    tables: Callable[[TablePredicate], Mapping[TableId, SmallTable]]
    read: Callable[[SmallTable], tuple[list[Row], ReadMark]]
    """An exact read of all rows."""

    def read_tables(self, wanted: TablePredicate | Iterable[TableId]) -> Mapping[TableId, SmallTable]:
        return self.tables(wanted if callable(wanted) else set(wanted).__contains__)

    def table(self, shape: SmallTable, *, keyed: bool) -> SmallComparedTable:
        return SmallComparedTable(self, shape, SmallForms(shape.names, shape.key if keyed else (), shape.key))


@dataclass(frozen=True, slots=True)
class SmallComparedTable:
    """The server's side of one table. It is one range, in as many classes as its size asks for."""

    comparing: SmallComparing
    shape: SmallTable
    forms: SmallForms

    def part(self) -> Parting:
        return Parting(None, (), remainders_for(len(self._read()[0])))

    def sums(self, parting: Parting, watch: Callable[[int, int], None]) -> tuple[Sums, list[ReadMark]]:
        rows, hashed, mark = self._read()
        sums = Sums.zero(parting.count)
        sums.add(parting.classes(self.shape.arrow(rows), hashed.keys), hashed.rows)
        watch(1, 1)
        return sums, [mark]

    def rows(self, parting: Parting, classes: Classes) -> SourceRows:
        rows, hashed, mark = self._read()
        kept = np.isin(parting.classes(self.shape.arrow(rows), hashed.keys), classes)
        return SourceRows(hashed.where(kept), mark.high, mark.high)

    def details(self, keys: Hashes) -> tuple[dict[int, Detail], ReadMark]:
        rows, hashed, mark = self._read()
        found = np.flatnonzero(np.isin(hashed.keys, keys)).tolist()
        return {int(hashed.keys[at]): detail_of(int(hashed.rows[at]), self.shape.key_of(rows[at]), rows[at]) for at in found}, mark

    def changes(self, after: Position, upto: Position) -> RowHashes:
        found: list[tuple[Row, int]] = []
        for _, one in transactions(log_after(self.comparing.folder, after.offset)[: upto.offset - after.offset], after.offset):
            if "statement" in one and Definition.of_text(one["definition"]).id == self.shape.id:
                raise SourceDrift("a statement changed the table while it was verified", detail=str(self.shape.id), hint="verify it again")
            images = [both for database, name, *both in one.get("rows", ()) if TableId(database, name) == self.shape.id]
            found += [(tuple(row), count) for old, new in images for row, count in ((old, -1), (new, 1)) if row is not None]
        if self.forms.key:
            # The last state of each key, and 0 for one that is gone.
            last = {self.shape.key_of(row): (row, max(count, 0)) for row, count in found}
            found = list(last.values())
        return replace(self._hash([row for row, _ in found]), counts=np.array([count for _, count in found], np.int64))

    def _read(self) -> tuple[list[Row], RowHashes, ReadMark]:
        rows, mark = self.comparing.read(self.shape)
        return rows, self._hash(rows), mark

    def _hash(self, rows: Sequence[Row]) -> RowHashes:
        content = np.array([server_hash(row) for row in rows], np.uint64)
        keys = np.array([server_hash(self.shape.key_of(row)) for row in rows], np.uint64) if self.forms.key else content
        return RowHashes.of(keys, content)


@dataclass(frozen=True, slots=True)
class SmallForms:
    """Our side: how tasks hash rows of the lake."""

    names: tuple[str, ...]
    key: tuple[str, ...]
    """Empty: the lake does not tell rows apart by one, and the row itself is the key."""
    named_by: tuple[str, ...]

    def hash(self, batch: pa.RecordBatch) -> tuple[Hashes, Hashes]:
        return self._hash(batch, self.key or self.names), self._hash(batch, self.names)

    @staticmethod
    def _hash(batch: pa.RecordBatch, names: Sequence[str]) -> Hashes:
        return hashes(digest_rows([batch.column(name).cast(pa.large_string()) for name in names], batch.num_rows, Hash.MD5))

    def details(self, batch: pa.RecordBatch, keys: Hashes, rows: Hashes, named: Hashes) -> dict[int, Detail]:
        found = {}
        for at in np.flatnonzero(np.isin(keys, named)).tolist():
            row = batch.slice(at, 1).to_pylist()[0]
            found[int(keys[at])] = detail_of(int(rows[at]), [row[name] for name in self.named_by], [row[name] for name in self.names])
        return found


def server_hash(values: Iterable[Any]) -> int:
    """Of a key or a row, as `digests` describes it."""
    texts = [None if value is None else str(value).encode() for value in values]
    message = b"".join(b"-" if text is None else b"%d:%s" % (len(text), text) for text in texts)
    return int.from_bytes(hashlib.md5(message).digest()[:8], "big")


def detail_of(row: int, key: Iterable[Any], values: Iterable[Any]) -> Detail:
    return Detail(row, tuple(map(str, key)), tuple(repr(value).encode() for value in values))
