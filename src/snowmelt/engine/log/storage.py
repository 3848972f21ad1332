"""Where sealed segments are kept: in a folder that the driver and all tasks see, or in the bucket of the pipeline's state.

    log/<k·10⁸ + g>              in a bucket: the index of what driver g wants to be record k of the chain
    log/<k·10⁸ + g>.parts/<i>    a piece of its data

Laws of a bucket:
- Capture writes into a spool: a folder of this process alone, which no other process relies on. A sealed segment is uploaded. Its record
  enters the chain only when all of it is durable in the bucket. The segment in the spool is deleted when that record is durable.
- A driver that starts reads the chain and never a spool. It continues after the last record, and the server sends the rest again.
- A name belongs to one driver. A fenced driver that does not know it yet uploads under its own names, never over data of another.
- The index is uploaded first and deleted last, so that everything a crash leaves is found by it. Data that no record names is deleted when
  no record can name it any more (`Relay.leftover`): its number has a record of other data, or lies below all that is needed. A late driver
  may still win the number after the chain's end, so data for that number stays.

In a folder a segment stays where it was sealed, and one capture at a time owns the folder (`handover`). Records name it relative to the
state, so that a state that is moved or copied names its own segments:

    log/<number>.json            the index of a segment; its data lies beside it
    log/era-<e>/<number>.json    the beginning of another server's era, which has no data

A name must have one of these forms. So nothing outside of the state is read or deleted, whatever a record says. For the same reason the
folder itself must not be a symbolic link. The state may be one.

Memory: the pieces that are uploaded at once, whatever the size of a segment. Reading needs no buffer beside the reader's own.
"""

from __future__ import annotations

import contextlib
import os
import queue
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final, Protocol

import numpy as np

from snowmelt.columnar.arena import Bytes
from snowmelt.engine.driver.state import State
from snowmelt.engine.failpoints import HALF_UPLOADED, reach
from snowmelt.engine.log.reading import ReadInto, read_file
from snowmelt.errors import Corrupt, Fenced, InvalidConfig, check
from snowmelt.model.numbers import GenerationNumber
from snowmelt.relay.retention import Relay, SegmentRecord
from snowmelt.segments import Segment, decode_index, encode_index, list_segments, owned, read_segment, sealed_bytes
from snowmelt.store.contract import Store, key_of, key_of_part, numbered
from snowmelt.store.objects import BucketAddress, open_store

PIECE_BYTES: Final = 16 << 20
UPLOADS_AT_ONCE: Final = 4
_PREFIX: Final = "log"
_IN_FOLDER: Final = re.compile(r"log/(?:era-[0-9]{1,9}/)?([0-9]{12,20})\.json")
_IN_BUCKET: Final = re.compile(r"log/(?:[0-9]{20}|era-[0-9]{1,9})")
_GENERATIONS_MAX: Final = 10**8
_SPOOL: Final = "snowmelt-spool-"
_NEW_S: Final = 60.0
"""A spool without an owner that is younger than this may be about to get one."""

Kept = Callable[[Segment, str], None]
"""Called when a segment is durable where tasks find it by this name."""


class LogStorage(Protocol):
    """Order: `start` once, then `keep` by the capture's thread and all else by the driver's thread, until `close`."""

    folder: Path
    """Capture writes here, and nothing else does."""
    exclusive: bool
    """Whether older drivers can't add to the chain any more."""

    def last(self, relay: Relay) -> Segment | None:
        """The segment after which capture continues; None: nothing was captured yet."""
        ...

    def begin(self, relay: Relay) -> tuple[int, list[tuple[Segment, str]]]:
        """Remove segments that the chain has released. The bytes of segments with records; the segments without records and their names, in
        order."""
        ...

    def nothing(self, relay: Relay, era: int) -> str:
        """The name for the next record, which has no data."""
        ...

    def start(self, generation: GenerationNumber, number: int, kept: Kept, failed: Callable[[BaseException], None]) -> None:
        """`number`: the record number of the first segment to keep. `kept` and `failed` may be called by any thread."""
        ...

    def keep(self, segment: Segment) -> None:
        """Bring a segment of the folder to where tasks find it: in order, perhaps after the call returns."""
        ...

    def recorded(self, segment: Segment) -> None:
        """Its record is durable."""
        ...

    def remove(self, record: SegmentRecord) -> int:
        """Delete the data of a deleted record; the number of bytes. Twice is harmless."""
        ...

    def sweep(self, relay: Relay, done: int) -> None:
        """Delete data that no record can name any more. `done` is the record that the last done epoch names."""
        ...

    def close(self) -> None:
        """Begin with no other segment. Twice is harmless."""
        ...


# ---- in a folder


class FolderStorage(LogStorage):
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.exclusive = True
        self._kept: Kept = lambda _segment, _name: None

    def last(self, relay: Relay) -> Segment | None:
        segments = list_segments(self.folder)
        return segments[-1] if segments else None

    def begin(self, relay: Relay) -> tuple[int, list[tuple[Segment, str]]]:
        held, newest = relay.segments, relay.newest
        for record in held:
            # A bad name is an error now, and not only when its segment is released.
            _checked(_IN_FOLDER, record.name)
        recorded, rest = 0, []
        for segment in list_segments(self.folder):
            if held and segment.number < segment_number(held[0]):
                _remove(segment.index_path)
            elif newest is None or segment.number > segment_number(newest):
                rest.append((segment, _name_of(segment)))
            else:
                recorded += segment.data_bytes
        return recorded, rest

    def nothing(self, relay: Relay, era: int) -> str:
        if relay.newest is None:
            return f"{_PREFIX}/{0:020d}.json"
        return f"{_PREFIX}/era-{era}/{segment_number(relay.newest):012d}.json"

    def start(self, generation: GenerationNumber, number: int, kept: Kept, failed: Callable[[BaseException], None]) -> None:
        self._kept = kept

    def keep(self, segment: Segment) -> None:
        self._kept(segment, _name_of(segment))

    def recorded(self, segment: Segment) -> None:
        pass

    def remove(self, record: SegmentRecord) -> int:
        number = segment_number(record)
        return _remove(_index_in(self.folder, record.name)) if number and record.first < record.last else 0

    def sweep(self, relay: Relay, done: int) -> None:
        pass

    def close(self) -> None:
        pass


def segment_number(record: SegmentRecord) -> int:
    """The number of the segment in its folder; 0 for the head of a chain, which has no segment."""
    return int(_checked(_IN_FOLDER, record.name)[1])


def _name_of(segment: Segment) -> str:
    return f"{_PREFIX}/{segment.index_path.name}"


def _index_in(folder: Path, name: str) -> Path:
    return folder / f"{_checked(_IN_FOLDER, name)[1]}.json"


def _checked(form: re.Pattern[str], name: str) -> re.Match[str]:
    found = form.fullmatch(name)
    if found is None:
        raise Corrupt("a record of the relay names no segment of its state", detail=repr(name), hint="nothing was read or deleted for it")
    return found


def check_folder(folder: Path) -> None:
    """Refuse a folder of the log that lies elsewhere than the state."""
    if folder.is_symlink():
        raise InvalidConfig(
            "the folder of the log is a symbolic link",
            detail=f"{folder} leads to {os.readlink(folder)}",
            hint="put the whole state on that disk, and point the pipeline there",
        )


def _remove(index: Path) -> int:
    """Remove a segment; its number of bytes. The caller removes the oldest first, so that a crash leaves no gap. The index goes before the
    data: data without an index is removed at the next start."""
    data = index.with_suffix(".log")
    index.unlink(missing_ok=True)
    try:
        size = data.stat().st_size
        data.unlink()
    except FileNotFoundError:
        # The head of the chain has none.
        return 0
    return size


# ---- in a bucket


class BucketStorage(LogStorage):
    """`folder` is the spool."""

    def __init__(self, state: State, folder: Path) -> None:
        self.folder = folder
        self.exclusive = False
        self._state = state
        self._store = state.store
        self._bytes: dict[str, int] = {}
        """The sizes of segments that this driver has kept, by name. For those of older drivers the record has an upper bound."""
        self._work: queue.SimpleQueue[Segment | None] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def last(self, relay: Relay) -> Segment | None:
        segments = relay.segments
        for record in reversed(segments):
            if record.first < record.last:
                return _read_index(self._store, record.name)
        # The records after the newest intent may have no data: the beginning of another server's era. The record before was kept for this.
        number = segments[0].number - 1 if segments else 0
        while number and (before := self._state.segment_record(number)) is not None:
            if before.first < before.last:
                return _read_index(self._store, before.name)
            number -= 1
        return None

    def begin(self, relay: Relay) -> tuple[int, list[tuple[Segment, str]]]:
        for record in relay.segments:
            _checked(_IN_BUCKET, record.name)
        return sum(_bytes_at_most(record) for record in relay.segments), []

    def nothing(self, relay: Relay, era: int) -> str:
        return key_of(_PREFIX, f"era-{era}")

    def start(self, generation: GenerationNumber, number: int, kept: Kept, failed: Callable[[BaseException], None]) -> None:
        check(generation < _GENERATIONS_MAX, "there were too many drivers", str(generation))
        self._thread = threading.Thread(target=self._run, args=(generation, number, kept, failed), name="snowmelt-upload", daemon=True)
        self._thread.start()

    def keep(self, segment: Segment) -> None:
        self._work.put(segment)

    def _run(self, generation: GenerationNumber, number: int, kept: Kept, failed: Callable[[BaseException], None]) -> None:
        try:
            with ThreadPoolExecutor(UPLOADS_AT_ONCE, thread_name_prefix="snowmelt-upload") as pool:
                while (segment := self._work.get()) is not None and not self._closing.is_set():
                    name = numbered(_PREFIX, number * _GENERATIONS_MAX + generation)
                    self._upload(pool, segment, name)
                    # The driver's thread checks this, too, but only after it put the record. A check here keeps a late driver from winning
                    # a number from the newer one.
                    if self._store.get(numbered("generation", generation + 1)) is not None:
                        raise Fenced("a newer driver captures this log", detail=f"this is generation {generation}")
                    kept(segment, name)
                    number += 1
        except BaseException as error:
            failed(error)

    def _upload(self, pool: ThreadPoolExecutor, segment: Segment, name: str) -> None:
        """Durable on return."""
        self._bytes[name] = segment.data_bytes
        self._store.put_data(name, encode_index(segment))
        reach(HALF_UPLOADED)

        def put(index: int) -> None:
            at = index * PIECE_BYTES
            piece = np.empty(min(PIECE_BYTES, segment.data_bytes - at), np.uint8)
            read_file(segment.data_path, at, piece)
            self._store.put_data(_piece(name, index), piece.data)

        for _ in pool.map(put, range(_pieces(segment.data_bytes))):
            pass

    def recorded(self, segment: Segment) -> None:
        _remove(segment.index_path)

    def remove(self, record: SegmentRecord) -> int:
        if record.first == record.last:
            return 0
        held = self._bytes.pop(record.name, _bytes_at_most(record))
        self._delete(_checked(_IN_BUCKET, record.name)[0], held)
        return held

    def sweep(self, relay: Relay, done: int) -> None:
        for found in self._store.numbers(_PREFIX):
            name = numbered(_PREFIX, found)
            if relay.leftover(found // _GENERATIONS_MAX, name, done):
                # An index that can't be read is left alone: the size of its data is not known.
                with contextlib.suppress(Corrupt):
                    self._delete(name, _read_index(self._store, name).data_bytes)

    def _delete(self, name: str, data_bytes: int) -> None:
        self._store.delete([*(_piece(name, index) for index in range(_pieces(data_bytes))), name])

    def close(self) -> None:
        self._closing.set()
        self._work.put(None)
        if self._thread is not None:
            self._thread.join()


def _pieces(data_bytes: int) -> int:
    return -(-data_bytes // PIECE_BYTES)


def _piece(name: str, index: int) -> str:
    return key_of_part(name, f"{index:06d}")


def _bytes_at_most(record: SegmentRecord) -> int:
    """An upper bound of the data's size: some servers do not send all events of their log."""
    return record.last - record.first


def _read_index(store: Store, name: str) -> Segment:
    return decode_index(store.read(_checked(_IN_BUCKET, name)[0]), None, where=name)


@contextlib.contextmanager
def spool(parent: Path | None) -> Iterator[Path]:
    """A new folder of this process, in `parent` or where temporary files are, which is deleted at the end of the block. Spools that dead
    processes left are deleted first: no process relies on them."""
    place = parent or Path(tempfile.gettempdir())
    try:
        place.mkdir(parents=True, exist_ok=True)
        for found in place.glob(f"{_SPOOL}*"):
            _remove_abandoned(found)
        folder = Path(tempfile.mkdtemp(prefix=_SPOOL, dir=place))
    except OSError as error:
        hint = "name a folder that can be written to as spool of the relay"
        raise InvalidConfig("the captured log can't be spooled there", detail=f"{place}: {error.strerror}", hint=hint) from None
    try:
        with owned(folder):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_abandoned(folder: Path) -> None:
    # It has an owner, or is gone meanwhile.
    with contextlib.suppress(OSError, Fenced):
        status = folder.lstat()
        if status.st_uid == os.getuid() and status.st_mtime < time.time() - _NEW_S:
            with owned(folder):
                shutil.rmtree(folder, ignore_errors=True)


# ---- reading


Opened = tuple[Segment, ReadInto]


def segments_of(state: Path | BucketAddress) -> Callable[[str], Opened]:
    """Opens segments by the names that their records have."""
    if isinstance(state, BucketAddress):
        store = open_store(state)
        return lambda name: (_read_index(store, name), partial(_read_pieces, store, name))

    folder = state / _PREFIX
    check_folder(folder)

    def opened(name: str) -> Opened:
        segment = read_segment(_index_in(folder, name))
        return segment, partial(read_file, segment.data_path)

    return opened


def _read_pieces(store: Store, name: str, at: int, into: Bytes) -> None:
    left = into.data
    while left:
        index, begins = divmod(at, PIECE_BYTES)
        count = min(len(left), PIECE_BYTES - begins)
        store.read_into(_piece(name, index), begins, left[:count])
        left, at = left[count:], at + count


def held_bytes(log_folder: Path | None, relay: Relay) -> tuple[int, int]:
    """The bytes of log that are held, and the bytes of segments without a record. Without a `log_folder` the log is in a bucket: then only
    the log after the newest intent is counted, because the rest would need a request for each segment."""
    if log_folder is None:
        return sum(_bytes_at_most(record) for record in relay.segments), 0
    held = sealed_bytes(log_folder)
    recorded = 0 if relay.newest is None else segment_number(relay.newest)
    return sum(held.values()), sum(size for number, size in held.items() if number > recorded)
