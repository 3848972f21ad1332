"""A server that lies: it speaks MySQL's protocol as far as a test wants, on loopback, and keeps what it was told.

    with LyingServer(asks_for("mysql_clear_password")) as server:
        ...                                   # a client connects to server.port
    assert not server.heard(b"the password")

A script is called with each connection as a `Wire` and says what the server does with it. When it returns, the connection is closed. With
`certificate` the wire can be turned to TLS, as the server that it pretends to be would do.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from types import TracebackType

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

OK = b"\0\0\0\2\0\0\0"
MORE_RESULTS = b"\0\0\0\x0a\0\0\0"
END = b"\xfe\0\0\2\0"
SALT = bytes(range(65, 85))
_TLS = 0x0800


def error(text: bytes, code: int = 1045) -> bytes:
    return b"\xff" + struct.pack("<H", code) + b"#HY000" + text


def counted(text: bytes) -> bytes:
    return bytes([len(text)]) + text if len(text) < 251 else b"\xfc" + struct.pack("<H", len(text)) + text


def column(name: bytes = b"c") -> bytes:
    """The definition of a column of text in utf8mb4."""
    return counted(b"def") + 3 * counted(b"") + counted(name) + counted(b"") + b"\x0c" + struct.pack("<HIBHB", 45, 400, 253, 0, 0) + b"\0\0"


class Wire:
    """One connection, from the server's side."""

    def __init__(self, connection: socket.socket, server: LyingServer, turn: int) -> None:
        self._connection = connection
        self.server = server
        self.turn = turn
        """How many connections came before it."""
        self._number = 0

    def send(self, payload: bytes) -> None:
        for at in range(0, len(payload) + 1, 0xFFFFFF):
            piece = payload[at : at + 0xFFFFFF]
            self.raw(struct.pack("<I", len(piece))[:3] + bytes([self._number & 255]) + piece)
            self._number += 1

    def raw(self, content: bytes) -> None:
        self._connection.sendall(content)

    def read(self) -> bytes:
        """The client's next packet; empty when it has gone."""
        head = self._receive(4)
        payload = self._receive(int.from_bytes(head[:3], "little")) if len(head) == 4 else b""
        self._number = head[3] + 1 if len(head) == 4 else 0
        self.server.keep(payload)
        return payload

    def read_raw(self) -> bytes:
        content = self._connection.recv(1 << 16)
        self.server.keep(content)
        return content

    def _receive(self, count: int) -> bytes:
        got = b""
        while len(got) < count and (piece := self._connection.recv(count - len(got))):
            got += piece
        return got

    def greet(self, plugin: bytes = b"mysql_native_password", *, tls: bool = False) -> None:
        low, high = 0xFFFF if tls else 0xFFFF & ~_TLS, 0x81FF
        self.send(
            b"\x0a8.0.33-lying\0"
            + struct.pack("<I", 7)
            + SALT[:8]
            + b"\0"
            + struct.pack("<H", low)
            + b"\x21\x02\0"
            + struct.pack("<H", high)
            + bytes([21])
            + bytes(10)
            + SALT[8:]
            + b"\0"
            + plugin
            + b"\0"
        )

    def meet(self, plugin: bytes = b"mysql_native_password") -> bytes:
        """Greet, turn to TLS where the server has a certificate and the client wants it, and hear what the client says first."""
        certificate = self.server.certificate
        self.greet(plugin, tls=certificate is not None)
        first = self.read()
        if certificate is not None and len(first) == 32:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            self._connection = context.wrap_socket(self._connection, server_side=True)
            first = self.read()
        return first

    def switch(self, plugin: bytes, data: bytes = SALT + b"\0") -> bytes:
        self.send(b"\xfe" + plugin + b"\0" + data)
        return self.read()

    def let_in(self) -> None:
        """Greet, believe any password, and answer until the first statement that is no setting."""
        self.meet()
        self.send(OK)

    def statement(self) -> bytes:
        """The next statement that is no setting; settings are granted. Empty when the client has gone."""
        return self.command()[1:]

    def command(self) -> bytes:
        """The same with the byte that says what it is: 3 for a statement."""
        while command := self.read():
            if command[:4] != b"\x03SET":
                return command
            self.send(OK)
        return b""


Script = Callable[[Wire], None]


@cache
def _private_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, 2048)


class LyingServer:
    def __init__(self, script: Script, *, certificate: tuple[Path, Path] | None = None) -> None:
        """`certificate`: its file and that of its key."""
        self._script = script
        self.certificate = certificate
        self._key = _private_key()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._told: list[bytes] = []
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self.connections = 0

    @property
    def public_key(self) -> bytes:
        return self._key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)

    def keep(self, payload: bytes) -> None:
        self._told.append(payload)

    def heard(self, password: bytes) -> bool:
        """Whether the password came, in clear or so that this server can read it: encrypted with its key, or as the hash of old servers,
        which is eight bytes long."""
        return any(password in told or password in self._decrypted(told) or (len(told), told[8:]) == (9, b"\0") for told in self._told)

    def _decrypted(self, told: bytes) -> bytes:
        try:
            masked = self._key.decrypt(told, padding.OAEP(padding.MGF1(hashes.SHA1()), hashes.SHA1(), None))
        except ValueError:
            return b""
        return bytes(byte ^ SALT[index % len(SALT)] for index, byte in enumerate(masked))

    def __enter__(self) -> LyingServer:
        self._threads.append(threading.Thread(target=self._accept))
        self._threads[0].start()
        return self

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                # Answers are many small packets, which the kernel would hold back for each other.
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._open.append(connection)
                wire = Wire(connection, self, self.connections)
                self.connections += 1
                self._threads.append(threading.Thread(target=self._serve, args=(connection, wire)))
                self._threads[-1].start()

    def _serve(self, connection: socket.socket, wire: Wire) -> None:
        # Who is refused hangs up in the middle.
        with contextlib.suppress(OSError):
            self._script(wire)
        with contextlib.suppress(OSError):
            wire._connection.close()
        connection.close()

    def __exit__(self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None) -> None:
        # An accept that waits does not notice a close.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._open:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(timeout=20)
            assert not thread.is_alive(), "a script does not end"


# ---- scripts: who asks for the password


def asks_for(plugin: str) -> Script:
    """Switches to a plugin, as a server may for any user."""

    def script(wire: Wire) -> None:
        wire.meet()
        wire.switch(plugin.encode(), b"\x05Password: " if plugin == "dialog" else SALT + b"\0")
        wire.send(error(b"no"))

    return script


def asks_in_the_oldest_way(wire: Wire) -> None:
    """A request to switch without a name, which means the hash of servers before 4.1."""
    wire.meet()
    wire.send(b"\xfe")
    wire.read()
    wire.send(error(b"no"))


def greets_with(plugin: str) -> Script:
    """The server's default plugin: the client's first word is made for it already."""

    def script(wire: Wire) -> None:
        wire.meet(plugin.encode())
        _wants_all(wire)

    return script


def switches_to(plugin: str) -> Script:
    def script(wire: Wire) -> None:
        wire.meet()
        said = wire.switch(plugin.encode())
        if said == b"\x01":
            wire.send(b"\x01" + wire.server.public_key)
            wire.read()
        else:
            _wants_all(wire)

    return script


def _wants_all(wire: Wire) -> None:
    """The full authentication of caching_sha2_password; then its key, to whoever asks for one."""
    wire.send(b"\x01\x04")
    if wire.read() in (b"\x01", b"\x02"):
        wire.send(b"\x01" + wire.server.public_key)
        wire.read()
    wire.send(error(b"no"))


def breaks_tls_then(script: Script) -> Script:
    """The first connection's TLS breaks; one that comes again gets no offer of it."""

    def downgrade(wire: Wire) -> None:
        if wire.turn == 0:
            wire.greet(tls=True)
            wire.read_raw()
            wire.raw(b"\x15\x03\x01\x00\x02\x02\x28")
        else:
            script(wire)

    return downgrade


# ---- scripts: what is no handshake


def says_byte_by_byte(payload: bytes) -> Script:
    """A packet, in more time than anybody has."""

    def script(wire: Wire) -> None:
        for byte in struct.pack("<I", len(payload)) + payload:
            wire.raw(bytes([byte]))
            time.sleep(0.2)

    return script


def says(greeting: bytes) -> Script:
    return lambda wire: wire.send(greeting)


def announces_and_is_silent(wire: Wire) -> None:
    wire.raw(b"\xff\xff\0\0")
    wire.read_raw()


def greets_without_end(wire: Wire) -> None:
    for number in range(1 << 20):
        wire.raw(b"\xff\xff\xff" + bytes([number & 255]) + bytes(0xFFFFFF))


# ---- scripts: answers to every statement


Row = Sequence[bytes | None]
Told = tuple[int, Sequence[Row]]
"""An answer: how many columns it says that it has, and its rows."""


def tells(answer: Callable[[str], Told | None], register: Script | None = None) -> Script:
    """A server that lets everybody in and answers each statement that is no setting; None: it does not know the table. `register`: what it
    does when a client wants to be its replica."""

    def script(wire: Wire) -> None:
        wire.let_in()
        while statement := wire.command():
            if statement[:1] == b"\x15" and register is not None:
                register(wire)
            elif (told := answer(statement[1:].decode())) is None:
                wire.send(error(b"no such table", 1146))
            else:
                width, rows = told
                for payload in (bytes([width]), *width * [column()], END, *map(text_row, rows), END):
                    wire.send(payload)

    return script


def text_row(values: Row) -> bytes:
    return b"".join(b"\xfb" if value is None else counted(value) for value in values)


# ---- scripts: what is no answer


def answers(*payloads: bytes) -> Script:
    """To the first statement that is no setting."""

    def script(wire: Wire) -> None:
        wire.let_in()
        if wire.statement():
            for payload in payloads:
                wire.send(payload)
            wire.read()

    return script


def answers_without_end(*head: bytes, then: bytes) -> Script:
    def script(wire: Wire) -> None:
        wire.let_in()
        if wire.statement():
            for payload in head:
                wire.send(payload)
            # Many at once, as one at a time would take a test's time.
            number = len(head) + 1
            one = struct.pack("<I", len(then))[:3]
            while True:
                wire.raw(b"".join(one + bytes([(number + index) & 255]) + then for index in range(4096)))
                number += 4096

    return script
