"""Where sealed segments are kept: in a folder that the driver and all tasks see, or in the bucket of the pipeline's state.

    log/<k·10⁸ + g>              in a bucket: the index of what driver g wants to be record k of the chain
    log/<k·10⁸ + g>.parts/<i>    a piece of its data

Laws of a bucket:
- Capture writes into a spool: a folder of this process alone, on which nobody relies. A sealed segment goes up to the bucket, and only when
  all of it is durable there does its record enter the chain. What is in the spool goes when that record is durable.
- Who starts looks at the chain and never into a spool: it goes on behind the last record, and the server sends the rest again.
- A name is one driver's. A driver that is over, and does not know it yet, puts its data beside that of others and never over it.
- The index comes first and goes last, so that whatever a crash leaves is found by it. What no record names goes when no record can name
  it any more (`Relay.leftover`): its number has a record of other data, or lies below all that is needed. A driver that is late may
  still win the number behind the chain's end, so what was meant for that stays.

In a folder a segment is where it was sealed, and one capture at a time has the folder (`handover`). Records name it relative to the state,
so that a state that is moved or copied names its own segments:

    log/<number>.json            the index of a segment; its data lies beside it
    log/era-<e>/<number>.json    another server's beginning, which has none

A name is believed only if it has that form: whatever a record says, nothing outside of the state is read or deleted for it. For the same
reason the folder itself may be no symbolic link; the state may be one, and is where that leads.

Memory: as many pieces as go up at once, whatever the size of a segment. Who reads has what he asked for once beside his own buffer.
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
from snowmelt.relay.retention import Relay, Sealed
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
"""Younger than this a spool that nobody owns may be about to be."""

Kept = Callable[[Segment, str], None]
"""A segment is durable where tasks find it by this name."""


class LogStorage(Protocol):
    """`start` once, then `keep` by the capture's thread and all else by the thread that owns the machines, until `close`."""

    folder: Path
    """Where capture writes, and nobody else."""
    exclusive: bool
    """Whether no older driver can add to the chain meanwhile."""

    def last(self, relay: Relay) -> Segment | None:
        """What capture goes on behind; None: nothing was captured yet."""
        ...

    def begin(self, relay: Relay) -> tuple[int, list[tuple[Segment, str]]]:
        """Remove what the chain has let go of. How many bytes are held that have their records; the segments that have none, in order, and
        their names."""
        ...

    def nothing(self, relay: Relay, era: int) -> str:
        """The name in a record that has no data and is to be the next one."""
        ...

    def start(self, generation: int, number: int, kept: Kept, failed: Callable[[BaseException], None]) -> None:
        """`number` is the record's of the first segment that is kept. `kept` and `failed` may be called by any thread."""
        ...

    def keep(self, segment: Segment) -> None:
        """Bring a segment of the folder to where tasks find it; in order, and not always at once."""
        ...

    def recorded(self, segment: Segment) -> None:
        """Its record is durable."""
        ...

    def remove(self, sealed: Sealed) -> int:
        """Delete what belonged to a record that is gone; how many bytes that were. Twice is harmless."""
        ...

    def sweep(self, relay: Relay, done: int) -> None:
        """Delete what no record can name any more. `done` is the record that the last done epoch names."""
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
        for sealed in held:
            # Told before anything is done, and not when it is let go of.
            _checked(_IN_FOLDER, sealed.name)
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

    def start(self, generation: int, number: int, kept: Kept, failed: Callable[[BaseException], None]) -> None:
        self._kept = kept

    def keep(self, segment: Segment) -> None:
        self._kept(segment, _name_of(segment))

    def recorded(self, segment: Segment) -> None:
        pass

    def remove(self, sealed: Sealed) -> int:
        number = segment_number(sealed)
        return _remove(_index_in(self.folder, sealed.name)) if number and sealed.first < sealed.last else 0

    def sweep(self, relay: Relay, done: int) -> None:
        pass

    def close(self) -> None:
        pass


def segment_number(sealed: Sealed) -> int:
    """Of the segment in its folder; 0 for the head of a chain, which has none."""
    return int(_checked(_IN_FOLDER, sealed.name)[1])


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
    """Where the log is kept is where the state is."""
    if folder.is_symlink():
        raise InvalidConfig(
            "the folder of the log is a symbolic link",
            detail=f"{folder} leads to {os.readlink(folder)}",
            hint="put the whole state on that disk, and point the pipeline there",
        )


def _remove(index: Path) -> int:
    """Oldest first, so that a crash leaves no gap; the index before its data, which without it is removed at the next start.
    How many bytes that were."""
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
        """Of what this driver has kept, by name; of older ones the record tells how much it is at most."""
        self._work: queue.SimpleQueue[Segment | None] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def last(self, relay: Relay) -> Segment | None:
        segments = relay.segments
        for sealed in reversed(segments):
            if sealed.first < sealed.last:
                return _read_index(self._store, sealed.name)
        # What is behind the newest intent may have no data: another server's beginning. The record before it was kept for this.
        number = segments[0].number - 1 if segments else 0
        while number and (before := self._state.sealed(number)) is not None:
            if before.first < before.last:
                return _read_index(self._store, before.name)
            number -= 1
        return None

    def begin(self, relay: Relay) -> tuple[int, list[tuple[Segment, str]]]:
        for sealed in relay.segments:
            _checked(_IN_BUCKET, sealed.name)
        return sum(_bytes_at_most(sealed) for sealed in relay.segments), []

    def nothing(self, relay: Relay, era: int) -> str:
        return key_of(_PREFIX, f"era-{era}")

    def start(self, generation: int, number: int, kept: Kept, failed: Callable[[BaseException], None]) -> None:
        check(generation < _GENERATIONS_MAX, "there were too many drivers", str(generation))
        self._thread = threading.Thread(target=self._run, args=(generation, number, kept, failed), name="snowmelt-upload", daemon=True)
        self._thread.start()

    def keep(self, segment: Segment) -> None:
        self._work.put(segment)

    def _run(self, generation: int, number: int, kept: Kept, failed: Callable[[BaseException], None]) -> None:
        try:
            with ThreadPoolExecutor(UPLOADS_AT_ONCE, thread_name_prefix="snowmelt-upload") as pool:
                while (segment := self._work.get()) is not None and not self._closing.is_set():
                    name = numbered(_PREFIX, number * _GENERATIONS_MAX + generation)
                    self._upload(pool, segment, name)
                    # The record's writer looks, too, but behind its put: who sees it here does not win a number from who comes after.
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

    def remove(self, sealed: Sealed) -> int:
        if sealed.first == sealed.last:
            return 0
        held = self._bytes.pop(sealed.name, _bytes_at_most(sealed))
        self._delete(_checked(_IN_BUCKET, sealed.name)[0], held)
        return held

    def sweep(self, relay: Relay, done: int) -> None:
        for found in self._store.numbers(_PREFIX):
            name = numbered(_PREFIX, found)
            if relay.leftover(found // _GENERATIONS_MAX, name, done):
                # One that can't be read is left alone: how much belongs to it is not known.
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


def _bytes_at_most(sealed: Sealed) -> int:
    """Of the data: some servers keep a few of their log's events to themselves."""
    return sealed.last - sealed.first


def _read_index(store: Store, name: str) -> Segment:
    return decode_index(store.read(_checked(_IN_BUCKET, name)[0]), None, where=name)


@contextlib.contextmanager
def spool(parent: Path | None) -> Iterator[Path]:
    """A new folder of this process, in `parent` or where temporary files are, which goes with the block. Those that other processes left
    behind go first: nobody relies on any of them."""
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
    # Somebody else's, or gone meanwhile.
    with contextlib.suppress(OSError, Fenced):
        status = folder.lstat()
        if status.st_uid == os.getuid() and status.st_mtime < time.time() - _NEW_S:
            with owned(folder):
                shutil.rmtree(folder, ignore_errors=True)


# ---- who reads


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
    """How much of the log is held, and of that how much has no record yet. None: it is kept in a bucket, and what is told of that is what
    the newest intent does not have: to look at all of it would be a request for each segment."""
    if log_folder is None:
        return sum(_bytes_at_most(sealed) for sealed in relay.segments), 0
    held = sealed_bytes(log_folder)
    recorded = 0 if relay.newest is None else segment_number(relay.newest)
    return sum(held.values()), sum(size for number, size in held.items() if number > recorded)
