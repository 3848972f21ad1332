"""Signs of life: what a driver says of itself in the pipeline's store, for `snowmelt status`.

    sign/<k>    the newest two are kept

No decision of a pipeline rests on them. A driver puts one from its own loop every `EVERY_S`, so a loop that hangs gives none. It puts a
last one when it ends: as asked, or by an error. Each sign carries the last error, the tables that are left out, what maintenance knows of
lake tables, and the process that wrote it.

Laws:
- A driver says nothing once a newer one has.
- The driver that puts sign k deletes sign k-2, so there are never more than a few.
- A driver that has not taken its generation yet speaks only into a chain of its own pipeline, if no driver of it is alive.
"""

from __future__ import annotations

import contextlib
import os
import platform
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from snowmelt.errors import Fenced, OutcomeUnknown, SnowmeltError, Unavailable, printable
from snowmelt.model.moment import TimeMs
from snowmelt.model.numbers import EpochNumber, GenerationNumber
from snowmelt.store.codec import decode
from snowmelt.store.contract import Store, numbered
from snowmelt.store.generations import Generation
from snowmelt.store.numbered import Lost
from snowmelt.store.records import RecordKind, delete_records, get_record, settle_record

if TYPE_CHECKING:
    # Of a type alone: the holder of a union read imports this module and stays a small process.
    from snowmelt.commit.notices import ListenerProgress

PREFIX: Final = "sign"
EVERY_S: Final = 15.0
EVERY_S_IN_BUCKETS: Final = 30.0
"""A request costs more there."""
MISSED_MAX: Final = 3
"""The number of missing signs after which a driver of another machine counts as dead."""
_KEPT: Final = 2
_TRIES_MAX: Final = 8
_ERROR_CHARACTERS_MAX: Final = 1000
_LEFT_OUT_MAX: Final = 100
_WHY_CHARACTERS_MAX: Final = 200
_MAINTAINED_MAX: Final = 200


class DriverActivity(StrEnum):
    RUNS = "runs"
    RETRIES = "retries"
    """It ended with an error that may pass. Its process starts another driver after a pause."""
    ENDED = "ended"
    """As asked, or because the lake was current."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A table that is not brought to the lake."""

    table: str
    why: str


@dataclass(frozen=True, slots=True)
class ListenerSign:
    """What the driver knows of a listener that it has called (`commit.notices.ListenerProgress`)."""

    name: str
    epoch: EpochNumber
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SignBefore:
    """A sign of version 1, which knows nothing of listeners."""

    pipeline: str
    generation: GenerationNumber
    nonce: str
    at_ms: TimeMs
    every_ms: int
    host: str
    process: str
    doing: DriverActivity
    error: str
    error_ms: TimeMs
    left_out: tuple[LeftOut, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintainedTable:
    """A lake table as its maintenance knows it (`maintenance.lane.Figures`)."""

    target: str
    files: int | None
    size_bytes: int | None
    runs: int | None
    compacted_ms: TimeMs | None
    expired_ms: TimeMs | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sign:
    pipeline: str
    generation: GenerationNumber
    nonce: str
    """The driver's own, so that no two signs are equal."""
    at_ms: TimeMs
    """By the driver's clock."""
    every_ms: int
    """The time until the next one is due."""
    host: str
    process: str
    """Number, start and namespace of the process, as this host knows it."""
    doing: DriverActivity
    error: str = ""
    """The last one, of this driver or of one before it."""
    error_ms: TimeMs = 0
    left_out: tuple[LeftOut, ...] = ()
    listeners: tuple[ListenerSign, ...] = ()
    maintained: tuple[MaintainedTable, ...] = ()


def _read_before(body: bytes) -> Sign:
    before = decode(SignBefore, body)
    return Sign(**{one.name: getattr(before, one.name) for one in fields(SignBefore)})


SIGN: Final = RecordKind("sign", 2, Sign, {1: _read_before})


class LastWord(Protocol):
    """The fields that show whether the process is alive."""

    @property
    def doing(self) -> DriverActivity: ...
    @property
    def host(self) -> str: ...
    @property
    def process(self) -> str: ...
    @property
    def at_ms(self) -> int: ...
    @property
    def every_ms(self) -> int: ...


class Listeners(Protocol):
    """What is known of listeners."""

    @property
    def known(self) -> Mapping[str, ListenerProgress]: ...


class Signs:
    """Writes the signs of one driver. One thread uses it. If the store is away, signs are lost, and the driver continues."""

    def __init__(
        self,
        store: Store,
        pipeline: str,
        listeners: Listeners,
        *,
        every_s: float = EVERY_S,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._pipeline = pipeline
        self._every_s = every_s
        self._now = now
        self._clock = clock
        self._generation: Generation | None = None
        self._number = 0
        self._due = 0.0
        self._error, self._error_ms = "", 0
        self._left_out: Mapping[str, str] = {}
        self._listeners = listeners
        self._failing: set[str] = set()
        self._maintained: tuple[MaintainedTable, ...] = ()
        self._older = False

    def begin(self, generation: Generation) -> None:
        """From now on signs are of this generation."""
        self._generation = generation
        with _lost():
            numbers = sorted(self._store.numbers(PREFIX))
            self._number = numbers[-1] if numbers else 0
            delete_records(self._store, (numbered(PREFIX, number) for number in numbers[: 1 - _KEPT]))
            if (last := read_sign(self._store)) is not None:
                self._error, self._error_ms = last.error, last.error_ms
        self._put(DriverActivity.RUNS)

    def beat(self, left_out: Mapping[str, str], maintained: Callable[[], Iterable[MaintainedTable]] = tuple) -> None:
        """Call it often. It writes only if the next sign is due, or if other tables are left out or other listeners fail."""
        failing = {name for name, told in self._listeners.known.items() if told.why}
        news = left_out != self._left_out or failing != self._failing
        if self._generation is not None and (self._clock() >= self._due or news):
            self._left_out, self._failing = dict(left_out), failing
            # Of very many tables those that need it most are shown.
            fullest = sorted(maintained(), key=lambda one: -(one.runs or 0))[:_MAINTAINED_MAX]
            self._maintained = tuple(fullest)
            self._put(DriverActivity.RUNS)

    def end(self, error: BaseException | None = None) -> None:
        """The driver's last sign. For an unknown error only its kind is written: its text may hold anything."""
        if isinstance(error, Fenced):
            # The newer driver writes signs now.
            return
        if isinstance(error, Exception):
            text = str(error) if isinstance(error, SnowmeltError) else type(error).__name__
            self._error, self._error_ms = printable(text, _ERROR_CHARACTERS_MAX), self._now_ms()
        doing = DriverActivity.ENDED
        if isinstance(error, Unavailable | OutcomeUnknown):
            doing = DriverActivity.RETRIES
        elif isinstance(error, Exception):
            doing = DriverActivity.FAILED
        if self._generation is not None:
            self._put(doing)
        elif doing is not DriverActivity.ENDED:
            with _lost():
                self._speak_for_the_last(doing)

    def _speak_for_the_last(self, doing: DriverActivity) -> None:
        last = read_sign(self._store)
        if last is None or last.pipeline != self._pipeline or is_alive(last, self._now()):
            return
        self._number = max(self._store.numbers(PREFIX))
        self._generation = Generation(last.generation, last.nonce)
        self._left_out = {one.table: one.why for one in last.left_out}
        self._maintained = last.maintained
        self._put(doing)

    def _put(self, doing: DriverActivity) -> None:
        mine = self._generation
        if mine is None or self._older:
            return
        self._due = self._clock() + self._every_s
        shown = sorted(self._left_out.items())[:_LEFT_OUT_MAX]
        sign = Sign(
            pipeline=self._pipeline,
            generation=mine.number,
            nonce=mine.nonce,
            at_ms=self._now_ms(),
            every_ms=round(self._every_s * 1000),
            host=platform.node(),
            process=process_mark(os.getpid()) or "",
            doing=doing,
            error=self._error,
            error_ms=self._error_ms,
            left_out=tuple(LeftOut(table, printable(why, _WHY_CHARACTERS_MAX)) for table, why in shown),
            listeners=tuple(
                ListenerSign(name, told.epoch, printable(told.why, _WHY_CHARACTERS_MAX))
                for name, told in sorted(self._listeners.known.items())
            ),
            maintained=self._maintained,
        )
        with _lost():
            for _ in range(_TRIES_MAX):
                self._number += 1
                result = settle_record(self._store, numbered(PREFIX, self._number), SIGN, sign)
                if not isinstance(result, Lost):
                    if self._number > _KEPT:
                        delete_records(self._store, [numbered(PREFIX, self._number - _KEPT)])
                    return
                if result.value.generation > mine.number:
                    self._older = True
                    return

    def _now_ms(self) -> int:
        return round(self._now() * 1000)


def _lost() -> contextlib.suppress:
    return contextlib.suppress(Unavailable, OutcomeUnknown)


def read_sign(store: Store) -> Sign | None:
    """The last sign of the newest driver."""
    found = [get_record(store, numbered(PREFIX, number), SIGN) for number in sorted(store.numbers(PREFIX))]
    signs = [sign for sign in found if sign is not None]
    # Of one driver the later one counts: max takes the first of equals.
    return max(reversed(signs), key=lambda sign: sign.generation, default=None)


def is_alive(sign: LastWord, now: float) -> bool:
    """Whether the process that wrote the sign exists. On another machine: whether its next sign is not overdue."""
    if sign.doing not in (DriverActivity.RUNS, DriverActivity.RETRIES):
        return False
    pid, _, _ = sign.process.partition(":")
    mine = process_mark(os.getpid())
    if mine is not None and sign.host == platform.node() and sign.process.rpartition(":")[2] == mine.rpartition(":")[2]:
        return process_mark(int(pid)) == sign.process
    return now * 1000 - sign.at_ms < MISSED_MAX * sign.every_ms


def last_words(sign: LastWord, now: float) -> DriverActivity | None:
    """What the driver does or how it ended; None: it died without a last sign."""
    if sign.doing is DriverActivity.RETRIES and not is_alive(sign, now):
        return DriverActivity.FAILED
    return None if sign.doing is DriverActivity.RUNS and not is_alive(sign, now) else sign.doing


def process_mark(pid: int) -> str | None:
    """number:start:namespace. A later process may have the same number, and another start. Containers number their own processes."""
    try:
        start = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        # A zombie process: it has ended.
        return None if start[0] in "ZX" else f"{pid}:{start[19]}:{os.readlink(f'/proc/{pid}/ns/pid').strip('pid:[]')}"
    except (OSError, IndexError):
        return None
