"""Bytes that are put together piece by piece and then lie in one array: in memory up to a limit, beyond it in a spill file.

The file has no name, so that a crash leaves nothing on disk. An error closes it at once, and so does leaving the block before `finish`;
after that it goes with the last array that looks into it. It is written before it is mapped: a disk that is full is an error of the
write and no signal. Memory is bounded by `memory_bytes`, the file by `bytes_max`.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from types import TracebackType
from typing import IO

import numpy as np

from snowmelt.columnar.arena import Bytes
from snowmelt.errors import SourceDrift, Unavailable


def too_large(bytes_max: int) -> SourceDrift:
    """For what would grow beyond the limit of a spill file."""
    return SourceDrift(
        "an event or a transaction of the log is larger than what may be put together",
        detail=f"more than {bytes_max} bytes",
        hint="raise relay: spill_bytes_max",
    )


class Assembly:
    """`write` as often as needed, then `finish`, in a `with` block or with `close`."""

    def __init__(self, *, memory_bytes: int, bytes_max: int) -> None:
        self.size = 0
        self._memory_bytes = memory_bytes
        self._bytes_max = bytes_max
        self._memory = bytearray()
        self._file: IO[bytes] | None = None

    def __enter__(self) -> Assembly:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Release memory and file; what `finish` has returned stays. Twice is harmless."""
        self._memory = bytearray()
        if self._file is not None:
            self._file.close()
            self._file = None

    @property
    def spilled(self) -> bool:
        return self._file is not None

    def write(self, data: bytes | memoryview) -> None:
        size = self.size + len(data)
        if size > self._bytes_max:
            self.close()
            raise too_large(self._bytes_max)
        if self._file is None and size <= self._memory_bytes:
            self._memory += data
        else:
            self._spill(data)
        self.size = size

    def _spill(self, data: bytes | memoryview) -> None:
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="snowmelt-spill-", buffering=0)  # noqa: SIM115
                write_all(self._file, self._memory)
                self._memory = bytearray()
            write_all(self._file, data)
        except OSError as error:
            # The error's traceback would keep the file, and a full disk full.
            self.close()
            raise Unavailable(
                "a spill file can't be written", detail=os.strerror(error.errno or 0), hint="make room in TMPDIR, or let it be elsewhere"
            ) from None

    def finish(self) -> Bytes:
        """All that was written. It may be written to."""
        if self._file is None:
            return np.frombuffer(self._memory, np.uint8)
        return np.frombuffer(mmap.mmap(self._file.fileno(), self.size), np.uint8)


def write_all(file: IO[bytes], data: bytes | bytearray | memoryview) -> None:
    """Write to a file that is not buffered, which may take less than it is given."""
    left = memoryview(data)
    while left:
        left = left[file.write(left) or 0 :]
