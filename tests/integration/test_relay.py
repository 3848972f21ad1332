"""The relay on real servers: a folder that fills up, drivers that come and go, a relay that captures without one."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.compute as compute
import pytest

from snowmelt.config import read_pipeline
from snowmelt.databases.contract.capture import CaptureLimits
from snowmelt.engine.driver.chunks import Chunks
from snowmelt.engine.driver.routes import Mode, Route
from snowmelt.engine.driver.settings import Settings
from snowmelt.engine.log import standby
from snowmelt.engine.log.handover import take_over
from snowmelt.engine.log.standby import RelayActivity, RelayStatus, keep_capturing
from snowmelt.engine.tasks.jobs import Lane
from snowmelt.errors import Fenced, InvalidConfig, SourceDrift
from snowmelt.model.position import Position
from snowmelt.planning.facts import OUTSIDE
from snowmelt.segments import list_segments, owned
from snowmelt.sinks.paimon.sink import PaimonSink
from snowmelt.status import read_status
from snowmelt.store.objects import open_store
from tests.integration.relay_driver import SMALL, Driver, await_that
from tests.integration.running import Running, folded, lake_rows, settings, source_rows
from tests.integration.server_log import WAIT_S, ask, execute, fill, load, log_events, now
from tests.kit.servers import Fresh, Server

Database = Callable[[Server], str]


def small(disk_bytes_max: int) -> CaptureLimits:
    return replace(SMALL, disk_bytes_max=disk_bytes_max)


def made(server: Server, folder: Path, **more: Any) -> Settings:
    folder.mkdir(exist_ok=True)
    return settings(server, folder, **{"capture": SMALL} | more)


# ---- a cap


def test_a_relay_at_its_cap_stops_reading_and_loses_nothing_of_what_comes_later(
    mariadb: Server, database: Database, tmp_path: Path
) -> None:
    name = database(mariadb)
    cap = 1 << 20
    pauses = 0
    with Driver(made(mariadb, tmp_path, capture=small(cap))) as driver:
        begins, gauge = driver.end, driver.recorder.gauge
        fill(mariadb, name, 3_000, wide=2_000)
        until = now(mariadb)
        assert until.offset - begins.offset > 5 * cap
        while driver.end < until:
            before = driver.relay.end
            driver.wait_for(lambda before=before: driver.relay.end > before and (gauge.paused or driver.end >= until))
            # What came in with the bytes that reached the cap, and what its writer had not sealed yet when that was asked.
            assert gauge.held_bytes < cap + SMALL.receive_bytes + SMALL.segment_bytes + SMALL.buffers * SMALL.buffer_bytes
            pauses += gauge.paused
            driver.let_go()
        assert pauses > 4
        driver.stop()
    assert gauge.held_bytes == sum(segment.data_bytes for segment in list_segments(driver.folder))
    assert driver.events == log_events(mariadb, begins.file, begins.offset, driver.end.offset)


def test_a_connection_that_is_cut_while_capture_is_paused_goes_on_inside_the_transaction(fresh_mariadb: Fresh, tmp_path: Path) -> None:
    server = fresh_mariadb()
    execute(server, "CREATE DATABASE d")
    with Driver(made(server, tmp_path, capture=small(512 << 10))) as driver:
        begins, gauge = driver.end, driver.recorder.gauge
        fill(server, "d", 100, wide=2_000)
        with server.connect(database="d", autocommit=False) as connection, connection.cursor() as cursor:
            cursor.executemany("INSERT INTO t (v) VALUES (REPEAT(%s, 50000))", [("x",)] * 20)
            connection.commit()
        until = now(server)
        driver.wait_for(lambda: gauge.paused)
        (dump,) = ask(server, "SELECT id FROM information_schema.processlist WHERE command = 'Binlog Dump'")
        execute(server, f"KILL {dump}")
        assert driver.end < until
        driver.let_go()
        driver.recorder.needs(drained=True, upto=None)
        driver.wait_for(lambda: driver.end >= until)
        driver.stop()
    assert driver.events == log_events(server, begins.file, begins.offset, driver.end.offset)


def test_a_transaction_larger_than_the_cap_passes_once_the_lake_has_all_before_it_and_one_beyond_all_bounds_is_told(
    mariadb: Server, database: Database, tmp_path: Path
) -> None:
    name = database(mariadb)
    cap = 1 << 20

    def write(size: int) -> None:
        with mariadb.connect(database=name, autocommit=False) as connection, connection.cursor() as cursor:
            cursor.executemany("INSERT INTO t (v) VALUES (REPEAT(%s, 100000))", [("x",)] * (size // 100_000))
            connection.commit()

    with Driver(made(mariadb, tmp_path, capture=small(cap))) as driver:
        fill(mariadb, name, 100, wide=2_000)
        write(2 * cap)
        until = now(mariadb)
        driver.wait_for(lambda: driver.recorder.gauge.paused)
        assert driver.end < until
        driver.let_go()
        # Nobody has said yet that there is nothing else to be let go of.
        driver.wait_for(lambda: driver.recorder.gauge.paused)
        driver.let_go(drained=True)
        driver.wait_for(lambda: driver.end >= until)
        driver.let_go(drained=True)
        write(6 * cap)
        with pytest.raises(InvalidConfig, match=r"a transaction is larger .* raise disk_bytes_max"):
            driver.wait_for(lambda: driver.end >= now(mariadb))


# ---- without a driver


def test_a_relay_of_a_pipeline_that_never_ran_says_so(mariadb: Server, tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="never started"):
        keep_capturing(made(mariadb, tmp_path), threading.Event(), lambda _: None)
    assert not (tmp_path / "state").exists()


@contextmanager
def standing(wanted: Settings) -> Iterator[list[RelayStatus]]:
    """A relay without a driver, and what it told."""
    asked, told = threading.Event(), [RelayStatus(RelayActivity.STANDS_BY, None, 0)]
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(keep_capturing, wanted, asked, told.append)
        try:
            yield told
        finally:
            asked.set()
        ended.result()


def assert_whole(server: Server, driver: Driver, begins: Position, until: Position) -> None:
    """The folder has the log from there to there, and the chain all of it."""
    driver.stop()
    segments = list_segments(driver.folder)
    assert segments[0].start == begins
    assert segments[-1].end >= until
    assert driver.events == log_events(server, begins.file, begins.offset, segments[-1].end.offset)
    assert [sealed.name for sealed in driver.relay.segments[1:]] == [f"log/{segment.index_path.name}" for segment in segments]


def test_a_relay_and_drivers_hand_the_log_over_without_gap_or_overlap(
    mariadb: Server, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standby, "SEAL_MS", 50)
    name, wanted = database(mariadb), made(mariadb, tmp_path)
    with Driver(wanted) as driver:
        begins = driver.end
    with load(mariadb, name), standing(wanted) as told:
        for _ in range(3):
            # Once nobody else does the relay captures; it stops by itself once somebody wants to.
            until = now(mariadb)
            await_that(lambda until=until: told[-1].position is not None and told[-1].position >= until)
            with Driver(wanted) as driver:
                await_that(lambda: told[-1].state is RelayActivity.STANDS_BY)
                catch_up(mariadb, driver)
    with Driver(wanted) as driver:
        assert_whole(mariadb, driver, begins, catch_up(mariadb, driver))


def catch_up(server: Server, driver: Driver) -> Position:
    until = now(server)
    driver.wait_for(lambda: driver.end >= until)
    return until


def _stand_in_child(wanted: Settings) -> None:
    keep_capturing(wanted, threading.Event(), lambda _: None)


def test_a_relay_that_is_killed_again_and_again_leaves_no_gap_and_no_overlap(
    mariadb: Server, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standby, "SEAL_MS", 20)
    name, wanted = database(mariadb), made(mariadb, tmp_path)
    with Driver(wanted) as driver:
        begins = driver.end
        fill(mariadb, name, 10)
        catch_up(mariadb, driver)
    fork = multiprocessing.get_context("fork")
    chance = random.Random(5)
    with load(mariadb, name):
        for _ in range(6):
            held = len(list(wanted.log_folder.glob("*.json")))
            child = fork.Process(target=_stand_in_child, args=(wanted,))
            child.start()
            await_that(lambda held=held: len(list(wanted.log_folder.glob("*.json"))) > held)
            child.join(chance.random() * 0.1)
            assert child.pid is not None
            os.kill(child.pid, signal.SIGKILL)
            child.join()
        # A zombie: it goes on later, and nobody takes the log over before it has ended.
        held = len(list(wanted.log_folder.glob("*.json")))
        zombie = fork.Process(target=_stand_in_child, args=(wanted,))
        zombie.start()
        await_that(lambda: len(list(wanted.log_folder.glob("*.json"))) > held)
        assert zombie.pid is not None
        os.kill(zombie.pid, signal.SIGSTOP)
        with ThreadPoolExecutor(1) as pool:
            taking = pool.submit(Driver, wanted)
            await_that(lambda: len(list((wanted.state / "generation").iterdir())) == 2)
            assert not taking.done(), "the log is taken over while another process may still write to it"
            os.kill(zombie.pid, signal.SIGCONT)
            driver = taking.result(WAIT_S)
        zombie.kill()
        zombie.join()
        until = catch_up(mariadb, driver)
    assert_whole(mariadb, driver, begins, until)


def test_a_run_whose_generation_was_seen_before_the_folder_was_taken_takes_another_one(mariadb: Server, tmp_path: Path) -> None:
    wanted = made(mariadb, tmp_path)
    with Driver(wanted):
        pass
    with ExitStack() as folder, ThreadPoolExecutor(1) as pool:
        with owned(wanted.log_folder):
            taking = pool.submit(take_over, open_store(str(wanted.state)), wanted.log_folder, folder, lambda: False)
            # A relay that came in between waits for the second.
            await_that(lambda: len(list((wanted.state / "generation").iterdir())) == 3)
            assert not taking.done()
        taken = taking.result(WAIT_S)
        assert taken is not None
        assert taken.number == 3
        with pytest.raises(Fenced), owned(wanted.log_folder):
            pass


def test_a_relay_at_its_cap_waits_for_a_driver(
    mariadb: Server, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standby, "SEAL_MS", 20)
    name, wanted = database(mariadb), made(mariadb, tmp_path, capture=small(1 << 20))
    with Driver(wanted):
        pass
    with standing(wanted) as told:
        fill(mariadb, name, 2_000, wide=2_000)
        await_that(lambda: told[-1].state is RelayActivity.PAUSED)
        assert told[-1].held_bytes < (1 << 20) + SMALL.receive_bytes + SMALL.segment_bytes
        until = now(mariadb)
        with Driver(wanted) as driver:
            driver.let_go()
            while driver.end < until:
                driver.wait_for(lambda: driver.recorder.gauge.paused or driver.end >= until)
                driver.let_go()


def test_a_relay_does_not_go_on_with_another_server(mariadb: Server, mysql8: Server, tmp_path: Path) -> None:
    with Driver(made(mariadb, tmp_path)):
        pass
    with pytest.raises(SourceDrift, match="another server"):
        keep_capturing(made(mysql8, tmp_path), threading.Event(), lambda _: None)


def test_the_command_captures_tells_who_is_at_work_and_ends_when_it_is_asked(mariadb: Server, database: Database, tmp_path: Path) -> None:
    name, path = database(mariadb), tmp_path / "pipeline.yaml"
    path.write_text(
        f"source: {{type: mysql, host: {mariadb.host}, port: {mariadb.port}, username: root, password: '${{RELAY_PASSWORD}}', "
        f"tables: '{name}.*', tls: disabled}}\n"
        "sink: {type: paimon, warehouse: lake}\n"
        "relay: {disk_bytes_max: 64MiB}\n"
        "pipeline: {name: relayed, state: state}\n"
    )
    environment = {**os.environ, "RELAY_PASSWORD": mariadb.password}
    command = [sys.executable, "-m", "snowmelt", "relay", str(path), "--json"]
    refused = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (refused.returncode, "never started" in refused.stderr) == (2, True)
    wanted = replace(read_pipeline(path).to_settings(), source=made(mariadb, tmp_path).source)
    with Driver(wanted) as driver:
        begins = driver.end
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert json.loads(process.stdout.readline())["state"] == "captures"
        fill(mariadb, name, 50)
        with Driver(wanted) as driver:
            assert json.loads(process.stdout.readline())["state"] == "stands by"
            until = catch_up(mariadb, driver)
            assert_whole(mariadb, driver, begins, until)
        assert json.loads(process.stdout.readline())["state"] == "captures"
        process.send_signal(signal.SIGINT)
        assert process.wait(WAIT_S) == 0
        assert json.loads(process.stdout.readlines()[-1]) == {"event": "done", "text": "ended as asked"}
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


# ---- with a lake


@pytest.mark.timeout(300)
def test_the_database_may_purge_its_log_up_to_what_the_relay_holds_while_the_lake_is_stopped(
    fresh_mariadb: Fresh, tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standby, "SEAL_MS", 50)
    server = fresh_mariadb()
    execute(server, "CREATE DATABASE shop")
    for table in ("orders", "events"):
        execute(server, f"CREATE TABLE shop.{table} (id INT NOT NULL PRIMARY KEY, v INT)")
        execute(server, f"INSERT INTO shop.{table} VALUES (1, 1), (2, 2)")

    def purged() -> bool:
        newest = f"binlog.{now(server).file:06d}"
        execute(server, f"PURGE BINARY LOGS TO '{newest}'")
        return bool(ask(server, "SHOW BINARY LOGS")[0] == newest)

    wanted = settings(server, tmp_path, routes=[Route("shop.events", "ods.events", Mode.CHANGELOG), Route("shop.orders", "ods.orders")])
    with Running(spark, wanted) as running:
        running.settled()
    with standing(wanted) as told:
        for number in range(3, 60):
            for table in ("orders", "events"):
                execute(server, f"INSERT INTO shop.{table} VALUES ({number}, 0)", f"UPDATE shop.{table} SET v = v + 1 WHERE id < 5")
            if number % 20 == 0:
                execute(server, "FLUSH BINARY LOGS")
        execute(server, "FLUSH BINARY LOGS")
        until = now(server)
        await_that(lambda: told[-1].position is not None and told[-1].position >= until)
        assert read_status(wanted).waiting_bytes > 0
        await_that(purged)
    with Running(spark, wanted) as running:
        running.settled()
    assert lake_rows(tmp_path, "ods.orders") == source_rows(server, "shop.orders")
    assert folded(tmp_path, "ods.events") == source_rows(server, "shop.events")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("caps", [2, 6])
def test_a_chunk_that_waits_for_the_log_of_a_relay_at_its_cap_does_not_wait_for_ever(
    mariadb: Server, database: Database, tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch, caps: int
) -> None:
    """S2: it holds back what fills the relay, and needs log that does not come. Beyond the hard cap it is given back."""
    name, cap = database(mariadb), 256 << 10
    execute(mariadb, f"CREATE TABLE {name}.t (id INT NOT NULL PRIMARY KEY, v VARCHAR(2000))")
    execute(mariadb, f"INSERT INTO {name}.t VALUES (1, 'a'), (100000, 'b')")
    running = Running(spark, settings(mariadb, tmp_path, tables=[f"{name}.t"], capture=small(cap)))
    submit, late = running.pipeline.resources.jobs.submit, []
    given_back = []

    def start_late(lane: Lane, *job: Any) -> None:
        if lane is Lane.CHUNKS and job[1][0].launch.ordinal > OUTSIDE and not late:
            late.append(job)
        else:
            submit(lane, *job)

    give_back = Chunks.give_back_waiting

    def note(chunks: Chunks) -> None:
        given_back.extend(chunks._waiting)
        give_back(chunks)

    monkeypatch.setattr(running.pipeline.resources.jobs, "submit", start_late)
    monkeypatch.setattr(Chunks, "give_back_waiting", note)
    with running:
        running.wait_for(lambda: late)
        execute(mariadb, *(f"INSERT INTO {name}.t VALUES ({number}, REPEAT('x', 1000))" for number in range(2, 2 + caps * cap // 1_000)))
        running.wait_for(lambda: running.pipeline.progress.paused)
        held = running.pipeline.progress.held_bytes
        # The lake has all of it, and nothing can be let go of. (What was under way when the socket was left alone came in still.)
        running.wait_for(lambda: running.pipeline.progress.done_upto == running.pipeline.progress.captured)
        assert running.pipeline.progress.held_bytes >= held
        submit(Lane.CHUNKS, *late[0])
        running.settled()
        assert running.pipeline.progress.held_bytes < 2 * cap
    assert bool(given_back) == (caps > 4)
    assert lake_rows(tmp_path, f"ods.{name}_t") == source_rows(mariadb, f"{name}.t")


def resident_bytes_max(pid: int) -> int:
    """The most that a process ever had in memory."""
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) << 10


@pytest.mark.timeout(300)
def test_very_many_transactions_of_one_row_are_captured_within_the_stated_memory_and_reach_the_lake(
    fresh_mariadb: Fresh, tmp_path: Path, spark: Any
) -> None:
    # `bench large` does it with a million.
    count = 250_000
    server = fresh_mariadb(binlog_annotate_row_events="OFF", innodb_flush_log_at_trx_commit=0)
    execute(server, "CREATE DATABASE shop", "CREATE TABLE shop.t (id INT NOT NULL PRIMARY KEY AUTO_INCREMENT, v INT)")
    execute(
        server,
        "CREATE PROCEDURE mysql.many(n INT) BEGIN DECLARE i INT DEFAULT 0; "
        "WHILE i < n DO INSERT INTO shop.t (v) VALUES (i * 7 % 1000); SET i = i + 1; END WHILE; END",
    )
    wanted = settings(server, tmp_path, capture=CaptureLimits(), rows_per_chunk=100_000)
    with Running(spark, wanted) as running:
        running.settled()
    child = multiprocessing.get_context("fork").Process(target=_stand_in_child, args=(wanted,))
    child.start()
    assert child.pid is not None
    try:
        # Warm: what is compiled is compiled.
        execute(server, "CALL mysql.many(1000)")
        await_that(lambda: list(wanted.log_folder.glob("*.log")))
        before = resident_bytes_max(child.pid)
        execute(server, f"CALL mysql.many({count - 1000})")
        until = now(server)
        await_that(lambda: (segments := list_segments(wanted.log_folder)) and segments[-1].end.offset > until.offset - (64 << 20))
        grown = resident_bytes_max(child.pid) - before
    finally:
        child.kill()
        child.join()
    assert grown < wanted.log.capture.memory_bytes + (32 << 20)
    with Running(spark, wanted) as running:
        running.settled()
    builder = PaimonSink(str(tmp_path / "lake"), user="reader").table("ods.shop_t").new_read_builder()
    rows = builder.new_read().to_arrow(builder.new_scan().plan().splits())
    found = rows.num_rows, compute.sum(rows["id"]).as_py(), compute.sum(rows["v"]).as_py()
    assert found == tuple(map(int, ask(server, "SELECT COUNT(*), SUM(id), SUM(v) FROM shop.t")))
    assert found[0] == count
