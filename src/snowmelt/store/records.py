"""Records: typed values in an envelope with a checksum.

    {"bytes":17,"kind":"intent","sha256":"…","snowmelt":1,"version":3}⏎ body

The hash covers kind, version and body, so a flipped bit can't turn one record into another. A record of more than `PART_BYTES_MAX` is
stored in parts beside its key, named by their hashes, and the object at the key is the list of them:

    intent/00000000000000000007               kind "parts": sizes and hashes
    intent/00000000000000000007.parts/<hash>  a piece of the record, envelope and all

Laws:
- Parts are durable before the list of them is. Only the list is put-if-absent, so it decides who won like any other record.
- A part belongs to one key. A part that the winner's list does not name is garbage, and the loser removes its own.
- Empty, torn, too long, of another kind, of an unknown version: `Corrupt`, naming the key and never the content.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from snowmelt.errors import Corrupt, Unavailable, check
from snowmelt.store.codec import decode, encode
from snowmelt.store.contract import Store, key_of_part
from snowmelt.store.numbered import Lost, Won, settle

T = TypeVar("T")
FORMAT: Final = 1
PART_BYTES_MAX: Final = 8 << 20
RECORD_BYTES_MAX: Final = 256 << 20
_HEADER_BYTES_MAX: Final = 512
_NAME: Final = re.compile(r"[a-z][a-z0-9-]{0,39}")
_PARTS_NAME: Final = "parts"


@dataclass(frozen=True, slots=True)
class RecordKind(Generic[T]):
    """A kind of record: its name and version in the envelope, and the frozen dataclass of its body."""

    name: str
    version: int
    type: type[T]
    older: Mapping[int, Callable[[bytes], T]] = field(default_factory=dict)
    """Readers for the bodies of earlier versions."""

    def __post_init__(self) -> None:
        check(_NAME.fullmatch(self.name) is not None, "a kind of record has a forbidden name", ascii(self.name)[:80])
        check(self.version > max(self.older, default=0), "a kind of record is older than what it succeeds", self.name)


@dataclass(frozen=True, slots=True)
class _Header:
    snowmelt: int
    kind: str
    version: int
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class _Part:
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class _Parts:
    parts: tuple[_Part, ...]


_PARTS: Final = RecordKind(_PARTS_NAME, 1, _Parts)


# ---- the envelope


def pack(kind: RecordKind[T], value: T) -> bytes:
    """The bytes of a record. Equal values have equal bytes."""
    body = encode(value)
    header = _Header(FORMAT, kind.name, kind.version, len(body), _digest(kind.name, kind.version, body))
    return encode(header) + b"\n" + body


def unpack(kind: RecordKind[T], key: str, raw: bytes) -> T:
    """The value of a record. `key` is for the error."""
    header, body = _open(key, raw)
    if header.kind != kind.name:
        raise _corrupt(key, f"it is of kind {header.kind}, not {kind.name}")
    try:
        if header.version == kind.version:
            return decode(kind.type, body)
        if header.version in kind.older:
            return kind.older[header.version](body)
    except Corrupt as error:
        raise _corrupt(key, str(error)) from None
    raise _corrupt(key, f"{kind.name} has version {header.version}, known up to {kind.version}", hint="was it written by a newer snowmelt?")


def _digest(kind: str, version: int, body: bytes) -> str:
    digest = hashlib.sha256(f"{kind} {version}\n".encode())
    digest.update(body)
    return digest.hexdigest()


def _open(key: str, raw: bytes) -> tuple[_Header, bytes]:
    if not raw:
        raise _corrupt(key, "it is empty")
    end = raw.find(b"\n", 0, _HEADER_BYTES_MAX)
    try:
        header = decode(_Header, raw[: max(end, 0)])
    except Corrupt:
        raise _corrupt(key, f"its header can't be read; it has {len(raw)} bytes") from None
    if header.snowmelt != FORMAT:
        raise _corrupt(key, f"it has format {header.snowmelt}, known is {FORMAT}", hint="was it written by a newer snowmelt?")
    body = raw[end + 1 :]
    if len(body) != header.bytes:
        raise _corrupt(key, f"its body has {len(body)} bytes, not {header.bytes}")
    if header.sha256 != _digest(header.kind, header.version, body):
        raise _corrupt(key, "its hash is wrong")
    return header, body


def _corrupt(key: str, detail: str, *, hint: str = "") -> Corrupt:
    return Corrupt("a record of the store can't be read", detail=f"{key}: {detail}", hint=hint)


# ---- records in a store


def settle_record(store: Store, key: str, kind: RecordKind[T], value: T, *, wait: Callable[[int], None] | None = None) -> Won | Lost[T]:
    """Write a record if there is none, and say whose is there. As `numbered.settle`, for any size up to `RECORD_BYTES_MAX`."""
    raw = pack(kind, value)
    check(len(raw) <= RECORD_BYTES_MAX, "a record is too large", f"{key}: {len(raw)} bytes")
    parts: dict[str, memoryview] = {}
    if len(raw) > PART_BYTES_MAX:
        pieces = [memoryview(raw)[at : at + PART_BYTES_MAX] for at in range(0, len(raw), PART_BYTES_MAX)]
        listed = _Parts(tuple(_Part(len(piece), hashlib.sha256(piece).hexdigest()) for piece in pieces))
        parts = dict(zip(_part_keys(key, listed), pieces, strict=True))
        for part_key, piece in parts.items():
            store.put_data(part_key, piece)
        raw = pack(_PARTS, listed)
    result = settle(store, key, raw, wait=wait)
    if isinstance(result, Won):
        return result
    other = unpack(kind, key, _whole(store, key, result.value))
    if parts:
        kept = set(_parts_of(key, result.value))
        # If this fails they stay, as after a crash: they cost space and do no harm.
        with contextlib.suppress(Unavailable):
            store.delete(part_key for part_key in parts if part_key not in kept)
    return Lost(other)


def get_record(store: Store, key: str, kind: RecordKind[T]) -> T | None:
    """The record at a key. None: there surely is none. A list whose parts are missing is `Corrupt`."""
    raw = store.get(key)
    return None if raw is None else unpack(kind, key, _whole(store, key, raw))


def read_record(store: Store, key: str, kind: RecordKind[T]) -> T:
    """A record that must exist. Missing is `Corrupt`."""
    return unpack(kind, key, _whole(store, key, store.read(key)))


def delete_records(store: Store, keys: Iterable[str]) -> None:
    """Delete records and their parts; twice is harmless. Only below a floor. Parts are deleted before the list of them."""
    for key in keys:
        raw = store.get(key)
        if raw is not None:
            # No reader asks for it again, so damage is no reason to keep it.
            with contextlib.suppress(Corrupt):
                store.delete(_parts_of(key, raw))
        store.delete([key])


def _part_keys(key: str, listed: _Parts) -> list[str]:
    return [key_of_part(key, part.sha256) for part in listed.parts]


def _listed(key: str, raw: bytes) -> _Parts | None:
    """The list of parts, if this is one."""
    if _open(key, raw)[0].kind != _PARTS_NAME:
        return None
    listed = unpack(_PARTS, key, raw)
    right = all(re.fullmatch("[0-9a-f]{64}", part.sha256) and 0 < part.bytes <= PART_BYTES_MAX for part in listed.parts)
    if not right or sum(part.bytes for part in listed.parts) > RECORD_BYTES_MAX:
        raise _corrupt(key, "its parts are out of bounds")
    return listed


def _parts_of(key: str, raw: bytes) -> list[str]:
    listed = _listed(key, raw)
    return [] if listed is None else _part_keys(key, listed)


def _whole(store: Store, key: str, raw: bytes) -> bytes:
    listed = _listed(key, raw)
    if listed is None:
        return raw
    pieces: list[Any] = []
    for part_key, part in zip(_part_keys(key, listed), listed.parts, strict=True):
        piece = store.read(part_key)
        if len(piece) != part.bytes:
            raise _corrupt(part_key, f"a part has {len(piece)} bytes, not {part.bytes}")
        if hashlib.sha256(piece).hexdigest() != part.sha256:
            raise _corrupt(part_key, "the hash of a part is wrong")
        pieces.append(piece)
    return b"".join(pieces)
