"""A KV snapshot of a bucket as Arrow: its files are copied to a folder, opened there as a RocksDB, and read once.

Laws:
- Only leased snapshots are read, unless the table has no leases. The caller ensures it, and holds the lease until the read has ended.
- The files do not change: the database is opened read-only, and what RocksDB writes beside them is deleted with the folder.
- A snapshot counts once it was read to its end. An error voids all rows that were handed out.

Memory: up to `bytes_max` or `rows_max` of rows, and the batch made of them; on disk the files that are not on this machine already.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from snowmelt.errors import Corrupt, InvalidConfig
from snowmelt.fluss.formats.batches import INSERT, SYSTEM_FIELDS, system_columns
from snowmelt.fluss.formats.compacted import RowDecoder
from snowmelt.fluss.formats.types import Versions
from snowmelt.fluss.remote import RemoteFiles
from snowmelt.model.fluss import NEVER, SnapshotFile

_FIRST_ROWS: Final = 256
_GROWTH: Final = 4


class SnapshotReader:
    """Reads KV snapshots of one table. One thread uses it."""

    def __init__(
        self,
        versions: Versions,
        remote: RemoteFiles,
        *,
        kv_format: str = "COMPACTED",
        rows_max: int = 32_768,
        bytes_max: int = 16 << 20,
        folder: Path | None = None,
    ) -> None:
        """`folder`: where files are copied to; None: the system's temporary folder."""
        if kv_format.upper() != "COMPACTED":
            raise InvalidConfig(
                "a Fluss table keeps its rows in a format that is not supported",
                detail=f"table.kv.format {kv_format[:40]}",
                hint="COMPACTED is",
            )
        self.schema = pa.schema([*versions.target.arrow, *SYSTEM_FIELDS])
        self._decoder = RowDecoder(versions, rows_max=rows_max)
        self._remote = remote
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        self._folder = folder

    def read(self, files: Iterable[SnapshotFile]) -> Iterator[pa.RecordBatch]:
        """All rows of the snapshot, in no defined order."""
        with tempfile.TemporaryDirectory(prefix="snowmelt-kv-", dir=self._folder) as name:
            folder = Path(name)
            for file in files:
                self._remote.bring(file.path, folder, file.name)
            database = _open(folder)
            try:
                rows = database.iter()
                rows.seek_to_first()
                yield from self._batches(rows)
            finally:
                database.close()

    def _batches(self, rows: Any) -> Iterator[pa.RecordBatch]:
        count = min(_FIRST_ROWS, self._rows_max)
        while values := _next_values(rows, count):
            lengths = np.fromiter(map(len, values), np.int64, len(values))
            ends = np.cumsum(lengths)
            data = np.frombuffer(b"".join(values), np.uint8)
            values.clear()
            for batch in self._decoder.decode(data, ends - lengths, ends):
                yield self._with_system(batch)
            # Sized by the last rows. It grows slowly, because the next rows may be larger.
            count = max(1, min(self._rows_max, _GROWTH * count, self._bytes_max * len(lengths) // max(1, data.shape[0])))

    def _with_system(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        rows = batch.num_rows
        never = np.full(rows, NEVER, np.int64)
        system = system_columns(never, never, np.full(rows, INSERT, np.int8))
        return pa.RecordBatch.from_arrays([*batch.columns, *system], schema=self.schema)


def _open(folder: Path) -> Any:
    from rocksdict import AccessType, Options, Rdict

    try:
        return Rdict(str(folder), Options(raw_mode=True), access_type=AccessType.read_only())
    except Exception as error:
        # rocksdict has no errors of its own.
        raise _unreadable(error) from None


def _next_values(rows: Any, count: int) -> list[bytes]:
    """Up to `count` values of an iterator of rocksdict. At its end it is checked that this is the end and not an error."""
    values: list[bytes] = []
    try:
        more, value, step = rows.valid, rows.value, rows.next
        while len(values) < count and more():
            values.append(value())
            step()
        if not values:
            rows.status()
    except Exception as error:
        raise _unreadable(error) from None
    return values


def _unreadable(error: Exception) -> Corrupt:
    # The text after the first colon may quote keys.
    return Corrupt("a KV snapshot of Fluss can't be read", detail=str(error).partition(":")[0][:60])
