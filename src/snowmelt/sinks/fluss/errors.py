"""Errors about tables of Fluss that a pipeline writes."""

from __future__ import annotations

from snowmelt.errors import InvalidConfig, SourceDrift


class RowsLost(SourceDrift):
    """A log ends before rows that Fluss has taken. A bucket that just got a leader may say so for a moment, without having lost any."""


def rows_lost(target: str, bucket: int, found: int, known: int, what: str = "changes", hint: str = "") -> RowsLost:
    return RowsLost(
        "a Fluss table lost rows",
        detail=f"{target}, bucket {bucket} has {found:,} {what}, and Fluss had taken {known:,}",
        hint=hint or "begin with a new state, and with another table for it; keep several replicas of tables",
    )


def other_kind(what: str, detail: str) -> InvalidConfig:
    return InvalidConfig(f"a Fluss table has {what}", detail=detail, hint="name another table, or drop this one")


def drift(fact: str, detail: str) -> SourceDrift:
    return SourceDrift(fact, detail=detail, hint="begin with a new state, and with another table for it")
