"""How the writers of a task share one budget."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from snowmelt.commit.records import Staged
from snowmelt.engine.tasks.writers import Writers
from snowmelt.errors import InvariantBroken, TableStuck, Unavailable
from snowmelt.model.table import TableId

NAMES = {f"ods.t{number}": TableId("d", f"t{number}") for number in range(6)}
FIELDS = [pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.binary())]


class Written:
    """A writer that tells what it is given. It is opened once and ends once."""

    def __init__(self, all_of_them: dict[str, Written], target: str) -> None:
        assert target not in all_of_them, "a table has one writer"
        all_of_them[target] = self
        self.writes: list[list[int]] = []
        self.ended = False

    def write(self, batch: pa.RecordBatch) -> None:
        assert not self.ended
        self.writes.append(batch.column("id").to_pylist())

    def finish(self) -> Staged:
        self.ended = True
        return Staged(("f",), (b"m",), sum(map(len, self.writes)))


def batch(first: int, rows: int, value_bytes: int = 100, *, fields: list[pa.Field] = FIELDS) -> pa.RecordBatch:
    ids = pa.array(range(first, first + rows), pa.int64())
    return pa.record_batch([ids, pa.array([bytes(value_bytes)] * rows, pa.binary())], schema=pa.schema(fields))


def shared(held_bytes_max: int) -> tuple[Writers, dict[str, Written]]:
    opened: dict[str, Written] = {}
    return Writers(lambda target: Written(opened, target), NAMES, held_bytes_max=held_bytes_max), opened


@pytest.mark.parametrize("seed", range(20))
def test_no_more_waits_than_the_budget_and_rows_keep_their_order(seed: int) -> None:
    chance = random.Random(seed)
    most = chance.choice([1000, 20_000, 200_000])
    writers, opened = shared(most)
    given: dict[str, list[int]] = {}
    number = 0
    for _ in range(200):
        target, rows = chance.choice(list(NAMES)), chance.choice([0, 1, 5, 60])
        writers.write(target, batch(number, rows))
        if rows:
            given.setdefault(target, []).extend(range(number, number + rows))
        number += rows
        assert writers.held_bytes <= most
        waiting = number - sum(len(write) for one in opened.values() for write in one.writes)
        assert 100 * waiting <= writers.held_bytes
    staged = writers.finish()
    assert writers.held_bytes == 0
    assert writers.rows == number
    assert {target: [row for write in one.writes for row in write] for target, one in opened.items()} == given
    assert {target: one.rows for target, one in staged.items()} == {target: len(rows) for target, rows in given.items()}
    assert list(staged) == list(given)
    assert all(one.ended for one in opened.values())


def test_no_more_waits_than_the_budget_and_the_largest_goes_first() -> None:
    writers, opened = shared(12_000)
    writers.write("ods.t0", batch(0, 20))
    writers.write("ods.t1", batch(100, 30))
    writers.write("ods.t1", batch(130, 30))
    assert not opened
    writers.write("ods.t2", batch(200, 30))
    assert {target: one.writes for target, one in opened.items()} == {"ods.t1": [list(range(100, 160))]}
    writers.finish()
    assert {target: len(one.writes) for target, one in opened.items()} == {"ods.t0": 1, "ods.t1": 1, "ods.t2": 1}


def test_a_batch_that_is_larger_than_the_budget_goes_alone_and_after_its_tables_rows() -> None:
    writers, opened = shared(12_000)
    writers.write("ods.t0", batch(0, 20))
    writers.write("ods.t1", batch(100, 20))
    writers.write("ods.t0", batch(20, 500))
    assert opened["ods.t0"].writes == [list(range(20)), list(range(20, 520))]
    assert list(opened) == ["ods.t0"], "the rows of others stay"


def test_rows_of_other_columns_are_not_joined() -> None:
    writers, opened = shared(12_000)
    writers.write("ods.t0", batch(0, 5))
    writers.write("ods.t0", batch(5, 5, fields=[FIELDS[0].with_nullable(True), FIELDS[1]]))
    writers.finish()
    assert opened["ods.t0"].writes == [list(range(5)), list(range(5, 10))]


def test_rows_that_wait_hold_nothing_of_what_they_came_in() -> None:
    writers, _ = shared(12_000)
    large = batch(0, 100_000)
    before = pa.total_allocated_bytes()
    writers.write("ods.t0", large.slice(10, 5))
    assert writers.held_bytes < 2000
    del large
    assert pa.total_allocated_bytes() < before


class Refusing(Written):
    error: Exception

    def write(self, batch: pa.RecordBatch) -> None:
        raise self.error


def test_what_a_table_cant_take_is_that_tables_trouble_whichever_is_being_written() -> None:
    for error, told in ((InvariantBroken("rows do not fit"), TableStuck), (Unavailable("the lake is away"), Unavailable)):
        writers = Writers(lambda target: Refusing({}, target), NAMES, held_bytes_max=12_000)
        Refusing.error = error
        writers.write("ods.t0", batch(0, 60))
        with pytest.raises(told, match=error.fact) as caught:
            writers.write("ods.t1", batch(100, 60))
        if isinstance(caught.value, TableStuck):
            assert caught.value.table == ("d", "t0")
