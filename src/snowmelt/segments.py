"""Segments: the log as durable files in a folder.

    <number>.log     events as they are in the server's log, whole transactions, of one file of it
    <number>.json    the index, written when the data is durable

Laws:
- A segment exists once its index does. The index is durable before any reader learns of the segment, and it never changes.
- Numbers have no gaps, and a segment follows the one before it: each index says where that one ended.
- Data without an index is what a crash leaves. It was never a segment: it is removed and captured again.
- If the data that an index names is missing, or differs from what the index says, that is `Corrupt`; it is never read as empty.
- A folder may also be a spool: its segments are uploaded elsewhere, and nothing relies on the folder. Then the index goes with its data.

Only the database understands the data. It keeps what it needs to read the data in `own`, which nothing else reads. Where events have no
checksums of their own, the index has one checksum for all the data.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import json
import mmap
import os
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from snowmelt.columnar.crc32 import crc32
from snowmelt.errors import Corrupt, Fenced, InvariantBroken, Unavailable, check, present
from snowmelt.model.position import Position

VERSION: Final = 4
INDEX_BYTES_MAX: Final = 64 << 20
PAGE: Final = 4096
_AROUND_BYTES_MIN: Final = 1 << 20
"""A first write of this size means that the server sends faster than segments are sealed by time, and many large segments follow. Such a
segment bypasses the system's page cache (O_DIRECT), because copying into the cache costs more than all other work of capture. Smaller
segments stay in the cache, because a reader that follows the log reads them at once."""
_DIGITS: Final = 12


@dataclass(frozen=True, slots=True)
class SegmentCut:
    """A place in a segment where no transaction is open."""

    at: int
    """Offset in the data."""
    offset: int
    """Offset in the log."""
    time_s: int
    """Of the event that ends there, by the server's clock."""
    kind: str
    """What ends there, in the database's own word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """The index of a segment, and where its data is."""

    folder: Path | None
    """None: it is in no folder of this machine."""
    number: int
    database: str
    """Its kind, which says which database reads `own`."""
    identity: str
    """The server whose log this is."""
    log: str
    """The name of the file of the log; empty where a log has no files."""
    start: Position
    end: Position
    """With the set of all transactions up to here, where the server names them."""
    follows: Position | None
    """The end of the segment before; None for the first. It is `start` unless a new file of the log begins here."""
    file_begins: int
    """The offset that a file of the log begins at."""
    data_bytes: int
    data_crc32: int | None
    """Of the whole data, where events have none."""
    first_time_s: int
    last_time_s: int
    cuts: tuple[SegmentCut, ...]
    """At most one per MiB, those that the database needs, and always the segment's end."""
    own: str
    """What the database needs to read the data, and to continue after it."""

    @property
    def data_path(self) -> Path:
        return self._path("log")

    @property
    def index_path(self) -> Path:
        return self._path("json")

    def _path(self, ending: str) -> Path:
        if self.folder is None:
            raise InvariantBroken("a segment without a folder has no path", detail=f"{self.log}, {self.start}")
        return self.folder / f"{self.number:0{_DIGITS}d}.{ending}"

    def bytes(self) -> npt.NDArray[np.uint8]:
        """The data, mapped read-only. Checked as far as the index can; events check themselves."""
        try:
            with open(self.data_path, "rb") as file:
                mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        except (OSError, ValueError):
            raise Corrupt("the data of a segment is missing", detail=str(self.data_path)) from None
        # It is read from start to end, and is perhaps not in the system's cache.
        mapped.madvise(mmap.MADV_WILLNEED)
        data = np.frombuffer(mapped, np.uint8)
        if len(data) != self.data_bytes:
            raise Corrupt("a segment has another length than its index says", detail=f"{self.data_path}: {len(data)} bytes")
        if self.data_crc32 is not None and int(crc32(data, 0, len(data), np.uint32(0))) != self.data_crc32:
            raise Corrupt("a segment's checksum is wrong", detail=str(self.data_path))
        return data


def encode_index(segment: Segment) -> bytes:
    fields: dict[str, Any] = {
        "version": VERSION,
        "number": segment.number,
        "database": segment.database,
        "identity": segment.identity,
        "log": segment.log,
        "era": segment.end.era,
        "file": segment.end.file,
        "start": segment.start.offset,
        "end": segment.end.offset,
        "transactions": segment.end.transactions,
        "follows": str(segment.follows) if segment.follows else None,
        "file_begins": segment.file_begins,
        "data_bytes": segment.data_bytes,
        "data_crc32": segment.data_crc32,
        "first_time_s": segment.first_time_s,
        "last_time_s": segment.last_time_s,
        "cuts": [[cut.at, cut.offset, cut.time_s, cut.kind] for cut in segment.cuts],
        "own": segment.own,
    }
    return json.dumps(fields | {"checksum": _checksum(fields)}, indent=1).encode()


def _checksum(fields: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps({name: fields[name] for name in sorted(fields) if name != "checksum"}).encode())


def decode_index(raw: bytes, folder: Path | None, *, where: str) -> Segment:
    """Decode an index. `where` it was read is for the error."""
    try:
        segment = _decode(folder, raw)
        _check_bounds(segment)
    except (ValueError, KeyError, TypeError, AttributeError, Corrupt) as error:
        raise Corrupt("the index of a segment can't be read", detail=f"{where}: {error}") from None
    return segment


def _decode(folder: Path | None, raw: bytes) -> Segment:
    fields = json.loads(raw)
    if fields["checksum"] != _checksum(fields):
        raise ValueError("its checksum is wrong")
    if fields["version"] != VERSION:
        raise ValueError(f"version {fields['version']} is not known")
    return Segment(
        folder=folder,
        number=fields["number"],
        database=fields["database"],
        identity=fields["identity"],
        log=fields["log"],
        start=Position(fields["file"], fields["start"], fields["era"]),
        end=Position(fields["file"], fields["end"], fields["era"], fields["transactions"]),
        follows=Position.parse(fields["follows"]) if fields["follows"] else None,
        file_begins=fields["file_begins"],
        data_bytes=fields["data_bytes"],
        data_crc32=fields["data_crc32"],
        first_time_s=fields["first_time_s"],
        last_time_s=fields["last_time_s"],
        cuts=tuple(SegmentCut(*cut) for cut in fields["cuts"]),
        own=fields["own"],
    )


def _check_bounds(segment: Segment) -> None:
    """What must hold inside one index, whatever wrote it."""
    ends = [(cut.at, cut.offset) for cut in segment.cuts]
    right = (
        0 < segment.data_bytes <= segment.end.offset - segment.start.offset
        and 0 <= segment.file_begins <= segment.start.offset
        and ends == sorted(set(ends))
        and ends[-1:] == [(segment.data_bytes, segment.end.offset)]
    )
    if not right:
        raise ValueError("its numbers contradict each other")


def read_segment(path: Path) -> Segment:
    """Read an index and check that its data is there. `path` is the index or the data."""
    index = path.with_suffix(".json")
    try:
        if index.stat().st_size > INDEX_BYTES_MAX:
            raise Corrupt("the index of a segment can't be read", detail=f"{index}: it is too large")
        raw = index.read_bytes()
    except OSError:
        raise Corrupt("the index of a segment is missing", detail=str(index)) from None
    segment = decode_index(raw, index.parent, where=str(index))
    if segment.index_path.name != index.name:
        raise Corrupt("the index of a segment has another number than its name", detail=str(index))
    try:
        size = segment.data_path.stat().st_size
    except OSError:
        raise Corrupt("the data of a segment is missing", detail=str(segment.data_path)) from None
    if size != segment.data_bytes:
        raise Corrupt("a segment has another length than its index says", detail=f"{segment.data_path}: {size} bytes")
    return segment


def list_segments(folder: Path) -> list[Segment]:
    """The segments of a folder, in order. A gap in numbers or positions is `Corrupt`."""
    segments = [read_segment(path) for path in sorted(folder.glob("*.json"))]
    for one, other in itertools.pairwise(segments):
        if other.number != one.number + 1:
            raise Corrupt("segments are missing", detail=f"{one.index_path} is followed by {other.index_path.name}")
        same_file = other.start.file == one.end.file and other.start.offset == one.end.offset
        new_file = other.start.file > one.end.file and other.start.offset == other.file_begins
        follows = other.follows
        if follows is None or (follows.file, follows.offset, follows.era) != (one.end.file, one.end.offset, one.end.era):
            raise Corrupt("a segment doesn't follow the one before it", detail=f"{other.index_path}: {follows}, not {one.end}")
        # Another server numbers its files differently. The chain's records say that it continues where this one ends.
        new_era = other.start.era > one.end.era
        if not (same_file or new_file or new_era):
            raise Corrupt("the log has a gap between two segments", detail=f"{one.end} and {other.start} at {other.index_path}")
    return segments


@contextlib.contextmanager
def owned(folder: Path) -> Iterator[None]:
    """Lock the folder: one capture at a time. The system releases the lock when the process ends, however it ends."""
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Fenced("another capture writes into this folder", detail=str(folder)) from None
        yield
    finally:
        os.close(descriptor)


def sealed_bytes(folder: Path) -> dict[int, int]:
    """The data size of each segment, by number. The capture there may add and delete segments meanwhile."""
    found: dict[int, int] = {}
    for index in folder.glob("*.json"):
        with contextlib.suppress(FileNotFoundError):
            found[int(index.stem)] = index.with_suffix(".log").stat().st_size
    return found


def remove_torn(folder: Path) -> None:
    """Remove what a crash left: data that has no index yet, and unfinished indexes."""
    for path in folder.glob("*.tmp"):
        path.unlink()
    indexes = {path.stem for path in folder.glob("*.json")}
    for path in folder.glob("*.log"):
        # Below the last index, data without an index is no torn tail: its index was lost, and the gap in the numbers will show it.
        if path.stem not in indexes and path.stem > max(indexes, default=""):
            path.unlink()
    _sync_folder(folder)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class SegmentWriter:
    """Writes one segment after the other. Used by one thread.

    Order: `write` and `truncate` as often as needed, then `seal`. When `seal` returns, the segment is durable. `abandon` drops what was
    not sealed; twice is harmless. A file system that fails is `Unavailable`: the segment does not exist.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: int | None = None
        self._path: Path | None = None
        self._bytes = 0
        self._around = False

    def write(self, number: int, data: memoryview) -> None:
        """Append to the open segment, or open it. Data that begins and ends at whole pages can bypass the system's cache."""
        try:
            if self._file is None:
                self._create(number, around=len(data) >= _AROUND_BYTES_MIN)
            whole = len(data) // PAGE * PAGE if self._around else 0
            self._append(data[:whole])
            if whole < len(data):
                self._through_the_cache()
                self._append(data[whole:])
        except OSError as error:
            raise self._failure(error) from None

    def _create(self, number: int, *, around: bool) -> None:
        self._path = self._folder / f"{number:0{_DIGITS}d}.log"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._bytes = 0
        self._around = around
        if around:
            try:
                self._file = os.open(self._path, flags | os.O_DIRECT, 0o644)
                return
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                # Some file systems don't support it, and may have created the file before they refused.
                self._path.unlink(missing_ok=True)
                self._around = False
        self._file = os.open(self._path, flags, 0o644)

    def _append(self, data: memoryview) -> None:
        file = self._open()
        while data:
            try:
                written = os.write(file, data)
            except OSError as error:
                # The buffer is not aligned as the device requires.
                if error.errno != errno.EINVAL or not self._around:
                    raise
                self._through_the_cache()
                continue
            self._bytes += written
            data = data[written:]
            if written % PAGE:
                self._through_the_cache()

    def _through_the_cache(self) -> None:
        """Use the system's cache from here on: the rest is not whole pages, or does not begin at one."""
        if self._around:
            file = self._open()
            fcntl.fcntl(file, fcntl.F_SETFL, fcntl.fcntl(file, fcntl.F_GETFL) & ~os.O_DIRECT)
            self._around = False

    def truncate(self, size: int) -> None:
        """Drop everything after the first `size` bytes of the open segment."""
        file = self._open()
        check(size <= self._bytes, "a segment is cut after its end", f"{size} of {self._bytes} bytes")
        try:
            self._through_the_cache()
            os.ftruncate(file, size)
            os.lseek(file, size, os.SEEK_SET)
        except OSError as error:
            raise self._failure(error) from None
        self._bytes = size

    def seal(self, segment: Segment) -> None:
        """Make the data durable, then the index."""
        file = self._open()
        check(self._bytes == segment.data_bytes, "a segment has another length than counted", f"{self._bytes} bytes")
        index = segment.index_path
        temporary = index.with_suffix(".tmp")
        try:
            os.fdatasync(file)
            self._close()
            with open(temporary, "wb") as new:
                new.write(encode_index(segment))
                new.flush()
                os.fsync(new.fileno())
            temporary.rename(index)
            _sync_folder(self._folder)
        except OSError as error:
            raise self._failure(error) from None

    def abandon(self) -> None:
        path = self._path if self._file is not None else None
        self._close()
        if path is not None:
            path.unlink(missing_ok=True)

    def _open(self) -> int:
        return present(self._file, "no segment is open")

    def _close(self) -> None:
        if self._file is not None:
            os.close(self._file)
        self._file = None

    def _failure(self, error: OSError) -> Unavailable:
        return Unavailable("the segment can't be written", detail=f"{self._path}: {error.strerror}", hint="is the disk full?")
