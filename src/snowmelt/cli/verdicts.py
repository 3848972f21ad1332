"""A verdict of `snowmelt verify` as lines or as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from snowmelt.verify import TableVerdict
from snowmelt.cli.output import print_line


def print_verdict(verdict: TableVerdict) -> None:
    where = f"{verdict.table} -> {verdict.target}"
    if not verdict.position:
        print_line(f"{where}: {verdict.outcome}: {verdict.reason}")
        return
    differing = f", rows that differ: {verdict.differing:,}" if verdict.differing else ""
    print_line(f"{where}: {verdict.outcome}, rows {verdict.rows:,}, checksums {verdict.ranges:,}, at {verdict.position}{differing}")
    for difference in verdict.differences:
        key = ", ".join(f"{name} = {text}" for name, text in difference.key)
        columns = f": {', '.join(difference.columns)}" if difference.columns else ""
        print_line(f"  {difference.kind} {key}{columns}")
    if verdict.differing > len(verdict.differences):
        print_line(f"  and {verdict.differing - len(verdict.differences):,} more")
    if verdict.reason:
        print_line(f"  the rest is not verified: {verdict.reason}")


def verdict_json(verdict: TableVerdict) -> dict[str, Any]:
    return {
        "table": str(verdict.table),
        "target": verdict.target,
        "outcome": verdict.outcome.value,
        "rows": verdict.rows,
        "checksums": verdict.ranges,
        "position": verdict.position,
        "differing": verdict.differing,
        "differences": [{"key": dict(one.key), "kind": one.kind.value, "columns": list(one.columns)} for one in verdict.differences],
        "reason": verdict.reason,
    }
