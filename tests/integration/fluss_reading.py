"""Tables of Fluss with every type and its edge values, and one table read by its snapshots and by its log."""

from __future__ import annotations

import pickle
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa

from snowmelt.fluss.answers import OffsetKind
from snowmelt.fluss.client import FlussClient
from snowmelt.fluss.formats.batches import KIND, OFFSET, TIMESTAMP
from snowmelt.fluss.formats.types import Column, FlussType, Root, Schema
from snowmelt.fluss.log import BucketReader, LogAccess
from snowmelt.fluss.remote import RemoteFiles
from snowmelt.fluss.server import FlussServer, ServerProcess
from snowmelt.fluss.snapshots import SnapshotReader
from snowmelt.fluss.tables import BucketLeader, ReadableTable, describe_table
from snowmelt.model.fluss import Bucket, KvSnapshot, SnapshotFile
from snowmelt.model.table import TableId
from tests.kit.fluss_nested import CHOSEN
from tests.kit.waiting import until

T = FlussType
OURS = (OFFSET, TIMESTAMP, KIND)
EDGES: dict[FlussType, list[Any]] = {
    T(Root.BOOLEAN): [True, False],
    T(Root.TINYINT): [-128, 0, 127],
    T(Root.SMALLINT): [-32768, -1, 32767],
    T(Root.INTEGER): [-(2**31), -1, 0, 128, 2**31 - 1],
    T(Root.BIGINT): [-(2**63), -1, 0, 2**35, 2**63 - 1],
    T(Root.FLOAT): [-1.5, 0.0, float("inf")],
    T(Root.DOUBLE): [-1.5e300, 0.0, float("-inf")],
    T(Root.DECIMAL, precision=1): [-9, 0, 9],
    T(Root.DECIMAL, precision=18, scale=18): [-(10**18) + 1, 0, 10**18 - 1],
    T(Root.DECIMAL, precision=19): [-(10**19) + 1, -128, -1, 0, 127, 128, 10**19 - 1],
    T(Root.DECIMAL, precision=38, scale=20): [-(10**38) + 1, 0, 10**38 - 1],
    T(Root.CHAR, length=3): ["", "abc", "äö€"],
    T(Root.STRING): ["", "x", "€" * 300],
    T(Root.BINARY, length=2): [b"\0\xff"],
    T(Root.BYTES): [b"", b"\xff" * 1000],
    T(Root.DATE): [-719162, -1, 0, 2932896],
    **{T(Root.TIME, precision=precision): [0, 1000, 86_399_000] for precision in (0, 1, 3, 5, 6, 9)},
    **{
        T(root, precision=precision): [(-62135596800000, 0), (-1, 999_000), (0, 0), (1, 1000), (253402300799999, 999_000)]
        for root in (Root.TIMESTAMP, Root.TIMESTAMP_LTZ)
        for precision in (1, 3, 4, 6)
    },
    **{T(root, precision=0): [(-62135596800000, 0), (-1500, 0), (1000, 0)] for root in (Root.TIMESTAMP, Root.TIMESTAMP_LTZ)},
    **{
        T(root, precision=precision): [(-9223372036854, 999_999), (-1, 999_999), (0, 1), (9223372036854, 775_807)]
        for root in (Root.TIMESTAMP, Root.TIMESTAMP_LTZ)
        for precision in (7, 9)
    },
    **CHOSEN,
}


class Reading:
    """One table of a server, read both ways."""

    def __init__(self, server: FlussServer, path: TableId) -> None:
        self.server = server
        self.client = FlussClient(server.connect())
        self.tablet = FlussClient(server.connect(ServerProcess.TABLET))
        self.path = path
        # As a task has it.
        self.table: ReadableTable = pickle.loads(pickle.dumps(describe_table(self.client, path)))

    def ends(self, partition: int | None = None) -> dict[Bucket, int]:
        return self.tablet.offsets(self.table.table, partition, range(self.table.buckets), OffsetKind.LATEST)

    def reader(self, bucket: Bucket, start: int, end: int, **options: Any) -> BucketReader:
        return BucketReader(
            bucket,
            start,
            end,
            access=LogAccess(
                source=BucketLeader(self.path, bucket, lambda: FlussClient(self.server.connect())), remote=RemoteFiles(), **options
            ),
            versions=self.table.versions,
            log_format=self.table.log_format,
        )

    def log(self, bucket: Bucket, start: int = 0, end: int | None = None, **options: Any) -> pa.Table:
        end = self.ends(bucket.partition)[bucket] if end is None else end
        reader = self.reader(bucket, start, end, **options)
        found = pa.Table.from_batches(list(reader.read()), reader.schema)
        found.validate(full=True)
        assert reader.offset == end
        assert found.column(OFFSET).to_pylist() == sorted(found.column(OFFSET).to_pylist())
        return found

    def snapshots(self, partition: tuple[str, int] | None = None) -> dict[Bucket, KvSnapshot]:
        """The newest of each bucket, once they hold all that was written."""
        name, id = partition or (None, None)
        ends = {bucket: end for bucket, end in self.ends(id).items() if end}

        def whole() -> dict[Bucket, KvSnapshot] | None:
            found = dict(self.client.latest_snapshots(self.path, name).snapshots)
            return found if {bucket: one.offset for bucket, one in found.items() if one.offset} == ends else None

        return until(whole)

    def files(self, snapshot: KvSnapshot) -> tuple[SnapshotFile, ...]:
        return self.client.snapshot_files(snapshot.bucket, snapshot.snapshot).files

    def kv(self, snapshot: KvSnapshot, **options: Any) -> pa.Table:
        reader = SnapshotReader(self.table.versions, RemoteFiles(), kv_format=self.table.kv_format, **options)
        found = pa.Table.from_batches(list(reader.read(self.files(snapshot))), reader.schema)
        found.validate(full=True)
        return found

    def all_kv(self, partition: tuple[str, int] | None = None) -> list[dict[str, Any]]:
        return [row for snapshot in self.snapshots(partition).values() for row in plain(self.kv(snapshot))]

    def assert_buckets(self, found: pa.Table, bucket: Bucket) -> None:
        bucketing = self.table.bucketing()
        assert bucketing is not None
        for batch in found.to_batches():
            assert set(bucketing.buckets(batch)) <= {bucket.bucket}


def plain(found: pa.Table) -> list[dict[str, Any]]:
    """Rows without our columns."""
    return found.drop_columns(list(OURS)).to_pylist()


def all_types() -> tuple[Schema, list[list[Any]]]:
    columns = [Column(0, "id", T(Root.INTEGER, nullable=False))]
    columns += [Column(place, f"c{place}", kind) for place, kind in enumerate(EDGES, 1)]
    longest = max(len(values) for values in EDGES.values())
    rows: list[list[Any]] = [[row, *(values[row % len(values)] for values in EDGES.values())] for row in range(longest)]
    rows.append([longest, *[None] * len(EDGES)])
    return Schema(1, tuple(columns), ("id",)), rows


PYFLUSS = pa.schema(
    [
        ("id", pa.int32()), ("flag", pa.bool_()), ("tiny", pa.int8()), ("small", pa.int16()), ("big", pa.int64()), ("f", pa.float32()),
        ("d", pa.float64()), ("name", pa.string()), ("fixed", pa.binary(3)), ("raw", pa.binary()), ("day", pa.date32()),
        ("at", pa.time32("ms")),
        ("ts3", pa.timestamp("ms")), ("ts6", pa.timestamp("us")), ("ts9", pa.timestamp("ns")), ("ltz", pa.timestamp("us", "UTC")),
        ("money", pa.decimal128(12, 2)), ("huge", pa.decimal128(38, 10)),
    ]
)  # fmt: skip


def written(id: int, text: str) -> dict[str, Any]:
    return {
        "id": id, "flag": id % 2 == 0, "tiny": id % 100 - 50, "small": -id, "big": -id * 2**40, "f": id / 4, "d": -id / 3, "name": text,
        "fixed": b"\0\xff" + bytes([id % 256]), "raw": text.encode() * 3, "day": date(1969, 12, 1 + id % 28),
        "at": time(23, 59, 59, 999_000),
        "ts3": datetime(1969, 12, 31, 23, 59, 59, 999_000), "ts6": datetime(2038, 1, 19, 3, 14, 7, 123_456),
        "ts9": datetime(2262, 4, 11, 23, 47, 16, 1), "ltz": datetime(1901, 2, 3, 4, 5, 6, 7 + id, UTC),
        "money": Decimal(f"-{id}.05"), "huge": Decimal("9999999999999999999999999999.9999999999"),
    }  # fmt: skip
