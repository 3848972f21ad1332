"""Calls of listeners: a POST to a URL, and a program with the document as its input.

Laws:
- A call ends in its time. What does not is cut off: the connection is closed, the program is killed with its process group.
- What a call says of a failure is a status, an exit code or the system's reason. It never repeats a URL, a header, an argument or an
  answer: any of them may hold a secret.
- A redirect is not followed: the document, and the headers with it, go to no other place than was configured.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import os
import signal
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote, urlsplit

from snowmelt.credentials import Secret
from snowmelt.errors import SnowmeltError

TIMEOUT_S: Final = 10.0
_KILLED_S_MAX: Final = 5.0
"""How long a killed program may take to be gone. One that waits in the system for longer is left to itself."""


class CallFailed(Exception):
    """Why, in a few words."""


@dataclass(frozen=True, slots=True)
class Webhook:
    name: str
    url: str | Secret
    headers: tuple[tuple[str, str | Secret], ...] = ()
    timeout_s: float = TIMEOUT_S

    def call(self, document: bytes) -> None:
        """Raise `CallFailed` unless the answer's status is one of 2xx."""
        try:
            address = urlsplit(_reveal(self.url))
            headers = {"Content-Type": "application/json", "User-Agent": "snowmelt"}
            headers |= {name: _reveal(value) for name, value in self.headers}
            if address.scheme not in ("http", "https") or not address.hostname:
                raise CallFailed("its URL is no address of http or https")
            if address.username is not None:
                login = f"{unquote(address.username)}:{unquote(address.password or '')}"
                headers["Authorization"] = f"Basic {base64.b64encode(login.encode()).decode()}"
            kind = http.client.HTTPSConnection if address.scheme == "https" else http.client.HTTPConnection
            connection = kind(address.hostname, address.port, timeout=self.timeout_s)
        except SnowmeltError as error:
            raise CallFailed(str(error)) from None
        except ValueError:
            raise CallFailed("its URL can't be used") from None
        path = f"{address.path or '/'}{'?' if address.query else ''}{address.query}"
        with contextlib.closing(connection), _cut_off(connection, self.timeout_s) as late:
            try:
                connection.request("POST", path, body=document, headers=headers)
                status = connection.getresponse().status
            except (OSError, http.client.HTTPException, ValueError) as error:
                if late.is_set() or isinstance(error, TimeoutError):
                    raise CallFailed(f"no answer in {self.timeout_s:g} s") from None
                raise CallFailed(_reason(error)) from None
        if not 200 <= status < 300:
            raise CallFailed(f"HTTP status {status}{', and redirects are not followed' if 300 <= status < 400 else ''}")


@dataclass(frozen=True, slots=True)
class CommandListener:
    name: str
    arguments: tuple[str, ...]
    """The program first. There is no shell."""
    timeout_s: float = TIMEOUT_S

    def call(self, document: bytes) -> None:
        """Raise `CallFailed` unless the program ends with exit code 0. What it prints is dropped."""
        try:
            process = subprocess.Popen(
                self.arguments, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
            )
        except (OSError, ValueError) as error:
            raise CallFailed(f"its program can't be started: {_reason(error)}") from None
        try:
            process.communicate(document, timeout=self.timeout_s)
        except subprocess.TimeoutExpired:
            raise CallFailed(f"its program was killed after {self.timeout_s:g} s") from None
        finally:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_KILLED_S_MAX)
        if process.returncode:
            code = process.returncode
            raise CallFailed(f"its program ended with exit code {code}" if code > 0 else f"its program was ended by signal {-code}")


Listener = Webhook | CommandListener


@contextlib.contextmanager
def _cut_off(connection: http.client.HTTPConnection, after_s: float) -> Iterator[threading.Event]:
    """Close a connection after a time, though its server sends a byte now and then. The event tells that it came to that."""
    late = threading.Event()

    def cut() -> None:
        late.set()
        # Before it is connected, connecting has its own time.
        with contextlib.suppress(OSError, AttributeError):
            connection.sock.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(after_s, cut)
    timer.daemon = True
    timer.start()
    try:
        yield late
    finally:
        timer.cancel()


def _reveal(text: str | Secret) -> str:
    return text.reveal() if isinstance(text, Secret) else text


def _reason(error: Exception) -> str:
    """The system's, or the kind of error: the texts of others quote what they were given."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return "the server's certificate can't be verified"
    if isinstance(error, socket.gaierror):
        return "the host's name can't be resolved"
    if isinstance(error, OSError) and error.errno is not None and not isinstance(error, ssl.SSLError):
        return os.strerror(error.errno)
    return type(error).__name__
