"""Arenas that come back to their pool."""

from __future__ import annotations

from snowmelt.columnar.arena import Arena, ArenaPool, Layout, Storage


def lend(pool: ArenaPool, *sizes: int) -> None:
    """Arenas of so many rows of one byte, all out at once; then all come back."""
    arenas = [Arena(pool, Layout([Storage(1)], rows_max=size, heap_bytes=[0])) for size in sizes]
    assert len({arena.memory.ctypes.data for arena in arenas}) == len(sizes)


def test_what_comes_back_is_used_again() -> None:
    pool = ArenaPool()
    lend(pool, 1000)
    kept = pool.kept_bytes
    assert kept > 1000
    lend(pool, 1000)
    assert pool.kept_bytes == kept


def test_what_is_kept_is_bounded_by_number_and_size() -> None:
    pool = ArenaPool(keep=4, keep_bytes=100_000)
    lend(pool, *[1000] * 10)
    assert pool.kept_bytes < 4 * 2000
    # One that is larger than all that may be kept is not, and those that were kept stay.
    before = pool.kept_bytes
    lend(pool, 500_000)
    assert pool.kept_bytes == before
    lend(pool, *[30_000] * 4)
    assert 30_000 < pool.kept_bytes <= 100_000
