"""What a server must be like before its tables are captured, and what is wrong with this one.

Laws:
  - A finding is a fact and its remedy: the statement or the setting, exact.
  - A check that can't be made, for lack of rights or because the server is of another kind, is a finding that says so;
    `inspect` raises only when the connection is lost.
  - Nothing is changed on the server, and no row of a table is read.
  - Output of SHOW GRANTS holds hashes of passwords: none of its text gets into a finding.
"""

from __future__ import annotations

import ipaddress
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from snowmelt.databases.contract.findings import Finding, Level, gravest_first
from snowmelt.databases.mysql.answers import Kind, anything, number, text, text_or_none, unexpected
from snowmelt.databases.mysql.connect import Session, Tls
from snowmelt.databases.mysql.ddl import Rules, merged_tables
from snowmelt.databases.mysql.ddl.changes import MERGED, SEPARATE
from snowmelt.databases.mysql.quoting import quote, quote_table
from snowmelt.databases.mysql.read.reads import Method, read_method
from snowmelt.databases.mysql.types.columns import MySqlTable, TypeOptions, ZeroDates, arrow_type
from snowmelt.errors import InvalidConfig, SourceDrift
from snowmelt.model.table import SYSTEM_COLUMNS, TableId

RETENTION_SECONDS_MIN = 24 * 3600

TESTED_VERSIONS = {"mysql": ((5, 6), (5, 7), (8, 0), (8, 4), (9, 7)), "mariadb": ((10, 11), (11, 4), (11, 8))}
"""Versions that the tests run on, the oldest first."""

FOREIGN_ENGINES = frozenset({"blackhole", "connect", "federated", "mrg_myisam", "ndbcluster", "oqgraph", "s3", "sphinx", "spider"})
"""Their rows lie elsewhere and change, or vanish, without row events of this server."""

_SILENT_KEY = re.compile(r"^\s*CONSTRAINT .* FOREIGN KEY .* ON (?:DELETE|UPDATE) (?:CASCADE|SET NULL|SET DEFAULT)", re.MULTILINE)
"""In what SHOW CREATE TABLE prints: a line for each key."""


class Cascades(StrEnum):
    """What to do with tables whose rows a foreign key changes behind the log's back."""

    REFUSE = "refuse"
    IGNORE = "ignore"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightOptions:
    """What the pipeline intends."""

    types: TypeOptions = field(default_factory=TypeOptions)
    cascades: Cascades = Cascades.REFUSE
    begun: bool = False
    """Whether capture has begun: then whatever is prepared lies in the log that it goes through."""
    changelog: frozenset[TableId] = frozenset()
    """Tables of which each change is kept: reads of them must end exactly between two changes."""


def inspect(session: Session, tables: Iterable[MySqlTable], options: PreflightOptions | None = None) -> list[Finding]:
    """All findings, the gravest first. Every check is made, whatever the others find."""
    check = _Inspection(session, sorted(tables, key=lambda table: table.id), options or PreflightOptions())
    return gravest_first(check.findings())


def unfit_tables(session: Session, tables: Iterable[MySqlTable], options: PreflightOptions) -> dict[TableId, str]:
    """Of these tables those that can't be captured, and why: for one that is made while a pipeline runs, which must not stop the others."""
    check = _Inspection(session, sorted(tables, key=lambda table: table.id), options)
    return {
        table: f"{finding.fact}; {finding.remedy}"
        for finding in (*check.columns(), *check.cascades(), *check.hidden_columns(), *check.merged())
        if finding.level is Level.ERROR
        for table in finding.tables
    }


Findings = Iterator[Finding]


class _Inspection:
    """One inspection: reads settings and grants once, then each check yields what it finds."""

    def __init__(self, session: Session, tables: Sequence[MySqlTable], options: PreflightOptions) -> None:
        self.session = session
        self.tables = tables
        self.options = options
        self.mariadb = session.server.flavour == "mariadb"
        self.version = session.server.version
        self.settings: dict[str, str] = dict(session.query("SHOW GLOBAL VARIABLES", columns=(text, text)))
        user, _, host = str(session.value("SELECT CURRENT_USER()", kind=text)).replace("'", "''").rpartition("@")
        self.user = f"'{user}'@'{host}'"

    def findings(self) -> Findings:
        yield from self.server_version()
        yield from self.transport()
        yield from self.log()
        if self.setting("log_bin") == "ON":
            yield from self.row_images()
            yield from self.row_metadata()
            yield from self.forms_of_log()
            yield from self.retention()
            yield from self.filters()
        yield from self.gtids()
        yield from self.isolation()
        yield from self.grants()
        yield from self.replica()
        yield from self.prepared_transactions()
        yield from self.engines()
        yield from self.keys()
        yield from self.columns()
        yield from self.cascades()
        yield from self.merged()
        if self.mariadb:
            yield from self.hidden_columns()

    def setting(self, name: str) -> str | None:
        """A global setting, None where this server has none of that name."""
        return self.settings.get(name)

    def amount(self, name: str) -> float:
        """A global setting that is a number, 0 where this server has none of that name."""
        try:
            return float(self.setting(name) or 0)
        except ValueError:
            raise unexpected(f"{name} is no number") from None

    def ask(self, *statements: str, columns: Sequence[Kind] | None = None) -> list[tuple[Any, ...]] | None:
        """The answer to the first of these statements that this server understands; None where it answers to none."""
        for statement in statements:
            if (rows := _ask(self.session, statement, columns)) is not None:
                return rows
        return None

    def among(self, holds: Callable[[MySqlTable], bool]) -> tuple[TableId, ...]:
        return tuple(table.id for table in self.tables if holds(table))

    # -- the server and its log

    def server_version(self) -> Findings:
        server = self.session.server
        tested = TESTED_VERSIONS[server.flavour]
        if self.version[:2] in tested:
            return
        between = tested[0] <= self.version[:2] <= tested[-1]
        names = ", ".join(f"{major}.{minor}" for major, minor in tested)
        yield Finding(
            "version",
            Level.INFO if between else Level.WARNING,
            f"{server} is {'between' if between else 'beyond'} the versions that snowmelt is tested on",
            f"tested are {names}; try it with tables that can be copied again",
        )

    def transport(self) -> Findings:
        """What the connection protects against, and what not."""
        options = self.session.options
        if options.socket is not None:
            return
        # Between this machine and itself there is nobody.
        level = Level.INFO if _is_loopback(options.host) else Level.WARNING
        remedy = "set tls: verify-identity, and tls_ca with the file of the certificate authority"
        if not self.session.encrypted:
            why = "the server offers no TLS" if options.tls is not Tls.DISABLED else "tls is disabled"
            fact = f"{why}: the network can read every row and change it, and can guess the password from its hash"
            yield Finding("tls", level, fact, remedy if options.tls is Tls.DISABLED else f"give the server a certificate; then {remedy}")
        elif not options.tls.verifies:
            fact = (
                f"tls: {options.tls} protects against eavesdropping, but not against an attacker in the middle: the server's certificate "
                "is not verified, so any other would do as well"
            )
            if options.tls is Tls.PREFERRED:
                fact += ", and a connection on which TLS is not offered is made without"
            yield Finding("tls", level, fact, remedy)
        elif options.tls is Tls.VERIFY_CA:
            fact = "tls: verify-ca accepts every certificate of the authority, also that of another server"
            yield Finding("tls", Level.INFO, fact, "set tls: verify-identity, if the certificate names the host")
        if options.allow_password_to_unverified_server and not options.tls.verifies:
            fact = "allow_password_to_unverified_server is set: who comes between gets the password by asking for it"
            yield Finding("password-unverified", level, fact, f"{remedy}; then take the setting away")

    def log(self) -> Findings:
        if self.setting("log_bin") != "ON":
            yield Finding("log-off", Level.ERROR, "the server writes no binary log", "log_bin = binlog, then restart the server")
            return
        if self.setting("server_id") == "0":
            yield Finding("server-id", Level.ERROR, "server_id is 0: with it the server sends its log to no replica", "server_id = 1")
        form = self.setting("binlog_format")
        if form not in (None, "ROW"):
            remedy = "SET GLOBAL binlog_format = 'ROW', in the configuration too; sessions that are open keep the old format"
            yield Finding("log-format", Level.ERROR, f"binlog_format is {form}: the log holds statements, not rows", remedy)
        elif form is not None:
            yield Finding(
                "log-format-session",
                Level.INFO,
                "a privileged session can still choose another binlog_format for itself; tables that it changes would be set aside",
            )

    def row_images(self) -> Findings:
        image = self.setting("binlog_row_image")
        if image not in (None, "FULL"):
            lacks = {
                "MINIMAL": "all but the key and the changed columns",
                "NOBLOB": "TEXT, BLOB and JSON columns that did not change",
                "FULL_NODUP": "what did not change from the new row",
            }.get(str(image), "columns")
            yield Finding(
                "row-image",
                Level.ERROR,
                f"binlog_row_image is {image}: rows of the log lack {lacks}",
                "SET GLOBAL binlog_row_image = 'FULL', in the configuration too; sessions that are open keep the old image",
            )

    def row_metadata(self) -> Findings:
        metadata = self.setting("binlog_row_metadata")
        if metadata is None:
            yield Finding(
                "row-metadata",
                Level.INFO,
                "this server's log never names columns; names, signs and labels come from the schema history",
            )
        elif metadata != "FULL":
            yield Finding(
                "row-metadata",
                Level.WARNING,
                f"binlog_row_metadata is {metadata}: names and labels come from the schema history, not from the log itself",
                "SET GLOBAL binlog_row_metadata = 'FULL', in the configuration too",
            )
        # The catalogue prints labels through utf8mb3, where what it can't print is a question mark.
        doubtful = self.among(lambda table: any("?" in label for column in table.columns for label in column.labels))
        if doubtful:
            yield Finding(
                "labels",
                Level.WARNING if metadata == "FULL" else Level.ERROR,
                "labels with a question mark may stand for characters, as of emoji, that the catalogue can't print",
                "give such labels other characters, or exclude the tables, unless the labels really have question marks",
                doubtful,
            )

    def forms_of_log(self) -> Findings:
        if "PARTIAL_JSON" in (self.setting("binlog_row_value_options") or ""):
            yield Finding("partial-json", Level.INFO, "updates of JSON are logged as differences, which cost more to read")
        if self.setting("binlog_transaction_compression") == "ON" or self.setting("log_bin_compress") == "ON":
            yield Finding("compression", Level.INFO, "the log is compressed, which costs time to read")
        if self.setting("binlog_checksum") == "NONE":
            yield Finding(
                "checksum",
                Level.INFO,
                "the log has no checksums: damage shows only where it breaks the format",
                "SET GLOBAL binlog_checksum = 'CRC32'",
            )
        if self.setting("binlog_alter_two_phase") == "ON":
            yield Finding(
                "two-phase-alter",
                Level.WARNING,
                "ALTER TABLE is logged twice, at its start and at its end",
                "SET GLOBAL binlog_alter_two_phase = OFF",
            )

    def retention(self) -> Findings:
        if self.setting("binlog_expire_logs_auto_purge") != "OFF":
            seconds = self.amount("binlog_expire_logs_seconds") or self.amount("expire_logs_days") * 86400
            if 0 < seconds < RETENTION_SECONDS_MIN:
                modern = self.setting("binlog_expire_logs_seconds") is not None
                yield Finding(
                    "retention",
                    Level.WARNING,
                    f"the server deletes its log after {seconds / 3600:g} hours; a pipeline that rests longer must copy again",
                    f"SET GLOBAL {'binlog_expire_logs_seconds = 259200' if modern else 'expire_logs_days = 3'}",
                )
        for name in ("max_binlog_total_size", "binlog_space_limit"):
            limit = self.amount(name)
            if limit:
                yield Finding(
                    "retention-size",
                    Level.WARNING,
                    f"the server keeps at most {limit:.0f} bytes of its log, however short a time that is",
                    f"{name} = 0, or large enough for a day of changes",
                )

    def filters(self) -> Findings:
        rows = self.ask("SHOW MASTER STATUS", "SHOW BINARY LOG STATUS", columns=(anything, anything, text_or_none, text_or_none))
        if rows is None:
            yield self.unchecked("filters", "whether databases are kept out of the log", self.monitor_privilege())
            return
        if not rows:
            return
        only, without = (_names(names or "") for names in rows[0][2:])
        hidden = self.among(lambda table: (bool(only) and table.id.database not in only) or table.id.database in without)
        setting = "binlog_do_db" if only else "binlog_ignore_db"
        if hidden:
            remedy = f"take {setting} out of the server's configuration and restart it"
            yield Finding("filters", Level.ERROR, f"{setting} keeps captured databases out of the log", remedy, hidden)
        elif only or without:
            yield Finding(
                "filters",
                Level.WARNING,
                f"{setting} is set: DDL run from another default database is not logged, so schema changes can be missed",
                f"take {setting} out of the server's configuration and restart it",
            )

    def gtids(self) -> Findings:
        mode = self.setting("gtid_mode")
        if self.mariadb or mode == "ON":
            return
        yield Finding(
            "gtid-mode",
            Level.WARNING,
            f"gtid_mode is {mode or 'unknown to this server'}: each chunk read takes LOCK TABLES for some milliseconds, "
            "and another server can't take over",
            "enforce_gtid_consistency = ON, gtid_mode = ON",
        )

    def isolation(self) -> Findings:
        level = self.setting("transaction_isolation") or self.setting("tx_isolation")
        if level not in (None, "REPEATABLE-READ"):
            yield Finding("isolation", Level.INFO, f"the default isolation is {level}; our sessions set REPEATABLE READ themselves")

    # -- what this user may do

    def grants(self) -> Findings:
        lines = self.ask("SHOW GRANTS", columns=(text,))
        if lines is None:
            yield self.unchecked("grants", "the user's grants", "a user that may run SHOW GRANTS")
            return
        grants = Grants.parse([line for (line,) in lines], wildcards=self.setting("partial_revokes") != "ON")
        if not grants.anywhere("REPLICATION SLAVE"):
            remedy = f"GRANT REPLICATION SLAVE ON *.* TO {self.user}"
            yield Finding("grant-replication", Level.ERROR, "the user may not read the log", remedy)
        if not grants.anywhere("REPLICATION CLIENT", "SUPER"):
            remedy = f"GRANT {self.monitor_privilege()} ON *.* TO {self.user}"
            yield Finding("grant-monitor", Level.ERROR, "the user may not ask where the log ends", remedy)
        unreadable = self.among(lambda table: not grants.on_table("SELECT", table.id))
        if unreadable:
            remedy = _few(f"GRANT SELECT ON {quote_table(table)} TO {self.user}" for table in unreadable)
            yield Finding("grant-select", Level.ERROR, "the user may not read whole tables", remedy, unreadable)
        by_lock = {exactly: read_method(self.session, to_a_change=exactly) is Method.LOCK for exactly in (False, True)}
        needing = self.among(lambda table: not _transactional(table) or by_lock[table.id in self.options.changelog])
        unlockable = tuple(table for table in needing if not grants.on_database("LOCK TABLES", table.database))
        if unlockable:
            databases = sorted({table.database for table in unlockable})
            yield Finding(
                "grant-lock-tables",
                Level.ERROR,
                "the user may not lock tables, which their chunk reads need for some milliseconds",
                _few(f"GRANT LOCK TABLES ON {_database_pattern(database)}.* TO {self.user}" for database in databases),
                unlockable,
            )

    def monitor_privilege(self) -> str:
        return "BINLOG MONITOR" if self.mariadb and self.version >= (10, 5, 2) else "REPLICATION CLIENT"

    def replica(self) -> Findings:
        logged = self.setting("log_replica_updates") or self.setting("log_slave_updates")
        if logged != "OFF":
            return
        rows = self.ask(*(["SHOW ALL SLAVES STATUS"] if self.mariadb else ["SHOW SLAVE STATUS", "SHOW REPLICA STATUS"]))
        if rows is None:
            modern = self.mariadb and self.version >= (10, 5, 9)
            yield self.unchecked("replica", "whether the server is a replica", "SLAVE MONITOR" if modern else "REPLICATION CLIENT")
        elif rows:
            name = "log_replica_updates" if "log_replica_updates" in self.settings else "log_slave_updates"
            yield Finding(
                "replica-log",
                Level.ERROR,
                "the server is a replica and its log lacks the changes that come from its primary",
                f"{name} = ON, then restart the server; or capture from the primary",
            )

    def prepared_transactions(self) -> Findings:
        if self.options.begun:
            return
        waiting = prepared_transactions(self.session)
        if waiting is None:
            yield self.unchecked("xa", "whether prepared XA transactions wait for their commit", "XA_RECOVER_ADMIN")
            return
        if waiting:
            yield Finding(
                "xa",
                Level.ERROR,
                f"{len(waiting)} prepared XA transactions wait for their commit; their rows lie before the start of capture",
                _few(f"XA COMMIT {xid}, or XA ROLLBACK {xid}" for xid in waiting),
            )

    def unchecked(self, code: str, what: str, privilege: str) -> Finding:
        return Finding(
            f"{code}-unchecked",
            Level.WARNING,
            f"{what} was not checked: the user may not ask",
            privilege if privilege.startswith("a ") else f"GRANT {privilege} ON *.* TO {self.user}",
        )

    # -- the tables

    def engines(self) -> Findings:
        foreign = self.among(lambda table: table.engine.lower() in FOREIGN_ENGINES)
        if foreign:
            yield Finding("engine-foreign", Level.ERROR, "changes of these tables are not in this server's log", "exclude them", foreign)
        locked = self.among(lambda table: not _transactional(table) and table.engine.lower() not in FOREIGN_ENGINES)
        if locked:
            remedy = _few(f"ALTER TABLE {quote_table(table)} ENGINE = InnoDB" for table in locked)
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
            yield Finding("no-key", Level.WARNING, "tables without a key can only be appended to", remedy, without)
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
            yield Finding("system-column", Level.ERROR, fact, "rename the column, or exclude the tables", tuple(dict.fromkeys(found)))
        for base, found in sorted(unsupported.items()):
            fact = f"columns of type {base} are not supported"
            yield Finding("column-type", Level.ERROR, fact, "exclude the tables", tuple(dict.fromkeys(found)))

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
            yield Finding(
                "cascade",
                level,
                "foreign keys with CASCADE or SET NULL change rows of these tables without a word in the log",
                "exclude the tables, make the keys RESTRICT, or set cascades: ignore",
                tuple(children),
            )

    def hidden_columns(self) -> Findings:
        """What MariaDB's rows hold beyond their catalogue: see the catalogue's opening words."""
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
            yield Finding(
                "system-versioned",
                Level.ERROR,
                "the log of a system-versioned table mixes rows with their history",
                "exclude the tables",
                tuple(sorted(versioned)),
            )
        if hashed:
            yield Finding(
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
            flavour=self.session.server.flavour, version=self.version, lower_case_names=self.setting("lower_case_table_names") == "1"
        )
        named: dict[TableId, set[TableId]] = {}
        broken: list[TableId] = []
        select = "SELECT table_schema, table_name FROM information_schema.tables WHERE UPPER(engine) = 'MRG_MYISAM'"
        for merge in sorted(TableId(database, name) for database, name in self.session.query(select, columns=(text, text))):
            shown = self.ask(f"SHOW CREATE TABLE {quote_table(merge)}", columns=(text, text))
            if not shown:
                broken.append(merge)
            elif found := children.intersection(merged_tables(shown[0][1], merge.database, rules)):
                named[merge] = found
        if named:
            fact = f"{MERGED}: {_few(str(merge) for merge in named)}"
            yield Finding("merge", Level.ERROR, fact, f"{SEPARATE}, or exclude it", tuple(sorted(set().union(*named.values()))))
        if broken:
            fact = f"which tables these MERGE tables name can't be told, because the server can't open them: {_few(map(str, broken))}"
            yield Finding("merge-unchecked", Level.WARNING, fact, "drop them, unless they name no captured table")

    def by_database(self) -> dict[str, set[str]]:
        names: dict[str, set[str]] = defaultdict(set)
        for table in self.tables:
            names[table.id.database].add(table.id.name)
        return names


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def why_foreign(table: MySqlTable) -> str:
    """Why a table of this engine can't be captured; empty where it can."""
    if table.engine.lower() not in FOREIGN_ENGINES:
        return ""
    return f"rows of its engine {table.engine} lie elsewhere, and change without a word in the log"


def _transactional(table: MySqlTable) -> bool:
    """Whether a consistent snapshot of this table is exact. Other engines with transactions were never tried."""
    return table.engine.lower() == "innodb"


def _few(remedies: Iterable[str]) -> str:
    """The first of many alike."""
    listed = list(remedies)
    return "; ".join([*listed[:3], "…"] if len(listed) > 3 else listed)


def _database_pattern(database: str) -> str:
    """A database's name in GRANT, where an underscore would stand for any character."""
    return quote(re.sub(r"([_%\\])", r"\\\1", database))


def _names(text: str) -> set[str]:
    return {name.strip() for name in text.split(",") if name.strip()}


def _ask(session: Session, statement: str, columns: Sequence[Kind] | None) -> list[tuple[Any, ...]] | None:
    """What the server answers; None where it does not."""
    try:
        return session.query(statement, columns=columns)
    except (InvalidConfig, SourceDrift):
        return None


def prepared_transactions(session: Session) -> list[str] | None:
    """The XA transactions that are prepared and wait, as XA COMMIT takes them; None where the user may not ask."""
    columns = (number, number, number, anything)
    if session.server.flavour == "mysql" and session.server.version >= (5, 7, 5):
        rows = _ask(session, "XA RECOVER CONVERT XID", columns)
    else:
        # This form sends the identifier's bytes as if they were text.
        session.execute("SET SESSION character_set_results = binary")
        rows = _ask(session, "XA RECOVER", columns)
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


_NAME = r"\*|`(?:[^`]|``)*`|[^`.\s]+"
_GRANT = re.compile(
    r"^(?P<verb>GRANT|REVOKE) (?P<what>(?:[^`(]|\((?:[^`)]|`(?:[^`]|``)*`)*\))+?) ON (?:TABLE )?"
    rf"(?P<database>{_NAME})\.(?P<name>{_NAME}) (?:TO|FROM) "
)
_PRIVILEGE = re.compile(r"\s*([A-Za-z_ ]+?)\s*(\([^)]*\))?\s*(?:,|$)")

_SAME = {"REPLICATION REPLICA": "REPLICATION SLAVE", "BINLOG MONITOR": "REPLICATION CLIENT"}
"""One privilege, two names."""


@dataclass(frozen=True, slots=True)
class Grants:
    """What SHOW GRANTS tells, active roles included. Privileges on single columns count for nothing: we read whole rows."""

    everywhere: frozenset[str]
    databases: tuple[tuple[str, frozenset[str]], ...]
    """Pattern in the server's LIKE syntax, or a plain name where wildcards are off, and privileges."""
    tables: tuple[tuple[TableId, frozenset[str]], ...]
    revoked: tuple[tuple[str, frozenset[str]], ...] = ()
    """MySQL's partial revokes: taken from a database though granted everywhere."""
    wildcards: bool = True

    @staticmethod
    def parse(lines: Iterable[str], *, wildcards: bool = True) -> Grants:
        everywhere: set[str] = set()
        databases: list[tuple[str, frozenset[str]]] = []
        tables: list[tuple[TableId, frozenset[str]]] = []
        revoked: list[tuple[str, frozenset[str]]] = []
        for line in lines:
            # Grants of roles, routines and proxies are of no interest, and don't match.
            match = _GRANT.match(line)
            if match is None:
                continue
            privileges = frozenset(
                _SAME.get(found[1].upper(), found[1].upper()) for found in _PRIVILEGE.finditer(match["what"]) if not found[2]
            )
            database, name = _unquote(match["database"]), _unquote(match["name"])
            if match["verb"] == "REVOKE":
                revoked.append((database, privileges))
            elif match["database"] == "*":
                everywhere |= privileges
            elif match["name"] == "*":
                databases.append((database, privileges))
            else:
                tables.append((TableId(database, name), privileges))
        return Grants(frozenset(everywhere), tuple(databases), tuple(tables), tuple(revoked), wildcards)

    def anywhere(self, *privileges: str) -> bool:
        """Whether one of these privileges of the whole server is held."""
        return any(_has(self.everywhere, _SAME.get(privilege, privilege)) for privilege in privileges)

    def on_database(self, privilege: str, database: str) -> bool:
        if _has(self.everywhere, privilege):
            return not any(name == database and _has(privileges, privilege) for name, privileges in self.revoked)
        return any(self._matches(pattern, database) and _has(privileges, privilege) for pattern, privileges in self.databases)

    def on_table(self, privilege: str, table: TableId) -> bool:
        return self.on_database(privilege, table.database) or any(
            granted == table and _has(privileges, privilege) for granted, privileges in self.tables
        )

    def _matches(self, pattern: str, database: str) -> bool:
        if not self.wildcards:
            return pattern == database
        parts = re.findall(r"\\.|.", pattern, re.DOTALL)
        regex = "".join({"%": ".*", "_": "."}.get(part, re.escape(part[-1])) for part in parts)
        return re.fullmatch(regex, database, re.DOTALL) is not None


def _has(privileges: frozenset[str], privilege: str) -> bool:
    return privilege in privileges or "ALL PRIVILEGES" in privileges or "ALL" in privileges


def _unquote(name: str) -> str:
    return name[1:-1].replace("``", "`") if name.startswith("`") else name
