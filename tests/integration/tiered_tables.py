"""Fluss tables as Paimon tables: made, written and committed as rounds do it, by processes that may be killed."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa

from snowmelt.errors import Fenced
from snowmelt.sinks.paimon.tiering import CHANGE, OFFSET, TIMESTAMP, PaimonTieringSink
from snowmelt.sinks.tiering import LakeColumn, LakeShape
from snowmelt.tiering.fence import Base
from tests.integration.paimon_tables import READERS, Process

ORDERS, EVENTS, DAYS = "shop.orders", "shop.events", "shop.days"
OWN = (LakeColumn("id", "BIGINT NOT NULL"), LakeColumn("v", "STRING"))
PROPERTIES = {"table.datalake.enabled": "true", "paimon.file.format": "parquet", "table.datalake.paimon.x": "y", "owner": "me"}
SHAPES = {
    ORDERS: LakeShape(columns=OWN, key=("id",), bucket_key=("id",), buckets=2, properties=PROPERTIES),
    EVENTS: LakeShape(columns=OWN, buckets=2),
    DAYS: LakeShape(
        columns=(*OWN, LakeColumn("day", "STRING NOT NULL")), key=("id", "day"), partition_key=("day",), bucket_key=("id",), buckets=2
    ),
}
IN_0, IN_1 = (1, 2, 4, 5, 6), (0, 3, 7)
"""Keys by the bucket that Paimon puts them in."""
INSERT, BEFORE, AFTER, DELETE = 0, 1, 2, 3
SNAPSHOT = -1
"""The offset of rows that come from a KV snapshot."""

Change = tuple[int, str | None, int, int]
"""Key, value, kind of change and offset."""


def open_sink(warehouse: Path | str) -> PaimonTieringSink:
    lake = PaimonTieringSink(str(warehouse))
    for target, shape in SHAPES.items():
        lake.ensure(target, shape)
    return lake


def table_of(lake: PaimonTieringSink, target: str) -> Any:
    return lake._table(target)


def folder(lake: PaimonTieringSink, target: str) -> Path:
    return Path(str(table_of(lake, target).table_path))


def rows_of(*keys: int, value: str = "x", start: int = 0) -> list[Change]:
    """An insert each, one offset behind the other."""
    return [(key, value, INSERT, start + place) for place, key in enumerate(keys)]


def batch(changes: Sequence[Change], *, day: str | None = None) -> pa.RecordBatch:
    """Rows as the readers of Fluss hand them out."""
    columns: dict[str, pa.Array] = {
        "id": pa.array([key for key, _, _, _ in changes], pa.int64()),
        "v": pa.array([value for _, value, _, _ in changes], pa.string()),
    }
    if day is not None:
        columns["day"] = pa.array([day] * len(changes), pa.string())
    offsets = [offset for _, _, _, offset in changes]
    columns[OFFSET] = pa.array(offsets, pa.int64())
    columns[TIMESTAMP] = pa.array([-1 if offset < 0 else 1000 + offset for offset in offsets], pa.timestamp("ms", "UTC"))
    columns[CHANGE] = pa.array([kind for _, _, kind, _ in changes], pa.int8())
    return pa.record_batch(list(columns.values()), names=list(columns))


def stage(lake: PaimonTieringSink, target: str, bucket: int, changes: Sequence[Change], *, day: str | None = None) -> tuple[bytes, ...]:
    """What one task leaves."""
    writer = lake.writer(target, bucket, "r1")
    writer.write(batch(changes, day=day))
    return writer.finish()


def base_of(lake: PaimonTieringSink, target: str) -> Base:
    view = lake.view(target)
    return Base(view.identity, view.schema, view.latest)


def bring(lake: PaimonTieringSink, target: str, path: str, *staged: tuple[bytes, ...], base: Base | None = None) -> int:
    """A round whose tasks left these."""
    messages = tuple(message for part in staged for message in part)
    return lake.commit(target, base or base_of(lake, target), path, messages)


def read(lake: PaimonTieringSink, target: str) -> list[tuple[Any, ...]]:
    """Key, value, bucket, offset; sorted. Both of pypaimon's readers agree on it."""
    found = []
    for options in READERS:
        builder = table_of(lake, target).copy(dict(options)).new_read_builder()
        rows = builder.new_read().to_arrow(builder.new_scan().plan().splits())
        names = ["id", "v", "__bucket", OFFSET]
        found.append(sorted(zip(*(rows.column(name).to_pylist() for name in names), strict=True)) if rows is not None else [])
    assert found[0] == found[1]
    return found[0]


def files_in(lake: PaimonTieringSink, target: str) -> set[str]:
    """Data and changelog files that exist."""
    return {path.name for path in folder(lake, target).rglob("*") if path.parent.name.startswith("bucket-")}


def write_offsets(path: Path, table_id: int, ends: Sequence[int]) -> str:
    """As the coordinator does it."""
    path.write_text(json.dumps({"version": 1, "table_id": table_id, "bucket_offsets": list(ends)}))
    return str(path)


# ---- services as processes


@dataclass(frozen=True)
class Job:
    """A round of one log table and one table with a key: stages what is due by the lake's own offsets, and commits it."""

    warehouse: str
    remote: str
    rounds: int
    prelude: Callable[[], None] | None = None
    targets: tuple[str, ...] = (ORDERS, EVENTS)

    def __call__(self, pipe: Connection) -> None:
        lake = PaimonTieringSink(self.warehouse)
        pipe.send("ready")
        pipe.recv()
        if self.prelude is not None:
            self.prelude()
        for _ in range(self.rounds):
            for target in self.targets:
                try:
                    pipe.send(run_round(lake, target, Path(self.remote)))
                except Fenced:
                    pipe.send("fenced")
        pipe.send("end")


def serve(job: Job) -> Process:
    return Process(job)


ROUND_ROWS = 4


def changes_of(target: str, start: int, stop: int) -> list[Change]:
    """The log of our tables: in that of events each offset is a row; in that of orders one key is set by every one of them, and each
    round sets one key of its own and deletes that of the round before."""
    if target == EVENTS:
        return [(offset, str(offset), INSERT, offset) for offset in range(start, stop)]
    hot, *own = IN_0
    found: list[Change] = []
    for offset in range(start, stop):
        number, at = divmod(offset, ROUND_ROWS)
        key, before = own[number % len(own)], own[(number - 1) % len(own)]
        found.append(
            (
                (hot, str(offset), BEFORE, offset),
                (hot, str(offset), AFTER, offset),
                (before, None, DELETE, offset),
                (key, str(offset), INSERT, offset),
            )[at]
        )
    return found


def table_at(target: str, stop: int) -> list[tuple[Any, ...]]:
    """What a lake must have that has everything below `stop`."""
    rows: dict[int, tuple[str | None, int]] = {}
    for key, value, kind, offset in changes_of(target, 0, stop):
        if kind in (INSERT, AFTER):
            rows[key] = (value, offset)
        else:
            rows.pop(key, None)
    return sorted((key, value, 0, offset) for key, (value, offset) in rows.items())


def reached(lake: PaimonTieringSink, target: str) -> int:
    """Up to where the lake says it is."""
    newest = lake.view(target).newest
    return 0 if newest is None else next(iter(lake.offsets(newest.path).ends.values()))


def run_round(lake: PaimonTieringSink, target: str, remote: Path) -> int:
    """All of bucket 0, from where the lake is."""
    view = lake.view(target)
    start = 0 if view.newest is None else next(iter(lake.offsets(view.newest.path).ends.values()))
    stop = start + ROUND_ROWS
    staged = stage(lake, target, 0, changes_of(target, start, stop))
    path = remote / f"{uuid4()}.offsets"
    base = Base(view.identity, view.schema, view.latest)
    try:
        lake.commit(target, base, write_offsets(path, 1, [stop]), staged)
    except Fenced:
        lake.clean(target, view.identity, staged)
        raise
    return stop
