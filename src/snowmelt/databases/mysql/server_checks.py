"""Checks of a server's settings and of its user's privileges before its tables are captured."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from snowmelt.databases.contract.findings import Finding, Level
from snowmelt.databases.mysql.answers import Kind, anything, text, text_or_none, unexpected
from snowmelt.databases.mysql.connect import Session, Tls
from snowmelt.databases.mysql.grants import Grants
from snowmelt.databases.mysql.quoting import quote, quote_table
from snowmelt.databases.mysql.read.reads import Method, read_method
from snowmelt.databases.mysql.types.columns import MySqlTable
from snowmelt.errors import InvalidConfig, SourceDrift
from snowmelt.model.table import TableId

RETENTION_SECONDS_MIN = 24 * 3600
TESTED_VERSIONS = {"mysql": ((5, 6), (5, 7), (8, 0), (8, 4), (9, 7)), "mariadb": ((10, 11), (11, 4), (11, 8))}
"""Versions that the tests run on, the oldest first."""
Findings = Iterator[Finding]


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def transactional(table: MySqlTable) -> bool:
    """Whether a consistent snapshot of this table is exact. Other engines with transactions were never tried."""
    return table.engine.lower() == "innodb"


def few(remedies: Iterable[str]) -> str:
    """The first few of many similar remedies."""
    listed = list(remedies)
    return "; ".join([*listed[:3], "…"] if len(listed) > 3 else listed)


def _database_pattern(database: str) -> str:
    """A database's name in GRANT, where an underscore would stand for any character."""
    return quote(re.sub(r"([_%\\])", r"\\\1", database))


def _names(text: str) -> set[str]:
    return {name.strip() for name in text.split(",") if name.strip()}


def answer_to(session: Session, statement: str, columns: Sequence[Kind] | None) -> list[tuple[Any, ...]] | None:
    """The server's answer; None if it has none."""
    try:
        return session.query(statement, columns=columns)
    except (InvalidConfig, SourceDrift):
        return None


class ServerChecks:
    """Reads settings and grants once, then each check yields what it finds. Tables of `changelog` have each change kept, so reads of them
    must end exactly between two changes."""

    def __init__(self, session: Session, tables: Sequence[MySqlTable], changelog: frozenset[TableId]) -> None:
        self.session = session
        self.tables = tables
        self.changelog = changelog
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
            if (rows := answer_to(self.session, statement, columns)) is not None:
                return rows
        return None

    def among(self, holds: Callable[[MySqlTable], bool]) -> tuple[TableId, ...]:
        return tuple(table.id for table in self.tables if holds(table))

    def unchecked(self, code: str, what: str, privilege: str) -> Finding:
        return Finding(
            f"{code}-unchecked",
            Level.WARNING,
            f"{what} was not checked: the user may not ask",
            privilege if privilege.startswith("a ") else f"GRANT {privilege} ON *.* TO {self.user}",
        )

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
        # No attacker is between this machine and itself.
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
            remedy = few(f"GRANT SELECT ON {quote_table(table)} TO {self.user}" for table in unreadable)
            yield Finding("grant-select", Level.ERROR, "the user may not read whole tables", remedy, unreadable)
        by_lock = {exactly: read_method(self.session, to_a_change=exactly) is Method.LOCK for exactly in (False, True)}
        needing = self.among(lambda table: not transactional(table) or by_lock[table.id in self.changelog])
        unlockable = tuple(table for table in needing if not grants.on_database("LOCK TABLES", table.database))
        if unlockable:
            databases = sorted({table.database for table in unlockable})
            yield Finding(
                "grant-lock-tables",
                Level.ERROR,
                "the user may not lock tables, which their chunk reads need for some milliseconds",
                few(f"GRANT LOCK TABLES ON {_database_pattern(database)}.* TO {self.user}" for database in databases),
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
