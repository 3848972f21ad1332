"""A pipeline whose state is in a bucket: records, the log, and what lies aside. The server is moto's, in this process (`tests.kit.s3`)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from snowmelt.credentials import Secret
from snowmelt.engine.driver.routes import Mode, Route
from snowmelt.engine.driver.settings import Settings
from snowmelt.engine.failpoints import HALF_UPLOADED
from snowmelt.engine.log import storage
from snowmelt.engine.log.standby import keep_capturing
from snowmelt.errors import Fenced, InvalidConfig, Unavailable
from snowmelt.status import read_status
from snowmelt.store.contract import Store
from snowmelt.store.objects import BucketAddress, open_store
from snowmelt.verify import TableOutcome, verify
from tests.integration.driver_process import DriverProcess
from tests.integration.relay_driver import SMALL, Driver, await_that
from tests.integration.running import Running, folded, history, lake_rows, settings, source_rows
from tests.integration.server_log import execute, fill, log_events, now
from tests.kit.s3 import BUCKET, PASSWORD, S3Server, s3_server
from tests.kit.servers import Server

_prefixes = itertools.count()


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server
        # Whoever still waits for its answer must not keep the process.
        server.goes_on.set()


@pytest.fixture
def wanted(s3: S3Server, mariadb: Server, tmp_path: Path) -> Callable[..., Settings]:
    """Of a pipeline with its state in the bucket. The secret is in a file: Spark's workers were started before it was known."""
    secret = tmp_path / "s3-secret"
    secret.write_text(PASSWORD)
    options = tuple({**s3.options(), "secret_access_key": Secret(f"file:{secret}")}.items())
    bucket, spools = BucketAddress(f"s3://{BUCKET}/test-{next(_prefixes)}/state", options), tmp_path / "spool"
    return lambda **more: settings(mariadb, tmp_path, spool=spools, state=bucket, **more)


def held(store: Store) -> list[tuple[int, int]]:
    """Of each segment in the bucket the number of the record that it was meant for, and the generation of who uploaded it."""
    return [divmod(number, 10**8) for number in store.numbers("log")]


@pytest.mark.timeout(300)
def test_a_pipeline_whose_state_is_in_a_bucket_survives_kills_inside_of_uploads(
    spark: Any, mariadb: Server, s3: S3Server, wanted: Callable[..., Settings], tmp_path: Path
) -> None:
    execute(mariadb, "CREATE DATABASE shop")
    for table in ("orders", "events"):
        execute(mariadb, f"CREATE TABLE shop.{table} (id INT NOT NULL PRIMARY KEY, v INT)")
        execute(mariadb, f"INSERT INTO shop.{table} VALUES " + ", ".join(f"({n}, 0)" for n in range(2000)))

    def change(low: int) -> None:
        for table in ("orders", "events"):
            execute(
                mariadb,
                f"UPDATE shop.{table} SET v = v + 1 WHERE id BETWEEN {low} AND {low + 300}",
                f"DELETE FROM shop.{table} WHERE id = {low + 7}",
                f"INSERT INTO shop.{table} VALUES ({low + 10_000}, {low})",
            )

    mine = wanted(routes=[Route("shop.events", "ods.events", Mode.CHANGELOG), Route("shop.orders", "ods.orders")], summary_every=2)
    store = open_store(mine.state)
    with Running(spark, mine) as running:
        running.settled()
        for low in (0, 100, 200):
            change(low)
            running.settled()
        # What the lake has is let go of, in the bucket too. The first record is the head of the chain, and has no data.
        running.wait_for(lambda: (2, 1) not in held(store))
    assert held(store)
    assert not (tmp_path / "state").exists()
    assert list((tmp_path / "spool").iterdir()) == []

    # Twice in a row: index without data, then half of the data.
    change(300)
    driver = DriverProcess(mine, tmp_path, HALF_UPLOADED)
    driver.wait_for_death()
    change(400)
    s3.stall(".parts/")
    driver = DriverProcess(mine, tmp_path)
    await_that(s3.stalled.is_set)
    driver.kill()
    s3.goes_on.set()
    assert {2, 3} <= {generation for _, generation in held(store)}

    with Running(spark, mine) as running:
        running.settled()
        for low in range(500, 500 + 100 * (mine.pace.summary_every + 1), 100):
            change(low)
            running.settled()
        status = read_status(mine)
        # What was left by the dead is swept once their numbers have records of others.
        running.wait_for(lambda: {generation for _, generation in held(store)} == {4})
    assert status.held_bytes > 0
    assert {verdict.outcome for verdict in verify(mine, spark)} == {TableOutcome.VERIFIED}
    assert lake_rows(tmp_path, "ods.orders") == source_rows(mariadb, "shop.orders")
    assert folded(tmp_path, "ods.events") == source_rows(mariadb, "shop.events")
    changes = [(row["_op"], row["id"], row["v"], row["_seq"]) for row in history(tmp_path, "ods.events")]
    assert len(changes) == len(set(changes))
    # Neither the bucket's secret nor the database's is in anything that the pipeline wrote.
    assert s3.holds(str(mine.state), b"shop") > 0
    assert s3.holds(str(mine.state), PASSWORD.encode()) == s3.holds(str(mine.state), mariadb.password.encode()) == 0
    assert PASSWORD not in repr(mine)


def test_a_zombie_that_uploads_late_changes_nothing(
    mariadb: Server, database: Callable[[Server], str], s3: S3Server, wanted: Callable[..., Settings]
) -> None:
    name, mine = database(mariadb), wanted(capture=SMALL)
    with Driver(mine) as zombie:
        begins = zombie.end
        s3.stall(".parts/")
        fill(mariadb, name, 20)
        await_that(s3.stalled.is_set)
        with Driver(mine) as driver:
            driver.wait_for(lambda: driver.end >= now(mariadb))
            # Half of it came before the other one began, the rest comes now.
            s3.goes_on.set()
            with pytest.raises(Fenced):
                zombie.wait_for(lambda: False)
            zombie.recorder.stop()
            fill(mariadb, name, 20)
            driver.wait_for(lambda: driver.end >= now(mariadb))
            of_both = held(open_store(mine.state))
            driver.recorder.sweep(0)
            driver.stop()
    assert {generation for _, generation in of_both} == {1, 2}
    assert {generation for _, generation in held(open_store(mine.state))} == {2}
    assert driver.events == log_events(mariadb, begins.file, begins.offset, driver.end.offset)


def test_a_zombie_that_records_late_is_followed_by_a_new_driver(
    mariadb: Server, database: Callable[[Server], str], wanted: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "PIECE_BYTES", 4096)
    name, mine = database(mariadb), wanted(capture=SMALL)
    with Driver(mine) as zombie:
        begins = zombie.end
        fill(mariadb, name, 20)
        await_that(lambda: not zombie.recorder._kept.empty())
        with Driver(mine) as driver:
            fill(mariadb, name, 20)
            await_that(lambda: not driver.recorder._kept.empty())
            with pytest.raises(Fenced, match="a newer driver"):
                # As if it had been asleep between two lines; awake it hears from the server first.
                zombie.recorder._record(*zombie.recorder._kept.get_nowait())
            with pytest.raises(Unavailable, match="an older driver came first"):
                driver.recorder.take()
        with Driver(mine) as after:
            after.wait_for(lambda: after.end >= now(mariadb))
            after.stop()
    assert {sealed.generation for sealed in after.relay.segments[1:]} == {1, 3}
    assert after.events == log_events(mariadb, begins.file, begins.offset, after.end.offset)


def test_a_relay_without_a_driver_is_refused(wanted: Callable[..., Settings]) -> None:
    with pytest.raises(InvalidConfig, match="needs the pipeline's state in a folder"):
        keep_capturing(wanted(), None, lambda _: None)  # type: ignore[arg-type]
