"""Connections to MySQL and MariaDB.

PyMySQL speaks the handshake (every authentication plugin, TLS) and the ordinary queries; what is hot takes over its socket
and speaks the protocol itself. A session is set up by us and inherits nothing that would change values or cut a result
short: time zone UTC, utf8mb4, REPEATABLE READ, a plain sql_mode, no limit of rows or time.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import TracebackType
from typing import Any

import pymysql
from pymysql.constants import CLIENT

from snowmelt.databases.mysql.columns import Flavour
from snowmelt.errors import Corrupt, InvalidConfig, SnowmeltError, SourceDrift, Unavailable
from snowmelt.model.position import LogFile
from snowmelt.secrets import Secret


class Tls(StrEnum):
    """How far the server's certificate is trusted, in the words of MySQL's own clients."""

    DISABLED = "disabled"
    PREFERRED = "preferred"
    REQUIRED = "required"
    VERIFY_CA = "verify-ca"
    VERIFY_IDENTITY = "verify-identity"


@dataclass(frozen=True, slots=True, kw_only=True)
class MySqlOptions:
    """Where the server is and how we talk to it."""

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
    connect_timeout_s: float = 10.0
    read_timeout_s: float = 300.0
    """How long a single receive may wait. Chunk reads send rows all the time; capture sets its own by the heartbeat."""

    def __post_init__(self) -> None:
        if not 0 < self.port < 65536:
            raise InvalidConfig("the port must be between 1 and 65535", detail=str(self.port))
        if self.tls in (Tls.VERIFY_CA, Tls.VERIFY_IDENTITY) and not self.tls_ca:
            raise InvalidConfig(f"tls: {self.tls} needs tls_ca", hint="name the file of the certificate authority")

    def context(self) -> ssl.SSLContext | None:
        if self.tls is Tls.DISABLED or self.socket:
            return None
        try:
            context = ssl.create_default_context(cafile=self.tls_ca)
            if self.tls_cert:
                context.load_cert_chain(self.tls_cert, self.tls_key)
        except OSError as error:
            files = ", ".join(file for file in (self.tls_ca, self.tls_cert, self.tls_key) if file)
            reason = error.strerror or str(error)
            raise InvalidConfig("a file for TLS can't be used", detail=f"{files}: {reason}", hint="PEM files are needed") from None
        context.check_hostname = self.tls is Tls.VERIFY_IDENTITY
        context.verify_mode = ssl.CERT_REQUIRED if self.tls in (Tls.VERIFY_CA, Tls.VERIFY_IDENTITY) else ssl.CERT_NONE
        # The authority that MySQL makes for itself lacks what the strict reading of RFC 5280 asks for.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        return context


@dataclass(frozen=True, slots=True)
class Server:
    """Who answered. Positions of two identities are never compared by offset."""

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

    def query(self, sql: str, args: Sequence[Any] | None = None) -> list[tuple[Any, ...]]:
        """Run a statement and fetch all of its (few) rows."""
        try:
            with self._connection.cursor() as cursor:
                cursor.execute(sql, args)
                return list(cursor.fetchall())
        except (pymysql.Error, OSError) as error:
            raise translate(error) from None
        except UnicodeDecodeError:
            # The rest of the answer is still on its way and would be taken for the answer to the next statement.
            self.close()
            raise Corrupt("the server's answer can't be read", detail="it holds text that is not UTF-8") from None

    def execute(self, sql: str, args: Sequence[Any] | None = None) -> None:
        self.query(sql, args)

    def value(self, sql: str, args: Sequence[Any] | None = None) -> Any:
        """The first column of the first row, or None."""
        rows = self.query(sql, args)
        return rows[0][0] if rows else None

    def variable(self, name: str) -> str | None:
        """A global variable, or None where this server has no such variable."""
        rows = self.query("SHOW GLOBAL VARIABLES LIKE %s", [name.replace("_", r"\_")])
        return str(rows[0][1]) if rows else None

    def log_end(self) -> tuple[LogFile, int]:
        """The file that the server writes its log to, and where it ends as of now."""
        renamed = self.server.flavour == "mysql" and self.server.version >= (8, 2, 0)
        rows = self.query("SHOW BINARY LOG STATUS" if renamed else "SHOW MASTER STATUS")
        if not rows:
            raise log_is_off(str(self.server))
        return LogFile.parse(str(rows[0][0])), int(rows[0][1])

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
        """Close at once, without a good-bye: a stream may be in the middle of it. Twice is harmless."""
        self._connection._force_close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _open(options: MySqlOptions) -> Any:
    context = options.context()
    try:
        return _handshake(options, context)
    except (pymysql.Error, OSError, RuntimeError) as error:
        # PREFERRED means plain when there is no TLS to be had, as with MySQL's own clients: the server has none, or none
        # that is new enough for us.
        if options.tls is Tls.PREFERRED and context is not None and _tls_failed(error):
            return _open(replace(options, tls=Tls.DISABLED))
        raise translate(error, options) from None


def _tls_failed(error: Exception) -> bool:
    """Whether TLS itself failed, and not the network under it. PyMySQL wraps what the handshake raised as 2003."""
    cause = getattr(error, "original_exception", error)
    if isinstance(cause, ssl.SSLError):
        return not isinstance(cause, ssl.SSLEOFError | ssl.SSLZeroReturnError)
    return bool(error.args) and error.args[0] == 2026


def _handshake(options: MySqlOptions, context: ssl.SSLContext | None) -> Any:
    connection: Any = pymysql.connect(
        host=options.host,
        port=options.port,
        unix_socket=options.socket,
        user=options.username,
        # As bytes: PyMySQL would encode text as latin1, where the server has UTF-8.
        password=options.password.reveal().encode(),
        charset="utf8mb4",
        autocommit=True,
        connect_timeout=max(1, int(options.connect_timeout_s)),
        read_timeout=options.connect_timeout_s,
        write_timeout=options.connect_timeout_s,
        ssl=context,
        ssl_disabled=context is None,
        client_flag=CLIENT.MULTI_RESULTS,
        init_command=None,
        local_infile=False,
        program_name="snowmelt",
    )
    if context is not None and not isinstance(connection._sock, ssl.SSLSocket) and options.tls is not Tls.PREFERRED:
        connection._force_close()
        raise InvalidConfig("the server offers no TLS", detail=f"{options.host}:{options.port}", hint="tls: preferred or disabled")
    # The handshake has the time of a connect: who accepts and then says nothing is not there. Queries may take longer.
    connection._read_timeout = connection._write_timeout = options.read_timeout_s
    return connection


def _identify(session: Session) -> Server:
    text = str(session.value("SELECT VERSION()"))
    flavour: Flavour = "mariadb" if "mariadb" in text.lower() else "mysql"
    numbers = text.removeprefix("5.5.5-").split("-")[0].split(".")
    try:
        version = (int(numbers[0]), int(numbers[1]), int(numbers[2]))
    except (ValueError, IndexError):
        raise SourceDrift("the server's version can't be read", detail=text) from None
    identity = session.variable("server_uuid")
    if identity is None:
        row = session.query("SELECT @@server_id, @@hostname, @@port, @@datadir")[0]
        identity = "/".join(str(part) for part in row)
    return Server(flavour, version, identity)


_GONE = {
    1040, 1042, 1053, 1077, 1152, 1153, 1158, 1159, 1160, 1161, 1203, 1205, 1213, 1317, 1927, 1969, 2002, 2003,
    2006, 2013, 2055, 3024, 4031,
}  # fmt: skip
_QUOTING = {1064, 1292, 1366, 1367, 1411, 1525, 3854}
"""Errors whose text repeats a piece of the statement, which may be a key's value."""
_DENIED = {1044, 1045, 1142, 1143, 1227, 1698, 3118, 1130, 1862}


def log_is_off(detail: str) -> InvalidConfig:
    """What it means that a server has no place in a log to tell."""
    return InvalidConfig("the server keeps no binary log", detail=detail, hint="start it with log_bin and binlog_format = ROW")


def translate(error: Exception, options: MySqlOptions | None = None) -> SnowmeltError:
    """An error of PyMySQL, the socket or the server, by the caller's next step. The password is in none of their texts."""
    if isinstance(error, SnowmeltError):
        return error
    where = f"{options.username}@{options.socket or f'{options.host}:{options.port}'}" if options else ""
    code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    text = f"error {code}" if code in _QUOTING else f"{code} {error.args[1]}" if code and len(error.args) > 1 else str(error)
    detail = f"{where}: {text}" if where else text
    if _tls_failed(error):
        return InvalidConfig("TLS to the database failed", detail=detail, hint="see tls, tls_ca, tls_cert and tls_key")
    if isinstance(error, OSError | pymysql.err.InterfaceError) or code in _GONE:
        return Unavailable("the database can't be reached", detail=detail)
    if code in _DENIED:
        return InvalidConfig("the database refuses access", detail=detail, hint="check username, password and grants")
    if code in (1146, 1049, 1054, 1412):
        return SourceDrift("the database no longer has what was asked for", detail=detail)
    if isinstance(error, pymysql.err.InternalError) and not code:
        return Corrupt("the server's answer can't be read", detail=detail)
    return SourceDrift("the database refused a statement", detail=detail)
