"""From a staged epoch to a done one: seconds, by how many lake tables the epoch touches and how many the pipeline has.

    python -m tests.bench.commit [--shapes 1/1 100/100 1000/1000 1/1000] [--repeat 5] [--no-chunks]

A shape is the number of tables that each epoch touches, and of all tables. The coordinator, its steps and their shell, the store, the
listeners and the Paimon tables are a pipeline's own, on the local disk. There is no Spark and no database: before each epoch a writer
stages one file of 20 rows for each table that it touches, as a log task would, and none of that is measured. Measured is the commit path:
from the tasks' answers (`Committing.offer`: each lake table is asked for its state) over the intent, the commits and the listeners to the
done record and what is released after it. Each table has had `--history` commits before. `turn_ms` is what the loop's planning of
the next epoch costs beside it (`plan_epoch`, `divide`). The last line is JSON; medians of `--repeat` epochs.

`cpu_ratio_vs_parquet_sorted` is another path: what it costs the processor to write a chunk's rows into 4 buckets, over what plain
Parquet of the same rows costs (`_chunks`).
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
from rich.console import Console
from rich.table import Table

from snowmelt.commit.checks import Message, StagedFile
from snowmelt.commit.cleaning import NO_REWRITES
from snowmelt.commit.coordinator import Coordinator, GenerationRead
from snowmelt.commit.ledger import Ledger
from snowmelt.commit.records import Intent, StagedFor, StagedName
from snowmelt.driving.committing import CommitEntries, TellListeners, WinIntent
from snowmelt.driving.entries import Describe
from snowmelt.driving.sharing import divide
from snowmelt.driving.steps import DONES, Machines, NewestGeneration, Put, Request
from snowmelt.engine.driver.cleaning import Cleaner
from snowmelt.engine.driver.entries import Entries
from snowmelt.engine.driver.state import State
from snowmelt.engine.loop.committing import Committing
from snowmelt.engine.loop.lake_threads import LakeThreads
from snowmelt.engine.loop.letting_go import Holders, LettingGo
from snowmelt.engine.loop.listening import Listening
from snowmelt.engine.loop.log_lane import LogJob
from snowmelt.engine.loop.resources import TURN_S
from snowmelt.engine.loop.table_commits import TableCommits
from snowmelt.engine.notices.notifier import Notifier
from snowmelt.engine.tasks.log import LogAnswer
from snowmelt.model.numbers import EpochNumber, GenerationNumber
from snowmelt.model.position import Position
from snowmelt.model.table import INSERT, KIND, TableId
from snowmelt.planning.epochs import EpochPlan, choose_end, plan_epoch
from snowmelt.planning.facts import OUTSIDE, Adopted, Found, Incarnation
from snowmelt.relay.retention import Cut, Relay
from snowmelt.sinks.contract import SEQUENCE
from snowmelt.sinks.paimon.sink import PaimonSink
from snowmelt.store.generations import take_generation
from snowmelt.store.local import LocalStore
from tests.bench._chunks import measure_chunks

GENERATION = GenerationNumber(1)
BYTES_AN_EPOCH = 1_000
COLUMNS = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("k", pa.int32()), pa.field("c", pa.string())])
ROWS = pa.RecordBatch.from_arrays(
    [
        pa.array(range(20), pa.int64()),
        pa.array(range(20), pa.int32()),
        pa.array([f"row {number}" for number in range(20)]),
        pa.array([1] * 20, pa.int64()),
        pa.array([INSERT] * 20, pa.int8()),
    ],
    schema=pa.schema([*COLUMNS, pa.field(SEQUENCE, pa.int64(), nullable=False), pa.field(KIND, pa.int8())]),
)


class Steps:
    """Seconds of each kind of step, over the epochs that were measured. Steps that run at once count each."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self._lock = threading.Lock()

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            took = time.perf_counter() - start
            with self._lock:
                self.seconds[name] += took


class Timed(Committing):
    """Tells what each step took."""

    steps: Steps

    def act(self, request: Request[Any]) -> Any:
        with self.steps.timed(_name(request)):
            return super().act(request)


def _name(request: Request[Any]) -> str:
    match request:
        case Describe():
            return "ask lake tables"
        case WinIntent():
            return "put the intent"
        case CommitEntries():
            return "commit lake tables"
        case TellListeners():
            return "listeners"
        case NewestGeneration():
            return "read the generation"
        case Put(kind) if kind is DONES:
            return "put done"
        case _:
            return "release"


class Nothing:
    """What a driver has beside its commits: no read is under way, no job runs, and the log has no data."""

    newest_job = 0
    needs = ()
    under_way = NO_REWRITES

    def __init__(self, state: State) -> None:
        self._state = state

    def act(self, request: Request[Any]) -> Any:
        name = type(request).__name__
        if name not in ("DropRecords", "DropSegments", "DropAside", "SweepSegments"):
            return self._state.act(request)
        return None

    def let_go(self, *_: object) -> set[int]:
        return set()

    def submit(self, *_: object) -> None:
        """A sweep is not part of an epoch."""

    def forget(self, *_: object) -> None: ...

    def opened(self, *_: object) -> None: ...

    def done(self, *_: object) -> None: ...

    def compare_beside(self) -> None: ...

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self


@dataclass(frozen=True)
class Pipeline:
    sink: PaimonSink
    machines: Machines
    committing: Timed
    targets: tuple[str, ...]
    names: tuple[TableId, ...]

    @staticmethod
    def make(folder: Path, tables: int) -> Pipeline:
        store = LocalStore(folder / "state")
        generation = take_generation(store, "bench")
        state, sink = State(store), PaimonSink(str(folder / "lake"), user="snowmelt-bench")
        names = tuple(TableId("shop", f"t{number:04}") for number in range(tables))
        targets = tuple(f"ods.shop_{name.name}" for name in names)
        for target in targets:
            sink.create(target, COLUMNS, ["id"], buckets=1)
        ledger, relay = Ledger(), Relay()
        _make_live(ledger, relay, names, targets)
        machine = Coordinator(GenerationNumber(generation.number), ledger)
        machine.apply(GenerationRead(generation.number))
        machines = Machines(machine, relay)
        nothing: Any = Nothing(state)
        resources, known = _Resources(state, sink), _Known(ledger, relay, generation.number, nothing)
        cleaner = Cleaner(nothing, nothing, every=1_000)
        holders = Holders(splitter=nothing, retries=nothing, discovery=nothing, proposals=nothing, upkeep=nothing)
        letting_go = LettingGo(cast(Any, resources), cast(Any, known), machines, nothing, nothing, nothing, cleaner, holders)
        entries = Entries(sink, ledger, nothing, nothing, resources.threads, lambda _: None)
        committing = Timed(cast(Any, resources), cast(Any, known), machines, entries, nothing, cleaner, nothing, letting_go)
        committing.steps = Steps()
        return Pipeline(sink, machines, committing, targets, names)

    def plan(self) -> EpochPlan:
        ledger, relay = self.machines.ledger, self.machines.relay
        upto = choose_end(ledger.tables, relay, ledger.upto, 1 << 30)
        return plan_epoch(
            ledger.tables,
            relay,
            epoch=EpochNumber(ledger.epoch + 1),
            generation=self.machines.generation,
            follows=ledger.identity,
            after=ledger.upto,
            upto=upto,
        )

    def epoch(self, touched: int) -> tuple[float, float, float]:
        """One epoch of so many tables: seconds of the wall and of the processor, and seconds of planning."""
        machines = self.machines
        _capture(machines.relay)
        start = time.perf_counter()
        plan = self.plan()
        divide(plan, machines.ledger, machines.relay, tasks=2, share_bytes_min=1 << 20)
        planning_s = time.perf_counter() - start
        job = LogJob(plan, 1, [self.stage(plan, touched)])
        start, cpu = time.perf_counter(), time.process_time()
        with self.committing.steps.timed("all"):
            self.committing.offer(job)
            while self.committing.step():
                pass
        assert machines.ledger.done_epoch == plan.epoch, "the epoch is not done"
        return time.perf_counter() - start, time.process_time() - cpu, planning_s

    def stage(self, plan: EpochPlan, touched: int) -> LogAnswer:
        files, messages, rows = [], {}, 0
        for number, target in enumerate(self.targets[:touched]):
            writer = self.sink.writer(target, str(StagedName(plan.generation, StagedFor.EPOCH, plan.epoch, f"a{number}", "")), at_once=True)
            writer.write(ROWS)
            staged = writer.finish()
            files += [StagedFile(target, name, plan.after) for name in staged.files]
            messages[target] = staged.messages
            rows += staged.rows
        message = Message(generation=plan.generation, epoch=plan.epoch, writer=0, files=tuple(files))
        return LogAnswer(message=message, messages=messages, places={}, rows=rows)


class _Resources:
    """The part of `Resources` that commits use."""

    def __init__(self, state: State, sink: PaimonSink) -> None:
        self.state, self.lake = state, sink
        self.threads = LakeThreads(sink.at_once)
        self.commits = TableCommits(sink, self.threads, turn_s=TURN_S)
        self.listening = Listening(None, lambda: sink, Notifier("bench", ()))
        self.clock = self.settings = self.pace = Clock()


class Clock:
    """Of a server whose clock is ours, and the settings of a pace."""

    ahead_ms = 0
    summary_every = 20

    def __init__(self) -> None:
        self.pace = self

    def compare_beside(self) -> None: ...


@dataclass(frozen=True)
class _Known:
    ledger: Ledger
    relay: Relay
    generation: int
    shapes: Any


def _capture(relay: Relay) -> None:
    end = relay.end
    begins, ends = Position(1, 4 + end), Position(1, 4 + end + BYTES_AN_EPOCH)
    relay.apply(relay.decide_record(GENERATION, f"s{end}", begins, ends, (Cut(end + BYTES_AN_EPOCH, 1 + end),)))


def _make_live(ledger: Ledger, relay: Relay, names: tuple[TableId, ...], targets: tuple[str, ...]) -> None:
    """All tables are found, read whole and covered, by intents that brought nothing to the lake."""
    incarnations = [Incarnation(name, 1) for name in names]
    found = tuple(Found(one, target, True, 1) for one, target in zip(incarnations, targets, strict=True))
    adopted = tuple(Adopted(incarnation=one, ordinal=OUTSIDE, nonce="n", visible=0, high=0, extent=None) for one in incarnations)
    for facts in (found, adopted, ()):
        _capture(relay)
        intent = Intent(
            epoch=EpochNumber(ledger.epoch + 1),
            generation=GENERATION,
            nonce=f"n{ledger.epoch}",
            after=ledger.upto,
            upto=relay.end,
            time_ms=1 + ledger.epoch,
            facts=facts,
            entries=(),
            sequence_max=2 * relay.end + 1,
            segment=relay.number_at(relay.end),
        )
        ledger.apply_intent(intent)
        ledger.apply_done(ledger.decide_done((), ""))
    assert all(table.copy is None for table in ledger.tables), "a table is not live"


def measure(touched: int, tables: int, history: int, repeat: int, console: Console) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="snowmelt-bench-") as name:
        with console.status(f"making {tables} tables"):
            pipeline = Pipeline.make(Path(name), tables)
        with console.status(f"{history} epochs of {touched} of {tables} tables"):
            for _ in range(history):
                pipeline.epoch(touched)
        with console.status(f"measuring {touched} of {tables}"):
            pipeline.committing.steps.seconds.clear()
            taken = [pipeline.epoch(touched) for _ in range(repeat)]
    steps = {name: took / repeat for name, took in pipeline.committing.steps.seconds.items()}
    wall, cpu, planning = (statistics.median(column) for column in zip(*taken, strict=True))
    return {"wall_s": wall, "cpu_s": cpu, "planning_s": planning, "steps": steps}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", nargs="*", default=["1/1", "100/100", "1000/1000", "1/1000"])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--history", type=int, default=20)
    parser.add_argument("--no-chunks", dest="chunks", action="store_false")
    arguments = parser.parse_args()
    console = Console()
    figures: dict[str, Any] = {"bench": "commit"}
    if arguments.chunks:
        with console.status("writing chunks"):
            figures |= measure_chunks(arguments.repeat)
    told = Table("epoch touches", "of tables", "s", "CPU s", "planning ms", "where its time goes, s")
    for shape in arguments.shapes:
        touched, tables = (int(part) for part in shape.split("/"))
        # A thousand tables have a shorter past: it takes minutes to make.
        history = arguments.history if touched <= 100 else 2
        found = measure(touched, tables, history, arguments.repeat, console)
        name = f"epoch_s_{touched}_of_{tables}" if touched < tables else f"epoch_s_{touched}_table{'s' if touched > 1 else ''}"
        figures[name] = round(found["wall_s"], 3)
        figures[name.replace("epoch_s", "epoch_cpu_s")] = round(found["cpu_s"], 3)
        figures[name.replace("epoch_s", "planning_ms")] = round(found["planning_s"] * 1e3, 2)
        figures[name.replace("epoch_s", "steps_s")] = {step: round(took, 4) for step, took in found["steps"].items()}
        ordered = sorted(found["steps"].items(), key=lambda item: -item[1])
        parts = ", ".join(f"{step} {took:.3f}" for step, took in ordered if step != "all")
        told.add_row(
            str(touched), str(tables), f"{found['wall_s']:.3f}", f"{found['cpu_s']:.3f}", f"{found['planning_s'] * 1e3:.2f}", parts
        )
    if arguments.chunks:
        ours, theirs = figures["chunk_path_cpu_s"], figures["paimons_writer_cpu_s"]
        console.print(f"a chunk of 1,000,000 rows into 4 buckets: {ours} CPU s; Paimon's own writer: {theirs}; Parquet alone: ", end="")
        console.print(f"{figures['parquet_cpu_s']}, ratio {figures['cpu_ratio_vs_parquet_sorted']}")
    figures["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    console.print(told)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
