"""The server of the small database: tables in memory, and a log that gets each transaction when it commits.

A person who adds a database finds such a server, and does not write it. It runs in the process of a test and holds its tables in memory.
Its clients run anywhere, Spark's workers among them. So the log is a file, and a client reads a table by the fold of the log:

    identity    which server this is
    log         one line for each transaction, in the order of the commits

A place of the log is where a transaction ends, in bytes. Until its line is whole a transaction is not committed, and no client sees it.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from snowmelt.errors import Unavailable, check
from snowmelt.model.table import TableId

Row = tuple[Any, ...]
Change = tuple[TableId, Row | None, Row | None]
"""What a row was, and what it is now. None: it was not there, or is no more."""


@dataclass(frozen=True, slots=True)
class Definition:
    """A table as CREATE or ALTER made it."""

    id: TableId
    columns: tuple[tuple[str, str], ...]
    """Names, and types: `int` or `text`. All but those of the key can be NULL."""
    key: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.columns)

    def text(self) -> str:
        return json.dumps([self.id.database, self.id.name, self.columns, self.key])

    @classmethod
    def of_text(cls, text: str | bytes) -> Self:
        database, name, columns, key = json.loads(text)
        return cls(TableId(database, name), tuple((column, kind) for column, kind in columns), tuple(key))


@dataclass(slots=True)
class Contents:
    definition: Definition
    rows: Counter[Row] = field(default_factory=Counter)
    """How often each is there."""


Tables = dict[TableId, Contents]


class SmallServer:
    """Any thread may write."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        (folder / "identity").write_text(uuid.uuid4().hex)
        (folder / "log").touch()
        self._tables: Tables = {}
        self._lock = threading.Lock()

    def write(self, changes: Iterable[Change]) -> None:
        """One transaction."""
        self._commit({"rows": [[table.database, table.name, old, new] for table, old, new in changes]})

    def run(self, statement: str, definition: Definition) -> None:
        """CREATE, ALTER, which adds columns, TRUNCATE or DROP: a transaction of its own."""
        self._commit({"statement": statement, "definition": definition.text()})

    def _commit(self, transaction: Mapping[str, Any]) -> None:
        with self._lock:
            _apply(self._tables, transaction)
            with open(self.folder / "log", "ab", buffering=0) as log:
                log.write(json.dumps({"time_us": time.time_ns() // 1000, **transaction}).encode() + b"\n")

    def rows(self, table: TableId) -> Sequence[Row]:
        with self._lock:
            return list(self._tables[table].rows.elements())


def _apply(tables: Tables, transaction: Mapping[str, Any]) -> None:
    for database, name, old, new in transaction.get("rows", ()):
        rows = tables[TableId(database, name)].rows
        if old is not None:
            check(rows[tuple(old)] > 0, "a row is changed that is not there", str(old))
            rows[tuple(old)] -= 1
        if new is not None:
            rows[tuple(new)] += 1
    if "statement" in transaction:
        definition = Definition.of_text(transaction["definition"])
        before = tables.pop(definition.id, Contents(definition))
        match transaction["statement"]:
            case "CREATE" | "TRUNCATE":
                tables[definition.id] = Contents(definition)
            case "ALTER":
                added = (None,) * (len(definition.columns) - len(before.definition.columns))
                tables[definition.id] = Contents(definition, Counter({(*row, *added): count for row, count in before.rows.items()}))


# ---- what clients ask


def identity_of(folder: Path) -> str:
    try:
        return (folder / "identity").read_text()
    except OSError as error:
        raise Unavailable("the server does not answer", detail=f"{folder}: {error.strerror}") from None


def log_after(folder: Path, offset: int) -> bytes:
    """All whole transactions that end after an offset, which is where one ends."""
    try:
        with open(folder / "log", "rb") as log:
            log.seek(offset)
            found = log.read()
    except OSError as error:
        raise Unavailable("the server does not answer", detail=f"{folder}: {error.strerror}") from None
    return found[: found.rfind(b"\n") + 1]


def transactions(log: bytes, offset: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """The transactions of a stretch of the log that begins at an offset, and where each ends."""
    for line in log.splitlines(keepends=True):
        offset += len(line)
        yield offset, json.loads(line)


def tables_of(folder: Path) -> tuple[Tables, int]:
    """All tables at one moment, and the end of the log that this is of."""
    tables, log = Tables(), log_after(folder, 0)
    for _, transaction in transactions(log, 0):
        _apply(tables, transaction)
    return tables, len(log)
