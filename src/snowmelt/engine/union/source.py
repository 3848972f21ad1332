"""The data source `snowmelt.fluss`: a Fluss table as a DataFrame, from the lake and from the log that the lake does not have yet.

Spark asks for the schema when a DataFrame is made, and for the plan when it is first used; each in a short-lived process. So a DataFrame
shows the table as of its first use, also when it is used again, and a new one shows it as of then. `docs/guide.md` has examples.

Values are never changed to fit: a value that Spark's types can't hold is an error of its task.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
from pyspark import __version__ as spark_version
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import to_arrow_schema

from snowmelt.engine.union.datasource import DataSource, DataSourceReader, InputPartition
from snowmelt.engine.union.options import parse_options
from snowmelt.engine.union.plan import UnionTask, narrowed, plan_tasks, read_schema_of
from snowmelt.engine.union.tasks import run_task
from snowmelt.errors import InvalidConfig
from snowmelt.fluss.formats.types import FlussType, Root

FORMAT: Final = "snowmelt.fluss"

_SAME: Final[Mapping[Root, spark.DataType]] = {
    Root.BOOLEAN: spark.BooleanType(),
    Root.TINYINT: spark.ByteType(),
    Root.SMALLINT: spark.ShortType(),
    Root.INTEGER: spark.IntegerType(),
    Root.BIGINT: spark.LongType(),
    Root.FLOAT: spark.FloatType(),
    Root.DOUBLE: spark.DoubleType(),
    Root.CHAR: spark.StringType(),
    Root.STRING: spark.StringType(),
    Root.BINARY: spark.BinaryType(),
    Root.BYTES: spark.BinaryType(),
    Root.DATE: spark.DateType(),
    Root.TIMESTAMP: spark.TimestampNTZType(),
    Root.TIMESTAMP_LTZ: spark.TimestampType(),
}


class FlussSource(DataSource):
    """`spark.dataSource.register(snowmelt.FlussSource)`, then `spark.read.format("snowmelt.fluss")`."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> Any:
        options = parse_options(self.options)
        columns = narrowed(read_schema_of(options), options.columns).columns
        return spark.StructType(
            [spark.StructField(column.name, _type(column.name, column.type), column.type.nullable) for column in columns]
        )

    def reader(self, schema: Any) -> UnionReader:
        return UnionReader(dict(self.options), schema)


class UnionReader(DataSourceReader):
    """Made by the planning process and pickled for the tasks before it has planned: all that tasks need is in their partitions."""

    def __init__(self, options: Mapping[str, str], schema: Any) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        options = parse_options(self._options)
        held = {column.name: _type(column.name, column.type) for column in narrowed(read_schema_of(options), options.columns).columns}
        for field in self._schema.fields:
            if held.get(field.name) != field.dataType:
                found = held[field.name].simpleString() if field.name in held else "not there"
                raise InvalidConfig(
                    "a Fluss table does not have a column as it is to be read",
                    detail=f"{options.table}: {field.name} {field.dataType.simpleString()}, it is {found}",
                    hint="was it made anew? leave the schema out, it is asked for",
                )
        # The parent of this process, which ends soon, is Spark's own process or ends with it.
        return [InputPartition(task) for task in plan_tasks(options, os.getppid())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        task = partition.value
        if not isinstance(task, UnionTask):
            # Spark runs one task even if there is nothing to read.
            return
        schema = to_arrow_schema(self._schema, timezone="UTC")
        for batch in run_task(parse_options(self._options), task, schema.names):
            arrays = [_fitted(batch.column(place), field) for place, field in enumerate(schema)]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _type(name: str, kind: FlussType) -> Any:
    """`name`: the column's, for an error. Everything inside a value may be NULL, whatever Fluss says: Spark's own conversion to Arrow
    fails at a NULL row with a field that is declared not NULL."""
    match kind.root:
        case Root.TIME:
            if not hasattr(spark, "TimeType"):
                raise InvalidConfig(
                    "Spark has a type for times of day since 4.1",
                    detail=f"column {name}, pyspark {spark_version}",
                    hint="name the other columns in the option columns, or pip install 'pyspark>=4.1,<4.4'",
                )
            return spark.TimeType(3)
        case Root.DECIMAL:
            return spark.DecimalType(kind.precision, kind.scale)
        case Root.ARRAY:
            return spark.ArrayType(_type(name, kind.children[0]))
        case Root.MAP:
            return spark.MapType(*(_type(name, child) for child in kind.children))
        case Root.ROW:
            fields = zip(kind.names, kind.children, strict=True)
            return spark.StructType([spark.StructField(field, _type(name, child)) for field, child in fields])
        case _:
            return _SAME[kind.root]


def _fitted(array: pa.Array, field: pa.Field) -> pa.Array:
    try:
        return array if array.type == field.type else array.cast(field.type)
    except pa.ArrowInvalid:
        # Its text quotes the value.
        raise InvalidConfig(
            "a value does not fit into Spark's type",
            detail=f"column {field.name}: {array.type} into {field.type}",
            hint="Spark's timestamps have microseconds; name the other columns in the option columns",
        ) from None
