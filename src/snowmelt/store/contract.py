"""The contract of the state store.

Laws:
- A record is written once and never changes. Only `put_if_absent` decides which of two writers came first.
- What a method has answered is durable: a record that it wrote, and one that it found.
- A record is found by its number. A listing is a hint, because it may be old by the time it is read.
- No reader sees a record half written. Wrong bytes are damage all the same, and `Corrupt` for every reader. The store itself does not
  inspect them: a damaged record still exists.

`key_of` and `numbered` make keys of parts, and refuse parts that could name something outside the store. A key is never the
folder of another: an object store would allow it, a file system can't.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, Protocol

from snowmelt.errors import Corrupt, check

DATA_BYTES_MAX: Final = 256 << 20
"""Limit of one object. A writer divides larger content."""
KEY_BYTES_MAX: Final = 512
_PARTS_MAX: Final = 8
_DIGITS: Final = 20
_PART: Final = re.compile(r"[A-Za-z0-9_=-][A-Za-z0-9_.=-]{0,127}")
_NUMBER: Final = re.compile(r"[0-9]{20}")
PARTS: Final = ".parts"
NUMBER_MAX: Final = 10**_DIGITS - 1


class Store(Protocol):
    """Objects by key. Safe for many threads and processes at once, here and on other machines that see the same place.

    Every method may be called twice. `InvalidConfig` means that the store refuses us (credentials, permissions, no such bucket)
    and that nothing happened; any method may raise it. Memory: one object at a time, which the caller bounds.
    """

    def put_if_absent(self, key: str, value: bytes) -> bool:
        """Write a record if the key has none.

        True: this call wrote it, and it is durable. False: a record was there, and it is durable. It may be this call's own, if the client
        repeated a request whose reply was lost; so only the bytes tell who won (`numbered.settle`).
        `Unavailable`: nothing happened. `OutcomeUnknown`: it may have happened, or may happen yet; read back.
        """
        ...

    def get(self, key: str) -> bytes | None:
        """The durable record. None: there surely is none, because the place itself was seen. `Unavailable`: can't tell."""
        ...

    def read(self, key: str) -> bytes:
        """A record that must exist, because another record names it. Missing is `Corrupt`, never empty."""
        found = self.get(key)
        if found is None:
            raise lacking(key)
        return found

    def read_into(self, key: str, at: int, into: memoryview) -> None:
        """Fill a buffer from offset `at` of content that a record names. Missing or shorter content is `Corrupt`."""
        ...

    def put_data(self, key: str, data: bytes | memoryview) -> None:
        """Write content to which only a later record gives a meaning: segments, parts. Durable on return.

        The same content again changes nothing. Other content under the same key is `Corrupt`, and the first content stays.
        `Unavailable` or `OutcomeUnknown`: do it again, the content is the same.
        """
        ...

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects, in the given order. Missing ones are fine.

        `Unavailable`: some may be deleted; do it again. After a power loss some may be back. So delete only below a floor that was
        recorded before: no reader asks for what lies there.
        """
        ...

    def names(self, prefix: str) -> list[str]:
        """The names of the objects right under `prefix`: a hint. May lack new ones and name deleted ones."""
        ...

    def numbers(self, prefix: str) -> list[int]:
        """The numbers of the records right under `prefix`, ascending. A hint, like `names`."""
        return sorted(int(name) for name in self.names(prefix) if _NUMBER.fullmatch(name))


def checked_key(key: str) -> str:
    """The key, checked. Keys are ours, so a wrong one is a bug and not the user's mistake."""
    check(len(key) <= KEY_BYTES_MAX, "a key of the store is too long", f"{len(key)} bytes")
    parts = key.split("/")
    check(len(parts) <= _PARTS_MAX, "a key of the store has too many parts", f"{len(parts)}")
    for part in parts:
        check(_PART.fullmatch(part) is not None and ".." not in part, "a key of the store has a forbidden part", ascii(part)[:80])
    return key


def key_of(*parts: str) -> str:
    """A key of these parts, each of `[A-Za-z0-9_.=-]`, not beginning with a dot."""
    check("/" not in "".join(parts), "a part of a key has a slash")
    return checked_key("/".join(parts))


def numbered(prefix: str, number: int) -> str:
    """The key of a numbered record. Twenty digits, so names sort like numbers."""
    check(0 <= number <= NUMBER_MAX, "a number of a record is out of range", str(number))
    return checked_key(f"{prefix}/{number:0{_DIGITS}d}")


def key_of_part(key: str, name: str) -> str:
    """The key of a part of the record at `key`: in a folder beside it, which holds only parts and is removed with the last of them."""
    return checked_key(f"{key}{PARTS}/{name}")


def checked_data(key: str, data: bytes | memoryview) -> memoryview:
    """The data as bytes, without a copy. Too much of it is an error."""
    view = memoryview(data).cast("B")
    check(len(view) <= DATA_BYTES_MAX, "an object of the store is too large", f"{key}: {len(view)} bytes")
    return view


def lacking(key: str) -> Corrupt:
    """For `read`: a record names an object that does not exist."""
    return Corrupt("the store lacks what a record names", detail=key, hint="was it deleted by hand, or is the store an incomplete copy?")


def too_short(key: str) -> Corrupt:
    """For `read_into`."""
    return Corrupt("an object of the store is shorter than what a record says of it", detail=key)


def different(key: str) -> Corrupt:
    """For `put_data`: one name, two contents."""
    return Corrupt("other content is already there under this name", detail=key, hint="two writers share a name, or the object is damaged")
