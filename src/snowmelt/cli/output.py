"""What commands print: lines of text or JSON that a terminal can show as they are."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any

from rich.text import Text

from snowmelt.databases.contract.findings import Finding
from snowmelt.errors import printable
from snowmelt.model.table import TableId

TABLES_SHOWN_MAX = 5


def size(count: int) -> str:
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    power = min(len(units) - 1, max(0, count.bit_length() - 1) // 10)
    return f"{count / (1 << 10 * power):.4g} {units[power]}"


def print_machine(warnings: list[Finding]) -> None:
    for finding in warnings:
        print_warning(f"{finding.level.value}: {finding.fact} (hint: {finding.remedy})")


def print_line(text: str) -> None:
    """A line of text, or of JSON, which means the same afterwards."""
    print(printable(text), flush=True)


def print_json(told: dict[str, Any]) -> None:
    # Not `splitlines`, which also splits at U+0085, U+2028 and U+2029: JSON leaves these in a string as they are.
    for line in json.dumps(told, ensure_ascii=False, indent=2).split("\n"):
        print_line(line)


def print_warning(text: str) -> None:
    print(printable(text), file=sys.stderr)


def utc_text(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def age_text(seconds: float) -> str:
    """As short as one says it: 12 s, 4 min, 3 h, 2 d."""
    for unit, of in (("s", 120), ("min", 120), ("h", 48)):
        if seconds < of:
            return f"{seconds:.0f} {unit}"
        seconds /= 24 if unit == "h" else 60
    return f"{seconds:.0f} d"


def plain_text(text: str) -> Text:
    return Text(printable(text))


def count_tables(found: Collection[TableId]) -> str:
    return f"{len(found)} {'table' if len(found) == 1 else 'tables'}: {list_tables(tuple(found))}" if found else "no tables"


def list_tables(tables: tuple[TableId, ...]) -> str:
    shown = ", ".join(str(table) for table in tables[:TABLES_SHOWN_MAX])
    return f"{shown} and {len(tables) - TABLES_SHOWN_MAX} more" if len(tables) > TABLES_SHOWN_MAX else shown
