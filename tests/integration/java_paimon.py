"""Java Paimon, as its own engines bring it: compaction and expiry by others than us."""

from __future__ import annotations

import os
from collections.abc import Iterator
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
        options = paimon.options.Options()
        options.set("warehouse", str(warehouse))
        catalog = paimon.catalog.CatalogFactory.createCatalog(paimon.catalog.CatalogContext.create(options))
        wanted = self._jvm.java.util.HashMap()
        for name, value in {
            "write-only": "false",
            "snapshot.num-retained.min": str(retained),
            "snapshot.num-retained.max": str(retained),
            "snapshot.time-retained": "1ms",
            "snapshot.expire.execution-mode": "sync",
        }.items():
            wanted.put(name, value)
        table = catalog.getTable(paimon.catalog.Identifier.create(*target.split("."))).copy(wanted)
        write, commit = table.newWrite("maintenance"), table.newCommit("maintenance")
        write.withIOManager(paimon.disk.IOManager.create(str(self._folder)))
        for bucket in range(table.coreOptions().bucket()):
            write.compact(paimon.data.BinaryRow.EMPTY_ROW, bucket, True)
        commit.commit(write.prepareCommit())
        write.close()
        commit.close()
        newest: int = table.snapshotManager().latestSnapshotId()
        return newest


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
