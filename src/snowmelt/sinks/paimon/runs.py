"""The writer of chunks: rows that come in the order of their key become sorted files without being sorted again.

Paimon's own writer would sort each bucket's rows, although a chunk is read in the key's order. This one looks at each row once, whether
its key is above the one before it.

Laws:
- The order is Paimon's (`keys`), never the database's: what decides is the keys themselves, not their type or collation. From the first
  row that is out of order on, rows are held up to a bound and sorted.
- A file is sorted, and has each key once. Of two rows of one key that with the greater `_seq` counts, of equal ones the later: they may
  be in one file or in two, where the later file has the greater number.
- A row's bucket is that of Paimon's own hash, or two writers would put a key in two buckets.
- A table with an option that this writer does not know is left to Paimon's own writer (`fits`).
- Memory: a row group for each bucket, together `_GROUPS_BYTES`, or `_HELD_BYTES` of rows and one row group. Rows are copies: a
  batch may be of an arena that is many times its size.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from snowmelt.commit.records import Staged
from snowmelt.errors import InvariantBroken, check
from snowmelt.fluss.formats.buckets import Bucketing
from snowmelt.fluss.formats.types import Column, FlussType, Root
from snowmelt.maintenance.compaction import name_place
from snowmelt.model.table import KIND as KIND_OF_ROW
from snowmelt.sinks.contract import SEQUENCE
from snowmelt.sinks.paimon.maintenance.keys import KeyBytes, encode, last_of_each, order_of, rises
from snowmelt.sinks.paimon.maintenance.reading import KIND, NUMBER, FileLayout, layout_of
from snowmelt.sinks.paimon.maintenance.writing import APPENDED, GROUP_BYTES, Place, RollingFiles
from snowmelt.sinks.paimon.table import bucket_count, our_errors

_GROUPS_BYTES: Final = 64 << 20
"""Of all row groups that are being filled."""
_GROUP_BYTES_MIN: Final = 256 << 10
_HELD_BYTES: Final = 128 << 20
"""Of rows that wait to be sorted."""
_PIECE_ROWS: Final = 32_768
"""Of sorted rows that are brought into their order at once."""
_HARMLESS: Final = frozenset(
    {
        "bucket", "path", "type", "sequence.field", "write-only", "write-buffer-size", "write.parquet-buffer-size", "data-file.prefix",
        "file.compression", "file.compression.zstd-level", "file.compression.per.level", "target-file-size",
    }
)  # fmt: skip
_HARMLESS_PREFIXES: Final = ("snapshot.", "scan.", "read.", "consumer.", "tag.", "compaction.", "num-sorted-run.", "manifest.", "commit.")
"""Options that say nothing about the form of a data file, or that are followed here."""
_EXPECTED: Final = {
    "file.format": "parquet",
    "merge-engine": "deduplicate",
    "changelog-producer": "none",
    "sequence.field.sort-order": "ascending",
    "bucket-function.type": "default",
}
_ROOTS: Final = (
    (pa.types.is_boolean, Root.BOOLEAN),
    (pa.types.is_int8, Root.TINYINT),
    (pa.types.is_int16, Root.SMALLINT),
    (pa.types.is_int32, Root.INTEGER),
    (pa.types.is_int64, Root.BIGINT),
    (pa.types.is_float32, Root.FLOAT),
    (pa.types.is_float64, Root.DOUBLE),
    (pa.types.is_string, Root.STRING),
    (pa.types.is_binary, Root.BYTES),
    (pa.types.is_date32, Root.DATE),
    (pa.types.is_time32, Root.TIME),
)
_DIGITS: Final = {"s": 0, "ms": 3, "us": 6, "ns": 9}

Places = npt.NDArray[np.int64]


def fits(table: Any) -> bool:
    """Whether files of a table are written as here."""
    options = {name: str(value).lower() for name, value in table.options.options.to_map().items()}
    for name, value in options.items():
        if name in _EXPECTED:
            if value != _EXPECTED[name]:
                return False
        elif name not in _HARMLESS and not name.startswith(_HARMLESS_PREFIXES):
            return False
    layout = layout_of(table, int(table.table_schema.id))
    keyed = layout.keyed and not table.partition_keys and bucket_count(table) > 0 and options.get("sequence.field") == SEQUENCE
    return keyed and None not in _hashed(layout)


def _hashed(layout: FileLayout) -> list[Column | None]:
    """The key's columns as the hash knows them. None: a type that is not known."""
    return [_hashed_column(place, layout.arrow.field(name)) for place, name in enumerate(layout.keys)]


def _hashed_column(place: int, field: pa.Field) -> Column | None:
    kind = field.type
    if pa.types.is_decimal128(kind):
        return Column(place, field.name, FlussType(root=Root.DECIMAL, nullable=False, precision=kind.precision, scale=kind.scale))
    if pa.types.is_timestamp(kind):
        return Column(place, field.name, FlussType(root=Root.TIMESTAMP, nullable=False, precision=_DIGITS[kind.unit]))
    root = next((root for is_one, root in _ROOTS if is_one(kind)), None)
    return None if root is None else Column(place, field.name, FlussType(root=root, nullable=False))


def bucketing_of(layout: FileLayout, buckets: int) -> Bucketing:
    """What tells the bucket of a row by its key, as Paimon does."""
    return Bucketing([column for column in _hashed(layout) if column is not None], buckets, "paimon")


class RunWriter:
    """Writes rows of one table with a key, in a task. Not shared; `finish` or `abandon` once."""

    def __init__(self, table: Any, prefix: str, *, held_bytes: int = _HELD_BYTES) -> None:
        self._table = table
        self._target = str(table.identifier)
        self._prefix = prefix
        self._layout = layout_of(table, int(table.table_schema.id))
        self._buckets = bucket_count(table)
        self._bucketing = bucketing_of(self._layout, self._buckets)
        names = [name for name in self._layout.arrow.names if name not in (NUMBER, KIND)]
        self._wanted = [*names, KIND_OF_ROW]
        self._open: dict[int, RollingFiles] = {}
        self._files: dict[int, list[Any]] = {}
        self._last: KeyBytes | None = None
        self._waits = False
        """Rows have come out of order, so they wait to be sorted."""
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = 0
        self._held_bytes_max = held_bytes
        self._run = 0
        self._rows = 0
        self._ended = False

    def write(self, batch: pa.RecordBatch) -> None:
        """Rows in the order of their changes, `_seq` and the kind included. After an error nothing is left to be done with it."""
        with self._working():
            self._rows += batch.num_rows
            if batch.num_rows:
                self._take(self._shaped(batch))

    def finish(self) -> Staged:
        with self._working():
            self._sort()
            self._roll()
            self._ended = True
            return self._staged()

    def abandon(self) -> None:
        """Files that were written stay, for the cleaner. Twice is fine."""
        self._ended = True
        self._held = []
        for files in self._open.values():
            files.close()
        self._open = {}

    @contextlib.contextmanager
    def _working(self) -> Iterator[None]:
        check(not self._ended, "a writer is used after its end", self._target)
        with our_errors(self._target, rows=True):
            try:
                yield
            except BaseException:
                self.abandon()
                raise

    def _shaped(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows as files have them."""
        if batch.schema.names != self._wanted:
            hint = "its columns changed since the task began; the next try has them"
            raise InvariantBroken("rows do not fit into a lake table", detail=f"{self._target}: other columns", hint=hint)
        count = batch.num_rows
        arrays: list[pa.Array] = [self._number(count), batch.column(len(self._wanted) - 1)]
        for field, column in zip(list(self._layout.arrow)[2:], batch.columns, strict=False):
            if column.null_count and not field.nullable:
                detail = f"{self._target}.{field.name}: NULL"
                raise InvariantBroken("rows do not fit into a lake table", detail=detail, hint="a key and `_seq` are never NULL")
            arrays.append(column if column.type == field.type else column.cast(field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self._layout.arrow)

    def _number(self, count: int) -> pa.Array:
        return pa.repeat(pa.scalar(self._run, pa.int64()), count)

    def _take(self, batch: pa.RecordBatch) -> None:
        if not self._waits:
            keys = self._keys(batch)
            if rises(keys, self._last):
                # A copy, for what `keys` holds is as large as the batch.
                self._last = self._keys(batch.take(pa.array([len(keys) - 1])))
                self._write(batch, None)
                return
            self._roll()
            self._waits = True
            # It was shaped for the files that end here. Those that it comes into are later.
            batch = batch.set_column(0, batch.schema.field(0), self._number(batch.num_rows))
        copied = _copy(batch)
        self._held.append(copied)
        self._held_bytes += copied.nbytes
        if self._held_bytes >= self._held_bytes_max:
            self._sort()

    def _sort(self) -> None:
        """What is held becomes files of its own."""
        if not self._held:
            return
        rows = pa.Table.from_batches(self._held).combine_chunks().to_batches()[0]
        self._held, self._held_bytes = [], 0
        order = order_of([rows.column(name) for name in (*self._layout.keys, SEQUENCE)])
        kept = last_of_each(self._keys(rows), np.asarray(order.to_numpy(), np.int64))
        self._write(rows, kept)
        self._roll()

    def _write(self, rows: pa.RecordBatch, order: Places | None) -> None:
        """Sorted rows, or rows in this order, into the files of their buckets."""
        if self._buckets == 1 and order is None:
            self._bucket(0).write(pa.Table.from_batches([_copy(rows)]))
            return
        buckets = self._bucketing.buckets(rows.select(self._layout.keys)) if self._buckets > 1 else np.zeros(rows.num_rows, np.int32)
        if order is not None:
            buckets = buckets[order]
        by_bucket = np.argsort(buckets, kind="stable")
        starts = np.searchsorted(buckets[by_bucket], np.arange(self._buckets + 1))
        for bucket in np.flatnonzero(np.diff(starts)):
            places = by_bucket[starts[bucket] : starts[bucket + 1]]
            if order is not None:
                places = order[places]
            files = self._bucket(int(bucket))
            for start in range(0, len(places), _PIECE_ROWS):
                files.write(pa.Table.from_batches([rows.take(pa.array(places[start : start + _PIECE_ROWS]))]))
            if order is not None:
                self._close(int(bucket))

    def _keys(self, rows: pa.RecordBatch) -> KeyBytes:
        return encode([rows.column(name) for name in self._layout.keys])

    def _bucket(self, bucket: int) -> RollingFiles:
        if bucket not in self._open:
            group_bytes = GROUP_BYTES if self._waits else max(_GROUP_BYTES_MIN, min(GROUP_BYTES, _GROUPS_BYTES // self._buckets))
            self._open[bucket] = RollingFiles(
                Place(
                    layout=self._layout,
                    partition=(),
                    bucket=bucket,
                    level=0,
                    prefix=self._prefix,
                    file_bytes=int(self._table.options.target_file_size(True)),
                    numbers=None,
                    source=APPENDED,
                    group_bytes=group_bytes,
                )
            )
        return self._open[bucket]

    def _close(self, bucket: int) -> None:
        files = self._open.pop(bucket)
        files.roll()
        self._files.setdefault(bucket, []).extend(files.files)

    def _roll(self) -> None:
        """Later rows go to files of their own, which are read as newer."""
        for bucket in list(self._open):
            self._close(bucket)
        self._run += 1

    def _staged(self) -> Staged:
        from pypaimon.write.commit_message import CommitMessage
        from pypaimon.write.commit_message_serializer import serialize_commit_message

        files = [(file.file_name, name_place((), bucket)) for bucket, found in sorted(self._files.items()) for file in found]
        messages = [
            serialize_commit_message(CommitMessage((), bucket, found, total_buckets=self._buckets), self._table.partition_keys_fields)
            for bucket, found in sorted(self._files.items())
        ]
        return Staged(tuple(name for name, _ in files), tuple(messages), self._rows, tuple(place for _, place in files))


def _copy(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.ipc.read_record_batch(batch.serialize(), batch.schema)
