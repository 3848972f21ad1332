"""The pure core at scale: many chunks of many tables folded, planned, adopted and released, in the coordinator's own process.

    python -m tests.bench.coordinator [--chunks 300000] [--tables 1000]

One table has most of the chunks, as the largest table of a database has; the others share the rest. Facts come as they do from
intents: bounds a few thousand at a time, adoptions by the hundred, in nearly the order of the keys. Measured: each plan while all of that
is unfinished (its rules for tasks included), the fold of all intents from the beginning, the memory that unfinished chunks hold, and
what is left after release. The last line is JSON.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import time
import tracemalloc
from collections.abc import Iterator

from snowmelt.commit.ledger import Ledger
from snowmelt.commit.records import Done, Intent
from snowmelt.commit.summary import restore, summarise
from snowmelt.model.position import Position
from snowmelt.model.table import TableId
from snowmelt.planning.epochs import choose_end, decide_launches, plan_epoch
from snowmelt.planning.facts import OUTSIDE, Adopted, Durable, Found, Incarnation, KeyEnds, Reported, Split
from snowmelt.relay.retention import Cut, Relay

SPLITS_AT_ONCE = 5_000
RUNNING = 256


def key(number: int) -> bytes:
    """As wide as a packed BIGINT."""
    return number.to_bytes(8, "big")


class Pipeline:
    """A ledger whose intents are kept, as the store keeps them."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.relay = Relay()
        self.records: list[tuple[Intent, Done]] = []
        self.jobs = 0
        self._capture()

    def _capture(self) -> None:
        end = self.relay.end
        begins, ends = Position(1, 4 + end), Position(1, 4 + end + 1000)
        self.relay.apply(self.relay.decide_record(1, f"s{end}", begins, ends, (Cut(end + 1000, end),)))

    def epoch(self, *proposals: Durable) -> float:
        """One epoch, of which the time of planning is returned."""
        ledger, relay = self.ledger, self.relay
        self._capture()
        start = time.perf_counter()
        upto = choose_end(ledger.tables, relay, ledger.upto, 1 << 30)
        plan = plan_epoch(
            ledger.tables,
            relay,
            epoch=ledger.epoch + 1,
            generation=1,
            follows=ledger.identity,
            after=ledger.upto,
            upto=upto,
            proposals=proposals,
        )
        launches = decide_launches(ledger.tables, relay, visible=upto, job=self.jobs + 1, running_max=RUNNING)
        took = time.perf_counter() - start
        number = relay.number_at(upto)
        intent = Intent(
            epoch=plan.epoch,
            generation=1,
            nonce=f"n{plan.epoch}",
            after=plan.after,
            upto=plan.upto,
            time_ms=upto,
            facts=plan.facts,
            entries=(),
            sequence_max=2 * upto + 1,
            segment=number,
        )
        ledger.apply_intent(intent)
        done = ledger.decide_done((), "")
        ledger.apply_done(done)
        self.records.append((intent, done))
        for fact in launches:
            # The plan was made before the intent was won; what it adopted meanwhile is not launched again.
            if ledger.tables.chunk_state(fact.incarnation, fact.ordinal) is not None:
                self.jobs = fact.job
                ledger.tables.apply(fact)
        relay.raise_floor(relay.decide_floor(ledger.done_upto, ledger.tables.lowest_visible()))
        relay.forget(relay.deletable(ledger.segment))
        return took

    def report(self, rng: random.Random) -> None:
        """Most reads under way end, in any order."""
        readings = [reading for reading in self.ledger.tables.readings() if reading.report is None]
        rng.shuffle(readings)
        for reading in readings[: max(1, len(readings) * 3 // 4)]:
            launch = reading.launch
            name = launch.incarnation.table.name
            extent = KeyEnds(key(0), key(SIZES[name] * 100)) if launch.ordinal == OUTSIDE else None
            fact = Reported(
                incarnation=launch.incarnation,
                ordinal=launch.ordinal,
                job=launch.job,
                nonce=f"j{launch.job}",
                high=launch.visible,
                exact=True,
                schema=0,
                files=("f",),
                extent=extent,
            )
            for decided in self.ledger.tables.decide_report(fact):
                self.ledger.tables.apply(decided)


SIZES: dict[str, int] = {}


def splits(pipeline: Pipeline) -> Iterator[Split]:
    """The next bounds of every table that still wants some."""
    for table in pipeline.ledger.tables:
        copy = table.copy
        if copy is None or copy.extent is None or copy.complete:
            continue
        first, last = copy.bounds.last + 1, SIZES[table.incarnation.table.name]
        end = min(last, first + SPLITS_AT_ONCE - 1)
        yield Split(table.incarnation, first, tuple(key(ordinal * 100) for ordinal in range(first, end + 1)), end == last)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chunks", type=int, default=300_000)
    parser.add_argument("--tables", type=int, default=1_000)
    arguments = parser.parse_args()
    rng = random.Random(1)
    small = arguments.chunks // 4 // max(1, arguments.tables - 1)
    for index in range(arguments.tables):
        SIZES[f"t{index:04}"] = small if index else arguments.chunks - small * (arguments.tables - 1)

    pipeline = Pipeline()
    plans = [pipeline.epoch(*(Found(Incarnation(TableId("shop", name), 1), name, True, 0) for name in SIZES))]
    while any(table.copy is None or table.copy.extent is None for table in pipeline.ledger.tables):
        pipeline.report(rng)
        plans.append(pipeline.epoch())
    held = 0.0
    planned = False
    while any(table.copy is not None for table in pipeline.ledger.tables):
        proposals = list(splits(pipeline))
        if not proposals and not planned:
            # All is split, next to nothing is adopted: this is when most is unfinished. What a restart would hold is measured.
            planned = True
            held = memory_per_chunk(pipeline.ledger)
        pipeline.report(rng)
        plans.append(pipeline.epoch(*proposals))
    adopted = sum(isinstance(fact, Adopted) for intent, _ in pipeline.records for fact in intent.facts)

    start = time.perf_counter()
    folded = Ledger()
    for intent, done in pipeline.records:
        folded.apply_intent(intent)
        folded.apply_done(done)
    fold_s = time.perf_counter() - start
    left = len(repr(summarise(folded)))
    figures = {
        "bench": "coordinator",
        "chunks": adopted - arguments.tables,
        "tables": arguments.tables,
        "epochs": len(plans),
        "plan_ms_p50": round(statistics.median(plans) * 1e3, 2),
        "plan_ms_p99": round(sorted(plans)[int(len(plans) * 0.99)] * 1e3, 2),
        "plan_ms_max": round(max(plans) * 1e3, 2),
        "fold_s": round(fold_s, 2),
        "bytes_per_unfinished_chunk": round(held, 1),
        "bytes_per_released_table_in_the_summary": round(left / arguments.tables),
    }
    for name, value in figures.items():
        print(f"{name:42} {value}")
    print(json.dumps(figures))


def memory_per_chunk(ledger: Ledger) -> float:
    """What a ledger of nothing but unfinished chunks holds for each, bounds included."""
    summary = summarise(ledger)
    unfinished = 0
    for table in ledger.tables:
        if table.copy is not None:
            unfinished += table.copy.bounds.last - sum(last - max(first, 1) + 1 for first, last in table.copy.adopted)
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    again = restore(summary)
    gc.collect()
    held = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert len(again.tables) == len(ledger.tables)
    return held / unfinished


if __name__ == "__main__":
    main()
