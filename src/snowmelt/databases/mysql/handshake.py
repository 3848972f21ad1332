"""PyMySQL's connection under rules of ours: which server gets the password, how much a server may send, and for how long.

Laws:
- The server proves its identity before it gets the password. The password itself is sent only over a unix socket, over TLS with a verified
  certificate, or if a setting allows it. It is then sent in clear (`mysql_clear_password`, `dialog`, the full authentication of
  `caching_sha2_password` and `sha256_password` under TLS), or encrypted with the server's key (the last two without TLS). Otherwise
  a server gets only a salted hash, and nothing if it asks for more. `mysql_old_password` is refused everywhere: its hash is as good as the
  password.
- The greeting is not authenticated. It decides about TLS once: a server without TLS gets a plain connection if the settings allow that; a
  server with TLS gets TLS or nothing. There is no second try with less protection.
- LOCAL INFILE is not offered, and a request for a file is an error.
- The handshake has the time of a connect, and its packets are small. An answer has a size and a time; each receive has a time, too.

If the server switches to a plugin, PyMySQL takes the answer from `auth_plugin_map`. For the greeting's plugin it has answers of its own. So
if the password must not be sent, a greeting with one of the two plugins above is answered as for `mysql_native_password`, and the server
must switch.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from importlib.util import find_spec
from ssl import SSLContext
from typing import Any, Final

import pymysql
from pymysql.constants import CLIENT

from snowmelt.errors import Corrupt, InvalidConfig, Unavailable, printable

HANDSHAKE_BYTES_MAX: Final = 1 << 20
"""All that a server sends before it lets us in: a greeting, an error, a key; some hundred bytes."""
ANSWER_BYTES_MAX: Final = 1 << 30
"""Of one answer to a statement, counted as its rows take in memory."""
ANSWER_S_MAX: Final = 3600.0
"""From a statement to the end of its answer."""
_PACKET_BYTES: Final = 256
"""The memory of a packet beside its bytes, roughly."""
_PIECE_BYTES: Final = 1 << 16
_SALT_BYTES: Final = 20
_FAST_SUCCESS, _FULL_NEEDED = 3, 4
_SPOKEN: Final = frozenset(
    {
        "", "mysql_native_password", "caching_sha2_password", "sha256_password", "mysql_clear_password", "dialog", "mysql_old_password",
        *(["client_ed25519"] if find_spec("nacl") else []),
    }
)  # fmt: skip
"""Plugins that are supported. MariaDB's ed25519 would need PyNaCl, which is no dependency of ours."""

Base: Any = pymysql.connections.Connection


@dataclass(frozen=True, slots=True, kw_only=True)
class HandshakeRules:
    """What a server must prove before it gets the password, and how long it may take."""

    context: SSLContext | None
    """None: the connection is plain."""
    plain_will_do: bool
    """A server that offers no TLS gets a plain connection."""
    password_may_be_sent: bool
    connect_timeout_s: float
    read_timeout_s: float


class Connection(Base):  # type: ignore[misc]
    """Connects when `connect` is called. `begin_answer` is called before each statement."""

    ssl: bool
    client_flag: int
    _auth_plugin_name: str

    def __init__(
        self,
        *,
        host: str,
        port: int,
        unix_socket: str | None,
        user: str,
        password: bytes,
        rules: HandshakeRules,
    ) -> None:
        plugins: dict[str, type[Any]] = {"mysql_old_password": _RefusedPlugin}
        if not rules.password_may_be_sent:
            plugins |= {
                "mysql_clear_password": _RefusedPlugin,
                "dialog": _RefusedPlugin,
                "sha256_password": _RefusedPlugin,
                "caching_sha2_password": _CachingSha2,
            }
        self._plain_will_do = rules.plain_will_do
        self._password_may_be_sent = rules.password_may_be_sent
        self._connect_timeout_s = rules.connect_timeout_s
        self._query_timeout_s = rules.read_timeout_s
        self._bytes_left = 0
        self._packet_bytes = 0
        self._deadline = 0.0
        super().__init__(
            host=host,
            port=port,
            unix_socket=unix_socket,
            user=user,
            password=password,
            charset="utf8mb4",
            autocommit=True,
            connect_timeout=max(1, int(rules.connect_timeout_s)),
            read_timeout=rules.connect_timeout_s,
            write_timeout=rules.connect_timeout_s,
            ssl=rules.context,
            ssl_disabled=rules.context is None,
            client_flag=CLIENT.MULTI_RESULTS,
            init_command=None,
            local_infile=False,
            program_name="snowmelt",
            auth_plugin_map=plugins,
            defer_connect=True,
        )

    def connect(self, sock: Any = None) -> None:
        # A server that accepts and then sends nothing, or a byte at a time, counts as away. Its time begins when it has accepted.
        self._bytes_left, self._packet_bytes, self._deadline = HANDSHAKE_BYTES_MAX, 0, 0.0
        super().connect(sock)
        self._read_timeout = self._write_timeout = self._query_timeout_s

    def begin_answer(self) -> None:
        """All packets until the next call belong to one answer."""
        self._bytes_left, self._packet_bytes, self._deadline = ANSWER_BYTES_MAX, _PACKET_BYTES, time.monotonic() + ANSWER_S_MAX

    def _get_server_information(self) -> None:
        self._deadline = time.monotonic() + self._connect_timeout_s
        super()._get_server_information()
        if self.ssl and not self.server_capabilities & CLIENT.SSL:
            if not self._plain_will_do:
                where = f"{self.host}:{self.port}"
                raise InvalidConfig("the server offers no TLS", detail=where, hint="set tls: preferred or disabled")
            self.ssl = False
            self.client_flag &= ~CLIENT.SSL
        if not self._password_may_be_sent and self._auth_plugin_name in ("caching_sha2_password", "sha256_password"):
            self._auth_plugin_name = "mysql_native_password"

    def _get_auth_plugin_handler(self, plugin_name: bytes | str) -> Any:
        name = plugin_name.decode("ascii", "replace") if isinstance(plugin_name, bytes) else plugin_name
        return super()._get_auth_plugin_handler(name) if name in _SPOKEN else _Unspoken(name)

    def _read_bytes(self, num_bytes: int) -> bytes:
        # A header announces the size of each packet. A packet that is too large is refused before it is read.
        self._bytes_left -= num_bytes + (self._packet_bytes if num_bytes == 4 else 0)
        if self._bytes_left < 0:
            self._force_close()
            raise Corrupt("the server's answer has no end", detail="it is larger than any answer may be", hint="is it the right server?")
        pieces: list[bytes] = []
        left = num_bytes
        while left:
            piece = self._receive(min(left, _PIECE_BYTES))
            pieces.append(piece)
            left -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _receive(self, count: int) -> bytes:
        if time.monotonic() > self._deadline:
            self._force_close()
            raise Unavailable("the server's answer does not end", detail="its time is over")
        try:
            piece: bytes = self._rfile.read1(count)
        except OSError as error:
            self._force_close()
            raise pymysql.err.OperationalError(2013, f"lost connection to the server ({error})") from None
        if not piece:
            self._force_close()
            raise pymysql.err.OperationalError(2013, "lost connection to the server")
        return piece


class _Unspoken:
    """The answer to a plugin that is not supported."""

    def __init__(self, name: str) -> None:
        self._name = name

    def authenticate(self, packet: Any) -> Any:
        raise InvalidConfig(
            "the server asks for an authentication plugin that snowmelt does not speak",
            detail=printable(self._name, 64) or "without a name",
            hint="give the user caching_sha2_password or, on MariaDB, mysql_native_password",
        )


class _RefusedPlugin:
    """The answer to a plugin that would give the password away."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def authenticate(self, packet: Any) -> Any:
        raise _refusal(self._connection, printable(_plugin(packet), 64))


class _CachingSha2:
    """The short way of `caching_sha2_password`, for a server that has seen the password since its start: a salted hash. The long way is
    refused."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def authenticate(self, packet: Any) -> Any:
        connection = self._connection
        if packet.is_auth_switch_request():
            salt = packet.read_all().removesuffix(b"\0")
            if len(salt) != _SALT_BYTES:
                raise Corrupt("the server's handshake can't be read", detail="the salt of caching_sha2_password is not 20 bytes")
            connection.write_packet(_hash(connection.password, salt))
            packet = connection._read_packet()
            if packet.is_ok_packet():
                return packet
        if not packet.is_extra_auth_data():
            raise Corrupt("the server's handshake can't be read", detail="it continues after caching_sha2_password in an unknown way")
        packet.advance(1)
        result = packet.read_uint8()
        if result == _FAST_SUCCESS:
            return connection._read_packet()
        if result == _FULL_NEEDED and connection.password:
            raise _refusal(connection, "caching_sha2_password")
        raise Corrupt("the server's handshake can't be read", detail="caching_sha2_password gives an unknown result")


def _hash(password: bytes, salt: bytes) -> bytes:
    """A hash that the server can check with its stored one, and that differs with each salt."""
    if not password:
        return b""
    once = hashlib.sha256(password).digest()
    mask = hashlib.sha256(hashlib.sha256(once).digest() + salt).digest()
    return bytes(a ^ b for a, b in zip(once, mask, strict=True))


def _plugin(packet: Any) -> str:
    """The name in a request to switch, or none."""
    data: bytes = packet.get_all_data()
    return data[1:].split(b"\0", 1)[0].decode("ascii", "replace") if data[:1] == b"\xfe" else "authentication plugin"


def _refusal(connection: Connection, plugin: str) -> InvalidConfig:
    if plugin == "mysql_old_password":
        return InvalidConfig(
            "the server asks for the password in a form that is broken",
            detail=f"{plugin}, of servers before 4.1",
            hint="give the user another authentication plugin",
        )
    how = "over TLS whose certificate is not verified" if connection._secure else "without TLS"
    return InvalidConfig(
        "the server asks for the password itself, and nothing proves that it is the right server",
        detail=f"{plugin}, {how}",
        hint="set tls: verify-identity (or verify-ca) and tls_ca, with the file of the certificate authority, which MySQL has as ca.pem in "
        "its data folder; or, on a network that you trust, allow_password_to_unverified_server: yes",
    )
