"""One connection to a Fluss server: requests and answers in frames, and a server's errors as ours.

    Laws. A connection first asks which calls the server knows, because an unknown call is never answered. If the server asks for a login,
    it is sent right after that; no error and no log line has the password.
    Every call has a time-out. After a time-out, a broken frame or an answer to something else the connection is closed for good: what comes
    later could be taken for the answer to a later call. No length that a server sends is trusted beyond `frame_bytes_max`, and memory
    grows only with what arrives. One thread uses a connection, one call at a time.

    Frames, big endian. Request: int32 length of what follows, int16 call, int16 version, int32 request, message. Answer: int32 length,
    int8 kind, int32 request, message; of the kind `_FAILURE`, int32 length, int8 kind, message.

A call that changes something and has no answer is `OutcomeUnknown`; one that can be repeated is `Unavailable`.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from enum import IntEnum
from types import TracebackType
from typing import Any, Final, Self

from snowmelt.errors import Corrupt, Fenced, InvalidConfig, OutcomeUnknown, SnowmeltError, SourceDrift, Unavailable, present
from snowmelt.fluss.messages import DecodeError, message
from snowmelt.fluss.target import Login

TIMEOUT_S: Final = 10.0
FRAME_BYTES_MAX: Final = 256 << 20
_PIECE_BYTES: Final = 1 << 20
_REASON_CHARS_MAX: Final = 200
_REQUEST: Final = struct.Struct(">ihhi")
_LENGTH: Final = struct.Struct(">i")
_SUCCESS, _ERROR, _FAILURE = 0, 1, 2
_PLAIN: Final = "PLAIN"


class Call(IntEnum):
    """The calls that we use, by their keys; we speak version 0 of each."""

    API_VERSIONS = 1000
    CREATE_DATABASE = 1001
    CREATE_TABLE = 1005
    DROP_TABLE = 1006
    GET_TABLE_INFO = 1007
    LIST_PARTITION_INFOS = 1009
    GET_TABLE_SCHEMA = 1011
    METADATA = 1012
    FETCH_LOG = 1015
    PUT_KV = 1016
    LIST_OFFSETS = 1021
    GET_LATEST_KV_SNAPSHOTS = 1023
    GET_KV_SNAPSHOT_METADATA = 1024
    INIT_WRITER = 1026
    COMMIT_LAKE_TABLE_SNAPSHOT = 1030
    GET_LAKE_SNAPSHOT = 1032
    AUTHENTICATE = 1038
    LAKE_TIERING_HEARTBEAT = 1042
    ALTER_TABLE = 1044
    DESCRIBE_CLUSTER_CONFIGS = 1045
    PREPARE_LAKE_TABLE_SNAPSHOT = 1052
    ACQUIRE_KV_SNAPSHOT_LEASE = 1056
    RELEASE_KV_SNAPSHOT_LEASE = 1057
    DROP_KV_SNAPSHOT_LEASE = 1058

    @property
    def words(self) -> str:
        """The stem of its messages' names: `GetTableInfo`."""
        return self.name.title().replace("_", "")


class GoneFromFluss(SourceDrift):
    """The object does not exist, or no longer. `code` is the server's and says which: see `GONE`."""

    def __init__(self, fact: str, *, detail: str = "", hint: str = "", code: int = 0) -> None:
        super().__init__(fact, detail=detail, hint=hint)
        self.code = code

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild_gone, (self.fact, self.detail, self.hint, self.code)


def _rebuild_gone(fact: str, detail: str, hint: str, code: int) -> GoneFromFluss:
    return GoneFromFluss(fact, detail=detail, hint=hint, code=code)


NO_TABLE: Final = 7
NO_TABLE_OR_BUCKET: Final = 21
NO_PARTITION: Final = 36
NO_KV_SNAPSHOT: Final = 41
NO_LAKE_SNAPSHOT: Final = 53

GONE: Final = {
    4: "the Fluss database does not exist",
    NO_TABLE: "the Fluss table does not exist",
    9: "the schema does not exist in Fluss",
    NO_TABLE_OR_BUCKET: "the Fluss table or bucket does not exist",
    NO_PARTITION: "the Fluss partition does not exist",
    NO_KV_SNAPSHOT: "the KV snapshot does not exist any more",
    NO_LAKE_SNAPSHOT: "Fluss knows no lake snapshot of the table",
}
_FENCED: Final = {
    23: "the Fluss coordinator is not the one that was asked before",
    24: "the leader's epoch is not the bucket's",
    50: "the tiering epoch is not the table's: it was handed out again",
}
_PASSING: Final = {
    1: "the connection between Fluss servers was lost",
    10: "a Fluss server could not store its log",
    11: "a Fluss server could not store its KV data",
    12: "the Fluss server does not lead the bucket",
    26: "a Fluss server could not reach its storage",
    27: "a Fluss server did not attempt the call",
    29: "too few replicas are in step",
    31: "a batch does not follow the last one of its writer",
    32: "a batch of a writer came twice",
    33: "the Fluss server does not know the writer",
    44: "the bucket has no leader at the moment",
    51: "Fluss could not authenticate at the moment",
}
_GAVE_UP: Final = frozenset({25, 28})
"""The server gave up waiting; a change may have been made nevertheless."""
_UNFORESEEN: Final = -1
"""An unexpected error of the server. A retry need not help, whatever the call."""
_SETTINGS: Final = {
    2: "the Fluss server does not know this version of the call",
    39: "Fluss takes a setting for invalid",
    40: "Fluss has no lake set up",
    46: "Fluss refuses to authenticate us",
    48: "Fluss does not allow this user the call",
}
_HINTS: Final = {
    46: "check username and password; leave both out where the listener does not ask for SASL/PLAIN",
    48: "grant the user what it needs, or name another",
}
_CORRUPT: Final = frozenset({3, 14})
_OUT_OF_RANGE: Final = 19


def error_of(code: int, said: str, where: str, *, changes: bool) -> SnowmeltError:
    """A server's error as one of ours. Only the first line of its text is kept: its stack traces come after that."""
    reason = (said.strip().splitlines() or [""])[0][:_REASON_CHARS_MAX]
    detail = f"{where}, error {code}: {reason}"
    if code in GONE:
        return GoneFromFluss(GONE[code], detail=detail, code=code)
    if code in _FENCED:
        return Fenced(_FENCED[code], detail=detail)
    if code in _PASSING:
        return Unavailable(_PASSING[code], detail=detail)
    if code in _SETTINGS:
        return InvalidConfig(_SETTINGS[code], detail=detail, hint=_HINTS.get(code, ""))
    if code in _CORRUPT:
        return Corrupt("Fluss finds bytes corrupt", detail=detail)
    if code == _OUT_OF_RANGE:
        return SourceDrift("the log of the Fluss table does not have the offset any more", detail=detail)
    if code in _GAVE_UP and not changes:
        return Unavailable("the Fluss server gave up waiting", detail=detail)
    if code in _GAVE_UP or code == _UNFORESEEN:
        return OutcomeUnknown("the Fluss server failed at the call", detail=detail)
    return InvalidConfig("Fluss refuses the call", detail=detail)


class FlussConnection:
    """Open from the start; closed by `close`, and by any error in a frame."""

    def __init__(
        self, host: str, port: int, *, login: Login | None = None, timeout_s: float = TIMEOUT_S, frame_bytes_max: int = FRAME_BYTES_MAX
    ) -> None:
        """Connects, asks which calls the server knows, and logs in. `Unavailable` if nothing answers, `InvalidConfig` if it refuses us."""
        self.where = f"{host}:{port}"
        self.login = login
        self._timeout_s = timeout_s
        self._frame_bytes_max = frame_bytes_max
        self._requests = 0
        self._calls: dict[int, tuple[int, int]] = {Call.API_VERSIONS: (0, 0)}
        try:
            self._socket: socket.socket | None = socket.create_connection((host, port), timeout_s)
        except (OSError, UnicodeError) as error:
            hint = "is it up, and is this its bootstrap.servers?"
            raise Unavailable("the Fluss server can't be reached", detail=f"{self.where}, {error}", hint=hint) from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            answer = self.call(Call.API_VERSIONS, client_software_name="snowmelt", client_software_version="0")
            self._calls = {one.api_key: (one.min_version, one.max_version) for one in answer.api_versions}
            if login is not None:
                self._authenticate(login)
        except BaseException:
            self.close()
            raise

    def _authenticate(self, login: Login) -> None:
        """By SASL/PLAIN, the one mechanism that Fluss has. A listener that asks for none refuses it."""
        self.call(Call.AUTHENTICATE, protocol=_PLAIN, token=login.token())

    def knows(self, call: Call) -> bool:
        """Whether the server has this call, in the version that we speak."""
        low, high = self._calls.get(call, (1, 0))
        return low <= 0 <= high

    @property
    def open(self) -> bool:
        return self._socket is not None

    def call(self, call: Call, *, changes: bool = False, wait_s: float = 0.0, **fields: Any) -> Any:
        """The answer to one call. `changes`: it must not be repeated without a check. `wait_s`: how long the server itself was told to
        wait."""
        if not self.knows(call):
            raise InvalidConfig("the Fluss server does not know the call", detail=f"{call.name} at {self.where}")
        where = f"{call.name} at {self.where}"
        if self._socket is None:
            raise Unavailable("the connection to the Fluss server was closed", detail=where)
        body = message(f"{call.words}Request")(**fields).SerializeToString()
        self._requests = self._requests % 0x7FFF_FFFF + 1
        deadline = time.monotonic() + self._timeout_s + wait_s
        try:
            self._socket.settimeout(self._timeout_s)
            self._socket.sendall(_REQUEST.pack(8 + len(body), call, 0, self._requests) + body)
            frame = self._receive(where, deadline)
        except OSError as error:
            self.close()
            kind = OutcomeUnknown if changes else Unavailable
            raise kind("the Fluss server did not answer", detail=f"{where}, {type(error).__name__}") from error
        except BaseException:
            # Interrupted between question and answer: the next call would read this answer.
            self.close()
            raise
        return self._answer(call, frame, where, changes=changes)

    def _receive(self, where: str, deadline: float) -> memoryview:
        (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size, deadline))
        if not 1 <= length <= self._frame_bytes_max:
            raise Corrupt("a Fluss server's answer has an impossible length", detail=f"{where}, {length} bytes of {self._frame_bytes_max}")
        return memoryview(self._exactly(length, deadline))

    def _exactly(self, count: int, deadline: float) -> bytearray:
        opened = present(self._socket, "an answer is read before a connection is open")
        received = bytearray()
        while len(received) < count:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise TimeoutError
            opened.settimeout(left_s)
            piece = opened.recv(min(count - len(received), _PIECE_BYTES))
            if not piece:
                raise ConnectionResetError
            received += piece
        return received

    def _answer(self, call: Call, frame: memoryview, where: str, *, changes: bool) -> Any:
        kind = frame[0]
        start = 1 if kind == _FAILURE else 5
        if kind not in (_SUCCESS, _ERROR, _FAILURE) or len(frame) < start:
            self.close()
            raise Corrupt("a Fluss server's answer is none", detail=f"{where}, kind {kind}, {len(frame)} bytes")
        if kind != _FAILURE and (request := _LENGTH.unpack_from(frame, 1)[0]) != self._requests:
            self.close()
            raise Corrupt("a Fluss server answers another request", detail=f"{where}, {request} and not {self._requests}")
        name = f"{call.words}Response" if kind == _SUCCESS else "ErrorResponse"
        answer = message(name)()
        try:
            answer.ParseFromString(frame[start:])
            # Some implementations of protobuf do not check this by themselves.
            whole = answer.IsInitialized()
        except DecodeError:
            whole = False
        if not whole:
            self.close()
            raise Corrupt("a Fluss server's answer can't be read", detail=f"{where}, {len(frame)} bytes")
        if kind == _SUCCESS:
            return answer
        if kind == _FAILURE:
            self.close()
        raise error_of(answer.error_code, answer.error_message, where, changes=changes)

    def close(self) -> None:
        """Twice is fine."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.close()
            self._socket = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
