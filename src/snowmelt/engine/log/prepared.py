"""Prepared transactions, held aside: their events in objects of their own, so that the log around them can be deleted while they wait.

    held/<k>                the record; k follows from the place where the transaction ends (`Prepared.number`)
    held/<k>.parts/<hash>   a piece of its events

Laws:
- Pieces are durable before their record. That is durable before the segment's record, which says that the transaction is prepared.
- Names follow from place and content, so to hold a transaction aside twice, or to resume after a crash, changes nothing.
- Each piece that is read is checked by its hash.

Memory: a task reads back through its pre-filter segment, into an assembly or into a spill file.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import IO, Final

import numpy as np

from snowmelt.columnar.arena import Bytes
from snowmelt.columnar.assembly import write_all
from snowmelt.databases.contract.stretches import InMemory, PreparedEvents
from snowmelt.engine.log.reading import Stretch
from snowmelt.errors import Corrupt, Unavailable, check, present
from snowmelt.relay.limits import Limits
from snowmelt.relay.prefilter import PreFilter
from snowmelt.relay.retention import Prepared
from snowmelt.segments import Segment
from snowmelt.store.contract import Store, key_of_part, numbered
from snowmelt.store.numbered import Lost
from snowmelt.store.records import RecordKind, delete_records, get_record, read_record, settle_record

_PREFIX: Final = "held"
_PIECE_BYTES: Final = 8 << 20


@dataclass(frozen=True, slots=True)
class Piece:
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Aside:
    """A prepared transaction that is held aside."""

    xid: str
    position: int
    """Where it begins in its file of the log."""
    own: str
    """`Segment.own` of the segment that it was first copied from: how its events are read."""
    pieces: tuple[Piece, ...]


ASIDE: Final = RecordKind("aside", 2, Aside)


def put_aside(store: Store, segment: Segment, group: Prepared, position: int) -> None:
    """Copy a prepared transaction out of its segment; durable on return. `position` is where it begins in the log."""
    data = segment.bytes()[group.at : group.at + group.bytes].data
    pieces = []
    for at in range(0, len(data), _PIECE_BYTES):
        content = data[at : at + _PIECE_BYTES]
        piece = Piece(len(content), hashlib.sha256(content).hexdigest())
        store.put_data(_key(group.number, piece), content)
        pieces.append(piece)
    record = Aside(group.xid, position, segment.own, tuple(pieces))
    found = settle_record(store, numbered(_PREFIX, group.number), ASIDE, record)
    # A driver that died may have captured the same events in another segment.
    if isinstance(found, Lost) and replace(found.value, own=record.own) != record:
        raise Corrupt("another transaction is held aside under this place", detail=f"{found.value.xid} for {group.xid} at {group.offset}")


def take_back(store: Store, group: Prepared, prefilter: PreFilter, limits: Limits) -> PreparedEvents:
    """The events of a transaction that is held aside. They are read now if an assembly can hold them; otherwise through the pre-filter
    segment, when the first piece is asked for."""
    record = read_record(store, numbered(_PREFIX, group.number), ASIDE)
    if record.xid != group.xid or sum(piece.bytes for piece in record.pieces) != group.bytes:
        raise Corrupt("another transaction is held aside than the log says", detail=f"{record.xid} for {group.xid} at {group.offset}")
    if group.bytes > limits.assembly_bytes:
        fetched = _Fetched(store, group, record.pieces, prefilter, limits)
        return PreparedEvents(log=fetched, own=record.own, begins=record.position, shares_segment=True, close=fetched.close)
    data = np.empty(group.bytes, np.uint8)
    at = 0
    for piece in record.pieces:
        content = data[at : at + piece.bytes].data
        store.read_into(_key(group.number, piece), 0, content)
        _prove(group, piece, hashlib.sha256(content).hexdigest())
        at += piece.bytes
    return PreparedEvents(log=InMemory(data, window_bytes=prefilter.size), own=record.own, begins=record.position)


def _prove(group: Prepared, piece: Piece, sha256: str) -> None:
    if sha256 != piece.sha256:
        raise Corrupt("a piece of a prepared transaction is damaged", detail=_key(group.number, piece))


class _Fetched(Stretch):
    """Events that are held aside, in a spill file. They are fetched once, and checked before any of them is read."""

    def __init__(self, store: Store, group: Prepared, pieces: tuple[Piece, ...], prefilter: PreFilter, limits: Limits) -> None:
        super().__init__(self._read_file, 0, group.bytes, prefilter, limits)
        self._store = store
        self._group = group
        self._pieces = pieces
        self._file: IO[bytes] | None = None

    def piece(self, at: int) -> Bytes:
        if self._file is None:
            self._fetch()
        return super().piece(at)

    def _fetch(self) -> None:
        try:
            self._file = tempfile.TemporaryFile(prefix="snowmelt-held-", buffering=0)  # noqa: SIM115
            for piece in self._pieces:
                found = hashlib.sha256()
                for at in range(0, piece.bytes, self.window_bytes):
                    content = self._prefilter.lend()[: piece.bytes - at].data
                    self._lent = True
                    self._store.read_into(_key(self._group.number, piece), at, content)
                    found.update(content)
                    write_all(self._file, content)
                    self.give_back()
                _prove(self._group, piece, found.hexdigest())
        except OSError as error:
            detail = f"{tempfile.gettempdir()}: {error.strerror}"
            raise Unavailable("a prepared transaction can't be read back", detail=detail, hint="make room in TMPDIR") from None

    def _read_file(self, at: int, into: Bytes) -> None:
        file = present(self._file, "a prepared transaction's file is read before it was written")
        left = into.data
        while left:
            count = os.preadv(file.fileno(), [left], at)
            check(count > 0, "a prepared transaction's file is shorter than the transaction")
            left, at = left[count:], at + count

    def close(self) -> None:
        self.give_back()
        if self._file is not None:
            self._file.close()


def lying_aside(store: Store) -> list[int]:
    """The numbers of all transactions that are held aside: a hint, as listings are."""
    return store.numbers(_PREFIX)


def let_go_of(store: Store, numbers: Iterable[int]) -> None:
    """Delete what is held aside; twice is harmless. The record goes last, so that pieces that a crash leaves are found again."""
    for number in numbers:
        key = numbered(_PREFIX, number)
        # It is not needed again, so a damaged record is deleted, too.
        with contextlib.suppress(Corrupt):
            record = get_record(store, key, ASIDE)
            store.delete(_key(number, piece) for piece in (record.pieces if record is not None else ()))
        delete_records(store, [key])


def _key(number: int, piece: Piece) -> str:
    return key_of_part(numbered(_PREFIX, number), piece.sha256)
