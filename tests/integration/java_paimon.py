"""Java Paimon, as its own engines bring it: reads, compaction and expiry by others than us."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark

from snowmelt.fluss.jars import fetch_jars


class JavaPaimon:
    """Talks to a JVM that has Paimon's jars."""

    def __init__(self, jvm: Any, folder: Path) -> None:
        self._jvm = jvm
        self._folder = folder

    def compact_and_expire(self, warehouse: Path, target: str, *, retained: int = 1) -> int:
        """A full compaction of every bucket, behind which all snapshots expire but `retained`. The newest snapshot."""
        paimon = self._jvm.org.apache.paimon
        wanted = self._jvm.java.util.HashMap()
        for name, value in {
            "write-only": "false",
            "snapshot.num-retained.min": str(retained),
            "snapshot.num-retained.max": str(retained),
            "snapshot.time-retained": "1ms",
            "snapshot.expire.execution-mode": "sync",
        }.items():
            wanted.put(name, value)
        table = self._table(warehouse, target).copy(wanted)
        write, commit = table.newWrite("maintenance"), table.newCommit("maintenance")
        write.withIOManager(paimon.disk.IOManager.create(str(self._folder)))
        for bucket in range(table.coreOptions().bucket()):
            write.compact(paimon.data.BinaryRow.EMPTY_ROW, bucket, True)
        commit.commit(write.prepareCommit())
        write.close()
        commit.close()
        newest: int = table.snapshotManager().latestSnapshotId()
        return newest

    def read(self, warehouse: Path, target: str, columns: Sequence[str]) -> list[list[Any]]:
        """All rows, as lists of values in the form that `fluss_bytes` takes. Each value costs calls, so this is for few rows."""
        table = self._table(warehouse, target)
        kind = table.rowType().project(list(columns))
        found = []
        for split in table.newScan().plan().splits():
            rows = self._jvm.org.apache.paimon.reader.RecordReaderIterator(table.newRead().withReadType(kind).createReader(split))
            while rows.hasNext():
                found.append(self._value(kind, rows.next()))
            rows.close()
        return found

    def _table(self, warehouse: Path, target: str) -> Any:
        paimon = self._jvm.org.apache.paimon
        options = paimon.options.Options()
        options.set("warehouse", str(warehouse))
        catalog = paimon.catalog.CatalogFactory.createCatalog(paimon.catalog.CatalogContext.create(options))
        return catalog.getTable(paimon.catalog.Identifier.create(*target.split(".")))

    def _value(self, kind: Any, value: Any) -> Any:
        if value is None:
            return None
        match kind.getTypeRoot().name():
            case "ROW":
                getters = [
                    self._jvm.org.apache.paimon.data.InternalRow.createFieldGetter(one, at) for at, one in enumerate(kind.getFieldTypes())
                ]
                return [self._value(one, get.getFieldOrNull(value)) for one, get in zip(kind.getFieldTypes(), getters, strict=True)]
            case "ARRAY":
                return self._elements(kind.getElementType(), value)
            case "MAP":
                keys = self._elements(kind.getKeyType(), value.keyArray())
                return list(zip(keys, self._elements(kind.getValueType(), value.valueArray()), strict=True))
            case "CHAR" | "VARCHAR":
                return value.toString()
            case "BINARY" | "VARBINARY":
                return bytes(value)
            case "DECIMAL":
                return int.from_bytes(value.toUnscaledBytes(), "big", signed=True)
            case "TIMESTAMP_WITHOUT_TIME_ZONE" | "TIMESTAMP_WITH_LOCAL_TIME_ZONE":
                return value.getMillisecond(), value.getNanoOfMillisecond()
            case _:
                return value

    def _elements(self, kind: Any, array: Any) -> list[Any]:
        get = self._jvm.org.apache.paimon.data.InternalArray.createElementGetter(kind)
        return [self._value(kind, get.getElementOrNull(array, at)) for at in range(array.size())]


@contextmanager
def java_paimon(folder: Path) -> Iterator[JavaPaimon]:
    """`folder` is for what it spills."""
    from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

    found = [*fetch_jars().glob("*.jar"), *(Path(pyspark.__file__).parent / "jars").glob("py4j-*.jar")]
    home = os.environ.get("JAVA_HOME")
    port, token = launch_gateway(
        jarpath=str(found[-1]),
        classpath=":".join(map(str, found)),
        javaopts=["-Dorg.slf4j.simpleLogger.defaultLogLevel=error"],
        java_path=f"{home}/bin/java" if home else "java",
        die_on_exit=True,
        enable_auth=True,
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=token, auto_convert=True))
    try:
        yield JavaPaimon(gateway.jvm, folder)
    finally:
        gateway.shutdown()
