"""The lake's side: one snapshot of a table, read and hashed by Spark tasks.

A task reads its share of the snapshot's splits in Arrow, and answers with sums, or with the hashes of the rows that are asked for; rows
themselves never leave it, but for the few that are named. A change table is folded: what was added since it was last emptied counts,
what was taken away counts against it.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from snowmelt.databases.comparing.classes import Classes, Parting, Sums
from snowmelt.databases.comparing.digests import Hashes
from snowmelt.databases.comparing.rows import Detail, RowHashes
from snowmelt.databases.contract.comparing import RowForms
from snowmelt.engine.tasks.rows import ADDS, OP, TAKES, TRUNCATE
from snowmelt.engine.tasks.spark_job import run_on_spark
from snowmelt.errors import InvariantBroken, SnowmeltError, SourceDrift, Unavailable
from snowmelt.sinks.contract import SEQUENCE, LakeReader, ReadShare
from snowmelt.sinks.registry import open_reader
from snowmelt.sinks.warehouse import Warehouse

_Answer = TypeVar("_Answer")
_BATCH_ROWS = 65_536
_TASKS_MAX = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeLook:
    """What a task is to read, and what of it is wanted."""

    warehouse: str | Warehouse
    target: str
    snapshot: int
    forms: RowForms
    parting: Parting
    keyed: bool
    shares: tuple[ReadShare, ...] = ()
    """What of the snapshot this task reads."""
    since: int = -1
    """Of a change table: the `_seq` at which it was last emptied."""
    wanted: Classes | None = None
    """Rows of these classes, instead of sums."""
    named: Hashes | None = None
    """Rows of these keys by name, instead of sums."""


@dataclass(slots=True)
class Answer:
    sums: Sums
    rows: RowHashes
    details: dict[int, Detail]


class LakeTable:
    """One lake table at one snapshot; 0 is a table that nothing was ever committed to."""

    def __init__(self, spark: Any, look: LakeLook) -> None:
        self._spark = spark
        self._look = look

    def sums(self) -> Sums:
        total = Sums.zero(self._look.parting.count)
        for answer in self._run(self._look):
            total.merge(answer.sums)
        return total

    def rows(self, wanted: Classes) -> RowHashes:
        return RowHashes.joined([answer.rows for answer in self._run(replace(self._look, wanted=wanted))])

    def details(self, named: Hashes) -> dict[int, Detail]:
        found: dict[int, Detail] = {}
        for answer in self._run(replace(self._look, named=named)):
            found |= answer.details
        return found

    def _run(self, look: LakeLook) -> list[Answer]:
        if not look.snapshot:
            return []
        with self._reading():
            shares = _shares(look)
            tasks = max(1, min(_TASKS_MAX, len(shares)))
            looks = [replace(look, shares=tuple(shares[task::tasks])) for task in range(tasks)]
            if not look.keyed:
                since = max(self._collect(looks, _last_emptied))
                looks = [replace(one, since=since) for one in looks]
            answers: list[Answer] = self._collect(looks, _answer)
        return answers

    def _collect(self, looks: list[LakeLook], run: Callable[[LakeLook], _Answer]) -> list[_Answer]:
        answers = run_on_spark(self._spark, looks, run)
        for error in answers:
            if isinstance(error, SnowmeltError):
                raise self._unreadable(f"{type(error).__name__}: {error}") from error
        return [answer for answer in answers if not isinstance(answer, SnowmeltError)]

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        """What pypaimon or Spark raise, as an error of ours."""
        try:
            yield
        except SnowmeltError:
            raise
        except Exception as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            raise self._unreadable(lines[0] if lines else type(error).__name__) from error

    def _unreadable(self, why: str) -> Unavailable:
        return Unavailable("a lake table can't be read", detail=f"{self._look.target}, snapshot {self._look.snapshot}: {why[:300]}")


def _open(look: LakeLook) -> LakeReader:
    return open_reader(look.warehouse, user="snowmelt-verify")


def _shares(look: LakeLook) -> list[ReadShare]:
    lake = _open(look)
    if not look.keyed and lake.altered(look.target):
        # Rows of before keep the shape that they had, and those that take them away have the new one.
        hint = "read its history by the shapes that its source had"
        raise SourceDrift("a change table that was altered can't be folded", detail=look.target, hint=hint)
    try:
        return lake.shares(look.target, look.snapshot)
    except SourceDrift as error:
        raise Unavailable(error.fact, detail=error.detail, hint=error.hint) from None


def _batches(look: LakeLook, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
    if not look.shares:
        return
    names = columns or [*look.forms.names] + ([] if look.keyed else [OP, SEQUENCE])
    for batch in _open(look).read(look.target, look.snapshot, names, look.shares):
        for at in range(0, batch.num_rows, _BATCH_ROWS):
            yield batch.slice(at, _BATCH_ROWS)


def _last_emptied(look: LakeLook) -> int:
    last = -1
    for batch in _batches(look, [OP, SEQUENCE]):
        emptied = batch.column(SEQUENCE).filter(pc.equal(batch.column(OP), TRUNCATE))
        if len(emptied):
            last = max(last, pc.max(emptied).as_py())
    return last


def _answer(look: LakeLook) -> Answer:
    sums = Sums.zero(look.parting.count if look.wanted is None and look.named is None else 0)
    parts: list[RowHashes] = []
    details: dict[int, Detail] = {}
    for held in _batches(look):
        batch, counts = _folded(look, held)
        keys, rows = look.forms.hash(batch)
        if look.named is not None:
            details |= look.forms.details(batch, keys, rows, look.named)
            continue
        classes = look.parting.classes(batch, keys)
        if look.wanted is None:
            sums.add(classes, rows, counts)
        else:
            mask = np.isin(classes, look.wanted)
            parts.append(RowHashes(keys[mask], rows[mask], counts[mask] if counts is not None else np.ones(int(mask.sum()), np.int64)))
    return Answer(sums, RowHashes.joined(parts), details)


def _folded(look: LakeLook, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, npt.NDArray[np.int64] | None]:
    """The rows that count, and how: a table with a key holds its rows as they are."""
    if look.keyed:
        return batch, None
    operations = batch.column(OP)
    counts = np.zeros(batch.num_rows, np.int64)
    for names, sign in ((ADDS, 1), (TAKES, -1)):
        counts[pc.is_in(operations, pa.array(names, operations.type)).to_numpy(zero_copy_only=False)] = sign
    known = (counts != 0) | pc.equal(operations, TRUNCATE).to_numpy(zero_copy_only=False)
    if not known.all():
        raise InvariantBroken("a change table holds an operation that is not known", detail=look.target)
    kept = (counts != 0) & (batch.column(SEQUENCE).to_numpy() > look.since)
    return batch.filter(pa.array(kept)), counts[kept]


def row_name(row: int) -> str:
    """What a row without a key is called."""
    return hashlib.sha256(str(row).encode()).hexdigest()[:12]
