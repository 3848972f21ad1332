"""Fluss' own tiering service on Flink as a peer of `bench tiering`: the same server, tables of the same shape, in one local JVM.

It is the job that the service's entry point builds, with as many subtasks as cores, and asks for tables ten times a second instead of twice
a minute. One JVM does all rounds, and small ones first, so that what it runs is compiled. The clock starts when it says that the table was
handed out to it, and ends when Fluss knows of a lake snapshot with all that was written.

Its service ends a round by the log when the table's freshness has passed. So freshness is a second until the table is due and is handed out
to us, then an hour, and then we give the table back, to a service that waits for it.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from snowmelt.fluss.answers import Claim
from snowmelt.fluss.client import FlussClient
from snowmelt.fluss.server import FlussServer
from snowmelt.model.table import TableId
from tests.bench._flink import FlinkJvm, fetch_jars
from tests.bench._processes import Meter
from tests.bench._tiering_rounds import Round
from tests.integration.fluss_reading import Reading
from tests.kit.fluss_raw import set_property
from tests.kit.waiting import until

CONNECTORS = (
    "org.apache.fluss:fluss-flink-1.20:0.9.1-incubating",
    "org.apache.fluss:fluss-lake-paimon:0.9.1-incubating",
    "org.apache.paimon:paimon-bundle:1.3.1",
    "org.apache.flink:flink-shaded-hadoop-2-uber:2.8.3-10.0",
)
FOLDER = "flink-1.20.5-fluss-0.9.1-paimon-1.3.1"
POLL = "100ms"
WARMING_ROWS = 200_000
"""Enough for a JVM to compile what matters."""

_FRESHNESS = "table.datalake.freshness"
_FAILED = re.compile("is failed, fail reason is|Fail to generate Tiering splits")
_REQUESTED = re.compile(r"Tiering table \((\d+),(\d+),[^)]*\) has been requested")
_WAITING = "No available Tiering table found"
_CLOSED = "Closing Fluss connection"
_LOGGING = """\
rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
appender.out.name = out
appender.out.type = Console
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %p %c{1} %m%n%ex
logger.asking.name = org.apache.fluss.flink.tiering.source.enumerator
logger.asking.level = info
"""


@cache
def fetch() -> Path:
    """The folder of all jars, fetched once."""
    return fetch_jars(FOLDER, CONNECTORS)


class FlinkTiering:
    """Its JVM, between `running`'s beginning and end."""

    def __init__(self, server: FlussServer, meter: Meter, folder: Path) -> None:
        folder.mkdir()
        self._server = server
        self._meter = meter
        self._folder = folder
        self._jvm = FlinkJvm("Fluss' tiering service", folder, fetch(), "TieringPeer")
        self._process: subprocess.Popen[str] | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        fluss = {"bootstrap.servers": self._server.bootstrap, "tiering.poll.table.interval": POLL}
        lake = {"metastore": "filesystem", "warehouse": str(self._server.warehouse)}
        files = {"fluss.properties": fluss, "lake.properties": lake}
        for name, settings in files.items():
            (self._folder / name).write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        logging = self._folder / "log4j2.properties"
        logging.write_text(_LOGGING)
        # As the entry point has it.
        flink = {"jobmanager.execution.failover-strategy": "full"}
        options = [f"-Dlog4j2.configurationFile={logging}"]
        with self._jvm.running(flink, *(str(self._folder / name) for name in files), options=options) as self._process:
            yield

    def bring(self, path: TableId, rows: int) -> Round:
        """A round of this table, which nobody writes to."""
        assert self._process is not None
        ends = {bucket: end for bucket, end in Reading(self._server, path).ends().items() if end}
        client = FlussClient(self._server.connect())
        handed_out = re.compile(rf"Tiering table \(\d+,\d+,{path.database}\.{path.name}\) has been requested")

        def told() -> bool:
            known = client.lake_snapshot(path)
            return known is not None and known.offsets == ends

        held = until(lambda: self._handed_out_to_us(client, path))
        set_property(self._server, path, _FRESHNESS, "1h")
        with self._meter.stage(alone=self._process.pid) as stage:
            since = self._tell("start")
            self._await(lambda said: _WAITING in said, since)
            client.heartbeat(failed=[held])
            self._await(lambda said: bool(handed_out.search(said)), since)
            self._meter.begin()
            self._await(lambda _: told(), since)
            self._meter.end()
        since = self._tell("stop")
        # Until then it asks for tables, although the job is over.
        self._await(lambda said: _CLOSED in said, since)
        set_property(self._server, path, _FRESHNESS, "1s")
        client.connection.close()
        return Round(rows, stage.wall_s, stage)

    def bring_all(self, done: Callable[[], bool]) -> None:
        """Rounds of all tables, until this is so."""
        since = self._tell("start")
        self._await(lambda _: done(), since)
        stopped = self._tell("stop")
        self._await(lambda said: _CLOSED in said, stopped)
        self._give_back(since)

    def _give_back(self, since: int) -> None:
        """What it was handed out when it was stopped. The coordinator would wait two minutes for it."""
        said = self._jvm.log.read_bytes()[since:].decode(errors="replace")
        newest = {int(table): int(epoch) for table, epoch in _REQUESTED.findall(said)}
        with self._server.connect() as connection:
            client = FlussClient(connection)
            epoch = client.heartbeat().coordinator_epoch
            client.heartbeat(failed=[Claim(table, epoch, tiering_epoch) for table, tiering_epoch in newest.items()])

    def _handed_out_to_us(self, client: FlussClient, path: TableId) -> Claim | None:
        answer = client.heartbeat(request_table=True)
        if answer.table is None:
            return None
        assert answer.table.path == path
        return Claim(answer.table.table, answer.coordinator_epoch, answer.table.tiering_epoch)

    def _tell(self, command: str) -> int:
        """Where its log ended when it was told."""
        assert self._process is not None
        assert self._process.stdin is not None
        since = self._jvm.log.stat().st_size
        self._process.stdin.write(f"{command}\n")
        return since

    def _await(self, so: Callable[[str], bool], since: int) -> None:
        assert self._process is not None

        def reached() -> bool:
            said = self._jvm.log.read_bytes()[since:].decode(errors="replace")
            assert not _FAILED.search(said), said[-4000:]
            return so(said)

        self._jvm.wait_for(self._process, reached)
