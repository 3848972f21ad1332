"""Identifiers and literals in SQL text."""

from __future__ import annotations

from snowmelt.model.table import TableId


def quote(name: str) -> str:
    """An identifier, quoted so that no name can break out."""
    return "`" + name.replace("`", "``") + "`"


def quote_table(table: TableId) -> str:
    return f"{quote(table.database)}.{quote(table.name)}"
