"""New data files of a table, and what a manifest says of each: of a compaction, and of chunks (`sinks.paimon.runs`).

Laws:
- A file is durable, with what it is called, before it is reported.
- Its form is that of the table's own writer: the same columns, field ids, compression and statistics.
- A column has a dictionary where a sample of the file's first rows has few values. Elsewhere a dictionary costs more time than all the
  rest, and makes the file larger.
- Rows come sorted by the key, each key once, so that files do not overlap.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from snowmelt.sinks.paimon.maintenance.reading import KIND, NUMBER, FileLayout
from snowmelt.sinks.paimon.table import file_path, local_path, sync_file

GROUP_BYTES: Final = 16 << 20
"""Of a row group, before it is compressed."""
_GROUP_BYTES_MIN: Final = 64 << 10
_RATIO: Final = 0.25
"""How small rows become, as long as no row group has shown it."""
APPENDED: Final = 0
COMPACTED: Final = 1
"""Paimon's words for where a file comes from."""
_SAMPLE_ROWS: Final = 2_048
_SAMPLE_ROWS_MIN: Final = 512
_TOLD: Final = (
    "BOOLEAN", "TINYINT", "SMALLINT", "INT", "INTEGER", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL", "NUMERIC", "STRING", "CHAR", "VARCHAR",
    "DATE", "TIME",
)  # fmt: skip
"""Types that have statistics, by their first word; timestamps have some, too."""
_TEXT_MAX: Final = 16
"""How many characters of a text statistics have, as Paimon's writers do it by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where files go, and as what."""

    layout: FileLayout
    partition: tuple[Any, ...]
    bucket: int
    level: int
    prefix: str
    file_bytes: int
    numbers: tuple[int, int] | None
    """The sequence numbers of all the rows. None: each row has its own."""
    source: int = COMPACTED
    group_bytes: int = GROUP_BYTES
    """Of a row group, before it is compressed; so much is held."""


def write_files(place: Place, tables: Iterable[pa.Table]) -> list[Any]:
    """Rows as files, each described as Paimon's manifests do it."""
    writer = RollingFiles(place)
    try:
        for table in tables:
            writer.write(table)
        writer.roll()
    finally:
        writer.close()
    return writer.files


class RollingFiles:
    """Writes one file after the other, of rows in order. Holds a row group."""

    def __init__(self, place: Place) -> None:
        self.files: list[Any] = []
        self._place = place
        self._waiting: list[pa.Table] = []
        self._waiting_bytes = 0
        self._ratio = _RATIO
        self._stream: Any = None
        self._writer: Any = None
        self._facts: _Facts | None = None
        self._name = f"{place.prefix}{uuid.uuid4()}"

    def write(self, rows: pa.Table) -> None:
        """Rows are held until they make a row group, and so is all memory that they are in."""
        while rows.num_rows:
            # A piece is divided where it would make a row group, or a file, much larger than wanted.
            fits = max(1, (self._wanted() - self._waiting_bytes) * rows.num_rows // max(1, rows.nbytes))
            part = rows.slice(0, fits)
            rows = rows.slice(part.num_rows)
            self._waiting.append(part)
            self._waiting_bytes += part.nbytes
            if self._waiting_bytes >= self._wanted():
                self._flush()

    def roll(self) -> None:
        """What was written is a file."""
        if self._waiting:
            self._flush()
        if self._facts is None:
            return
        facts, path = self._facts, self._path()
        self._writer.close()
        size = self._stream.tell()
        self.close()
        self._facts = None
        sync_file(self._place.layout.table, path)
        self.files.append(facts.described(os.path.basename(path), size))

    def close(self) -> None:
        """A file that was not finished stays, for the cleaner. Twice is fine."""
        if self._stream is not None:
            stream, self._stream, self._writer = self._stream, None, None
            stream.close()

    def _wanted(self) -> int:
        """How many bytes of rows the next row group is to have."""
        left = self._place.file_bytes - (self._stream.tell() if self._stream is not None else 0)
        return max(_GROUP_BYTES_MIN, min(self._place.group_bytes, int(left / self._ratio)))

    def _flush(self) -> None:
        rows = pa.concat_tables(self._waiting).combine_chunks()
        self._waiting, self._waiting_bytes = [], 0
        if self._facts is None:
            self._open(rows)
        before = self._stream.tell()
        self._writer.write_table(rows, row_group_size=rows.num_rows)
        self._ratio = max(0.01, (self._stream.tell() - before) / max(1, rows.nbytes))
        if self._facts is not None:
            self._facts.add(rows)
        if self._stream.tell() >= self._place.file_bytes:
            self.roll()

    def _open(self, rows: pa.Table) -> None:
        table, options = self._place.layout.table, self._place.layout.table.options
        path = self._path()
        local = local_path(table) is not None
        if local:
            # A bucket's first file. Its name is made durable by the commit. A table's own folder is never made here: it may be dropped.
            with contextlib.suppress(FileExistsError):
                os.mkdir(os.path.dirname(path))
        self._stream = pa.OSFile(path, "wb") if local else table.file_io.new_output_stream(path)
        compression = _compression(options, self._place.level)
        self._writer = pq.ParquetWriter(
            self._stream,
            self._place.layout.arrow,
            compression=compression,
            compression_level=options.file_compression_zstd_level() if compression == "zstd" else None,
            store_decimal_as_integer=True,
            use_dictionary=_with_dictionary(rows),
        )
        self._facts = _Facts(self._place)

    def _path(self) -> str:
        name = f"{self._name}-{len(self.files)}.parquet"
        return file_path(self._place.layout.table, self._place.partition, self._place.bucket, name)


def _with_dictionary(rows: pa.Table) -> list[str] | bool:
    """The columns that get a dictionary, by the paths of their leaves: those of few values, and all that are nested."""
    if rows.num_rows < _SAMPLE_ROWS_MIN:
        return True
    sample = rows.take(pa.array(np.linspace(0, rows.num_rows - 1, min(_SAMPLE_ROWS, rows.num_rows), dtype=np.int64)))
    varied = {
        column.name
        for column, values in zip(sample.schema, sample.columns, strict=True)
        if not pa.types.is_nested(column.type) and 2 * pc.count_distinct(values, mode="all").as_py() > sample.num_rows
    }
    if not varied:
        return True
    if not any(pa.types.is_nested(column.type) for column in rows.schema):
        return [name for name in rows.schema.names if name not in varied]
    sink = pa.BufferOutputStream()
    pq.write_table(rows.schema.empty_table(), sink)
    leaves = pq.ParquetFile(sink.getvalue()).schema
    return [leaf.path for leaf in (leaves.column(at) for at in range(len(leaves))) if leaf.path not in varied]


def _compression(options: Any, level: int) -> str:
    by_level = {str(key): str(value) for key, value in (options.file_compression_per_level() or {}).items()}
    name = by_level.get(str(level), options.file_compression()).lower()
    return "none" if name in ("none", "uncompressed") else str(name)


class _Facts:
    """What a manifest says of a file: counted while it is written."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._rows = 0
        self._deletes = 0
        self._first: tuple[Any, ...] = ()
        self._last: tuple[Any, ...] = ()
        self._columns = [_ColumnFacts(field, full=field.name in place.layout.keys) for field in place.layout.schema.fields]
        self._least, self._greatest = place.numbers or (2**63 - 1, -(2**63))

    def add(self, rows: pa.Table) -> None:
        layout = self._place.layout
        for column in self._columns:
            column.add(rows.column(column.name))
        if layout.keyed:
            kinds = rows.column(KIND)
            self._deletes += pc.sum(pc.is_in(kinds, value_set=pa.array([1, 3], pa.int8()))).as_py() or 0
            numbers = pc.min_max(rows.column(NUMBER)).as_py()
            self._least, self._greatest = min(self._least, numbers["min"]), max(self._greatest, numbers["max"])
            if not self._rows:
                self._first = tuple(rows.column(name)[0].as_py() for name in layout.keys)
            self._last = tuple(rows.column(name)[-1].as_py() for name in layout.keys)
        self._rows += rows.num_rows

    def described(self, name: str, size: int) -> Any:
        from pypaimon.data.timestamp import Timestamp
        from pypaimon.manifest.schema.data_file_meta import DataFileMeta
        from pypaimon.manifest.schema.simple_stats import SimpleStats
        from pypaimon.table.row.generic_row import GenericRow

        layout = self._place.layout
        by_name = {column.name: column for column in self._columns}
        key_columns = [by_name[name] for name in layout.keys]
        key_fields = [column.field for column in key_columns]
        told = [column for column in self._columns if column.known]
        fields = [column.field for column in told]
        return DataFileMeta.create(
            file_name=name,
            file_size=size,
            row_count=self._rows,
            min_key=GenericRow(list(self._first), key_fields),
            max_key=GenericRow(list(self._last), key_fields),
            key_stats=SimpleStats(
                GenericRow([column.least for column in key_columns], key_fields),
                GenericRow([column.greatest for column in key_columns], key_fields),
                [0] * len(key_columns),
            ),
            value_stats=SimpleStats(
                GenericRow([column.shown()[0] for column in told], fields),
                GenericRow([column.shown()[1] for column in told], fields),
                [column.nulls for column in told],
            ),
            min_sequence_number=self._least,
            max_sequence_number=self._greatest,
            schema_id=layout.schema.id,
            level=self._place.level,
            extra_files=[],
            # As the Rust writer's: no zone is added.
            creation_time=Timestamp.from_epoch_millis(time.time_ns() // 1_000_000),
            delete_row_count=self._deletes,
            file_source=self._place.source,
            value_stats_cols=[column.name for column in told],
        )


class _ColumnFacts:
    """The least and the greatest value of a column, and how many are NULL."""

    def __init__(self, field: Any, *, full: bool) -> None:
        self.field = field
        self.name = str(field.name)
        self.nulls = 0
        self.least: Any = None
        self.greatest: Any = None
        self.known = full or _told(str(field.type))
        self._full = full

    def add(self, values: pa.ChunkedArray) -> None:
        self.nulls += values.null_count
        if not self.known or values.null_count == len(values):
            return
        if pa.types.is_floating(values.type) and pc.any(pc.is_nan(values)).as_py() and not self._full:
            # It is greater than any other number for some readers, and none for others.
            self.known = False
            return
        found = _least_and_greatest(values)
        self.least = found[0] if self.least is None else min(self.least, found[0])
        self.greatest = found[1] if self.greatest is None else max(self.greatest, found[1])

    def shown(self) -> tuple[Any, Any]:
        """As the table's statistics have it. None: not known, and then neither is the other."""
        if not isinstance(self.least, str):
            return self.least, self.greatest
        greatest = _cut_up(self.greatest)
        return (None, None) if greatest is None else (self.least[:_TEXT_MAX], greatest)


def _cut_up(text: str) -> str | None:
    """The least short text that is not below a text."""
    if len(text) <= _TEXT_MAX:
        return text
    for at in range(_TEXT_MAX - 1, -1, -1):
        if (after := _after(text[at])) is not None:
            return text[:at] + after
    return None


def _least_and_greatest(values: pa.ChunkedArray) -> Sequence[Any]:
    found = pc.min_max(values)
    return found["min"].as_py(), found["max"].as_py()


def _after(letter: str) -> str | None:
    code = ord(letter) + 1
    if 0xD800 <= code <= 0xDFFF:
        code = 0xE000
    return chr(code) if code <= 0x10FFFF else None


def _told(kind: str) -> bool:
    """Whether a type has statistics. pypaimon has no more than microseconds."""
    name, _, rest = kind.removesuffix(" NOT NULL").partition("(")
    if name.startswith("TIMESTAMP"):
        return rest.partition(")")[0] in ("", "0", "1", "2", "3", "4", "5", "6")
    return name.split(" ")[0] in _TOLD
