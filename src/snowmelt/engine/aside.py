"""Prepared transactions put aside: their events in objects of their own, so that the log around them can go while they wait.

    held/<k>                what it is; k follows from the place where it ends (`Prepared.number`)
    held/<k>.parts/<hash>   a piece of its events

Laws:
- Pieces are durable before the record of them, and that before the segment's record that says that the transaction is prepared.
- Names follow from place and content, so to put aside twice, or to go on after a crash, changes nothing.
- What is read is what was put there: every piece is proven by its hash.

Memory: one piece. What a task reads back lies in a file without a name.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from snowmelt.databases.mysql.decode import Held
from snowmelt.databases.mysql.segments import Segment
from snowmelt.errors import Corrupt, Unavailable
from snowmelt.relay.retention import Prepared
from snowmelt.store.contract import Store, key_of_part, numbered
from snowmelt.store.numbered import Lost
from snowmelt.store.records import Kind, delete_records, get_record, read_record, settle_record

_PREFIX: Final = "held"
_PIECE_BYTES: Final = 8 << 20


@dataclass(frozen=True, slots=True)
class Piece:
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Aside:
    """A prepared transaction that lies aside."""

    xid: str
    position: int
    """Where it begins in its log file."""
    checksum_bytes: int
    pieces: tuple[Piece, ...]


ASIDE: Final = Kind("aside", 1, Aside)


def put_aside(store: Store, segment: Segment, group: Prepared, position: int) -> None:
    """Copy a prepared transaction out of its segment; durable on return. `position` is where it begins in the log."""
    data = segment.bytes()[group.at : group.at + group.bytes].data
    pieces = []
    for at in range(0, len(data), _PIECE_BYTES):
        content = data[at : at + _PIECE_BYTES]
        piece = Piece(len(content), hashlib.sha256(content).hexdigest())
        store.put_data(_key(group.number, piece), content)
        pieces.append(piece)
    record = Aside(group.xid, position, segment.crc_length, tuple(pieces))
    found = settle_record(store, numbered(_PREFIX, group.number), ASIDE, record)
    if isinstance(found, Lost) and found.value != record:
        raise Corrupt("another transaction lies aside under this place", detail=f"{found.value.xid} for {group.xid} at {group.offset}")


def take_back(store: Store, group: Prepared) -> Held:
    """The events of a transaction that lies aside."""
    record = read_record(store, numbered(_PREFIX, group.number), ASIDE)
    if record.xid != group.xid or sum(piece.bytes for piece in record.pieces) != group.bytes:
        raise Corrupt("another transaction lies aside than the log says", detail=f"{record.xid} for {group.xid} at {group.offset}")
    try:
        with tempfile.TemporaryFile(prefix="snowmelt-held-") as file:
            for piece in record.pieces:
                key = _key(group.number, piece)
                content = store.read(key)
                if hashlib.sha256(content).hexdigest() != piece.sha256:
                    raise Corrupt("a piece of a prepared transaction is damaged", detail=key)
                file.write(content)
            file.flush()
            data = np.frombuffer(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ), np.uint8)
    except OSError as error:
        detail = f"{tempfile.gettempdir()}: {error.strerror}"
        raise Unavailable("a prepared transaction can't be read back", detail=detail, hint="is TMPDIR full?") from None
    return Held(data, record.checksum_bytes, record.position)


def lying_aside(store: Store) -> list[int]:
    """The numbers of all that lies aside: a hint, as listings are."""
    return store.numbers(_PREFIX)


def let_go_of(store: Store, numbers: Iterable[int]) -> None:
    """Delete what lies aside; twice is harmless. The record goes last, so that what a crash leaves is found again."""
    for number in numbers:
        key = numbered(_PREFIX, number)
        # Nobody may ask for it again, so damage is no reason to keep it.
        with contextlib.suppress(Corrupt):
            record = get_record(store, key, ASIDE)
            store.delete(_key(number, piece) for piece in (record.pieces if record is not None else ()))
        delete_records(store, [key])


def _key(number: int, piece: Piece) -> str:
    return key_of_part(numbered(_PREFIX, number), piece.sha256)
