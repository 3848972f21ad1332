"""A pipeline kept running: a Spark session, one driver after the other, what a watcher sees of it, and how it ends.

Laws:
- What may work later (`Unavailable`, `OutcomeUnknown`) starts a new driver after a pause that doubles; too many in a row without an
  epoch done between them, and any other error, end the run.
- The first Ctrl-C or SIGTERM finishes the epoch under way. The second ends the process at once, which loses nothing: what counts is
  in the store and in the lake.
- Watching costs the pipeline nothing to speak of: progress is asked for at most a few times a second.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import signal
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from types import FrameType, MappingProxyType
from typing import Any, Final, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from snowmelt.columnar.kernels import kernel_folder
from snowmelt.config.values import SECRET_ENTRY
from snowmelt.credentials import Secret
from snowmelt.engine.log.standby import RelayActivity, RelayStatus
from snowmelt.engine.loop.driver import Progress
from snowmelt.engine.tasks.jobs import SparkGone
from snowmelt.engine.tiering.ends import RoundEnd
from snowmelt.errors import TEXT_MAX, InvalidConfig, OutcomeUnknown, SnowmeltError, Unavailable, printable
from snowmelt.tiering.rounds import RoundState

RESTARTS_MAX: Final = 10
PAUSE_S_MAX: Final = 60.0
LOOK_S: Final = 0.25
LINE_S: Final = 1.0
SILENCE_S: Final = 10.0
"""Nobody who reads a log shall wonder longer than this how far it is."""
RATE_LOOKS: Final = 40
"""Over how many looks rows per second are counted: some 10 s."""
TABLES_SHOWN_MAX: Final = 20
INTERRUPTED: Final = 130
RELAY_LINE_S: Final = 10.0
PIPELINE_DAEMON: Final = "snowmelt.engine.tasks.daemon"
TIERING_DAEMON: Final = "snowmelt.engine.tiering.daemon"

_PHASES: Final = {"released": "live", "streaming": "live"}
"""Words for a user, where they are not the engine's."""
_RELAY_WORDS: Final = {
    RelayActivity.CAPTURES: "capturing",
    RelayActivity.PAUSED: "paused, as much is held as disk_bytes_max allows; `snowmelt run` brings it to the lake",
    RelayActivity.STANDS_BY: "standing by, another process captures",
}


# ---- what is seen


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
    """What a relay without a driver says: a line when it begins, stops, pauses or goes on, and how far it is now and then."""
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


# ---- how it ends


class Interrupts:
    """Ctrl-C and SIGTERM: the first asks, the second ends the process."""

    def __init__(self, watcher: Watcher, *, leave: Callable[[int], object] = os._exit) -> None:
        self.asked = threading.Event()
        self._watcher = watcher
        self._leave = leave

    def install(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self.hear)

    def hear(self, _number: int, _frame: FrameType | None) -> None:
        if self.asked.is_set():
            # The terminal is put right if that can be done at once: what was interrupted may hold what it takes.
            guard = threading.Timer(1.0, self._leave, [INTERRUPTED])
            guard.daemon = True
            guard.start()
            with contextlib.suppress(Exception):
                self._watcher.end()
            guard.cancel()
            self._leave(INTERRUPTED)
            return
        self.asked.set()
        # A print that was interrupted by this one can't be entered again; the loop tells it.


# ---- running


class Driver(Protocol):
    """What `supervise` needs of `engine.driver.pipeline.Pipeline`."""

    @property
    def progress(self) -> Progress: ...
    def run(self, until: Callable[[Any], bool]) -> None: ...
    def stop(self) -> None: ...
    def caught_up(self) -> bool: ...


def supervise(
    make: Callable[[], Driver],
    watcher: Watcher,
    asked: threading.Event,
    *,
    until_current: bool = False,
    clock: Callable[[], float] = time.monotonic,
) -> Progress:
    """Run drivers until the lake is current, a user asks for the end, or an error that a new driver does not heal."""
    tries = epoch = 0
    while not asked.is_set():
        driver = make()
        try:
            driver.run(_look_and_decide(watcher, asked, until_current, clock))
        except SparkGone:
            # A new driver would need a new session, and this process had one.
            raise
        except (Unavailable, OutcomeUnknown) as error:
            reached = driver.progress.epoch
            tries = 1 if reached > epoch else tries + 1
            epoch = max(epoch, reached)
            if tries > RESTARTS_MAX:
                raise type(error)(
                    error.fact, detail=f"{error.detail}; {RESTARTS_MAX} new drivers met the same".removeprefix("; ")
                ) from error
            pause_s = min(PAUSE_S_MAX, 2.0 ** (tries - 1))
            watcher.note("warning", f"{error}; a new driver starts in {pause_s:.0f} s, {tries} of {RESTARTS_MAX}")
            asked.wait(pause_s)
        else:
            watcher.look(driver.progress, final=True)
            return driver.progress
    return Progress()


def _look_and_decide(watcher: Watcher, asked: threading.Event, until_current: bool, clock: Callable[[], float]) -> Callable[[Driver], bool]:
    due, told = 0.0, False

    def until(driver: Driver) -> bool:
        nonlocal due, told
        if asked.is_set() and not told:
            told = True
            watcher.note("note", "ending after the epoch under way; a second Ctrl-C ends at once")
            driver.stop()
        if clock() < due:
            return False
        due = clock() + LOOK_S
        watcher.look(driver.progress)
        return until_current and driver.caught_up()

    return until


# ---- compiled kernels


COMPILING_LINE_S: Final = 5.0


def start_compiling(watcher: Watcher, *, clock: Callable[[], float] = time.monotonic) -> Callable[[threading.Event], None]:
    """Compile the kernels of a pipeline's tasks in a thread, beside Spark's start, and tell how far that is. Where they are in the cache
    this takes a moment, and nothing is told. Returns what waits for its end, or until the event is set.

    Without this the first worker daemon would do it, for half a minute in which nobody could say why nothing happens.
    """
    due, failed, over = 0.0, [], threading.Event()

    def tell(ready: int, of: int) -> None:
        nonlocal due
        if not ready:
            watcher.note("note", f"compiling {of} kernels, which takes about half a minute; later starts find them in {kernel_folder()}")
        elif ready == of or clock() >= due:
            watcher.note("note", f"kernels: {ready} of {of} compiled")
        else:
            return
        due = clock() + COMPILING_LINE_S

    def work() -> None:
        try:
            from snowmelt.databases.registry import warm

            warm(tell)
        except Exception as error:
            failed.append(error)
        finally:
            over.set()

    threading.Thread(target=work, name="snowmelt-compiling", daemon=True).start()

    def wait(asked: threading.Event) -> None:
        while not over.wait(LOOK_S):
            if asked.is_set():
                return
        if failed:
            raise failed[0]

    return wait


# ---- Spark


_MALLOC: Final = MappingProxyType({"MALLOC_ARENA_MAX": "2", "MALLOC_MMAP_THRESHOLD_": str(4 << 20), "MALLOC_TRIM_THRESHOLD_": str(4 << 20)})
"""Of processes with many threads that allocate in bursts. glibc gives eight arenas to each core, and none of them gives back what
was freed below something that is in use; its thresholds grow with what was freed last, so that large blocks stay, too."""
_MEMORY: Final = MappingProxyType(
    {
        **{f"spark.executorEnv.{name}": value for name, value in _MALLOC.items()},
        # Rows never pass through the driver's JVM: it holds little, and what it took for a moment it is to give back.
        "spark.driver.extraJavaOptions": "-Xms64m -XX:+UseSerialGC -XX:MinHeapFreeRatio=20 -XX:MaxHeapFreeRatio=40",
    }
)


@contextlib.contextmanager
def spark_session(
    name: str,
    *,
    master: str,
    ui: bool,
    debug: bool,
    daemon: str = PIPELINE_DAEMON,
    entries: Mapping[str, str | Secret] = MappingProxyType({}),
) -> Iterator[Any]:
    """A session of our own. What its JVM writes to stderr is shown only where it does not start, or when debugging. `daemon`: the module
    from which workers are forked, with what they need. `entries`: further configuration; ours wins."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    if master == "local[*]":
        # One more than there are cores: the log's tasks find a place while chunks are being read.
        master = f"local[{len(os.sched_getaffinity(0)) + 1}]"
    given = {name: value for name, value in entries.items() if isinstance(value, str)}
    hidden = {name: value.reveal() for name, value in entries.items() if isinstance(value, Secret)}
    # Spark's Python reads this entry from the environment alone. Workers of another Python would lack our modules.
    if python := given.get("spark.pyspark.python"):
        os.environ["PYSPARK_PYTHON"] = python
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    local = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"} if master.startswith("local") else {}
    settings = (
        dict(_MEMORY)
        | local
        | given
        | {
            "spark.app.name": f"snowmelt {name}",
            "spark.master": master,
            "spark.scheduler.mode": "FAIR",
            "spark.python.daemon.module": daemon,
            # Jobs are of one small stage: there is nothing to adapt, and no task that another place suits better.
            "spark.sql.adaptive.enabled": "false",
            "spark.locality.wait": "0",
            "spark.ui.enabled": str(ui).lower(),
            "spark.ui.showConsoleProgress": "false",
            "spark.log.level": "WARN" if debug else "OFF",
        }
    )
    if hidden:
        # Spark shows entries on its pages and in its event log, but for those whose names say that they are secrets.
        shown = [given.get("spark.redaction.regex", SECRET_ENTRY.pattern), *(re.escape(name) for name in hidden)]
        settings["spark.redaction.regex"] = "|".join(shown)
    with tempfile.TemporaryFile() as said, contextlib.nullcontext() if debug else _quiet_connections():
        try:
            conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
            # What a JVM that is started here serves is seen by this machine alone: of the web page Spark asks nothing but this variable.
            inherited = {**_MALLOC, **({"SPARK_LOCAL_IP": "127.0.0.1"} if local else {})}
            with _uninterrupted(), _environment(inherited):
                gateway = launch_gateway(conf, popen_kwargs=None if debug else {"stderr": said, "stdout": said})  # type: ignore[no-untyped-call]
            # Not before: what the JVM is started with is in the list of processes.
            conf.setAll(list(hidden.items()))
            with _handlers_kept():
                context = SparkContext(conf=conf, gateway=gateway)
            if not debug and (accumulators := getattr(context, "_accumulatorServer", None)) is not None:
                # It would print a traceback when the JVM dies.
                accumulators.handle_error = lambda *_: None
            # A cluster that lets no executor start has stopped the context by now.
            session = SparkSession(context)
        except Exception as error:
            if debug:
                raise
            raise _not_started(error, said) from None
        try:
            yield session
        finally:
            with contextlib.suppress(Exception):
                context.cancelAllJobs()
            with contextlib.suppress(Exception):
                context.stop()


@contextlib.contextmanager
def _quiet_connections() -> Iterator[None]:
    """Py4J logs connections that break, with their stacks; without a handler those would go to the user's terminal."""
    root, handler = logging.getLogger(), logging.NullHandler()
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """A JVM whose start is interrupted would live on without us. A Ctrl-C that comes meanwhile is heard behind that; it is not blocked,
    because whatever is started inside would have it blocked too."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if came:
            signal.raise_signal(signal.SIGINT)


@contextlib.contextmanager
def _handlers_kept() -> Iterator[None]:
    """Spark puts a handler of Ctrl-C in place that talks to its JVM, in the midst of whatever was interrupted. Here it is taken away again,
    and a Ctrl-C that comes meanwhile is heard behind that."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGINT)
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


@contextlib.contextmanager
def _environment(wanted: Mapping[str, str]) -> Iterator[None]:
    """What processes that are started inside find in their environment, unless it is there already."""
    missing = [name for name in wanted if not os.environ.get(name)]
    before = {name: os.environ[name] for name in missing if name in os.environ}
    os.environ.update({name: wanted[name] for name in missing})
    try:
        yield
    finally:
        for name in missing:
            del os.environ[name]
        os.environ.update(before)


def _not_started(error: Exception, said: Any) -> SnowmeltError:
    said.seek(0)
    lines = [line.strip() for line in said.read().decode("utf-8", "replace").splitlines() if line.strip()]
    told = next(
        (line for line in lines if "rror" in line or "not found" in line or "JAVA_HOME" in line), lines[-1] if lines else str(error)
    )
    hint = "Java 17 or newer must be there, by JAVA_HOME or on PATH; --debug shows all that Spark says"
    return InvalidConfig("Spark does not start", detail=told[:300], hint=hint)
