"""Java Paimon, as its own engines bring it: reads, compaction and expiry by others than us."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
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
        parts = table.newSnapshotReader().partitions() if table.partitionKeys() else [paimon.data.BinaryRow.EMPTY_ROW]
        for part in parts:
            for bucket in range(table.coreOptions().bucket()):
                write.compact(part, bucket, True)
        commit.commit(write.prepareCommit())
        write.close()
        commit.close()
        newest: int = table.snapshotManager().latestSnapshotId()
        return newest

    def success_file(self, path: Path) -> tuple[int, int]:
        """When the mark of a partition was made, and when it was renewed, as Paimon's own action reads it."""
        paimon = self._jvm.org.apache.paimon
        place = paimon.fs.Path(str(path))
        found = paimon.partition.actions.SuccessFileMarkDoneAction.safelyFromPath(paimon.fs.local.LocalFileIO(), place)
        return found.creationTime(), found.modificationTime()

    def success_text(self, made_ms: int, renewed_ms: int) -> str:
        text: str = self._jvm.org.apache.paimon.partition.file.SuccessFile(made_ms, renewed_ms).toJson()
        return text

    def mark_done(self, warehouse: Path, target: str, partition: str) -> None:
        """By Paimon's own action."""
        table = self._table(warehouse, target)
        paimon = self._jvm.org.apache.paimon
        paimon.partition.actions.SuccessFileMarkDoneAction(table.fileIO(), table.location()).markDone(partition)

    def read(self, warehouse: Path, target: str, columns: Sequence[str]) -> list[list[Any]]:
        """All rows, as lists of values in the form that `fluss_bytes` takes. Each value costs calls, so this is for few rows."""
        table = self._table(warehouse, target)
        kind = table.rowType().project(list(columns))
        decode = self._decoder(kind)
        found = []
        for split in table.newScan().plan().splits():
            rows = self._jvm.org.apache.paimon.reader.RecordReaderIterator(table.newRead().withReadType(kind).createReader(split))
            while rows.hasNext():
                found.append(decode(rows.next()))
            rows.close()
        return found

    def _table(self, warehouse: Path, target: str) -> Any:
        paimon = self._jvm.org.apache.paimon
        options = paimon.options.Options()
        options.set("warehouse", str(warehouse))
        catalog = paimon.catalog.CatalogFactory.createCatalog(paimon.catalog.CatalogContext.create(options))
        return catalog.getTable(paimon.catalog.Identifier.create(*target.split(".")))

    def _decoder(self, kind: Any) -> Callable[[Any], Any]:
        """What makes a value of ours of one of this type. The type is looked at once: each call to Java costs."""
        data = self._jvm.org.apache.paimon.data
        match kind.getTypeRoot().name():
            case "ROW":
                types = list(kind.getFieldTypes())
                fields = [(data.InternalRow.createFieldGetter(one, at), self._decoder(one)) for at, one in enumerate(types)]
                return lambda row: [_unless_null(decode, get.getFieldOrNull(row)) for get, decode in fields]
            case "ARRAY":
                return self._elements(kind.getElementType())
            case "MAP":
                keys, values = self._elements(kind.getKeyType()), self._elements(kind.getValueType())
                return lambda found: list(zip(keys(found.keyArray()), values(found.valueArray()), strict=True))
            case "CHAR" | "VARCHAR":
                return lambda text: text.toString()
            case "BINARY" | "VARBINARY":
                return bytes
            case "DECIMAL":
                return lambda number: int.from_bytes(number.toUnscaledBytes(), "big", signed=True)
            case "TIMESTAMP_WITHOUT_TIME_ZONE" | "TIMESTAMP_WITH_LOCAL_TIME_ZONE":
                return lambda moment: (moment.getMillisecond(), moment.getNanoOfMillisecond())
            case _:
                return lambda value: value

    def _elements(self, kind: Any) -> Callable[[Any], list[Any]]:
        get, decode = self._jvm.org.apache.paimon.data.InternalArray.createElementGetter(kind), self._decoder(kind)
        return lambda array: [_unless_null(decode, get.getElementOrNull(array, at)) for at in range(array.size())]


def _unless_null(decode: Callable[[Any], Any], value: Any) -> Any:
    return None if value is None else decode(value)


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
