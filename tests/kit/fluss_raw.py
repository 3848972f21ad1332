"""Calls of Fluss that nothing of ours makes, by their bytes, for tests: tables that pyfluss can't describe, and rows that it can't write.

The server reads such rows with its own code to make its log of them, so a row that comes back right from both is written right.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import google_crc32c

from snowmelt.errors import Unavailable
from snowmelt.fluss.answers import OffsetKind
from snowmelt.fluss.client import FlussClient
from snowmelt.fluss.formats.types import FlussType, Schema
from snowmelt.fluss.rpc import GoneFromFluss
from snowmelt.fluss.server import HOST, FlussServer, ServerProcess
from snowmelt.model.table import TableId
from tests.kit.fluss_bytes import compacted_row, varint
from tests.kit.waiting import until

CREATE_TABLE, PUT_KV, ALTER_TABLE = 1005, 1016, 1044


def field(number: int, value: int | bytes | str) -> bytes:
    if isinstance(value, int):
        return varint(number << 3, 32) + varint(value, 64)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2, 32) + varint(len(data), 32) + data


def call(server: FlussServer, part: ServerProcess, key: int, body: bytes) -> bytes:
    with socket.create_connection((HOST, server.port(part)), 30) as connection:
        connection.sendall(struct.pack(">ihhi", 8 + len(body), key, 0, 1) + body)
        with connection.makefile("rb") as answers:
            (length,) = struct.unpack(">i", answers.read(4))
            answer = answers.read(length)
    assert answer[0] == 0, answer
    return answer[5:]


def path_of(table: TableId) -> bytes:
    return field(1, table.database) + field(2, table.name)


def numbered(kind: dict[str, Any], numbers: Iterator[int]) -> dict[str, Any]:
    """A type whose rows' fields have ids, which are unique in a table."""
    for field in kind.get("fields", ()):
        field["field_id"] = next(numbers)
        numbered(field["field_type"], numbers)
    for part in ("element_type", "key_type", "value_type"):
        if part in kind:
            numbered(kind[part], numbers)
    return kind


def create_table(
    server: FlussServer,
    table: TableId,
    schema: Schema,
    *,
    buckets: int = 1,
    bucket_key: Sequence[str] | None = None,
    partition_key: Sequence[str] = (),
    **properties: str,
) -> None:
    """Properties as `Tables.make` takes them."""
    numbers = itertools.count(max(column.id for column in schema.columns) + 1)
    columns = [{"name": column.name, "data_type": numbered(column.type.json, numbers), "id": column.id} for column in schema.columns]
    described = {
        "version": 1,
        "schema": {
            "version": 1,
            "columns": columns,
            **({"primary_key": schema.primary_key} if schema.primary_key else {}),
            "highest_field_id": next(numbers) - 1,
        },
        "partition_key": list(partition_key),
        "bucket_key": list(schema.primary_key if bucket_key is None else bucket_key),
        "bucket_count": buckets,
        "properties": {name.replace("__", ".").replace("_", "-"): value for name, value in properties.items()},
        "custom_properties": {},
    }
    body = field(1, path_of(table)) + field(2, json.dumps(described)) + field(3, 0)
    make_led(server, table, 0 if partition_key else buckets, lambda: call(server, ServerProcess.COORDINATOR, CREATE_TABLE, body))


def make_led(server: FlussServer, table: TableId, buckets: int, make: Callable[[], object]) -> None:
    """A new table whose buckets have leaders; none: one whose partitions will have them.

    Of one table in a hundred Fluss 0.9's coordinator never hears, and that one is made again. A partition of such a table would be the end
    of its coordinator, and only its log tells.
    """

    def led() -> bool:
        if not buckets:
            return f"New table: {table} with id" in server.log(ServerProcess.COORDINATOR).read_text()
        with server.connect(ServerProcess.TABLET) as connection:
            client = FlussClient(connection)
            if len(leaders := client.cluster(table).leaders) < buckets:
                return False
            # The server is told that it leads a bucket before it has it.
            with contextlib.suppress(Unavailable, GoneFromFluss):
                return bool(client.offsets(next(iter(leaders)).table, None, range(buckets), OffsetKind.LATEST))
        return False

    for again in range(5):
        make()
        try:
            until(led, seconds_max=10.0)
            return
        except AssertionError:
            if again == 4:
                raise
        with server.connect(ServerProcess.COORDINATOR) as connection:
            FlussClient(connection).drop_table(table)


def add_column(server: FlussServer, table: TableId, name: str, kind: FlussType) -> None:
    added = field(1, name) + field(2, json.dumps(kind.json)) + field(4, 0)
    call(server, ServerProcess.COORDINATOR, ALTER_TABLE, field(1, path_of(table)) + field(2, 0) + field(4, added))


def set_property(server: FlussServer, table: TableId, name: str, value: str) -> None:
    change = field(1, name) + field(2, value) + field(3, 0)
    call(server, ServerProcess.COORDINATOR, ALTER_TABLE, field(1, path_of(table)) + field(2, 0) + field(3, change))


def kv_batch(rows: Iterable[tuple[bytes, bytes | None]], *, schema_id: int = 1) -> bytes:
    """Keys and rows; no row is a delete."""
    records = b""
    count = 0
    for key, row in rows:
        record = varint(len(key), 32) + key + (row or b"")
        records += struct.pack("<i", len(record)) + record
        count += 1
    covered = struct.pack("<hBqii", schema_id, 0, -1, -1, count) + records
    return struct.pack("<iBI", len(covered) + 5, 0, google_crc32c.value(covered)) + covered


def put(server: FlussServer, table: int, bucket: int, batch: bytes, partition: int | None = None) -> None:
    """Rows into a bucket, whether they belong there or not."""
    wanted = (b"" if partition is None else field(1, partition)) + field(2, bucket) + field(3, batch)

    def ask() -> bytes | None:
        answer = call(server, ServerProcess.TABLET, PUT_KV, field(1, -1) + field(2, table) + field(3, 30_000) + field(5, wanted))
        # A tablet server hears of a new column a while after the coordinator has it.
        return None if b"Invalid schema id" in answer else answer

    answer = until(ask)
    # One bucket: its partition and number, which are no large numbers, and then an error's code or none.
    said = answer[2 if partition is None else 4 :]
    assert said[:1] == b"\x10", answer
    assert said[2:3] != b"\x18", answer


def put_rows(
    server: FlussServer, table: int, schema: Schema, rows: Sequence[Sequence[Any]], *, bucket: int = 0, gone: Iterable[int] = ()
) -> None:
    """Rows of a table whose key is its first column, an INT, in the key format of a server with Paimon. Those that are gone go last."""
    changes = [(row[0], compacted_row(schema, row)) for row in rows] + [(key, None) for key in gone]
    put(server, table, bucket, kv_batch([(bytes(8) + struct.pack("<i4x", key), row) for key, row in changes], schema_id=schema.id))
