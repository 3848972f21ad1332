"""Keys of rows beside packed bounds, in tasks.

A bound is bytes. The machines never look into it; the database that packed it tells the keys of a batch apart by it. Integers are packed
here, for every database: 16 bytes, most significant first, offset so that the order of the bytes is the order of the numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from snowmelt.columnar.arena import Longs
from snowmelt.errors import check

Mask = npt.NDArray[np.bool_]
_BYTES: Final = 16
_ZERO: Final = 1 << 127


class Keys(Protocol):
    """The keys of a batch's rows, in their order. No I/O; memory: one mask per answer."""

    def all(self) -> Mask:
        """True for each of them."""
        ...

    def below(self, bound: bytes) -> Mask: ...

    def above(self, bound: bytes) -> Mask: ...

    def numbers(self) -> Longs:
        """Equal for equal keys, and spread: a share of the rows is a share of the numbers."""
        ...


@dataclass(frozen=True, slots=True)
class IntegerKeys:
    """Keys that are one signed 64-bit integer."""

    values: Longs

    def all(self) -> Mask:
        return np.full(len(self.values), True)

    def below(self, bound: bytes) -> Mask:
        return np.asarray(self.values < unpack_integer(bound))

    def above(self, bound: bytes) -> Mask:
        return np.asarray(self.values > unpack_integer(bound))

    def numbers(self) -> Longs:
        return self.values


def pack_integer(value: int) -> bytes:
    return (value + _ZERO).to_bytes(_BYTES, "big")


def unpack_integer(raw: bytes) -> int:
    check(len(raw) == _BYTES, "a bound has another length", f"{len(raw)} bytes")
    return int.from_bytes(raw, "big") - _ZERO
