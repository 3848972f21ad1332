"""What the watermark of a lake table promises, against servers that write their log in the order of commits and stamp it otherwise."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from snowmelt.engine.driver.routes import Mode, Route
from snowmelt.status import read_status
from tests.integration.dump import await_that
from tests.integration.running import Running, lake_rows, settings
from tests.kit.servers import Server


def ask(server: Server, *statements: str) -> Any:
    """The last one's first value."""
    with server.connect() as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        row = cursor.fetchone()
        return row[0] if row else None


def now_ms(server: Server) -> int:
    return int(1000 * ask(server, "SELECT UNIX_TIMESTAMP(NOW(6))"))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["mariadb", "mysql8"])
def test_what_is_committed_later_is_never_before_it_though_its_time_in_the_log_is(
    kind: str, request: pytest.FixtureRequest, database: Callable[[Server], str], tmp_path: Path, spark: Any
) -> None:
    server: Server = request.getfixturevalue(kind)
    shop = database(server)
    ask(server, f"CREATE TABLE {shop}.slow (id INT PRIMARY KEY, v INT)", f"CREATE TABLE {shop}.quick (id INT PRIMARY KEY)")
    ask(server, f"INSERT INTO {shop}.slow VALUES (1, 1)")
    wanted = settings(server, tmp_path, tables=[f"{shop}.*"], routes=[Route(f"{shop}.*", "ods.{table}", Mode.CHANGELOG)])

    def committed_ms() -> int:
        (found,) = [one.committed_ms for one in read_status(wanted).tables if one.target == "ods.slow"]
        return found or 0

    def waits() -> bool:
        return bool(ask(server, "SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE 'UPDATE%slow%'"))

    with Running(spark, wanted) as running, server.connect(autocommit=False) as holder, holder.cursor() as lock:
        running.settled()
        lock.execute(f"SELECT * FROM {shop}.slow FOR UPDATE")
        # It begins now, waits for the lock, and is committed when others have been.
        late = threading.Thread(target=ask, args=(server, "SET SESSION innodb_lock_wait_timeout = 120", f"UPDATE {shop}.slow SET v = 2"))
        late.start()
        try:
            await_that(waits)
            began_ms = now_ms(server)
            await_that(lambda: now_ms(server) > began_ms + 2_500)
            ask(server, f"INSERT INTO {shop}.quick VALUES (1)")
            running.settled()
            promised_ms = committed_ms()
            assert promised_ms > began_ms + 1_000, "it moves with the other table"
            assert waits()
            # From here on the late one is committed.
            assert now_ms(server) >= promised_ms
        finally:
            holder.rollback()
            late.join()
        running.settled()
        (changed,) = [row for row in lake_rows(tmp_path, "ods.slow", system=True) if row["_op"] == "update_after"]
        stamp_ms = int(changed["_ts"].timestamp() * 1000)  # type: ignore[attr-defined]
        assert stamp_ms < promised_ms, "were it not so, the watermark could promise more than it does"

        # A session may set its own time. One that is still to come does not count, nor does one of long ago.
        for number, stamp in ((2, 2_100_000_000), (3, 1_000_000)):
            ask(server, f"SET timestamp = {stamp}", f"INSERT INTO {shop}.quick VALUES ({number})")
            running.settled()
            assert promised_ms <= committed_ms() <= now_ms(server)
        ask(server, f"INSERT INTO {shop}.quick VALUES (4)")
        running.settled()
        assert promised_ms <= committed_ms() <= now_ms(server)
