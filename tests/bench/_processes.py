"""What processes cost, from /proc: seconds of processor by kind, and the greatest memory that they had at once.

A process's memory is what it shares with nobody (resident less shared), so that workers forked from one daemon are not counted
twice. Spark's workers end when they are idle; what a dead one used is in its daemon's account, and is counted from there.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from pathlib import Path

SAMPLE_S = 0.5
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Cpu:
    """Seconds of processor, of one machine."""

    driver: float
    jvm: float
    workers: float
    database: float
    others: float
    """Of all that has nothing to do with the bench: how busy the machine was otherwise."""

    def __sub__(self, before: Cpu) -> Cpu:
        return Cpu(*(getattr(self, field.name) - getattr(before, field.name) for field in fields(self)))

    @property
    def engine(self) -> float:
        return self.driver + self.jvm + self.workers


@dataclass(frozen=True, slots=True)
class Memory:
    """Megabytes. What processes share, as workers do with the daemon that they are forked from, is divided among them."""

    driver: float
    jvm: float
    workers: float


@dataclass(slots=True)
class Stage:
    """What a stage took, between `Meter.begin` and `Meter.end`, or else between its block's."""

    wall_s: float = 0.0
    cpu: Cpu = Cpu(0, 0, 0, 0, 0)
    peak_mb: float = 0.0
    began: float = 0.0
    _before: Cpu | None = None

    @property
    def busy(self) -> bool:
        """Whether others took enough of the machine to be seen in the figures."""
        return self.cpu.others > 0.05 * self.wall_s * (os.cpu_count() or 1)


class Meter:
    """Watches this process's tree beside a database of one process or more. `alone` is given where a stage is another process's and not
    this one's."""

    def __init__(self, *database: int) -> None:
        self._database = database
        self._stage: Stage | None = None
        self._alone: int | None = None
        self._own = 0.0

    @contextmanager
    def stage(self, *, alone: int | None = None) -> Iterator[Stage]:
        stage, over = Stage(), threading.Event()
        self._stage, self._alone, self._own = stage, alone, 0.0
        sampler = threading.Thread(target=self._sample, args=(stage, over), daemon=True)
        sampler.start()
        self.begin()
        try:
            yield stage
            if not stage.wall_s:
                self.end()
        finally:
            over.set()
            sampler.join()

    def begin(self) -> None:
        """The stage's clocks start here; what it did before is counted nowhere, but for memory."""
        assert self._stage is not None
        self._stage._before, self._stage.began = self.now(), time.perf_counter()

    def end(self) -> None:
        assert self._stage is not None
        assert self._stage._before is not None
        self._stage.wall_s = time.perf_counter() - self._stage.began
        self._stage.cpu = self.now() - self._stage._before

    def now(self) -> Cpu:
        driver = jvm = workers = 0.0
        me = os.getpid()
        for pid, name in self._tree():
            used, of_children = _cpu(pid)
            if pid == me:
                driver += used - self._own
            elif name == "java":
                jvm += used
            else:
                workers += used + of_children
        database = sum(_cpu(pid)[0] for pid in self._database)
        return Cpu(driver, jvm, workers, database, _machine() - driver - jvm - workers - database)

    def memory(self) -> Memory:
        driver = jvm = workers = 0.0
        for pid, name in self._tree():
            used = _proportional_kb(pid) / 1e3
            if pid == os.getpid():
                driver += used
            elif name == "java":
                jvm += used
            else:
                workers += used
        return Memory(driver, jvm, workers)

    def _tree(self) -> list[tuple[int, str]]:
        """The processes that are measured. A JVM's dead children are in no account but their parent's."""
        names, children = _processes()
        found: list[tuple[int, str]] = []
        left = [self._alone or os.getpid()]
        while left:
            pid = left.pop()
            if pid in self._database or pid not in names:
                continue
            found.append((pid, names[pid]))
            left += children.get(pid, [])
        return found

    def _sample(self, stage: Stage, over: threading.Event) -> None:
        while not over.wait(SAMPLE_S):
            stage.peak_mb = max(stage.peak_mb, sum(_unshared(pid) for pid, _ in self._tree()) / 1e6)
            self._own = time.thread_time()


def _processes() -> tuple[dict[int, str], dict[int, list[int]]]:
    names: dict[int, str] = {}
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with suppress(OSError):
                before, _, after = Path(f"/proc/{entry}/stat").read_text().rpartition(")")
                names[int(entry)] = before.partition("(")[2]
                children.setdefault(int(after.split()[1]), []).append(int(entry))
    return names, children


def _cpu(pid: int) -> tuple[float, float]:
    """Of a process, and of its children that are gone."""
    with suppress(OSError):
        values = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(values[11]) + int(values[12])) / _TICKS, (int(values[13]) + int(values[14])) / _TICKS
    return 0.0, 0.0


def _unshared(pid: int) -> int:
    with suppress(OSError):
        values = Path(f"/proc/{pid}/statm").read_text().split()
        return (int(values[1]) - int(values[2])) * _PAGE
    return 0


def _proportional_kb(pid: int) -> int:
    with suppress(OSError):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return 0


def _machine() -> float:
    """All that the processors did but waiting, and but what other machines on the same host took."""
    values = [int(value) for value in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    return sum(values[index] for index in (0, 1, 2, 5, 6)) / _TICKS
