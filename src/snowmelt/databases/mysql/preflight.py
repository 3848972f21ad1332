"""The checks of a server and its tables before they are captured.

Laws:
  - A finding is a fact and its remedy: the statement or the setting, exact.
  - A check that can't be made, for lack of rights or because the server is of another kind, is a finding that says so;
    `inspect` raises only when the connection is lost.
  - Nothing is changed on the server, and no row of a table is read.
  - Output of SHOW GRANTS holds hashes of passwords: none of its text gets into a finding.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from snowmelt.databases.contract.findings import NO_KEY, Finding, Level, TableFinding, gravest_first
from snowmelt.databases.mysql.answers import anything, number, text, unexpected
from snowmelt.databases.mysql.connect import Session
from snowmelt.databases.mysql.ddl import Rules, merged_tables
from snowmelt.databases.mysql.ddl.changes import MERGED, SEPARATE
from snowmelt.databases.mysql.quoting import quote_table
from snowmelt.databases.mysql.server_checks import Findings, ServerChecks, answer_to, few, transactional
from snowmelt.databases.mysql.types.columns import MySqlTable, TypeOptions, ZeroDates, arrow_type
from snowmelt.errors import InvalidConfig
from snowmelt.model.table import SYSTEM_COLUMNS, TableId

FOREIGN_ENGINES = frozenset({"blackhole", "connect", "federated", "mrg_myisam", "ndbcluster", "oqgraph", "s3", "sphinx", "spider"})
"""Changes of their rows are not written to this server's binlog."""

_SILENT_KEY = re.compile(r"^\s*CONSTRAINT .* FOREIGN KEY .* ON (?:DELETE|UPDATE) (?:CASCADE|SET NULL|SET DEFAULT)", re.MULTILINE)
"""In what SHOW CREATE TABLE prints: a line for each key."""


class Cascades(StrEnum):
    """What to do with tables whose rows a foreign key changes without row events."""

    REFUSE = "refuse"
    IGNORE = "ignore"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightOptions:
    """What the pipeline intends."""

    types: TypeOptions = field(default_factory=TypeOptions)
    cascades: Cascades = Cascades.REFUSE
    begun: bool = False
    """Whether capture has begun. Then prepared transactions lie in the captured log."""
    changelog: frozenset[TableId] = frozenset()
    """Tables whose every change is kept: reads of them must end exactly between two changes."""


def inspect(session: Session, tables: Iterable[MySqlTable], options: PreflightOptions | None = None) -> list[Finding]:
    """All findings, the gravest first. Every check is made, whatever the others find."""
    check = _Inspection(session, sorted(tables, key=lambda table: table.id), options or PreflightOptions())
    return gravest_first(check.findings())


def unfit_tables(session: Session, tables: Iterable[MySqlTable], options: PreflightOptions) -> dict[TableId, str]:
    """Those of these tables that can't be captured, and why. For tables that are made while a pipeline runs: they must not stop it."""
    check = _Inspection(session, sorted(tables, key=lambda table: table.id), options)
    return {
        table: f"{finding.fact}; {finding.remedy}"
        for finding in (*check.columns(), *check.cascades(), *check.hidden_columns(), *check.merged())
        if finding.level is Level.ERROR
        for table in finding.tables
    }


class _Inspection:
    """One inspection: each check yields what it finds."""

    def __init__(self, session: Session, tables: Sequence[MySqlTable], options: PreflightOptions) -> None:
        self.session = session
        self.tables = tables
        self.options = options
        self.server = ServerChecks(session, tables, options.changelog)
        self.mariadb = session.server.flavour == "mariadb"
        self.version = session.server.version

    def findings(self) -> Findings:
        yield from self.server.findings()
        yield from self.prepared_transactions()
        yield from self.engines()
        yield from self.keys()
        yield from self.columns()
        yield from self.cascades()
        yield from self.merged()
        if self.mariadb:
            yield from self.hidden_columns()

    def among(self, holds: Callable[[MySqlTable], bool]) -> tuple[TableId, ...]:
        return self.server.among(holds)

    def prepared_transactions(self) -> Findings:
        if self.options.begun:
            return
        waiting = prepared_transactions(self.session)
        if waiting is None:
            yield self.server.unchecked("xa", "whether prepared XA transactions wait for their commit", "XA_RECOVER_ADMIN")
            return
        if waiting:
            yield Finding(
                "xa",
                Level.ERROR,
                f"{len(waiting)} prepared XA transactions wait for their commit; their rows lie before the start of capture",
                few(f"XA COMMIT {xid}, or XA ROLLBACK {xid}" for xid in waiting),
            )

    # -- the tables

    def engines(self) -> Findings:
        foreign = self.among(lambda table: table.engine.lower() in FOREIGN_ENGINES)
        if foreign:
            yield TableFinding(
                "engine-foreign", Level.ERROR, "changes of these tables are not in this server's log", "exclude them", foreign
            )
        locked = self.among(lambda table: not transactional(table) and table.engine.lower() not in FOREIGN_ENGINES)
        if locked:
            remedy = few(f"ALTER TABLE {quote_table(table)} ENGINE = InnoDB" for table in locked)
            yield Finding(
                "engine",
                Level.WARNING,
                "tables without transactions are locked against writers while a chunk of them is read",
                remedy,
                locked,
            )

    def keys(self) -> Findings:
        without = self.among(lambda table: not table.key)
        if without:
            remedy = f"ALTER TABLE {quote_table(without[0])} ADD PRIMARY KEY (…), or a UNIQUE key of NOT NULL columns"
            yield TableFinding(NO_KEY, Level.WARNING, "tables without a key can only be appended to", remedy, without)
        if self.options.types.zero_dates is ZeroDates.NULL:
            dated = self.among(lambda table: any(table.column(name).base in ("date", "datetime", "timestamp") for name in table.key))
            if dated:
                yield Finding(
                    "dated-key",
                    Level.WARNING,
                    "a date or time is part of the key, and a zero date would be NULL there",
                    "zero_dates: string, unless there are no zero dates",
                    dated,
                )

    def columns(self) -> Findings:
        ours: dict[str, list[TableId]] = defaultdict(list)
        unsupported: dict[str, list[TableId]] = defaultdict(list)
        for table in self.tables:
            for column in table.columns:
                if column.name.lower() in SYSTEM_COLUMNS:
                    ours[column.name].append(table.id)
                try:
                    arrow_type(column, self.options.types)
                except InvalidConfig:
                    unsupported[column.base].append(table.id)
        for name, found in sorted(ours.items()):
            fact = f"a column is named {name}, as one that snowmelt adds"
            yield TableFinding("system-column", Level.ERROR, fact, "rename the column, or exclude the tables", tuple(dict.fromkeys(found)))
        for base, found in sorted(unsupported.items()):
            fact = f"columns of type {base} are not supported"
            yield TableFinding("column-type", Level.ERROR, fact, "exclude the tables", tuple(dict.fromkeys(found)))

    def cascades(self) -> Findings:
        if not self.mariadb and self.version >= (9, 6):
            return
        children: list[TableId] = []
        for database, names in self.by_database().items():
            rows = self.session.query(
                "SELECT DISTINCT table_name FROM information_schema.key_column_usage "
                "WHERE table_schema = %s AND referenced_table_name IS NOT NULL",
                [database],
                columns=(text,),
            )
            # MariaDB and MySQL 5.6 keep referential_constraints, which has the rules, from a user who may only SELECT.
            for table in (TableId(database, name) for name in sorted(names.intersection(name for (name,) in rows))):
                _, definition = self.session.row(f"SHOW CREATE TABLE {quote_table(table)}", columns=(text, text))
                if _SILENT_KEY.search(definition):
                    children.append(table)
        if children:
            level = Level.ERROR if self.options.cascades is Cascades.REFUSE else Level.WARNING
            yield TableFinding(
                "cascade",
                level,
                "foreign keys with CASCADE or SET NULL change rows of these tables without a word in the log",
                "exclude the tables, make the keys RESTRICT, or set cascades: ignore",
                tuple(children),
            )

    def hidden_columns(self) -> Findings:
        """Columns of MariaDB's row images that its catalogue does not show (`catalog`)."""
        versioned: list[TableId] = []
        hashed: list[TableId] = []
        memory = set(self.among(lambda table: table.engine.lower() == "memory"))
        for database, names in self.by_database().items():
            typed = self.session.query(
                "SELECT table_name FROM information_schema.tables WHERE table_schema = %s AND table_type = 'SYSTEM VERSIONED'",
                [database],
                columns=(text,),
            )
            indexed = self.session.query(
                "SELECT DISTINCT table_name FROM information_schema.statistics "
                "WHERE table_schema = %s AND non_unique = 0 AND index_type = 'HASH'",
                [database],
                columns=(text,),
            )
            versioned += [TableId(database, name) for (name,) in typed if name in names]
            hashed += [TableId(database, name) for (name,) in indexed if name in names]
        hashed = [table for table in hashed if table not in memory]
        if versioned:
            yield TableFinding(
                "system-versioned",
                Level.ERROR,
                "the log of a system-versioned table mixes rows with their history",
                "exclude the tables",
                tuple(sorted(versioned)),
            )
        if hashed:
            yield TableFinding(
                "hash-unique",
                Level.ERROR,
                "a unique index kept as a hash (on TEXT or BLOB, on a long key, USING HASH) adds a hidden column to its log",
                "make the index a BTREE on at most 3072 bytes, drop it, or exclude the tables",
                tuple(sorted(hashed)),
            )

    def merged(self) -> Findings:
        """Tables that a MERGE table names, of whatever database."""
        children = set(self.among(lambda table: table.engine.lower() == "myisam"))
        if not children:
            return
        rules = Rules(
            flavour=self.session.server.flavour, version=self.version, lower_case_names=self.server.setting("lower_case_table_names") == "1"
        )
        named: dict[TableId, set[TableId]] = {}
        broken: list[TableId] = []
        select = "SELECT table_schema, table_name FROM information_schema.tables WHERE UPPER(engine) = 'MRG_MYISAM'"
        for merge in sorted(TableId(database, name) for database, name in self.session.query(select, columns=(text, text))):
            shown = self.server.ask(f"SHOW CREATE TABLE {quote_table(merge)}", columns=(text, text))
            if not shown:
                broken.append(merge)
            elif found := children.intersection(merged_tables(shown[0][1], merge.database, rules)):
                named[merge] = found
        if named:
            fact = f"{MERGED}: {few(str(merge) for merge in named)}"
            yield TableFinding("merge", Level.ERROR, fact, f"{SEPARATE}, or exclude it", tuple(sorted(set().union(*named.values()))))
        if broken:
            fact = f"which tables these MERGE tables name can't be told, because the server can't open them: {few(map(str, broken))}"
            yield Finding("merge-unchecked", Level.WARNING, fact, "drop them, unless they name no captured table")

    def by_database(self) -> dict[str, set[str]]:
        names: dict[str, set[str]] = defaultdict(set)
        for table in self.tables:
            names[table.id.database].add(table.id.name)
        return names


def why_foreign(table: MySqlTable) -> str:
    """Why a table of this engine can't be captured; empty if it can."""
    if table.engine.lower() not in FOREIGN_ENGINES:
        return ""
    return f"rows of its engine {table.engine} lie elsewhere, and change without a word in the log"


def prepared_transactions(session: Session) -> list[str] | None:
    """The prepared XA transactions, as XA COMMIT takes them; None if the user has no right to list them."""
    columns = (number, number, number, anything)
    if session.server.flavour == "mysql" and session.server.version >= (5, 7, 5):
        rows = answer_to(session, "XA RECOVER CONVERT XID", columns)
    else:
        # This form sends the identifier's bytes as if they were text.
        session.execute("SET SESSION character_set_results = binary")
        rows = answer_to(session, "XA RECOVER", columns)
        session.execute("SET SESSION character_set_results = utf8mb4")
    return None if rows is None else [_xid(row) for row in rows]


def _xid(row: tuple[Any, ...]) -> str:
    """A row of XA RECOVER as the identifier that XA COMMIT takes."""
    form, split, branch_length, data = row
    try:
        if not isinstance(data, bytes):
            data = bytes.fromhex(text(data)[2:]) if text(data).startswith("0x") else data.encode()
    except ValueError:
        raise unexpected("the name of a prepared transaction can't be read") from None
    return f"X'{data[:split].hex()}',X'{data[split : split + branch_length].hex()}',{form}"
