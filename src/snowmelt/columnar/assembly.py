"""Bytes that are put together piece by piece and then lie in one array: in memory up to a limit, beyond it in a spill file.

The file has no name, so that a crash leaves nothing behind, and goes with the last array that looks into it. It is written before it is
mapped: a disk that is full is an error of the write and no signal. Memory is bounded by `memory_bytes`, the file by `bytes_max`.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from typing import IO

import numpy as np

from snowmelt.columnar.arena import Bytes
from snowmelt.errors import SourceDrift, Unavailable


class Assembly:
    """`write` as often as needed, then `finish`."""

    def __init__(self, *, memory_bytes: int, bytes_max: int) -> None:
        self.size = 0
        self._memory_bytes = memory_bytes
        self._bytes_max = bytes_max
        self._memory = bytearray()
        self._file: IO[bytes] | None = None

    @property
    def spilled(self) -> bool:
        return self._file is not None

    def write(self, data: bytes | memoryview) -> None:
        size = self.size + len(data)
        if size > self._bytes_max:
            raise SourceDrift(
                "an event or a transaction of the log is larger than what may be put together",
                detail=f"more than {self._bytes_max} bytes",
                hint="raise relay: spill_bytes_max",
            )
        if self._file is None and size <= self._memory_bytes:
            self._memory += data
        else:
            self._spill(data)
        self.size = size

    def _spill(self, data: bytes | memoryview) -> None:
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="snowmelt-spill-", buffering=0)  # noqa: SIM115
                self._write_all(memoryview(self._memory))
                self._memory = bytearray()
            self._write_all(memoryview(data))
        except OSError as error:
            raise Unavailable(
                "a spill file can't be written", detail=os.strerror(error.errno or 0), hint="make room in TMPDIR, or let it be elsewhere"
            ) from None

    def _write_all(self, data: memoryview) -> None:
        assert self._file is not None
        while data:
            data = data[self._file.write(data) or 0 :]

    def finish(self) -> Bytes:
        """All that was written. It may be written to."""
        if self._file is None:
            return np.frombuffer(self._memory, np.uint8)
        with self._file as file:
            return np.frombuffer(mmap.mmap(file.fileno(), self.size), np.uint8)
