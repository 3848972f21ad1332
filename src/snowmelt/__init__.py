"""Operational databases, live in lake tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from snowmelt.engine.union.source import FlussSource
    from snowmelt.programs import Pipeline, read, union_read

__all__ = ["FlussSource", "Pipeline", "read", "union_read"]


def __getattr__(name: str) -> Any:
    # The engine takes a second to import, which who wants one module of ours need not wait for.
    if name == "FlussSource":
        from snowmelt.engine.union import source

        return source.FlussSource
    if name in __all__:
        from snowmelt import programs

        return getattr(programs, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
