"""Operational databases, live in lake tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from snowmelt.programs import Pipeline, read

__all__ = ["Pipeline", "read"]


def __getattr__(name: str) -> Any:
    # The engine takes a second to import, which who wants one module of ours need not wait for.
    if name in __all__:
        from snowmelt import programs

        return getattr(programs, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
