"""The writers of a log task share one budget: its memory does not depend on its tables, and its rows do not depend on the budget."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from snowmelt.databases.mysql.log.events import Event
from snowmelt.driving.entries import Emptied
from snowmelt.engine.tasks.log import run_log
from snowmelt.relay.limits import WRITERS_BYTES_MIN, Limits
from snowmelt.sinks.paimon.sink import PaimonSink
from snowmelt.sinks.paimon.table import messages_of
from tests.integration.log_tasks import BUCKETS, Made, growth_bytes, make, row, sourced
from tests.integration.paimon_tables import entry_of, intent_of, read_columns

KEYS = 40
EVENT_ROWS = 40
OTHERS_BYTES = 40 << 20
"""What a task takes besides its writers, with the least pool and segment, and what allocators keep."""
KEYED = [sourced(f"t{number}") for number in range(4)]
CHANGES = sourced("changes", keyed=False)
Rows = dict[int, tuple[int, bytes]]


class Changes:
    """Random changes of a few keys, each of them many times, and what becomes of them."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self.rows: list[Rows] = [{} for _ in [*KEYED, CHANGES]]
        self.changes: list[tuple[str, int, bytes]] = []

    def transaction(self, events: int) -> Iterator[tuple[int, Event, bytes]]:
        for _ in range(events):
            index = self._chance.randrange(len(self.rows))
            yield (index, *self._event(index))

    def _event(self, index: int) -> tuple[Event, bytes]:
        rows, chance = self.rows[index], self._chance
        there = sorted(rows)
        absent = [key for key in range(KEYS) if key not in rows]
        kind = chance.choice([Event.WRITE_ROWS_V1, Event.UPDATE_ROWS_V1, Event.UPDATE_ROWS_V1, Event.DELETE_ROWS_V1])
        if (kind == Event.WRITE_ROWS_V1 and absent) or not there:
            chosen = chance.sample(absent, chance.randint(1, min(8, len(absent))))
            return Event.WRITE_ROWS_V1, b"".join(self._put(index, "insert", key) for key in chosen)
        chosen = chance.sample(there, chance.randint(1, min(8, len(there))))
        if kind == Event.DELETE_ROWS_V1 and len(there) > KEYS // 2:
            return kind, b"".join(self._take(index, "delete", key) for key in chosen)
        images = b""
        for key in chosen:
            to = chance.choice(absent) if absent and chance.random() < 0.3 else key
            absent = [one for one in absent if one != to]
            images += self._take(index, "update_before", key) + self._put(index, "update_after", to)
        return Event.UPDATE_ROWS_V1, images

    def _put(self, index: int, op: str, key: int) -> bytes:
        price, value = self._chance.randrange(1000), self._chance.randbytes(self._chance.choice([3, 90, 400]))
        self.rows[index][key] = (price, value)
        return self._told(index, op, key, price, value)

    def _take(self, index: int, op: str, key: int) -> bytes:
        return self._told(index, op, key, *self.rows[index].pop(key))

    def _told(self, index: int, op: str, key: int, price: int, value: bytes) -> bytes:
        if index == len(KEYED):
            self.changes.append((op, key, value))
        return row(key, price, value)


def written(made: Made, warehouse: Path, limits: Limits) -> tuple[PaimonSink, int]:
    """A lake with what one task stages of it all, and in how many files."""
    lake = made.lake(warehouse)
    emptied = Emptied(CHANGES.table.id, CHANGES.target, 0, 1000)
    answer = run_log(made.place(warehouse, limits), replace(made.task(), emptied=(emptied,)))
    assert set(answer.messages) == {source.target for source in made.tables}
    for source in made.tables:
        messages = messages_of(lake.table(source.target), answer.messages[source.target])
        # One of each bucket, whatever number of files it names: a table has one writer.
        assert sorted(message.bucket for message in messages) == (list(range(BUCKETS)) if source.keyed else [0])
        files = tuple(file.file_name for message in messages for file in message.new_files)
        assert sorted(files) == sorted(file.name for file in answer.message.files if file.target == source.target)
        entry = replace(entry_of(lake, source.target), files=files, messages=answer.messages[source.target])
        lake.commit(intent_of(1, entry), entry)
    return lake, len(answer.message.files)


@pytest.mark.parametrize("seed", range(2))
def test_rows_are_the_same_whatever_the_budget(tmp_path: Path, seed: int) -> None:
    changes = Changes(seed)
    made = make(tmp_path, [*KEYED, CHANGES], [changes.transaction(60), changes.transaction(3), changes.transaction(60)])
    windows = Limits(prefilter_bytes=4096, rows_per_batch=20)
    files = []
    for budget in (WRITERS_BYTES_MIN, 30_000, 200_000, windows.writers_bytes):
        lake, count = written(made, tmp_path / str(budget), replace(windows, writers_bytes=budget))
        files.append(count)
        for source, rows in zip(KEYED, changes.rows, strict=False):
            expected = [{"id": key, "price": Decimal(price), "v": value} for key, (price, value) in sorted(rows.items())]
            assert read_columns(lake, source.target) == expected, (budget, source.target)
        assert change_rows(lake) == [("truncate", None, None), *changes.changes], budget
    # Each table was written several times inside of a transaction, but for the last budget: that holds all.
    assert files[0] > files[1] > files[2] > files[3] == BUCKETS * len(KEYED) + 1


def change_rows(lake: PaimonSink) -> list[tuple[Any, ...]]:
    builder = lake.table(CHANGES.target).new_read_builder()
    found = builder.new_read().to_arrow(builder.new_scan().plan().splits()).to_pylist()
    return [(one["_op"], one["id"], one["v"]) for one in sorted(found, key=lambda one: (one["_seq"], one["_ordinal"]))]


def large(folder: Path, tables: int, size: int) -> Made:
    """One transaction of at least so many bytes, over so many tables, whose events take turns."""
    value = random.Random(tables).randbytes(1000)

    def changed() -> Iterator[tuple[int, Event, bytes]]:
        for number in range(-(-size // (EVENT_ROWS * len(value)))):
            first = EVENT_ROWS * number
            yield number % tables, Event.WRITE_ROWS_V1, b"".join(row(key, 1, value) for key in range(first, first + EVENT_ROWS))

    return make(folder, [sourced(f"t{number}") for number in range(tables)], [changed()])


@pytest.mark.parametrize("tables", [1, 50, 500])
def test_the_memory_of_a_task_does_not_depend_on_its_tables(tmp_path: Path, tables: int) -> None:
    made = large(tmp_path / "large", tables, 100 << 20)
    # The fewest files that can be: each takes some milliseconds.
    made.lake(tmp_path / "lake", buckets=1)
    limits = Limits(prefilter_bytes=1 << 20, pool_bytes=1 << 20, writers_bytes=36 << 20)
    place = made.place(tmp_path / "lake", limits)
    # What a process takes once is no part of it.
    first = large(tmp_path / "first", 1, 1)
    grown = growth_bytes(tmp_path / "tasks", (replace(place, state=first.log.place.state), first.task()), (place, made.task()))
    assert grown < limits.writers_bytes + OTHERS_BYTES, f"{grown >> 20} MiB"
