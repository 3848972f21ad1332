"""XA transactions around a copy, a restart and the end of their log: what is prepared comes with its COMMIT, and only then."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from snowmelt.engine.aside import lying_aside
from snowmelt.engine.pipeline import Pipeline, Settings
from snowmelt.engine.routes import Mode, Route
from snowmelt.errors import SourceDrift
from snowmelt.store.objects import open_store
from tests.integration.running import Running, folded, history, lake_rows, settings, source_rows
from tests.servers import Fresh, Server

ROWS = 300
TABLES = ("orders", "events")


class Shop:
    """Two tables of one content: the lake has the rows of one and the changes of the other."""

    def __init__(self, server: Server, folder: Path) -> None:
        self.server = server
        self.folder = folder
        self.execute("CREATE DATABASE shop")
        for table in TABLES:
            self.execute(f"CREATE TABLE shop.{table} (id INT NOT NULL PRIMARY KEY, v VARCHAR(40))")
            with server.connect(autocommit=False) as connection, connection.cursor() as cursor:
                cursor.executemany(f"INSERT INTO shop.{table} VALUES (%s, 'old')", [(i,) for i in range(1, ROWS + 1)])
                connection.commit()

    def settings(self, **more: Any) -> Settings:
        routes = [Route("shop.events", "ods.events", Mode.CHANGELOG), Route("shop.orders", "ods.orders")]
        return settings(self.server, self.folder, routes=routes, **{"rows_per_chunk": 100} | more)

    def execute(self, *statements: str) -> None:
        with self.server.connect() as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def prepare(self, xid: str, number: int, tables: Iterable[str] = TABLES) -> None:
        """One that changes a row, takes one away and brings one in each table; its session ends."""
        self.execute(
            f"XA START {xid}",
            *(f"UPDATE shop.{table} SET v = 'xa {number}' WHERE id = {number}" for table in tables),
            *(f"DELETE FROM shop.{table} WHERE id = {100 + number}" for table in tables),
            *(f"INSERT INTO shop.{table} VALUES ({1000 + number}, 'xa {number}')" for table in tables),
            f"XA END {xid}",
            f"XA PREPARE {xid}",
        )

    def aside(self) -> list[int]:
        return lying_aside(open_store(str(self.folder / "state")))

    def segments(self) -> list[str]:
        return sorted(path.name for path in (self.folder / "state" / "log").glob("*.log"))

    def changes_of(self, number: int) -> Counter[tuple[object, object, object]]:
        rows = [row for row in history(self.folder, "ods.events") if row["id"] in (number, 100 + number, 1000 + number)]
        return Counter((row["_op"], row["id"], row["v"]) for row in rows if row["_op"] != "read")

    def check(self) -> None:
        for table in TABLES:
            source = source_rows(self.server, f"shop.{table}")
            assert (lake_rows(self.folder, "ods.orders") if table == "orders" else folded(self.folder, "ods.events")) == source


def changes(number: int) -> Counter[tuple[object, object, object]]:
    """What one of `Shop.prepare` is in a change table, each once."""
    return Counter(
        [
            ("update_before", number, "old"),
            ("update_after", number, f"xa {number}"),
            ("delete", 100 + number, "old"),
            ("insert", 1000 + number, f"xa {number}"),
        ]
    )


@pytest.fixture(params=["mariadb", "mysql8"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Shop:
    fresh: Fresh = request.getfixturevalue(f"fresh_{request.param}")
    return Shop(fresh(), tmp_path)


class BeforeTheCopy(Running):
    """`act` is called once, when capture has begun and no table was read yet."""

    def __init__(self, spark: Any, wanted: Settings, act: Callable[[], None]) -> None:
        super().__init__(spark, wanted)
        self._acts = [act]

    def _until(self, pipeline: Pipeline) -> bool:
        while self._acts:
            self._acts.pop()()
        return super()._until(pipeline)


def test_prepared_transactions_come_with_their_commit_around_a_copy_a_restart_and_the_end_of_their_log(spark: Any, shop: Shop) -> None:
    # MySQL locks a change table for the moment in which its copy begins, and that waits for whatever is prepared there.
    around = TABLES if shop.server.kind == "mariadb" else ("orders",)

    def before_the_copy() -> None:
        for number in (1, 2, 3, 4):
            shop.prepare(f"'g{number}','b',{number}", number, around)
        shop.execute("XA COMMIT 'g1','b',1", "XA ROLLBACK 'g2','b',2")

    with BeforeTheCopy(spark, shop.settings(), before_the_copy) as running:
        running.settled()
        shop.check()
        assert shop.changes_of(3) == shop.changes_of(4) == Counter()
        assert len(shop.aside()) >= 2
        shop.execute("XA COMMIT 'g3','b',3", "XA ROLLBACK 'g4','b',4")
        for number in (5, 6, 7):
            shop.prepare(f"'g{number}','b',{number}", number)
        running.settled()
        shop.check()
        assert shop.changes_of(3) == (changes(3) if "events" in around else Counter())
        assert shop.changes_of(4) == Counter()
        # The log of what is prepared is gone long before its end.
        before = shop.segments()
        shop.execute("FLUSH BINARY LOGS", "UPDATE shop.orders SET v = 'on' WHERE id = 50")
        running.settled()
        running.wait_for(lambda: not set(before) & set(shop.segments()))
    assert len(shop.aside()) == 3
    # While nobody captures: one is committed, one is rolled back, and one more is prepared.
    shop.execute("XA COMMIT 'g5','b',5", "XA ROLLBACK 'g6','b',6")
    shop.prepare("'g8','b',8", 8)
    with Running(spark, shop.settings()) as running:
        running.settled()
        shop.check()
        assert (shop.changes_of(5), shop.changes_of(6), shop.changes_of(8)) == (changes(5), Counter(), Counter())
        shop.execute("XA COMMIT 'g7','b',7", "XA COMMIT 'g8','b',8")
        # A name may be used again, and all of it may be in one segment.
        shop.prepare("'g1','b',1", 9)
        shop.execute("XA COMMIT 'g1','b',1")
        shop.execute("XA START 'one'", "INSERT INTO shop.events VALUES (1010, 'one phase')", "XA END 'one'", "XA COMMIT 'one' ONE PHASE")
        running.settled()
        shop.check()
        assert [shop.changes_of(number) for number in (7, 8, 9)] == [changes(7), changes(8), changes(9)]
        assert shop.changes_of(10) == Counter({("insert", 1010, "one phase"): 1})
        running.wait_for(lambda: shop.aside() == [])
    # A change has the place of its COMMIT, behind everything that was committed before it.
    inserted = [row["id"] for row in history(shop.folder, "ods.events") if row["_op"] == "insert"]
    assert [one for one in inserted if one != 1003] == [1005, 1007, 1008, 1009, 1010]


def test_a_first_start_is_refused_while_something_is_prepared(spark: Any, fresh_mariadb: Fresh, tmp_path: Path) -> None:
    shop = Shop(fresh_mariadb(), tmp_path)
    shop.prepare("'waits'", 1)
    with Running(spark, shop.settings()) as running:
        error = running.stopped_by()
    assert isinstance(error, SourceDrift)
    assert "X'7761697473',X'',1" in str(error)
    assert not open_store(str(tmp_path / "state")).numbers("relay"), "a start that was refused left a beginning behind"
    shop.execute("XA ROLLBACK 'waits'")
    with Running(spark, shop.settings()) as running:
        running.settled()
        shop.check()
