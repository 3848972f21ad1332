"""Fluss servers for tests, and tables on them by the client that users have, without its being asynchronous.

A server does not outlive the process that started it. The one that tests share makes KV snapshots twice a second and keeps one, so that
whatever holds no lease is gone soon.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import fluss as pyfluss
import pyarrow as pa

from snowmelt.fluss.server import HOST, FlussServer, FlussSettings, ServerProcess
from snowmelt.model.table import TableId
from tests.kit.fluss_raw import make_led
from tests.kit.processes import free_port
from tests.kit.servers import bound_to_this_process, fetched

FreshFluss = Callable[..., FlussServer]
"""What the fixture `fresh_fluss` gives: call it with settings, get a server of the test's own."""

SETTINGS = {"kv_snapshot_interval_s": 0.5, "kv_snapshots_retained": 1, "lease_check_interval_s": 1.0, "session_timeout_s": 5.0}
COLUMNS = pa.schema([("id", pa.int32()), ("name", pa.string()), ("n", pa.int64())])


def start_fluss(folder: Path, **settings: Any) -> FlussServer:
    fetched("fluss", "Fluss 0.9.1")
    server = FlussServer.make(folder, FlussSettings(**(SETTINGS | settings)), before=bound_to_this_process())
    server.start()
    return server


USER, PASSWORD = "snow", "a pass with spaces, ünïcode and ="


class SaslFluss(FlussServer):
    """A server with a second listener, `sasl_bootstrap`, that asks for `USER` and `PASSWORD`. The first asks for nothing: it is for the
    servers among themselves, and for the fixture."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        # Of the other listener: nobody else has a port so near.
        self._sasl_ports = {part: free_port() for part in ServerProcess}

    @classmethod
    def begin(cls, folder: Path, **settings: Any) -> SaslFluss:
        fetched("fluss", "Fluss 0.9.1")
        security = (
            ("internal.listener.name", "FLUSS"),
            ("security.protocol.map", "CLIENT:SASL, FLUSS:PLAINTEXT"),
            ("security.sasl.enabled.mechanisms", "PLAIN"),
            (
                "security.sasl.plain.jaas.config",
                f'org.apache.fluss.security.auth.sasl.plain.PlainLoginModule required user_{USER}="{PASSWORD}";',
            ),
        )
        server = cls.make(folder, FlussSettings(**(SETTINGS | settings), more=security), before=bound_to_this_process())
        assert isinstance(server, SaslFluss)
        server.start()
        return server

    @property
    def sasl_bootstrap(self) -> str:
        return f"{HOST}:{self._sasl_ports[ServerProcess.COORDINATOR]}"

    def _listeners(self, part: ServerProcess) -> str:
        return f"{super()._listeners(part)},CLIENT://{HOST}:{self._sasl_ports[part]}"


class Tables:
    """Databases, tables and rows of a server. `close` it."""

    def __init__(self, server: FlussServer) -> None:
        self.server = server
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._connection = self._wait(lambda: pyfluss.FlussConnection.create(pyfluss.Config({"bootstrap.servers": server.bootstrap})))
        self._admin = self._connection.get_admin()
        self._numbers = itertools.count(1)
        self.databases: list[str] = []

    def _wait(self, begin: Callable[[], Any]) -> Any:
        async def waited() -> Any:
            return await begin()

        return asyncio.run_coroutine_threadsafe(waited(), self._loop).result(60)

    def make(
        self,
        *,
        columns: pa.Schema = COLUMNS,
        key: Iterable[str] = ("id",),
        buckets: int = 2,
        partitioned_by: Iterable[str] = (),
        **properties: str,
    ) -> TableId:
        """A new table. Properties are Fluss' own if they begin with `table`, the user's else, with `__` for a dot and `_` for a hyphen."""
        if not self.databases:
            name = f"test_{next(_database_numbers)}"
            self._wait(lambda: self._admin.create_database(name, ignore_if_exists=False))
            self.databases.append(name)
        path = TableId(self.databases[0], f"t{next(self._numbers)}")
        named = {name.replace("__", ".").replace("_", "-"): value for name, value in properties.items()}
        described = pyfluss.TableDescriptor(
            pyfluss.Schema(columns, primary_keys=list(key)),
            bucket_count=buckets,
            partition_keys=list(partitioned_by),
            properties={name: value for name, value in named.items() if name.startswith("table.")},
            custom_properties={name: value for name, value in named.items() if not name.startswith("table.")},
        )
        # pyfluss' writer may wait for ever for a bucket that had no leader when it first asked.
        create = partial(self._admin.create_table, _path(path), described, ignore_if_exists=False)
        make_led(self.server, path, 0 if partitioned_by else buckets, lambda: self._wait(create))
        return path

    def upsert(self, path: TableId, rows: Iterable[dict[str, Any]]) -> None:
        async def write() -> None:
            writer = (await self._connection.get_table(_path(path))).new_upsert().create_writer()
            for row in rows:
                writer.upsert(row)
            await writer.flush()

        self._wait(write)

    def delete(self, path: TableId, keys: Iterable[dict[str, Any]]) -> None:
        async def write() -> None:
            writer = (await self._connection.get_table(_path(path))).new_upsert().create_writer()
            for key in keys:
                writer.delete(key)
            await writer.flush()

        self._wait(write)

    def append(self, path: TableId, *batches: pa.RecordBatch) -> None:
        async def write() -> None:
            writer = (await self._connection.get_table(_path(path))).new_append().create_writer()
            for batch in batches:
                writer.write_arrow_batch(batch)
            await writer.flush()

        self._wait(write)

    def lookup(self, path: TableId, keys: Iterable[dict[str, Any]]) -> list[dict[str, Any] | None]:
        async def read() -> list[dict[str, Any] | None]:
            lookuper = (await self._connection.get_table(_path(path))).new_lookup().create_lookuper()
            return [await lookuper.lookup(key) for key in keys]

        found: list[dict[str, Any] | None] = self._wait(read)
        return found

    def scan(self, path: TableId, *, buckets: int = 2, partition: int | None = None) -> list[dict[str, Any]]:
        """All rows of a table with a key as the server itself shows them, or of one of its partitions."""
        rows: list[dict[str, Any]] = self.scan_table(path, buckets=buckets, partition=partition).to_pylist()
        return rows

    def scan_table(self, path: TableId, *, buckets: int = 2, partition: int | None = None) -> pa.Table:
        async def read() -> list[pa.Table]:
            table = await self._connection.get_table(_path(path))
            id = table.get_table_info().table_id
            found: list[pa.Table] = []
            for number in range(buckets):
                bucket = pyfluss.TableBucket(id, number)
                if partition is not None:
                    bucket = pyfluss.TableBucket.with_partition(id, partition, number)
                found.append(await table.new_scan().limit(1_000_000).create_bucket_batch_scanner(bucket).to_arrow())
            return found

        return pa.concat_tables(self._wait(read))

    def log(self, path: TableId, ends: dict[int, int], partition: int | None = None) -> list[tuple[int, Any]]:
        """What pyfluss reads of the log up to these offsets of buckets, and maybe more: buckets and records. Right below each offset is
        a record: there are offsets without one."""

        async def read() -> list[tuple[int, Any]]:
            scanner = await (await self._connection.get_table(_path(path))).new_scan().create_log_scanner()
            for bucket in ends:
                if partition is None:
                    scanner.subscribe(bucket, 0)
                else:
                    scanner.subscribe_partition(partition, bucket, 0)
            found: list[tuple[int, Any]] = []
            left = {bucket for bucket, end in ends.items() if end}
            while left:
                for bucket, records in (await scanner.poll(1000)).items():
                    found += [(bucket.bucket_id, record) for record in records]
                    if records[-1].offset >= ends[bucket.bucket_id] - 1:
                        left.discard(bucket.bucket_id)
            return found

        records: list[tuple[int, Any]] = self._wait(read)
        return records

    def add_partition(self, path: TableId, **values: str) -> None:
        self._wait(lambda: self._admin.create_partition(_path(path), values, ignore_if_exists=False))

    def drop_partition(self, path: TableId, **values: str) -> None:
        self._wait(lambda: self._admin.drop_partition(_path(path), values, ignore_if_not_exists=False))

    def drop(self, path: TableId) -> None:
        self._wait(lambda: self._admin.drop_table(_path(path), ignore_if_not_exists=False))

    def close(self) -> None:
        for name in self.databases:
            self._wait(lambda name=name: self._admin.drop_database(name, ignore_if_not_exists=True, cascade=True))
        self._wait(self._connection.close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


_database_numbers = itertools.count(1)


def _path(path: TableId) -> Any:
    return pyfluss.TablePath(path.database, path.name)
