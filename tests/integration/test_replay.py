from __future__ import annotations
import shutil, time, sys
from collections.abc import Iterator
import pytest
from tests.integration import workload
from tests.integration.replay import Source, difference
from tests.servers import NotRun, Server, start_mariadb, start_mysql8

SERVERS = {
    "mariadb": (start_mariadb, {}),
    "mysql8": (start_mysql8, {}),
    "mysql8 without GTIDs": (start_mysql8, {"gtid_mode": "OFF", "enforce_gtid_consistency": "OFF"}),
}
CHANGES = 200_000
SEED = 7

@pytest.fixture(scope="module", params=SERVERS)
def source(request, tmp_path_factory) -> Iterator[Source]:
    start, settings = SERVERS[request.param]
    folder = tmp_path_factory.mktemp("replay")
    try:
        server = start(folder / "server", max_binlog_size="8M", **settings)
    except NotRun as reason:
        pytest.skip(str(reason))
    t=time.time()
    workload.create(server, SEED)
    print("created", time.time()-t)
    t=time.time()
    with Source(server, folder / "segments", workload.DATABASE) as source:
        with workload.written(server, seed=SEED, writers=8, changes=CHANGES):
            print("started", time.time()-t)
            source.copy(rows_per_chunk=300)
            print("copied", time.time()-t)
        print("written", time.time()-t)
        source.finish()
        print("finished", time.time()-t, source.given_back, {t.name: len(c) for t,c in source.copies.items()}, source.log.reader.counters, len(source.log.segments))
        yield source
    server.stop()
    shutil.rmtree(folder, ignore_errors=True)

def test_x(source: Source) -> None:
    for table in source.tables:
        t=time.time()
        f=source.fold(table)
        print(table, len(f.rows), len(source.live(table).rows), f.applied, f.dropped, len(f.misfits), repr(difference(f, source.live(table))), time.time()-t)
