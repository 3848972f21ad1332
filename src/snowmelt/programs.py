"""For programs: a pipeline as an object, and its lake tables as DataFrames. `snowmelt.Pipeline` and `snowmelt.read` are these,
and so is `snowmelt.union_read`, for tables of Apache Fluss.

for progress in snowmelt.Pipeline(spark, "pipeline.yaml").run():
    print(progress.epoch, progress.rows)

orders = snowmelt.read(spark, "ods.orders", warehouse="/data/lake")
live = snowmelt.union_read(spark, "shop.orders", bootstrap="fluss:9123", warehouse="/data/lake")
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakSet

import pyarrow as pa

from snowmelt.config import PipelineConfig, read_pipeline
from snowmelt.engine.driver import pipeline as engine
from snowmelt.engine.driver.settings import Settings
from snowmelt.engine.loop.driver import Progress
from snowmelt.engine.union.options import LEASE_S
from snowmelt.errors import InvalidConfig, SourceDrift
from snowmelt.sinks.contract import ReadShare
from snowmelt.sinks.registry import open_reader
from snowmelt.supervise.restarts import supervise

log = logging.getLogger(__name__)

_READER = "snowmelt-reader"


class Pipeline:
    """A pipeline on a Spark session of yours. Errors that pass by themselves start a new driver; any other ends the run and is raised."""

    def __init__(self, spark: Any, config: str | Path | PipelineConfig | Settings) -> None:
        """`config` is a pipeline file, or what one says. Nothing is asked of any server yet."""
        if isinstance(config, str | Path):
            config = read_pipeline(config)
        self._spark = spark
        self._settings = config.to_settings() if isinstance(config, PipelineConfig) else config

    def run(self) -> Iterator[Progress]:
        """Run, and tell a few times a second how far it is. Leaving the loop finishes the epoch under way."""
        yield from self._run(until_current=False)

    def run_until_current(self) -> Progress:
        """Run until every table is copied and the lake has what the database had at the start."""
        last = Progress()
        for progress in self._run(until_current=True):
            last = progress
        return last

    def _run(self, *, until_current: bool) -> Iterator[Progress]:
        told: queue.SimpleQueue[Progress | BaseException | None] = queue.SimpleQueue()
        asked = threading.Event()

        def work() -> None:
            try:
                make = lambda: engine.PipelineDriver(self._spark, self._settings)  # noqa: E731
                supervise(make, _Teller(told.put), asked, until_current=until_current)
            except BaseException as error:
                told.put(error)
            else:
                told.put(None)

        thread = threading.Thread(target=work, name="snowmelt-pipeline")
        thread.start()
        try:
            while (progress := told.get()) is not None:
                if isinstance(progress, BaseException):
                    raise progress
                yield progress
        finally:
            asked.set()
            thread.join()


class _Teller:
    """A watcher that passes on what it sees."""

    def __init__(self, tell: Callable[[Progress], None]) -> None:
        self._tell = tell

    def begin(self) -> None:
        pass

    def look(self, progress: Progress, *, final: bool = False) -> None:
        self._tell(progress)

    def note(self, event: str, text: str) -> None:
        log.log(logging.WARNING if event == "warning" else logging.INFO, text)

    def end(self) -> None:
        pass


def read(spark: Any, table: str, *, warehouse: str, snapshot: int | None = None) -> Any:
    """A lake table as a DataFrame, at its newest snapshot or at the one that is named, read by Spark's workers and without any jar.

    The snapshot is fixed when this is called: what the pipeline commits later does not show. Columns are those of today, NULL in rows that
    are older than a column; `_seq` is there too, and change tables have further columns of ours (see the user guide). Workers need the
    driver's Python and this package: PYSPARK_PYTHON says which.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    lake = open_reader(warehouse, user=_READER)
    if table.count(".") != 1 or not lake.exists(table):
        hint = "a name is database.table; is the warehouse the right one?"
        raise InvalidConfig("there is no such lake table", detail=f"{table} in {warehouse}", hint=hint)
    number = snapshot if snapshot is not None else lake.newest(table)
    schema = pa.schema([field.with_type(_for_spark(field.type)) for field in lake.columns(table)])
    try:
        shares = lake.shares(table, number) if number else []
    except SourceDrift:
        raise InvalidConfig("a lake table has no such snapshot", detail=f"{table}: {number}", hint="it may be expired") from None
    if not shares:
        return spark.createDataFrame([], from_arrow_schema(schema))
    frame = spark.range(0, len(shares), 1, len(shares))
    return frame.mapInArrow(_reading(warehouse, table, number, schema, shares), from_arrow_schema(schema))


def _for_spark(kind: pa.DataType) -> pa.DataType:
    """Spark's timestamps have microseconds, and it has no times of day. What is inside of a value may be NULL: Spark's own conversion to
    Arrow fails at a struct that is NULL if a field in it must not be."""
    if pa.types.is_list(kind):
        return pa.list_(_for_spark(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(_for_spark(kind.key_type), _for_spark(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _for_spark(field.type)) for field in kind])
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    return pa.int32() if pa.types.is_time32(kind) else kind


def _reading(
    warehouse: str, table: str, snapshot: int, schema: pa.Schema, shares: Sequence[ReadShare]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for index in batch.column(0).to_pylist():
                # By name: the table may be altered before this runs.
                lake = open_reader(warehouse, user=_READER)
                for rows in lake.read(table, snapshot, schema.names, [shares[index]]):
                    # Nanoseconds are cut off: there is no column of Spark's that could hold them.
                    arrays = [rows.column(field.name).cast(field.type, safe=False) for field in schema]
                    yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    return work


_registered: WeakSet[Any] = WeakSet()


def union_read(
    spark: Any,
    table: str,
    *,
    bootstrap: str,
    warehouse: str,
    username: str = "",
    password: str = "",
    columns: Sequence[str] = (),
    lease_s: float = LEASE_S,
    remote: Mapping[str, str] | None = None,
) -> Any:
    """A table of Apache Fluss as a DataFrame: what the lake has of it, and from Fluss what the lake does not have yet, merged by key.

    It shows the table as it is when the DataFrame is first used; make another to see it anew. A table that was never tiered is read from
    its KV snapshots and their log; Fluss then keeps those until the query is over, which must be within `lease_s` seconds. `username` and
    `password`: where Fluss asks for a login; the password by reference, `${NAME}` or `file:/path`, which each machine must know.
    `remote`: options of obstore for Fluss' remote storage, secrets by reference. It is the data source `snowmelt.fluss` with these options.
    """
    from snowmelt.engine.union.source import FORMAT, FlussSource

    options = {"table": table, "bootstrap": bootstrap, "warehouse": warehouse, "columns": ",".join(columns), "lease": str(lease_s)}
    options |= {name: value for name, value in (("username", username), ("password", password)) if value}
    options |= {f"remote.{name}": value for name, value in (remote or {}).items()}
    # Asked for here, where errors are ours and not Spark's account of them.
    schema = FlussSource(options).schema()
    if spark not in _registered:
        # Twice is fine, but Spark warns of it.
        spark.dataSource.register(FlussSource)
        _registered.add(spark)
    return spark.read.format(FORMAT).schema(schema).options(**options).load()
