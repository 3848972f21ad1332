"""A range of a bucket's log as Arrow, with every kind of change, of log tables and of tables with a key.

The leader of the bucket is asked for what follows an offset. It answers with batches from its own files, or names the segments of Fluss'
remote storage that have them. Those are read there, and the leader is asked for the rest.

Laws:
- Rows come out in the order of their offsets, each once, from the first wanted offset up to the last, exclusive.
- An offset that the log no longer has is an error. Nothing is read from another offset instead.
- A batch of a newer schema than the plan's ends the range early: `offset` says where, and the next plan continues there.
- `offset` is the offset of the next row. It passes over batches without rows too, so a range without rows also ends.

Memory: an answer of `bytes_max`, or of one larger batch, and the rows of one batch; segments are mapped, not loaded.
"""

from __future__ import annotations

import mmap
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import pyarrow as pa

from snowmelt import budgets
from snowmelt.budgets import RetryBudget
from snowmelt.errors import Corrupt, SourceDrift, Unavailable, check
from snowmelt.fluss.answers import FetchedBucket, FetchFrom, RemoteLog, RemoteSegment
from snowmelt.fluss.formats.batches import BatchDecoder, LogBatch, log_batches
from snowmelt.fluss.formats.types import Versions
from snowmelt.fluss.remote import RemoteFiles
from snowmelt.model.fluss import Bucket

_WAIT_MS: Final = 1000
_WAITS_MAX: Final = 30
"""How often in a row the leader may have no data below an offset that it has reported."""
_SEGMENT_ID: Final = re.compile(r"[0-9A-Za-z-]{1,64}")


class LogSource(Protocol):
    """A source of a bucket's log: `FlussClient` at its leader, or `BucketLeader`, which finds the leader. Asking twice is harmless. After
    `Unavailable` the next call may reach another server, or the same one after it recovered."""

    def fetch_log(self, wanted: Iterable[FetchFrom], *, bytes_max: int, wait_ms: int = 0) -> list[FetchedBucket]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LogAccess:
    """How the log of a bucket is read."""

    source: LogSource
    remote: RemoteFiles
    bytes_max: int = 16 << 20
    """Of one answer."""
    budget: RetryBudget = budgets.FLUSS_FETCH
    """How often refused requests are repeated."""
    pause: Callable[[float], None] = time.sleep
    folder: Path | None = None
    """For segments of remote storage while they are read."""


class BucketReader:
    """Reads one bucket from `offset` up to `end`. After `Unavailable` another reader may continue at this one's `offset`.

    Refused requests are repeated as often as `LogAccess.budget` says. 0.9 hangs up when it deletes a file that it is sending, and a server
    that has just started knows neither its buckets nor their logs.
    """

    def __init__(
        self,
        bucket: Bucket,
        offset: int,
        end: int,
        *,
        access: LogAccess,
        versions: Versions,
        log_format: str = "ARROW",
    ) -> None:
        check(0 <= offset <= end, "the range of a bucket's log is invalid", f"{offset} to {end}")
        self.bucket = bucket
        self.offset = offset
        self.newer_schema: int | None = None
        """The schema that ended the range early."""
        self._end = end
        self._access = access
        self._versions = versions
        self._decoder = BatchDecoder(versions, log_format)
        self.schema = self._decoder.schema

    def read(self) -> Iterator[pa.RecordBatch]:
        """Its rows. Afterwards `offset` is the end, or `newer_schema` says why it is not."""
        waits = 0
        while self.offset < self._end and self.newer_schema is None:
            before = self.offset
            fetched = self._fetch()
            if fetched.remote is not None and fetched.remote.segments:
                yield from self._segments(fetched.remote)
            else:
                yield from self._rows(log_batches(fetched.records, from_offset=self.offset))
            waits = 0 if self.offset > before else waits + 1
            if waits > _WAITS_MAX and self.newer_schema is None:
                raise Unavailable(
                    "the log of a Fluss bucket ends too early",
                    detail=f"{self.bucket}: at {self.offset} of {self._end}, its high watermark is {fetched.high_watermark}",
                )

    def _fetch(self) -> FetchedBucket:
        failures = 0
        while True:
            try:
                return self._ask()
            except (Unavailable, SourceDrift):
                failures += 1
                if self._access.budget.is_spent(failures):
                    raise
                self._access.pause(self._access.budget.pause_s(failures))

    def _ask(self) -> FetchedBucket:
        wanted = FetchFrom(self.bucket, self.offset, self._access.bytes_max)
        answers = self._access.source.fetch_log([wanted], bytes_max=self._access.bytes_max, wait_ms=_WAIT_MS)
        if len(answers) != 1 or answers[0].bucket != self.bucket:
            raise Corrupt("a Fluss server answers for another bucket", detail=f"{self.bucket}: {len(answers)} answers")
        if answers[0].error is not None:
            raise answers[0].error
        return answers[0]

    def _rows(self, batches: Iterator[LogBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.base >= self._end or self.offset >= self._end:
                return
            if batch.base > self.offset:
                raise SourceDrift(
                    "the log of a Fluss bucket does not have an offset any more",
                    detail=f"{self.bucket}: {self.offset}, it continues at {batch.base}",
                    hint="it was deleted before it was tiered; tier the table anew",
                )
            if batch.schema_id not in self._versions.by_id:
                if batch.schema_id > self._versions.target.id:
                    self.newer_schema = batch.schema_id
                    return
                raise Corrupt("a batch of Fluss' log has a schema that its table has not", detail=f"{self.bucket}: {batch.schema_id}")
            at = batch.base
            for found in self._decoder.decode(batch):
                first, last = max(self.offset - at, 0), min(self._end - at, found.num_rows)
                if last > first:
                    yield found.slice(first, last - first)
                at += found.num_rows
            self.offset = min(batch.next, self._end)

    def _segments(self, remote: RemoteLog) -> Iterator[pa.RecordBatch]:
        for place, segment in enumerate(remote.segments):
            if segment.start >= self._end or self.newer_schema is not None:
                return
            with tempfile.TemporaryDirectory(prefix="snowmelt-log-", dir=self._access.folder) as folder:
                path = self._access.remote.bring(_path(remote.folder, segment), Path(folder), f"{segment.segment}.log")
                yield from self._rows(_mapped(path, 0 if place else remote.first_position, self.offset))


def _path(folder: str, segment: RemoteSegment) -> str:
    if not _SEGMENT_ID.fullmatch(segment.segment) or segment.start < 0:
        raise Corrupt("Fluss names a segment of its log that can't be one", detail=f"{segment.segment[:60]!a}")
    return f"{folder}/{segment.segment}/{segment.start:020d}.log"


def _mapped(path: Path, position: int, offset: int) -> Iterator[LogBatch]:
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if not 0 <= position <= size:
            raise Corrupt("Fluss names a place after the end of its file", detail=f"{path.name}: {position} of {size}")
        if size == 0:
            return
        # It is unmapped when the last batch that refers to it is gone.
        yield from log_batches(memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))[position:], from_offset=offset)
