"""What a user sees of a pipeline, a relay or a tiering service: a screen, lines for logs, or JSON for programs.

Watching costs the pipeline nothing to speak of: progress is asked for at most a few times a second.
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import Final, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from snowmelt.engine.log.standby import RelayActivity, RelayStatus
from snowmelt.engine.loop.driver import Progress
from snowmelt.engine.tiering.ends import RoundEnd
from snowmelt.errors import TEXT_MAX, printable
from snowmelt.tiering.rounds import RoundState

LINE_S: Final = 1.0
SILENCE_S: Final = 10.0
"""Maximum time between progress lines."""
RATE_LOOKS: Final = 40
"""Over how many looks rows per second are counted: some 10 s."""
TABLES_SHOWN_MAX: Final = 20
RELAY_LINE_S: Final = 10.0
_PHASES: Final = {"released": "live", "streaming": "live"}
"""Words for a user, where they are not the engine's."""
_RELAY_WORDS: Final = {
    RelayActivity.CAPTURES: "capturing",
    RelayActivity.PAUSED: "paused, as much is held as disk_bytes_max allows; `snowmelt run` brings it to the lake",
    RelayActivity.STANDS_BY: "standing by, another process captures",
}


class Watcher(Protocol):
    """Told from one thread, but for `note`, which any thread may call."""

    def begin(self) -> None: ...
    def look(self, progress: Progress, *, final: bool = False) -> None:
        """What is so now. Called a few times a second, and when it is over."""

    def note(self, event: str, text: str) -> None:
        """Something happened that a user should read."""

    def end(self) -> None:
        """Leave the terminal as it was. Twice is harmless."""


class _Pace:
    """When a line may come, and when one should though nothing ended."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._due = 0.0
        self._spoke = clock()

    @property
    def due(self) -> bool:
        return self._clock() >= self._due

    @property
    def stale(self) -> bool:
        return self._clock() >= self._spoke + SILENCE_S

    def spoke(self) -> None:
        self._spoke = self._clock()
        self._due = self._spoke + LINE_S


class Lines:
    """Plain lines, for logs: a table's new phase, an epoch at most every second, and now and then how far it is though nothing ended."""

    def __init__(
        self, out: Callable[[str], None], *, clock: Callable[[], float] = time.monotonic, now: Callable[[], float] = time.time
    ) -> None:
        self._out = out
        self._pace = _Pace(clock)
        self._now = now
        self._phases: dict[str, str] = {}
        self._epoch = 0
        self._paused = False

    def begin(self) -> None:
        pass

    def look(self, progress: Progress, *, final: bool = False) -> None:
        if progress.paused != self._paused and self._pace.due:
            self._paused = progress.paused
            self._out(paused_line(progress) if progress.paused else "capture resumed")
        for table, phase in progress.phases.items():
            if self._phases.get(table) != phase_of(phase):
                self._phases[table] = phase_of(phase)
                why = f": {progress.aside[table]}" if table in progress.aside else ""
                self._out(f"{table} -> {progress.targets[table]}: {phase_of(phase)}{why}")
        if (progress.epoch > self._epoch and (final or self._pace.due)) or (self._pace.stale and progress.phases):
            self._epoch = progress.epoch
            self._pace.spoke()
            self._out(f"epoch {progress.epoch}, {tables_line(progress)}, {lag_line(progress, self._now())}, rows {progress.rows:,}")

    def note(self, event: str, text: str) -> None:
        self._out(f"{event}: {text}" if event != "note" else text)

    def end(self) -> None:
        pass


class JsonLines:
    """The same for programs: an object a line, each with its `event`."""

    def __init__(
        self, out: Callable[[str], None], *, clock: Callable[[], float] = time.monotonic, now: Callable[[], float] = time.time
    ) -> None:
        self._out = out
        self._pace = _Pace(clock)
        self._now = now
        self._last: tuple[int, bool, dict[str, str]] = (0, False, {})

    def begin(self) -> None:
        pass

    def look(self, progress: Progress, *, final: bool = False) -> None:
        new = (progress.epoch, progress.paused, progress.phases)
        stale = self._pace.stale and bool(progress.phases)
        if not stale and (new == self._last or not (self._pace.due or final)):
            return
        self._last = new
        self._pace.spoke()
        self.tell(
            "progress",
            epoch=progress.epoch,
            rows=progress.rows,
            lag_bytes=progress.captured - progress.done_upto,
            lag_s=lag_s(progress, self._now()),
            held_bytes=progress.held_bytes,
            paused=progress.paused,
            tables={
                table: {"target": progress.targets[table], "phase": phase_of(phase)} | more_json(progress, table)
                for table, phase in progress.phases.items()
            },
        )

    def note(self, event: str, text: str) -> None:
        self.tell(event, text=text)

    def tell(self, event: str, **fields: object) -> None:
        self._out(json.dumps({"event": event, **fields}, ensure_ascii=False))

    def end(self) -> None:
        pass


class Screen:
    """A table that stays in its place in a terminal; notes scroll away above it."""

    def __init__(
        self, console: Console, name: str, *, clock: Callable[[], float] = time.monotonic, now: Callable[[], float] = time.time
    ) -> None:
        self._console = console
        self._name = name
        self._clock = clock
        self._now = now
        self._live = Live(console=console, refresh_per_second=4, transient=False)
        self._looks: deque[tuple[float, int]] = deque(maxlen=RATE_LOOKS)

    def begin(self) -> None:
        self._live.start()

    def look(self, progress: Progress, *, final: bool = False) -> None:
        at = self._clock()
        if self._looks and progress.rows < self._looks[-1][1]:
            # A new driver counts its rows from 0.
            self._looks.clear()
        self._looks.append((at, progress.rows))
        since, rows = self._looks[0]
        rate = (progress.rows - rows) / (at - since) if at > since else 0.0
        self._live.update(screen(self._name, progress, self._now(), rate))

    def note(self, event: str, text: str) -> None:
        text = printable(f"{event}: {text}" if event != "note" else text)
        self._console.print(Text(text, style="yellow" if event == "warning" else ""))

    def end(self) -> None:
        self._live.stop()


def phase_of(phase: str) -> str:
    return _PHASES.get(phase, phase)


def tables_line(progress: Progress) -> str:
    """How many tables are in which phase, and how far their copies are."""
    counts = Counter(phase_of(phase) for phase in progress.phases.values())
    text = ", ".join(f"{count} {phase}" for phase, count in counts.items()) or "none yet"
    known = [copy for copy in progress.chunks.values() if copy[1] is not None]
    if known:
        text += f" ({sum(done for done, _ in known)} of {sum(of or 0 for _, of in known)} chunks)"
    return f"tables: {text}"


def lag_s(progress: Progress, now: float) -> float | None:
    """How old the newest transaction of the lake is, where a newer one was captured; 0 where the lake has all."""
    if progress.captured <= progress.done_upto:
        return 0.0
    return None if progress.time_ms is None else round(max(0.0, now - progress.time_ms / 1000), 1)


def lag_line(progress: Progress, now: float) -> str:
    seconds = lag_s(progress, now)
    age = "" if seconds is None else f" ({seconds:.0f} s)"
    return f"lag {(progress.captured - progress.done_upto) / 1e6:.1f} MB{age}"


def paused_line(progress: Progress) -> str:
    return f"capture is paused: {progress.held_bytes / 1e6:,.1f} MB of the log wait for the lake, as much as disk_bytes_max allows"


def more_json(progress: Progress, table: str) -> dict[str, object]:
    """Of a table that is not live: how far its copy is, or why it is set aside."""
    if table in progress.aside:
        return {"aside": progress.aside[table]}
    if table not in progress.chunks:
        return {}
    done, of = progress.chunks[table]
    return {"chunks": done, "chunks_of": of}


def screen(name: str, progress: Progress, now: float, rate: float) -> Group:
    head = f"{name}  epoch {progress.epoch}  {lag_line(progress, now)}  rows {progress.rows:,} ({rate:,.0f}/s)"
    table = Table("table", "target", "phase", "copied")
    # Those that are still copied are what one waits for.
    order = sorted(progress.phases, key=lambda one: (phase_of(progress.phases[one]) == "live", one))
    for one in order[:TABLES_SHOWN_MAX]:
        done, of = progress.chunks.get(one, (0, None))
        copied = "" if one not in progress.chunks else f"{done} chunks" if of is None else f"{bar(done, of)} {done} of {of}"
        shown = (one, progress.targets[one], phase_of(progress.phases[one]), progress.aside.get(one, copied))
        table.add_row(*(Text(printable(text)) for text in shown))
    parts: list[Text | Table] = [Text(head, style="bold"), table]
    if progress.paused:
        parts.append(Text(paused_line(progress), style="yellow"))
    if len(order) > TABLES_SHOWN_MAX:
        parts.append(Text(f"and {len(order) - TABLES_SHOWN_MAX} more"))
    return Group(*parts)


def bar(done: int, of: int, width: int = 20) -> str:
    full = width * done // of if of else width
    return "━" * full + "╌" * (width - full)


_PLAIN_RECORD: Final = frozenset({*vars(logging.makeLogRecord({})), "message", "asctime"})


@contextlib.contextmanager
def notes_of_log(watcher: Watcher, *, debug: bool) -> Iterator[None]:
    """What our modules log is told by the watcher, so that it neither gets lost nor breaks a screen."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            with contextlib.suppress(Exception):
                fields = ", ".join(f"{name} {value}" for name, value in vars(record).items() if name not in _PLAIN_RECORD)
                text = f"{record.getMessage()}: {fields}" if fields else record.getMessage()
                watcher.note(record.levelname.lower(), printable(text, TEXT_MAX))

    handler, log = Handler(), logging.getLogger("snowmelt")
    before = log.level, log.propagate
    log.addHandler(handler)
    log.setLevel(logging.DEBUG if debug else logging.WARNING)
    log.propagate = False
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(before[0])
        log.propagate = before[1]


def round_teller(out: Callable[[str], None], *, as_json: bool) -> Callable[[RoundEnd], None]:
    """What a tiering service says of its rounds; nothing of those that found nothing new."""

    def tell(end: RoundEnd) -> None:
        error = str(end.error) if end.error is not None else None
        if as_json:
            found = {"table": str(end.path), "state": end.state.value, "rows": end.rows, "seconds": round(end.seconds, 3)}
            JsonLines(out).tell("round", **found, snapshot=end.snapshot, error=error, lease=end.lease, leased=end.leased)
        elif end.state is not RoundState.FINISHED:
            out(f"{end.path}: {end.state.value}: {error or 'left to the next service'}")
        elif end.rows or end.snapshot:
            out(f"{end.path}: rows {end.rows:,} in {end.seconds:.1f} s, lake snapshot {end.snapshot}")

    return tell


def relay_teller(out: Callable[[str], None], *, as_json: bool) -> Callable[[RelayStatus], None]:
    """What a relay without a driver says: a line when it begins, stops, pauses or resumes, and how far it is now and then."""
    last: RelayStatus | None = None
    due = 0.0

    def tell(standing: RelayStatus) -> None:
        nonlocal last, due
        moved = last is None or (last.state, last.position) != (standing.state, standing.position)
        if not moved or (last is not None and last.state is standing.state and time.monotonic() < due):
            return
        last, due = standing, time.monotonic() + RELAY_LINE_S
        if as_json:
            fields = {"state": standing.state.value, "position": str(standing.position or ""), "held_bytes": standing.held_bytes}
            out(json.dumps({"event": "relay", **fields}))
            return
        where = f", captured up to {standing.position}" if standing.position is not None else ""
        out(f"{_RELAY_WORDS[standing.state]}{where}, {standing.held_bytes / 1e6:,.1f} MB held")

    return tell
