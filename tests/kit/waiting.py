"""Waiting in tests: for a condition, never for a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")


def until(found: Callable[[], Found], *, seconds_max: float = 60.0) -> Found:
    """What is found at last. Fails if nothing is."""
    deadline = time.monotonic() + seconds_max
    while not (got := found()):
        assert time.monotonic() < deadline, f"waited {seconds_max} s for {found}"
        time.sleep(0.05)
    return got
