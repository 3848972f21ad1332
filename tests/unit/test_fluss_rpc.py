"""Frames of a Fluss server that are not what they must be, and errors of its as ours."""

from __future__ import annotations

import pickle
import socket
import struct
import threading
from collections.abc import Callable, Iterator

import pytest

from snowmelt.errors import Corrupt, Fenced, InvalidConfig, OutcomeUnknown, SnowmeltError, SourceDrift, Unavailable
from snowmelt.fluss.client import FlussClient
from snowmelt.fluss.messages import message
from snowmelt.fluss.rpc import NO_TABLE, Call, FlussConnection, GoneFromFluss, error_of
from snowmelt.fluss.target import parse_bootstrap

VERSIONS = message("ApiVersionsResponse")(api_versions=[{"api_key": call, "min_version": 0, "max_version": 0} for call in Call])


def frame(kind: int, request: int, body: bytes) -> bytes:
    return struct.pack(">ibi", 5 + len(body), kind, request) + body


class Listener:
    """Answers the first request properly, and the second one with whatever a test says, given the request's number."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self.second: Callable[[int], bytes] = lambda request: b""
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        connection, _ = self._listening.accept()
        with connection:
            for number in (1, 2):
                head = connection.recv(12, socket.MSG_WAITALL)
                if len(head) < 12:
                    return
                length, _, _, request = struct.unpack(">ihhi", head)
                connection.recv(length - 8, socket.MSG_WAITALL)
                connection.sendall(frame(0, request, VERSIONS.SerializeToString()) if number == 1 else self.second(request))
            connection.recv(1)

    def close(self) -> None:
        self._listening.close()
        self._thread.join()


@pytest.fixture
def listener() -> Iterator[Listener]:
    made = Listener()
    yield made
    made.close()


def outcome(listener: Listener, *, call: Call = Call.METADATA, changes: bool = False, timeout_s: float = 5.0) -> SnowmeltError:
    with FlussConnection("127.0.0.1", listener.port, timeout_s=timeout_s, frame_bytes_max=1000) as one:
        with pytest.raises(SnowmeltError) as caught:
            one.call(call, changes=changes)
        assert not one.open, "what comes later could be taken for another call's answer"
    return caught.value


@pytest.mark.parametrize(
    ("said", "fact"),
    [
        (lambda _: struct.pack(">i", 0), "impossible length"),
        (lambda _: struct.pack(">i", -5), "impossible length"),
        (lambda _: struct.pack(">i", 1001), "impossible length"),
        (lambda _: struct.pack(">ib", 1, 0), "is none"),
        (lambda request: frame(9, request, b""), "is none"),
        (lambda request: frame(0, request + 1, b""), "another request"),
        (lambda request: frame(0, request, b"\xff\xff\xff"), "can't be read"),
        (lambda request: frame(1, request, b""), "can't be read"),
    ],
)
def test_a_frame_that_is_none_is_corrupt_and_ends_the_connection(listener: Listener, said: Callable[[int], bytes], fact: str) -> None:
    listener.second = said
    error = outcome(listener)
    assert isinstance(error, Corrupt)
    assert fact in error.fact


def test_a_required_field_that_is_missing_is_corrupt(listener: Listener) -> None:
    listener.second = lambda request: frame(0, request, b"")
    assert isinstance(outcome(listener, call=Call.LAKE_TIERING_HEARTBEAT), Corrupt)


def test_no_answer_is_unavailable_where_the_call_may_be_repeated_and_unknown_where_not(listener: Listener) -> None:
    listener.second = lambda _: struct.pack(">i", 100)
    assert isinstance(outcome(listener, timeout_s=0.2), Unavailable)


def test_no_answer_to_a_change_is_unknown(listener: Listener) -> None:
    assert isinstance(outcome(listener, timeout_s=0.2, changes=True), OutcomeUnknown)


def test_a_failure_of_the_whole_connection_ends_it(listener: Listener) -> None:
    body = message("ErrorResponse")(error_code=46, error_message="who are you").SerializeToString()
    listener.second = lambda _: struct.pack(">ib", 1 + len(body), 2) + body
    assert isinstance(outcome(listener), InvalidConfig)


def test_a_connection_that_was_closed_says_so() -> None:
    listener = Listener()
    connection = FlussConnection("127.0.0.1", listener.port)
    for _ in range(2):
        connection.close()
    with pytest.raises(Unavailable, match="was closed"):
        FlussClient(connection).cluster()
    listener.close()


@pytest.mark.parametrize(
    ("code", "changes", "kind"),
    [
        (NO_TABLE, False, GoneFromFluss),
        (50, False, Fenced),
        (44, True, Unavailable),
        (25, False, Unavailable),
        (25, True, OutcomeUnknown),
        (-1, False, OutcomeUnknown),
        (-1, True, OutcomeUnknown),
        (48, False, InvalidConfig),
        (14, False, Corrupt),
        (19, False, SourceDrift),
        (20, False, InvalidConfig),
        (9999, False, InvalidConfig),
    ],
)
def test_an_error_is_named_by_what_its_caller_does_next(code: int, changes: bool, kind: type[SnowmeltError]) -> None:
    error = error_of(code, "first line\n\tat org.apache.fluss.Somewhere", "METADATA at host:1", changes=changes)
    assert type(error) is kind
    assert error.detail == f"METADATA at host:1, error {code}: first line"
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (kind, str(error))
    assert getattr(again, "code", None) == getattr(error, "code", None)


def test_addresses_are_hosts_and_ports() -> None:
    assert parse_bootstrap("a:1, [::1]:65535") == (("a", 1), ("::1", 65535))
    for wrong in ("", "a", "a:", ":1", "a:0", "a:65536", "a:x", "a:1,,b:2"):
        with pytest.raises(InvalidConfig, match="not host:port"):
            parse_bootstrap(wrong)
