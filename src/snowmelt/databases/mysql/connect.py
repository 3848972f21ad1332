"""Connections to MySQL and MariaDB.

PyMySQL does the handshake and the ordinary queries, under the rules of `handshake`: which server gets the password, how much a server may
send, and for how long. Hot paths use its socket and implement the protocol themselves. A session sets every variable that would change
values or cut a result short: time zone UTC, utf8mb4, REPEATABLE READ, a plain sql_mode, no limit of rows or time.

A server's bytes are not trusted: whatever PyMySQL raises on them becomes an error of ours, and the session is closed.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import TracebackType
from typing import Any, Final

import pymysql

from snowmelt.credentials import Secret
from snowmelt.databases.mysql.answers import Kind, anything, number, take, text, unexpected
from snowmelt.databases.mysql.handshake import Connection, HandshakeRules
from snowmelt.databases.mysql.log.files import LogFile
from snowmelt.databases.mysql.types.columns import Flavour
from snowmelt.errors import Corrupt, InvalidConfig, Occupied, SnowmeltError, SourceDrift, TableRefused, Unavailable, printable

_VERSION_CHARACTERS_MAX: Final = 200
_STATEMENT_CHARACTERS_MAX: Final = 80


class Tls(StrEnum):
    """How the server's certificate is checked. The names are those of MySQL's own clients."""

    DISABLED = "disabled"
    PREFERRED = "preferred"
    REQUIRED = "required"
    VERIFY_CA = "verify-ca"
    VERIFY_IDENTITY = "verify-identity"

    @property
    def verifies(self) -> bool:
        """Whether only a server with a certificate of our authority passes the handshake."""
        return self in (Tls.VERIFY_CA, Tls.VERIFY_IDENTITY)


@dataclass(frozen=True, slots=True, kw_only=True)
class MySqlOptions:
    """The server's address, and the settings of a connection."""

    host: str = "127.0.0.1"
    port: int = 3306
    socket: str | None = None
    """A unix socket, instead of host and port."""
    username: str = "root"
    password: Secret = field(default_factory=Secret)
    tls: Tls = Tls.PREFERRED
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    allow_password_to_unverified_server: bool = False
    """Whether a server without a verified certificate may get the password itself, and not only a hash of it."""
    connect_timeout_s: float = 10.0
    """For the connection itself, and once more for the whole handshake."""
    read_timeout_s: float = 300.0
    """How long a single receive may wait. During a chunk read rows come all the time. Capture has its own limit, by the heartbeat."""

    read_time_max_s: float = 3600.0
    """How long one transaction that reads rows of a table may last."""

    def __post_init__(self) -> None:
        if not 0 < self.port < 65536:
            raise InvalidConfig("the port must be between 1 and 65535", detail=str(self.port))
        if self.tls.verifies and not self.tls_ca:
            raise InvalidConfig(f"tls: {self.tls} needs tls_ca", hint="name the file of the certificate authority")

    @property
    def password_may_be_sent(self) -> bool:
        """Whether the server may get the password itself. A unix socket is safe: it is on this machine, at the server's path."""
        return self.socket is not None or self.tls.verifies or self.allow_password_to_unverified_server

    def context(self) -> ssl.SSLContext | None:
        if self.tls is Tls.DISABLED or self.socket:
            return None
        try:
            # A server is verified by `tls_ca`; to read the system's authorities for nothing takes longer than to connect.
            context = ssl.create_default_context(cafile=self.tls_ca) if self.tls_ca else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            if self.tls_cert:
                context.load_cert_chain(self.tls_cert, self.tls_key)
        except OSError as error:
            files = ", ".join(file for file in (self.tls_ca, self.tls_cert, self.tls_key) if file)
            reason = error.strerror or str(error)
            raise InvalidConfig("a file for TLS can't be used", detail=f"{files}: {reason}", hint="give PEM files") from None
        context.check_hostname = self.tls is Tls.VERIFY_IDENTITY
        context.verify_mode = ssl.CERT_REQUIRED if self.tls.verifies else ssl.CERT_NONE
        # The authority that MySQL makes for itself lacks what the strict reading of RFC 5280 asks for.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        return context


@dataclass(frozen=True, slots=True)
class Server:
    """The server that answered. Positions on two servers are never compared by offset."""

    flavour: Flavour
    version: tuple[int, int, int]
    identity: str
    """server_uuid on MySQL; on MariaDB, which has none, server id, host name, port and data folder."""

    def __str__(self) -> str:
        return f"{'MariaDB' if self.flavour == 'mariadb' else 'MySQL'} {'.'.join(map(str, self.version))}"


class Session:
    """One connection. Not shared between threads."""

    def __init__(self, options: MySqlOptions) -> None:
        self.options = options
        self._connection = _open(options)
        try:
            self.server = _identify(self)
            self._set_up()
        except BaseException:
            self.close()
            raise

    def _set_up(self) -> None:
        # A limit that an administrator set for everybody would cut a chunk short without a word (rows) or end it (time). Dates are
        # compared for what columns can hold: MySQL 8 refuses a bound of 2020-02-31 otherwise, 5.6 finds it not equal to itself.
        self.execute(
            "SET SESSION time_zone = '+00:00', character_set_results = utf8mb4, sql_mode = 'ALLOW_INVALID_DATES,NO_ENGINE_SUBSTITUTION', "
            "net_write_timeout = 3600, net_read_timeout = 3600, sql_select_limit = 18446744073709551615, sql_big_selects = 1, "
            "completion_type = 'NO_CHAIN', sql_auto_is_null = 0"
        )
        if self.server.flavour == "mariadb":
            self.execute("SET SESSION max_statement_time = 0")
        elif self.server.version >= (5, 7, 8):
            self.execute("SET SESSION max_execution_time = 0")
        self.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")

    def query(self, sql: str, args: Sequence[Any] | None = None, *, columns: Sequence[Kind] | None = None) -> list[tuple[Any, ...]]:
        """Run a statement and fetch all of its (few) rows. `columns`: the kinds of the columns that the caller reads; None: the caller
        reads no value."""
        statement = self._connection.cursor().mogrify(sql, args)
        try:
            self._connection.begin_answer()
            with self._connection.cursor() as cursor:
                cursor.execute(statement)
                rows = list(cursor.fetchall())
            return rows if columns is None else take(rows, columns)
        except (pymysql.Error, OSError) as error:
            raise translate(error) from None
        except SnowmeltError as error:
            self.close()
            # What follows may be a key's value.
            asked = printable(sql.partition(" WHERE ")[0], _STATEMENT_CHARACTERS_MAX)
            raise type(error)(error.fact, detail=f"{error.detail}: {asked}", hint=error.hint) from None
        except Exception as error:
            # The rest of the answer is still on its way and would be taken for the answer to the next statement.
            self.close()
            raise _unreadable(error) from None

    def execute(self, sql: str, args: Sequence[Any] | None = None) -> None:
        self.query(sql, args)

    def row(self, sql: str, args: Sequence[Any] | None = None, *, columns: Sequence[Kind]) -> tuple[Any, ...]:
        """The only row of an answer."""
        rows = self.query(sql, args, columns=columns)
        if len(rows) != 1:
            raise unexpected(f"rows: {len(rows)}, not 1")
        return rows[0]

    def value(self, sql: str, args: Sequence[Any] | None = None, *, kind: Kind = anything) -> Any:
        """The first column of the first row, or None where there is no row."""
        rows = self.query(sql, args, columns=(kind,))
        return rows[0][0] if rows else None

    def variable(self, name: str) -> str | None:
        """A global variable, or None where this server has no such variable."""
        rows = self.query("SHOW GLOBAL VARIABLES LIKE %s", [name.replace("_", r"\_")], columns=(text, text))
        return rows[0][1] if rows else None

    def log_end(self) -> tuple[LogFile, int]:
        """The file that the server writes its log to, and its present end."""
        renamed = self.server.flavour == "mysql" and self.server.version >= (8, 2, 0)
        rows = self.query("SHOW BINARY LOG STATUS" if renamed else "SHOW MASTER STATUS", columns=(text, number))
        if not rows:
            raise log_is_off(str(self.server))
        return LogFile.parse(rows[0][0]), rows[0][1]

    @property
    def sock(self) -> socket.socket:
        """The socket, for code that speaks the protocol itself. Between commands nothing is buffered above it."""
        taken: socket.socket | None = getattr(self._connection, "_sock", None)
        if taken is None:
            raise Unavailable("the connection is closed")
        return taken

    @property
    def encrypted(self) -> bool:
        return isinstance(self.sock, ssl.SSLSocket)

    def close(self) -> None:
        """Close at once, without COM_QUIT: the connection may be in the middle of a stream. Twice is harmless."""
        self._connection._force_close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _open(options: MySqlOptions) -> Connection:
    connection = Connection(
        host=options.host,
        port=options.port,
        unix_socket=options.socket,
        user=options.username,
        # As bytes: PyMySQL would encode text as latin1, where the server has UTF-8.
        password=options.password.reveal().encode(),
        rules=HandshakeRules(
            context=options.context(),
            plain_will_do=options.tls is Tls.PREFERRED,
            password_may_be_sent=options.password_may_be_sent,
            connect_timeout_s=options.connect_timeout_s,
            read_timeout_s=options.read_timeout_s,
        ),
    )
    try:
        connection.connect()
    except (pymysql.Error, OSError, SnowmeltError) as error:
        raise translate(error, options) from None
    except Exception as error:
        raise _unreadable(error, options) from None
    return connection


def _tls_failed(error: Exception) -> bool:
    """Whether TLS itself failed, and not the network under it. PyMySQL wraps what the handshake raised as 2003."""
    cause = getattr(error, "original_exception", error)
    if isinstance(cause, ssl.SSLError):
        return not isinstance(cause, ssl.SSLEOFError | ssl.SSLZeroReturnError)
    return bool(error.args) and error.args[0] == 2026


def _unreadable(error: Exception, options: MySqlOptions | None = None) -> Corrupt:
    """The error for an answer that PyMySQL can't read. It may raise anything, because it trusts the server."""
    detail = "it holds text that is not UTF-8" if isinstance(error, UnicodeDecodeError) else type(error).__name__
    if isinstance(error, RuntimeError) and "LOAD_LOCAL" in str(error):
        detail = "it asks for a file of this machine, which is not sent"
    where = f"{_where(options)}: " if options else ""
    return Corrupt("the server's answer can't be read", detail=f"{where}{detail}", hint="is it a MySQL or MariaDB server?")


def _where(options: MySqlOptions) -> str:
    return f"{options.username}@{options.socket or f'{options.host}:{options.port}'}"


def _identify(session: Session) -> Server:
    told = printable(str(session.value("SELECT VERSION()")), _VERSION_CHARACTERS_MAX)
    flavour: Flavour = "mariadb" if "mariadb" in told.lower() else "mysql"
    numbers = told.removeprefix("5.5.5-").split("-")[0].split(".")
    try:
        version = (int(numbers[0]), int(numbers[1]), int(numbers[2]))
    except (ValueError, IndexError):
        raise SourceDrift("the server's version can't be read", detail=told) from None
    identity = session.variable("server_uuid")
    if identity is None:
        parts = session.row("SELECT @@server_id, @@hostname, @@port, @@datadir", columns=4 * (anything,))
        identity = "/".join(str(part) for part in parts)
    return Server(flavour, version, identity)


_GONE = {
    1021, 1037, 1038, 1040, 1041, 1042, 1047, 1053, 1077, 1129, 1135, 1152, 1153, 1158, 1159, 1160, 1161, 1203, 1213, 1226, 1317, 1461,
    1615, 1927, 1969, 2002, 2003, 2006, 2013, 2055, 3024, 3032, 3168, 4031,
}  # fmt: skip
"""The server is away, in offline mode or a cluster's node without quorum; it blocks this host; it has no room, memory, threads,
connections or prepared statements left for now; or other sessions undo what a statement was prepared for."""
_QUOTING = {1064, 1292, 1366, 1367, 1411, 1525, 3854}
"""Errors whose text repeats a piece of the statement, which may be a key's value."""
_DENIED = {1044, 1045, 1227, 1698, 3118, 1130, 1862}
_TABLE_DENIED = {1142, 1143}
_LOCKED = 1205


def log_is_off(detail: str) -> InvalidConfig:
    """The error for a server without a binary log."""
    return InvalidConfig("the server keeps no binary log", detail=detail, hint="start it with log_bin and binlog_format = ROW")


def translate(error: Exception, options: MySqlOptions | None = None) -> SnowmeltError:
    """Our error for one of PyMySQL, the socket or the server, by the caller's next step. No text has the password. `options`: only while
    connecting. If TLS fails later, the handshake was right, and the connection is lost like any other."""
    if isinstance(error, SnowmeltError):
        return error
    where = _where(options) if options else ""
    code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    text = f"error {code}" if code in _QUOTING else f"{code} {error.args[1]}" if code and len(error.args) > 1 else str(error)
    detail = f"{where}: {text}" if where else text
    if options is not None and _tls_failed(error):
        hint = "see tls, tls_ca, tls_cert and tls_key"
        if options.tls is Tls.PREFERRED:
            # An attacker who breaks a handshake would otherwise get the rest in plain.
            hint = "the server offers TLS, so the connection is not made without it; if its TLS is too old, set tls: disabled"
        return InvalidConfig("TLS to the database failed", detail=detail, hint=hint)
    if code == _LOCKED:
        return Occupied("another session holds a lock for too long", detail=detail)
    if isinstance(error, OSError | pymysql.err.InterfaceError) or code in _GONE:
        return Unavailable("the database can't be reached", detail=detail)
    if code in _DENIED:
        return InvalidConfig("the database refuses access", detail=detail, hint="check username, password and grants")
    if code in _TABLE_DENIED:
        return TableRefused("the database refuses access to a table", detail=detail, hint="grant SELECT on it")
    if code in (1146, 1049, 1054, 1412):
        return SourceDrift("the database no longer has what was asked for", detail=detail)
    if isinstance(error, pymysql.err.InternalError) and not code:
        return Corrupt("the server's answer can't be read", detail=detail)
    return SourceDrift("the database refused a statement", detail=detail)
