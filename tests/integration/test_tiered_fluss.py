"""Our lake side beside the real coordinator: its tables are ours, and what it does with words about lake snapshots."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from snowmelt.engine.tiering.listing import lake_shape
from snowmelt.fluss.client import FlussClient
from snowmelt.fluss.formats.types import Column as FlussColumn
from snowmelt.fluss.formats.types import FlussType, Root, Schema
from snowmelt.fluss.server import FlussServer
from snowmelt.fluss.tables import describe_table
from snowmelt.model.fluss import Bucket
from snowmelt.model.table import TableId
from snowmelt.sinks.paimon.tiering import PaimonTieringSink
from snowmelt.sinks.tiering import LakeColumn, LakeShape
from snowmelt.tiering.rounds import KEEP_ALL
from tests.integration.tiered_tables import IN_0, bring, read, rows_of, stage
from tests.integration.tiering import LAKE
from tests.kit.fluss_nested import CHOSEN
from tests.kit.fluss_raw import create_table
from tests.kit.fluss_servers import Tables

OWN = (LakeColumn("id", "BIGINT NOT NULL"), LakeColumn("v", "STRING"))
COLUMNS = pa.schema([("id", pa.int64()), ("v", pa.string())])
PARTITIONED = COLUMNS.append(pa.field("day", pa.string()))


@pytest.fixture
def coordinator(fluss: FlussServer) -> Iterator[FlussClient]:
    with fluss.connect() as connection:
        yield FlussClient(connection)


@pytest.mark.parametrize(
    ("columns", "key", "partitions", "shape"),
    [
        (COLUMNS, ["id"], [], LakeShape(columns=OWN, key=("id",), bucket_key=("id",), buckets=2)),
        (COLUMNS, [], [], LakeShape(columns=(LakeColumn("id", "BIGINT"), LakeColumn("v", "STRING")), buckets=2)),
        (
            PARTITIONED,
            ["id", "day"],
            ["day"],
            LakeShape(
                columns=(*OWN, LakeColumn("day", "STRING NOT NULL")),
                key=("id", "day"),
                partition_key=("day",),
                bucket_key=("id",),
                buckets=2,
            ),
        ),
    ],
    ids=["key", "log", "partitions"],
)
def test_a_table_of_the_coordinators_is_one_that_we_would_make(
    fluss_tables: Tables, coordinator: FlussClient, columns: pa.Schema, key: list[str], partitions: list[str], shape: LakeShape
) -> None:
    path = fluss_tables.make(
        columns=columns, key=key, partitioned_by=partitions, table__datalake__enabled="true", table__datalake__freshness="1h"
    )
    target = f"{path.database}.{path.name}"
    folder = fluss_tables.server.warehouse / f"{path.database}.db" / path.name
    theirs = json.loads((folder / "schema/schema-0").read_text())
    lake = PaimonTieringSink(str(fluss_tables.server.warehouse))
    shape = LakeShape(
        columns=shape.columns,
        key=shape.key,
        partition_key=shape.partition_key,
        bucket_key=shape.bucket_key,
        buckets=shape.buckets,
        properties=coordinator.table_info(path).properties,
    )
    lake.ensure(target, shape)
    if key == ["id"]:
        # Written as it is.
        bring(lake, target, "p1", stage(lake, target, 0, rows_of(*IN_0)))
        assert [row[0] for row in read(lake, target)] == list(IN_0)
    shutil.rmtree(folder)
    lake.ensure(target, shape)
    ours = json.loads((folder / "schema/schema-0").read_text())
    for part in ("partitionKeys", "primaryKeys", "options"):
        assert ours[part] == theirs[part]
    assert [(field["name"], field["type"]) for field in ours["fields"]] == [(field["name"], field["type"]) for field in theirs["fields"]]


def test_a_table_with_nested_columns_has_the_types_and_ids_that_the_coordinator_gives(
    fluss: FlussServer, fluss_tables: Tables, coordinator: FlussClient
) -> None:
    columns = tuple(
        FlussColumn(place, f"c{place}", kind) for place, kind in enumerate((FlussType(root=Root.INTEGER, nullable=False), *CHOSEN))
    )
    path = TableId(fluss_tables.make().database, "nested")
    create_table(fluss, path, Schema(1, columns, ("c0",)), **LAKE | {"table__datalake__freshness": "1h"})
    target = f"{path.database}.{path.name}"
    folder = fluss.warehouse / f"{path.database}.db" / path.name
    theirs = json.loads((folder / "schema/schema-0").read_text())
    lake, shape = PaimonTieringSink(str(fluss.warehouse)), lake_shape(describe_table(coordinator, path))
    lake.ensure(target, shape)
    shutil.rmtree(folder)
    lake.ensure(target, shape)
    ours = json.loads((folder / "schema/schema-0").read_text())
    assert without_nullable(ours["fields"]) == theirs["fields"]
    assert ours["highestFieldId"] == theirs["highestFieldId"]


def without_nullable(part: Any) -> Any:
    """pypaimon says a second time whether a nested value may be NULL; Paimon's own readers take it from the type's text."""
    if isinstance(part, list):
        return [without_nullable(one) for one in part]
    if isinstance(part, dict):
        return {name: without_nullable(one) for name, one in part.items() if name != "nullable"}
    return part


def test_a_word_about_a_lake_snapshot_deletes_what_it_does_not_keep(fluss_tables: Tables, coordinator: FlussClient) -> None:
    """What the simulation believes of it: a late word puts Fluss back, and the file of the newest stays only if it was told so."""
    path = fluss_tables.make(columns=COLUMNS, table__datalake__enabled="true", table__datalake__freshness="1h")
    table = coordinator.table_info(path).table
    files = {}
    for snapshot, end in ((1, 10), (2, 20), (3, 30)):
        offsets = {Bucket(table, 0): end, Bucket(table, 1): 5}
        files[snapshot] = Path(coordinator.prepare_lake_snapshot(table, path, offsets))
        coordinator.commit_lake_snapshot(table, path, snapshot, str(files[snapshot]), offsets, keep_from=max(1, snapshot - 1))
    assert [file.exists() for file in files.values()] == [False, True, True]
    # Late, of a round that began with snapshot 1.
    coordinator.commit_lake_snapshot(table, path, 2, str(files[2]), {}, keep_from=1)
    known = coordinator.lake_snapshot(path)
    assert known is not None
    assert (known.snapshot, known.offsets[Bucket(table, 0)]) == (2, 20)
    assert files[3].exists()
    # The repair, as of a snapshot that Fluss never learned of.
    coordinator.commit_lake_snapshot(table, path, 3, str(files[3]), {}, keep_from=KEEP_ALL)
    assert (coordinator.lake_snapshot(path) or known).snapshot == 3
    assert (coordinator.lake_snapshot(path, readable=True) or known).snapshot == 3
    # What is prepared meanwhile is merged over what it knows.
    merged = coordinator.prepare_lake_snapshot(table, path, {Bucket(table, 1): 7})
    assert PaimonTieringSink(str(fluss_tables.server.warehouse)).offsets(merged).ends == {Bucket(table, 0): 30, Bucket(table, 1): 7}
    # Without a word on what to keep, the late one takes the newest's file along.
    coordinator.commit_lake_snapshot(table, path, 2, str(files[2]), {})
    assert not files[3].exists()
