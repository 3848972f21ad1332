"""A session that asks for the log as a replica does: it registers under a server id, and requests the log from an offset on.

Of two clients with one server id the later one wins: the server ends the connection of the other. So the first registration ends an older
capture of this pipeline. A later one must not end a newer capture, so it first looks at the server's list of replicas.
"""

from __future__ import annotations

import socket
import struct
import time
import uuid
from typing import Final

from snowmelt.databases.mysql.answers import number, text
from snowmelt.databases.mysql.connect import Session, translate
from snowmelt.databases.mysql.log.capture.refusals import server_error, taken_over
from snowmelt.databases.mysql.log.files import LogFile
from snowmelt.errors import Corrupt, InvalidConfig, SourceDrift, Unavailable

_COM_BINLOG_DUMP: Final = 0x12
_COM_REGISTER_SLAVE: Final = 0x15
_SEND_ANNOTATE: Final = 2
"""With this flag MariaDB sends every event of a transaction. Positions can then be counted where events don't tell them."""
_ANSWER_BYTES_MAX: Final = 1 << 16


class Replica:
    """One capture as the server sees it: a server id and a name."""

    def __init__(self, server_id: int) -> None:
        self._server_id = server_id
        # The server's list of replicas shows this name. Our server id with another name is another capture.
        self._name = f"snowmelt-{uuid.uuid4().hex[:12]}"
        self._registered = False

    def prepare(self, session: Session, *, heartbeat_s: float) -> None:
        """Set the session's variables as a replica does."""
        heartbeat_ns = int(heartbeat_s * 1_000_000_000)
        # Newer servers know these variables by newer names. CRC32 says that we understand checksums, whether the log has them or not.
        words = [f"@{role}_binlog_checksum = 'CRC32', @{role}_heartbeat_period = {heartbeat_ns}" for role in ("master", "source")]
        if session.server.flavour == "mariadb":
            words.append("@mariadb_slave_capability = 4")
        else:
            name = uuid.uuid5(uuid.UUID(int=0), f"snowmelt/{self._server_id}")
            words.append(f"@slave_uuid = '{name}', @replica_uuid = '{name}'")
        session.execute("SET " + ", ".join(words))

    def register(self, session: Session) -> None:
        """Take the server id. Raises `Fenced` if another capture took it since the first registration."""
        if self._registered:
            self._check_not_taken(session)
        ours = self._name.encode()
        # After the name come user, password, port, rank and source: a real replica's, zero here.
        command = struct.pack("<BIB", _COM_REGISTER_SLAVE, self._server_id, len(ours)) + ours + bytes(12)
        # This exchange belongs to the handshake, and has its deadline.
        deadline = time.monotonic() + session.options.connect_timeout_s
        try:
            _send(session.sock, command)
            size = int.from_bytes(_receive(session.sock, 4, deadline)[:3], "little")
            if size > _ANSWER_BYTES_MAX:
                raise Corrupt("the server's answer can't be read", detail=f"{size:,} bytes for a yes or no")
            answer = _receive(session.sock, size, deadline)
        except OSError as error:
            raise translate(error) from None
        if answer[:1] != b"\0":
            raise server_error(answer[1:], "")
        self._registered = True

    def _check_not_taken(self, session: Session) -> None:
        server = session.server
        new_words = server.flavour == "mysql" and server.version >= (8, 0, 22)
        try:
            replicas = session.query("SHOW REPLICAS" if new_words else "SHOW SLAVE HOSTS", columns=(number, text))
        except (InvalidConfig, SourceDrift):
            # Newer MariaDB asks for a privilege that capture does not need otherwise.
            replicas = []
        for server_id, name in replicas:
            if server_id == self._server_id and name != self._name:
                raise taken_over(name)

    def request_log(self, session: Session, file: LogFile, offset: int) -> None:
        flags = _SEND_ANNOTATE if session.server.flavour == "mariadb" else 0
        command = struct.pack("<BIHI", _COM_BINLOG_DUMP, offset, flags, self._server_id) + str(file).encode()
        try:
            _send(session.sock, command)
        except OSError as error:
            raise translate(error) from None


def _send(sock: socket.socket, command: bytes) -> None:
    sock.sendall(struct.pack("<I", len(command)) + command)


def _receive(sock: socket.socket, count: int, deadline: float) -> bytes:
    """Exactly `count` bytes, by a moment of the monotonic clock, however slowly they come in."""
    got = b""
    while len(got) < count:
        left = deadline - time.monotonic()
        if left <= 0:
            raise Unavailable("the server's answer does not end", detail="its time is over")
        sock.settimeout(left)
        part = sock.recv(count - len(got))
        if not part:
            raise Unavailable("the server closed the connection")
        got += part
    return got
