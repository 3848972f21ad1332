"""Another server goes on where the first one ended, by GTIDs: nothing lost, nothing twice, or a refusal."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from snowmelt.databases.mysql import failover
from snowmelt.databases.mysql.connect import Session
from snowmelt.databases.mysql.failover import find_place
from snowmelt.databases.mysql.gtid import MariaDbGtidSet, MySqlGtidSet, of_words
from snowmelt.databases.mysql.log.capture import capture_until
from snowmelt.engine.driver.routes import Mode, Route
from snowmelt.engine.log import standby
from snowmelt.engine.log.standby import RelayActivity, RelayStatus, keep_capturing
from snowmelt.errors import SourceDrift, Unavailable
from snowmelt.model.position import Position
from snowmelt.segments import list_segments
from snowmelt.verify import TableOutcome, verify
from tests.integration.dump import await_that
from tests.integration.running import Running, folded, history, lake_rows, settings, source_rows
from tests.integration.server_log import WAIT_S, ask, execute, fill, now, options, split
from tests.kit.servers import Fresh, Server

Pair = tuple[Server, Server]


def replicate(primary: Server, replica: Server) -> None:
    where = f"MASTER_HOST = '{primary.host}', MASTER_PORT = {primary.port}, MASTER_USER = 'root', MASTER_PASSWORD = '{primary.password}'"
    how = "MASTER_USE_GTID = slave_pos" if primary.kind == "mariadb" else "MASTER_AUTO_POSITION = 1, GET_MASTER_PUBLIC_KEY = 1"
    execute(replica, f"CHANGE MASTER TO {where}, {how}", "START SLAVE")


def await_replica(primary: Server, replica: Server) -> None:
    """Until the replica's log has what the primary's has."""
    name = "gtid_binlog_pos" if primary.kind == "mariadb" else "gtid_executed"
    wanted = ask(primary, f"SELECT @@{name}")
    await_that(lambda: ask(replica, f"SELECT @@{name}") == wanted, seconds=WAIT_S, told=lambda: ask(replica, "SHOW SLAVE STATUS"))


@pytest.fixture(params=["fresh_mariadb", "fresh_mysql8"])
def pair(request: pytest.FixtureRequest) -> Pair:
    fresh: Fresh = request.getfixturevalue(request.param)
    # Files of the replica have other lengths and numbers than those of the primary.
    primary, replica = fresh(), fresh(log_slave_updates=True, max_binlog_size=4096)
    replicate(primary, replica)
    return primary, replica


def test_the_place_on_another_server_is_behind_exactly_what_was_captured(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    primary, replica = pair
    execute(primary, "CREATE DATABASE d")
    places: list[Position] = []
    for number in range(5):
        fill(primary, "d", 20)
        end = capture_until(options(primary), tmp_path / "log", "earliest", now(primary))
        assert of_words(end.transactions) is not None
        await_replica(primary, replica)
        with Session(options(replica)) as session:
            place = find_place(session, of_words(end.transactions), era=number)
            # Now it is the end of the log, later a place inside. MariaDB writes into a new file's beginning when it likes.
            assert (place.file, place.era, of_words(place.transactions)) == (now(replica).file, number, of_words(end.transactions))
            name, _ = session.log_end()
            behind = session.query(f"SHOW BINLOG EVENTS IN '{name}' FROM {place.offset}")
            assert {kind for _, _, kind, *_ in behind} <= {"Binlog_checkpoint"}
        places.append(end)
    with Session(options(replica)) as session:
        found = [find_place(session, of_words(end.transactions), era=1) for end in places if of_words(end.transactions) is not None]
        monkeypatch.setattr(failover, "_PAGE_EVENTS", 3)
        by_pages = [find_place(session, of_words(end.transactions), era=1) for end in places[:-1] if of_words(end.transactions) is not None]
    assert found == sorted(found)
    # The last is the end of the log, where MariaDB writes what it likes.
    assert by_pages == found[:-1]
    # What lies behind the first of them on one is what lies behind it on the other.
    last = found[-1]
    capture_until(options(replica), tmp_path / "there", found[0], last, segment_bytes=1)
    here = [event for segment in list_segments(tmp_path / "log") for event in split(segment.bytes().tobytes())]
    there = [event for segment in list_segments(tmp_path / "there") for event in split(segment.bytes().tobytes())]

    def rows(events: list[bytes]) -> list[bytes]:
        return [event[19:-4] for event in events if event[4] in (23, 30)]

    assert rows(there)
    assert rows(there) == rows(here)[-len(rows(there)) :]
    assert of_words(list_segments(tmp_path / "there")[-1].end.transactions) == of_words(places[-1].transactions)


def test_a_server_that_lacks_or_has_something_else_is_no_place_to_go_on(pair: Pair, tmp_path: Path) -> None:
    primary, replica = pair
    execute(primary, "CREATE DATABASE d")
    fill(primary, "d", 20)
    await_replica(primary, replica)
    execute(replica, "STOP SLAVE")
    fill(primary, "d", 20)
    end = capture_until(options(primary), tmp_path / "log", "earliest", now(primary))
    assert of_words(end.transactions) is not None
    with Session(options(replica)) as session:
        with pytest.raises(Unavailable, match="does not have yet"):
            find_place(session, of_words(end.transactions), era=1)
        # It goes on by itself, with transactions that the other has not.
        fill(replica, "d", 50)
        with pytest.raises(SourceDrift, match="does not continue where"):
            find_place(session, of_words(end.transactions), era=1)
        nothing, other = (MariaDbGtidSet(), MySqlGtidSet()) if primary.kind == "mariadb" else (MySqlGtidSet(), MariaDbGtidSet())
        with pytest.raises(SourceDrift, match="has no GTIDs"):
            find_place(session, nothing, era=1)
        with pytest.raises(SourceDrift, match="another kind of server"):
            find_place(session, other, era=1)


def test_transactions_without_a_name_can_t_be_counted(fresh_mysql8: Fresh) -> None:
    server = fresh_mysql8(gtid_mode="OFF_PERMISSIVE")
    execute(server, "CREATE DATABASE d")
    source = ask(server, "SELECT @@server_uuid")[0]
    with Session(options(server)) as session, pytest.raises(SourceDrift, match="have no GTID"):
        find_place(session, MySqlGtidSet.parse(f"{source}:1"), era=1)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("fresh_kind", ["fresh_mariadb", "fresh_mysql8"])
def test_a_pipeline_goes_on_with_a_replica_when_its_server_is_gone(
    fresh_kind: str, request: pytest.FixtureRequest, tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standby, "SEAL_MS", 50)
    fresh: Fresh = request.getfixturevalue(fresh_kind)
    # The files of both are as large as ever: MariaDB writes an event behind each rotation when it likes, and `verify` would wait for it.
    primary, replica = fresh(), fresh(log_slave_updates=True)
    replicate(primary, replica)
    execute(primary, "CREATE DATABASE shop")
    for table in ("orders", "events"):
        execute(primary, f"CREATE TABLE shop.{table} (id INT NOT NULL PRIMARY KEY, v INT)")
        execute(primary, f"INSERT INTO shop.{table} VALUES " + ", ".join(f"({n}, 0)" for n in range(1000)))

    def change(server: Server, low: int) -> None:
        for table in ("orders", "events"):
            execute(
                server,
                f"UPDATE shop.{table} SET v = v + 1 WHERE id BETWEEN {low} AND {low + 300}",
                f"DELETE FROM shop.{table} WHERE id = {low + 7}",
                f"INSERT INTO shop.{table} VALUES ({low + 10_000}, {low})",
            )

    routes = [Route("shop.events", "ods.events", Mode.CHANGELOG), Route("shop.orders", "ods.orders")]
    wanted = settings(primary, tmp_path, routes=routes, failover=True)
    with Running(spark, wanted) as running:
        running.settled()
        change(primary, 0)
        running.settled()
    # Captured, and not in the lake.
    change(primary, 100)
    until, asked = now(primary), threading.Event()
    told = [RelayStatus(RelayActivity.STANDS_BY, None, 0)]
    relay = threading.Thread(target=keep_capturing, args=(wanted, asked, told.append))
    relay.start()
    await_that(lambda: told[-1].position is not None and told[-1].position >= until, seconds=WAIT_S)
    asked.set()
    relay.join()
    # Not even captured.
    change(primary, 200)
    await_replica(primary, replica)
    primary.stop()
    refusing = settings(replica, tmp_path, routes=routes)
    with Running(spark, refusing) as running:
        assert isinstance(running.stopped_by(), SourceDrift)
    moved = settings(replica, tmp_path, routes=routes, failover=True)
    execute(replica, "STOP SLAVE")
    change(replica, 300)
    for low in (400, 500):
        # The second of them finds the era begun.
        with Running(spark, moved) as running:
            running.settled()
            change(replica, low)
            running.settled()
    assert {segment.end.era for segment in list_segments(moved.log_folder)} == {1}
    assert {verdict.outcome for verdict in verify(moved, spark)} == {TableOutcome.VERIFIED}
    assert lake_rows(tmp_path, "ods.orders") == source_rows(replica, "shop.orders")
    assert folded(tmp_path, "ods.events") == source_rows(replica, "shop.events")
    changes = [(row["_op"], row["id"], row["v"], row["_seq"]) for row in history(tmp_path, "ods.events")]
    assert len(changes) == len(set(changes))
