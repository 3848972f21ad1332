"""The upkeep of lake tables in a bucket: what is a path on a local disk is a request there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from snowmelt.sinks.paimon.maintenance.care import PaimonMaintenance
from snowmelt.sinks.paimon.references import referenced_paths
from snowmelt.sinks.paimon.sink import PaimonSink
from snowmelt.sinks.warehouse import Warehouse
from tests.integration.maintained import compact_all, expire_seen
from tests.integration.paimon_tables import BUCKETS, KEYED, PLAIN, SCHEMA, bring, read
from tests.kit.s3 import BUCKET, KEY_ID, PASSWORD, S3Server, s3_server


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


def test_tables_in_a_bucket_are_compacted_expired_and_cleaned(s3: S3Server) -> None:
    options = {
        "s3.endpoint": s3.endpoint,
        "s3.region": "us-east-1",
        "s3.path.style.access": "true",
        "s3.access-key": KEY_ID,
        "s3.secret-key": PASSWORD,
    }
    warehouse = Warehouse(f"s3://{BUCKET}/maintained", tuple(options.items()))
    lake, care = PaimonSink(warehouse, user="snowmelt"), PaimonMaintenance(warehouse)
    lake.create(KEYED, SCHEMA, ["id"], buckets=BUCKETS)
    lake.create(PLAIN, SCHEMA, [], buckets=BUCKETS)
    for epoch in range(1, 9):
        bring(lake, epoch, KEYED, *[(key, str(epoch) if (key + epoch) % 5 else None, 2 * epoch) for key in range(6)])
        bring(lake, epoch, PLAIN, (epoch, "x", epoch))
    for target in (KEYED, PLAIN):
        rows = read(lake, target)
        assert isinstance(compact_all(care, target)[0], int)
        assert read(lake, target) == rows
        table = lake.table(target)
        folder = f"{table.table_path}/consumer"
        for status in table.file_io.list_status(folder):
            table.file_io.delete(f"{folder}/{status.base_name}")
        before = _files(lake, target)
        numbers = [facts.number for facts in care.history(target).snapshots]
        told = expire_seen(care, target, numbers[:-1])
        assert told.snapshots == len(numbers) - 1
        assert told.files == len(before - _files(lake, target)) > 0
        assert _files(lake, target) == referenced_paths(table, metadata=True)
        assert read(lake, target) == rows
        with table.file_io.new_output_stream(f"{table.table_path}/bucket-0/stray.parquet") as stray:
            stray.write(b"x")
        assert list(care.orphans(target, before_ms=2**62, ours=lambda _: False)) == ["bucket-0/stray.parquet"]
        assert list(care.orphans(target, before_ms=0, ours=lambda _: False)) == []
        assert care.delete(target, ["bucket-0/stray.parquet", "bucket-0/absent.parquet"]) == 1
        assert read(lake, target) == rows


def _files(lake: PaimonSink, target: str) -> set[str]:
    """Data files and manifests."""
    table = lake.table(target)
    folders = ["manifest", *(f"bucket-{number}" for number in range(BUCKETS))]
    return {f"{folder}/{found.base_name}" for folder in folders for found in table.file_io.list_status(f"{table.table_path}/{folder}")}
