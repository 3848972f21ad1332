"""In-flight log is recovered whatever the sizes of pool, segment and records, and however many tasks there were and are.

The log lies in segments on disk, as capture leaves it; what a task keeps is taken as the lake's writer takes it. A watchdog tells when
neither side moves: with the pre-filter segment drawn from the pool, as Flink once had it (FLINK-39519), it does.
"""

from __future__ import annotations

import random
import threading
import tracemalloc
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from snowmelt.databases.contract.keys import pack_integer
from snowmelt.databases.contract.stretches import SegmentSlice
from snowmelt.databases.mysql.connect import Server
from snowmelt.databases.mysql.log.decode import ChangeBatch, LogReader, LogServer
from snowmelt.engine.log.prepared import put_aside, take_back
from snowmelt.engine.log.reading import Filtered, StoredLog
from snowmelt.engine.log.storage import segments_of
from snowmelt.engine.tasks.context import TaskContext
from snowmelt.engine.tasks.log import LogTask, kept_bytes, kept_rows
from snowmelt.engine.tasks.rows import Sourced
from snowmelt.errors import Corrupt, InvariantBroken, SourceDrift
from snowmelt.model import sequence
from snowmelt.planning.epochs import Adopting, Rule, Span
from snowmelt.planning.facts import Incarnation, KeyEnds, Reported
from snowmelt.relay import retention
from snowmelt.relay.limits import POOL_BYTES_MIN, PREFILTER_BYTES_MIN, Limits
from snowmelt.relay.pool import Pool
from snowmelt.relay.prefilter import PreFilter
from snowmelt.relay.retention import Relay
from snowmelt.store.objects import open_store
from tests.bench import recovery
from tests.kit.histories import TABLES, History, schemas, shape
from tests.kit.inflight import LogFolder

COMBINATIONS = 500
NAMED = 168
"""So many transactions larger than the segment are asked for their names."""
AT_ONCE = 10
"""So many of them share a log."""
STUCK_S = 60.0
Kept = tuple[str, pa.RecordBatch]
Told = tuple[str, int, int, int, bytes]
"""Table, sequence, ordinal, id and value of a row."""


@dataclass(frozen=True)
class InFlight:
    """A log that is durable and not covered."""

    history: History
    relay: Relay
    place: TaskContext

    def task(self, after: int, upto: int, covered: int) -> LogTask:
        """What changes tables behind `covered` in a range."""
        return LogTask(
            epoch=1,
            writer=0,
            after=after,
            upto=upto,
            segments=tuple(self.relay.covering(after, upto)),
            rules={table: Rule(incarnation=Incarnation(table, 1), after=covered, emits_all=True) for table in TABLES},
            marks={},
            tables={table: Sourced(shape(table), table.name, keyed=False) for table in TABLES},
            committed=tuple(self.relay.committed(after, upto)),
        )

    def recover(self, wanted: Limits, count: int, after: int, upto: int, covered: int) -> list[Told]:
        """What so many tasks keep of a range."""
        place = replace(self.place, limits=wanted)
        ranges = self.relay.shares(after, upto, count) if after < upto else []
        return [row for low, high in ranges for row in Recovery(place, self.task(low, high, covered)).run()]

    def expected(self) -> list[Told]:
        ordinals: dict[tuple[str, int], int] = {}
        told = []
        for row in self.history.rows:
            ordinal = ordinals[row.table, row.position] = ordinals.get((row.table, row.position), -1) + 1
            told.append((row.table, sequence.of_change(row.position - 4), ordinal, row.id, row.value))
        return sorted(told)


def in_flight(folder: Path, seed: int, record_bytes: int, *, flavour: Any = None, packed: bool = True, xa: bool = False) -> InFlight:
    """`xa`: with a prepared transaction that the same segment commits, and one that lies aside when it is committed."""
    chance = random.Random(seed)
    history = History(chance, flavour=flavour or chance.choice(["mysql", "mariadb"]), checksummed=chance.random() < 0.8, packed=packed)
    history.grow(chance.randint(3, 14), event_bytes=record_bytes, events_max=chance.choice([2, 8, 20]))
    if xa:
        history.prepare(record_bytes, 8)
        history.grow(4, event_bytes=record_bytes)
    server = Server(history.flavour, (10, 11, 0), "server")
    log = LogFolder(folder, server, checksum_bytes=history.checksum_bytes)
    cuts, store = history.cuts, open_store(log.place.state)
    inner = sorted(chance.sample(range(1, len(cuts) - 1), min(len(cuts) - 2, chance.randint(0, 3))))
    for first, last in zip([0, *inner], [*inner, len(cuts) - 1], strict=True):
        (begins, start), (ends, end) = cuts[first], cuts[last]
        shift = log.relay.end - start
        phases = [
            retention.Prepared(
                xid=one.xid, era=0, begins=one.begins + shift, offset=one.ends + shift, at=one.at - begins, bytes=one.until - one.at
            )
            if one.committed is None
            else retention.Ending(one.xid, one.ends + shift, one.committed)
            for one in history.phases
            if start < one.ends <= end
        ]
        inside = [(at - begins, offset) for at, offset in cuts[first + 1 : last + 1]]
        made, sealed = log.add(history.data[begins:ends], start, inside, phases)
        for group in sealed.put_aside:
            put_aside(store, made, group, group.begins - shift)
    return InFlight(history, log.relay, log.place)


class Recovery:
    """One task's recovery in threads of its own, so that a watchdog can look at it."""

    def __init__(self, place: TaskContext, task: LogTask, prefilter: PreFilter | None = None) -> None:
        self.pool = Pool(place.limits.pool_bytes)
        self.filtered: Filtered[Kept] = Filtered(lambda: kept_rows(place, task, prefilter=prefilter), kept_bytes, self.pool)
        self.rows: list[Told] = []
        self.most = 0
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._consume, daemon=True)

    def _consume(self) -> None:
        try:
            with self.filtered as batches:
                for target, batch in batches:
                    self.most = max(self.most, self.pool.taken)
                    self.rows += [(target, row["_seq"], row["_ordinal"], row["id"], row["v"]) for row in batch.to_pylist()]
        except BaseException as error:
            self._error = error

    def run(self, patience_s: float = STUCK_S) -> list[Told]:
        self._thread.start()
        self._thread.join(patience_s)
        if self._thread.is_alive():
            with self.filtered._changed:
                told = f"the pool holds {self.pool.taken} of {self.pool.size} bytes, {len(self.filtered._ready)} batches wait"
            # Nothing that was stuck stays behind.
            self.filtered.__exit__(None, None, None)
            self._thread.join()
            raise Stuck(told)
        if self._error is not None:
            raise self._error
        return self.rows


class Stuck(Exception):
    """What the watchdog says."""


def limits(chance: random.Random) -> Limits:
    segment = chance.choice([PREFILTER_BYTES_MIN, PREFILTER_BYTES_MIN, chance.randint(PREFILTER_BYTES_MIN, 1 << 16), 1 << 20])
    pool = chance.choice([POOL_BYTES_MIN, POOL_BYTES_MIN, chance.randint(POOL_BYTES_MIN, 1 << 18), 64 << 20])
    return Limits(
        prefilter_bytes=segment,
        pool_bytes=pool,
        assembly_bytes=chance.choice([100, 20_000, 16 << 20]),
        rows_per_batch=chance.choice([2, 50]),
    )


@pytest.mark.timeout(900)
def test_in_flight_log_is_recovered_whatever_the_sizes_and_the_number_of_tasks(tmp_path: Path) -> None:
    largest = 0.0
    for number in range(COMBINATIONS // AT_ONCE):
        chance = random.Random(number)
        folder = tmp_path / str(number)
        folder.mkdir()
        least = PREFILTER_BYTES_MIN
        held = in_flight(folder, chance.randrange(1 << 30), record_bytes=chance.choice([10, least // 2, 8 * least + 500, 16 * least]))
        expected = held.expected()
        cuts = [0, *held.relay.cuts_between(0, held.relay.end)]
        for _ in range(AT_ONCE):
            # So many tasks had come so far. Others go on from before that, by other limits, and drop what is covered.
            covered = chance.choice(cuts)
            again = chance.choice([cut for cut in cuts if cut <= covered])
            one, other = limits(chance), limits(chance)
            got = held.recover(one, chance.randint(1, 8), 0, covered, 0)
            got += held.recover(other, chance.randint(1, 8), again, held.relay.end, covered)
            assert sorted(got) == expected, (number, one, other, covered)
            largest = max(largest, max((len(row.value) for row in held.history.rows), default=0) / other.prefilter_bytes)
    assert largest > 8, "no record was many times the segment"


@pytest.mark.parametrize("flavour", ["mysql", "mariadb"])
def test_transactions_of_many_segments_keep_their_names(tmp_path: Path, flavour: Any) -> None:
    """They are looked for in the segment that each piece is read into, one over the other."""
    least = Limits(prefilter_bytes=PREFILTER_BYTES_MIN)
    asked: set[int] = set()
    seed = 0
    while len(asked) < NAMED:
        seed += 1
        held = in_flight(tmp_path / str(seed), seed, record_bytes=3000, flavour=flavour)
        given = {row.position: row.gtid for row in held.history.rows}
        large = {at for at in given if sum(len(row.value) for row in held.history.rows if row.position == at) > PREFILTER_BYTES_MIN}
        opened = segments_of(held.place.state)
        reader = LogReader(server=LogServer(held.history.flavour, (10, 11, 0)), schemas=schemas(), limits=least)
        for sealed in held.relay.covering(0, held.relay.end):
            segment, read = opened(sealed.name)
            part = SegmentSlice(0, segment.start.offset, None, segment.end.offset)
            log = StoredLog(segment, part, PreFilter(PREFILTER_BYTES_MIN), least, read)
            for item in reader.read_stored(segment, part, log):
                if not isinstance(item, ChangeBatch):
                    continue
                told = {int(at): str(item.transactions.gtid(index)) for index, at in enumerate(item.transactions.position)}
                rows = set(item.rows.column("_position").to_pylist())
                assert {at: told[at] for at in rows} == {at: given[at] for at in rows}
                asked |= {seed << 40 | at for at in rows & large}


class Watched(PreFilter):
    """Counts how often it was asked for."""

    def __init__(self) -> None:
        super().__init__(PREFILTER_BYTES_MIN)
        self.lends = 0

    def lend(self) -> Any:
        self.lends += 1
        return super().lend()


def test_a_tasks_segment_is_freed_at_its_end_and_after_an_error(tmp_path: Path) -> None:
    held = in_flight(tmp_path, 3, record_bytes=8 * PREFILTER_BYTES_MIN)
    place = replace(held.place, limits=Limits(prefilter_bytes=PREFILTER_BYTES_MIN))
    task = held.task(0, held.relay.end, 0)

    def freed(prefilter: PreFilter) -> None:
        assert not prefilter.allocated
        assert not prefilter.lent
        with pytest.raises(InvariantBroken, match="after its end"):
            prefilter.lend()

    whole, left, failed = PreFilter(PREFILTER_BYTES_MIN), PreFilter(PREFILTER_BYTES_MIN), PreFilter(PREFILTER_BYTES_MIN)
    assert list(kept_rows(place, task, prefilter=whole))
    freed(whole)
    rows = kept_rows(place, task, prefilter=left)
    next(rows)
    assert left.allocated
    rows.close()  # type: ignore[attr-defined]
    freed(left)
    data = segments_of(place.state)(task.segments[-1].name)[0].data_path
    raw = data.read_bytes()
    data.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    with pytest.raises(Corrupt, match="checksum is wrong"):
        list(kept_rows(place, task, prefilter=failed))
    freed(failed)


def test_prepared_transactions_are_read_through_the_one_segment(tmp_path: Path) -> None:
    """Whether they lie in the segment of their COMMIT or aside; the window around the COMMIT is given back for them, and read again."""
    large = Limits(prefilter_bytes=PREFILTER_BYTES_MIN, assembly_bytes=100)
    found = set()
    for seed in range(12):
        held = in_flight(tmp_path / str(seed), seed, record_bytes=3 * PREFILTER_BYTES_MIN, xa=True)
        task = held.task(0, held.relay.end, 0)
        found |= {decided.aside for decided in task.committed if decided.group.bytes > PREFILTER_BYTES_MIN}
        prefilter = Watched()
        assert sorted(Recovery(replace(held.place, limits=large), task, prefilter).run()) == held.expected()
        assert prefilter.lends > held.relay.end // PREFILTER_BYTES_MIN
    assert found == {False, True}


def test_what_is_covered_is_neither_put_together_nor_spilled(tmp_path: Path) -> None:
    nothing = Limits(prefilter_bytes=PREFILTER_BYTES_MIN, assembly_bytes=1, spill_bytes_max=1)
    for seed in range(5):
        held = in_flight(tmp_path / str(seed), seed, record_bytes=8 * PREFILTER_BYTES_MIN, packed=False)
        place, end = replace(held.place, limits=nothing), held.relay.end
        assert Recovery(place, held.task(0, end, covered=end)).run() == []
        with pytest.raises(SourceDrift, match="raise relay: spill_bytes_max"):
            Recovery(place, held.task(0, end, covered=0)).run()


def test_what_is_covered_is_dropped_though_a_chunk_needs_older_log(tmp_path: Path) -> None:
    """A table's log is read from before what is covered while a read of some of its keys is adopted: only these come again."""
    held = in_flight(tmp_path, 5, record_bytes=500)
    rows = held.history.rows
    ids = sorted(row.id for row in rows)
    low, high = ids[len(ids) // 4], ids[len(ids) // 2]
    covered = held.relay.cuts_between(0, held.relay.end)[-3]
    task = held.task(0, held.relay.end, covered)
    rules = {}
    for table in TABLES:
        made = Incarnation(table, 1)
        extent = KeyEnds(pack_integer(ids[0]), pack_integer(ids[-1]))
        read = Reported(incarnation=made, ordinal=2, job=1, nonce="n", high=0, exact=True, schema=1, files=(), extent=extent)
        span = Span(pack_integer(low), pack_integer(high))
        rules[table] = Rule(
            incarnation=made, after=covered, emits_all=True, adopting=(Adopting(read, visible=0, span=span, replaces=False),)
        )
    sourced = {table: Sourced(shape(table), table.name, keyed=True) for table in TABLES}
    found = [
        row for _, batch in kept_rows(held.place, replace(task, rules=rules, tables=sourced)) for row in batch.column("id").to_pylist()
    ]
    again = {row.id for row in rows if low < row.id <= high and row.position - 4 <= covered}
    assert again
    assert sorted(found) == sorted(again | {row.id for row in rows if row.position - 4 > covered})


def test_a_large_transaction_that_lies_aside_is_fetched_through_the_segment_and_proven(tmp_path: Path) -> None:
    seeds = (in_flight(tmp_path / str(seed), seed, record_bytes=3 * PREFILTER_BYTES_MIN, xa=True) for seed in range(12))
    held, group = next(
        (held, decided.group)
        for held in seeds
        for decided in held.task(0, held.relay.end, 0).committed
        if decided.aside and decided.group.bytes > 2 * PREFILTER_BYTES_MIN
    )
    store = open_store(held.place.state)
    for memory, through in ((group.bytes, False), (group.bytes - 1, True)):
        prefilter = Watched()
        limits = Limits(prefilter_bytes=PREFILTER_BYTES_MIN, assembly_bytes=memory)
        back = take_back(store, group, prefilter, limits)
        assert (back.shares_segment, back.log.size, prefilter.lends) == (through, group.bytes, 0)
        pieces = []
        for at in range(0, group.bytes, PREFILTER_BYTES_MIN):
            pieces.append(back.log.piece(at).tobytes())
            back.log.give_back()
        assert b"".join(pieces) in held.history.data
        assert bool(prefilter.lends) == through
        back.close()
    (part,) = (held.place.state / "held").rglob("*.parts/*")
    raw = part.read_bytes()
    part.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    damaged = take_back(store, group, PreFilter(PREFILTER_BYTES_MIN), limits)
    with pytest.raises(Corrupt, match="a piece of a prepared transaction is damaged"):
        damaged.log.piece(0)
    damaged.close()


class OfThePool(PreFilter):
    """The planted bug: the segment is drawn from the pool that what passes the filter needs."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.recovery: Recovery

    def lend(self) -> Any:
        filtered, pool = self.recovery.filtered, self.recovery.pool
        with filtered._changed:
            filtered._changed.wait_for(lambda: filtered._stopped or pool.has_room(self.size))
            pool.take(self.size)
        return super().lend()

    def give_back(self) -> None:
        super().give_back()
        with self.recovery.filtered._changed:
            self.recovery.pool.give_back(self.size)
            self.recovery.filtered._changed.notify_all()


def test_a_segment_of_the_pool_waits_for_itself_and_the_watchdog_says_so(tmp_path: Path) -> None:
    held = in_flight(tmp_path, 3, record_bytes=8 * PREFILTER_BYTES_MIN)
    least = Limits(prefilter_bytes=PREFILTER_BYTES_MIN, pool_bytes=POOL_BYTES_MIN)
    place, task = replace(held.place, limits=least), held.task(0, held.relay.end, 0)
    planted = OfThePool(PREFILTER_BYTES_MIN)
    planted.recovery = Recovery(place, task, planted)
    with pytest.raises(Stuck, match=f"holds {POOL_BYTES_MIN} of {POOL_BYTES_MIN} bytes, 0 batches wait"):
        planted.recovery.run(patience_s=3)
    assert sorted(Recovery(place, task).run()) == held.expected()


def peak_bytes(folder: Path, events: int) -> int:
    """The most memory at once that a task takes for a transaction of so many row events of 7 KiB, Arrow's included."""
    folder.mkdir()
    held = recovery.make(folder, 1, events=events)
    place = replace(held.place, limits=Limits(prefilter_bytes=1 << 16, pool_bytes=1 << 18, rows_per_batch=500))
    rows = arrow = 0
    before = pa.total_allocated_bytes()
    tracemalloc.start()
    try:
        found: Filtered[Kept] = Filtered(lambda: kept_rows(place, held.task(0, held.relay.end, 0)), kept_bytes, Pool(1 << 18))
        with found as batches:
            for _, batch in batches:
                rows += batch.num_rows
                arrow = max(arrow, pa.total_allocated_bytes() - before)
        assert rows == events * recovery.EVENT_ROWS
        return tracemalloc.get_traced_memory()[1] + arrow
    finally:
        tracemalloc.stop()


def test_a_tasks_memory_does_not_depend_on_the_size_of_a_transaction(tmp_path: Path) -> None:
    peak_bytes(tmp_path / "warm", 10)
    small, large = peak_bytes(tmp_path / "small", 1000), peak_bytes(tmp_path / "large", 6000)
    # How far the two threads are apart makes the difference, never the transactions, which have 7 and 42 MiB.
    assert large < small + (4 << 20), f"{small} and {large} bytes"
