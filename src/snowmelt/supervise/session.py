"""A Spark session of our own: how its JVM is started, what it may print, and how it ends."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import sys
import tempfile
import threading
from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

from snowmelt.credentials import Secret
from snowmelt.errors import InvalidConfig, SnowmeltError
from snowmelt.sections.values import SECRET_ENTRY

PIPELINE_DAEMON: Final = "snowmelt.engine.tasks.daemon"
TIERING_DAEMON: Final = "snowmelt.engine.tiering.daemon"
MALLOC: Final = MappingProxyType({"MALLOC_ARENA_MAX": "2", "MALLOC_MMAP_THRESHOLD_": str(4 << 20), "MALLOC_TRIM_THRESHOLD_": str(4 << 20)})
"""Of processes with many threads that allocate in bursts. glibc gives eight arenas to each core, and none of them gives back what
was freed below something that is in use; its thresholds grow with what was freed last, so that large blocks stay, too."""
_MEMORY: Final = MappingProxyType(
    {
        **{f"spark.executorEnv.{name}": value for name, value in MALLOC.items()},
        # Rows never pass through the driver's JVM: it holds little, and what it took for a moment it is to give back.
        "spark.driver.extraJavaOptions": "-Xms64m -XX:+UseSerialGC -XX:MinHeapFreeRatio=20 -XX:MaxHeapFreeRatio=40",
        # What Spark remembers of jobs that ended, with and without its web page: some 40 KB for each, of 1,000 unless told otherwise.
        **dict.fromkeys(("spark.ui.retainedJobs", "spark.ui.retainedStages", "spark.sql.ui.retainedExecutions"), "100"),
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
    settings = _settings(name, master=master, ui=ui, debug=debug, daemon=daemon, given=local | given, hidden=hidden)
    with tempfile.TemporaryFile() as said, contextlib.nullcontext() if debug else _quiet_connections():
        try:
            conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
            # What a JVM that is started here serves is seen by this machine alone: of the web page Spark asks nothing but this variable.
            inherited = {**MALLOC, **({"SPARK_LOCAL_IP": "127.0.0.1"} if local else {})}
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


def _settings(
    name: str, *, master: str, ui: bool, debug: bool, daemon: str, given: Mapping[str, str], hidden: Collection[str]
) -> dict[str, str]:
    """All that the session is configured with but the secrets named `hidden`."""
    settings = (
        dict(_MEMORY)
        | dict(given)
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
        shown = [given.get("spark.redaction.regex", SECRET_ENTRY.pattern), *(re.escape(entry) for entry in hidden)]
        settings["spark.redaction.regex"] = "|".join(shown)
    return settings


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
    """A JVM whose start is interrupted would live on without us. A Ctrl-C that comes meanwhile is heard after that; it is not blocked,
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
    and a Ctrl-C that comes meanwhile is heard after that."""
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
