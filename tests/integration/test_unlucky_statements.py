"""Statements at the worst moment: each of these lost rows, mixed up columns or stopped a pipeline for ever once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from snowmelt.engine.log import handover
from snowmelt.model.table import TableId
from snowmelt.store.contract import Store
from snowmelt.store.generations import Generation
from tests.integration.running import Running, held_reads, lake_rows, run_tasks_here, settings, source_rows
from tests.kit.servers import Server


class Stage:
    """A database of its own, with a table that is always there."""

    def __init__(self, server: Server, name: str, folder: Path, spark: Any) -> None:
        self.server, self.name, self.folder, self.spark = server, name, folder, spark
        self.execute("CREATE TABLE {}.s (id INT NOT NULL PRIMARY KEY)", "INSERT INTO {}.s VALUES (1)")

    def execute(self, *statements: str) -> None:
        with self.server.connect() as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement.replace("{}", self.name))
            connection.commit()

    def run(self, recopy: Sequence[str] = (), **more: Any) -> Running:
        return Running(self.spark, settings(self.server, self.folder, tables=[f"{self.name}.*"], **more), recopy=recopy)

    def compare(self, *tables: str) -> None:
        for table in tables:
            assert lake_rows(self.folder, f"ods.{self.name}_{table}") == source_rows(self.server, f"{self.name}.{table}"), table


@pytest.fixture
def stage(mariadb: Server, database: Callable[[Server], str], tmp_path: Path, spark: Any) -> Stage:
    return Stage(mariadb, database(mariadb), tmp_path, spark)


@pytest.fixture
def elsewhere(stage: Stage, database: Callable[[Server], str]) -> str:
    """A table of a database that is not captured."""
    other = database(stage.server)
    stage.execute(f"CREATE TABLE {other}.t (id INT NOT NULL PRIMARY KEY, a INT, b INT)", f"INSERT INTO {other}.t VALUES (1, 1, 2)")
    return other


@pytest.mark.timeout(300)
def test_a_table_that_is_made_while_one_driver_takes_over_from_another_is_found(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    take_over = handover.take_over

    def make_first(store: Store, folder: Path, until: ExitStack, ended: Callable[[], bool]) -> Generation | None:
        stage.execute("CREATE TABLE {}.late (id INT NOT NULL PRIMARY KEY)", "INSERT INTO {}.late VALUES (1), (2)")
        return take_over(store, folder, until, ended)

    with stage.run(interval_s=5) as one:
        one.settled()
        monkeypatch.setattr(handover, "take_over", make_first)
        with stage.run() as two:
            two.settled()
            stage.execute("INSERT INTO {}.late VALUES (3)")
            two.settled()
    stage.compare("s", "late")


@pytest.mark.timeout(300)
def test_columns_that_are_swapped_before_their_table_is_found_are_not_swapped_twice(stage: Stage, elsewhere: str) -> None:
    with stage.run(interval_s=5) as one:
        one.settled()
        stage.execute(f"RENAME TABLE {elsewhere}.t TO {{}}.t")
        one.wait_for(lambda: TableId(stage.name, "t") in one.driver.known.shapes.touched)
    stage.execute("ALTER TABLE {}.t RENAME COLUMN a TO b, RENAME COLUMN b TO a")
    with stage.run() as two:
        two.settled()
        stage.execute("ALTER TABLE {}.t ADD COLUMN n INT NULL", "INSERT INTO {}.t (id, a, b, n) VALUES (2, 1, 2, 3)")
        stage.execute("UPDATE {}.t SET n = 1 WHERE id = 1")
        two.settled()
    stage.compare("t")


@pytest.mark.timeout(300)
def test_a_table_that_came_while_no_driver_ran_can_be_truncated_while_it_is_copied(stage: Stage, elsewhere: str) -> None:
    stage.execute(f"INSERT INTO {elsewhere}.t SELECT seq, seq, seq FROM {elsewhere}.seq_2_to_4000")
    with stage.run() as one:
        one.settled()
    stage.execute(f"RENAME TABLE {elsewhere}.t TO {{}}.t")
    with stage.run(rows_per_chunk=200, chunks_at_once=1) as two:
        two.wait_for(lambda: two.pipeline.progress.phases.get(f"{stage.name}.t") == "snapshotting")
        stage.execute("TRUNCATE TABLE {}.t", "INSERT INTO {}.t VALUES (1, 2, 3)")
        two.settled()
    stage.compare("t", "s")


@pytest.mark.timeout(300)
def test_a_table_is_read_again_with_the_ends_that_it_has_now(stage: Stage) -> None:
    with stage.run() as running:
        running.settled()
        stage.execute("INSERT INTO {}.s VALUES (50)")
        running.settled()
        stage.execute("ALTER TABLE {}.s ADD COLUMN n INT NOT NULL DEFAULT 7")
        running.settled()
    stage.compare("s")


@pytest.mark.timeout(300)
def test_a_table_that_is_dropped_while_it_is_split_stops_nobody(stage: Stage) -> None:
    stage.execute("CREATE TABLE {}.b (id INT NOT NULL PRIMARY KEY)", "INSERT INTO {}.b SELECT seq FROM {}.seq_1_to_40000")
    with stage.run(rows_per_chunk=100) as running:
        running.wait_for(lambda: running.pipeline.progress.phases.get(f"{stage.name}.b") == "splitting")
        stage.execute("DROP TABLE {}.b", "INSERT INTO {}.s VALUES (2)")
        running.settled()
    stage.compare("s")


@pytest.mark.timeout(300)
def test_a_foreign_key_that_changes_rows_in_silence_sets_its_table_aside(stage: Stage) -> None:
    stage.execute("CREATE TABLE {}.k (id INT NOT NULL PRIMARY KEY, p INT)")
    with stage.run() as running:
        running.settled()
        stage.execute("ALTER TABLE {}.k ADD CONSTRAINT f FOREIGN KEY (p) REFERENCES {}.s (id) ON DELETE CASCADE")
        stage.execute("CREATE TABLE {}.made (id INT NOT NULL PRIMARY KEY, p INT REFERENCES s (id) ON DELETE SET NULL)")
        stage.execute("INSERT INTO {}.s VALUES (3)")
        running.settled()
        assert list(running.pipeline.progress.aside) == [f"{stage.name}.k"]
        assert "ON DELETE CASCADE" in running.pipeline.progress.aside[f"{stage.name}.k"]
        assert f"{stage.name}.made" not in running.pipeline.progress.phases, "one that is made so is left out"
    stage.compare("s")
    with stage.run(refuse_cascades=False, recopy=[f"{stage.name}.k"]) as running:
        running.settled()
    stage.compare("s", "k")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("restart", [False, True])
def test_a_table_that_a_foreign_key_changes_in_silence_is_not_taken_under_another_name(stage: Stage, restart: bool) -> None:
    stage.execute("CREATE TABLE {}.k (id INT NOT NULL PRIMARY KEY, p INT)", "CREATE TABLE {}.o (id INT NOT NULL PRIMARY KEY, p INT)")
    stage.execute("INSERT INTO {}.k VALUES (1, 1)", "INSERT INTO {}.o VALUES (7, 7)")
    k, o = f"{stage.name}.k", f"{stage.name}.o"
    with ExitStack() as running_until:
        running = running_until.enter_context(stage.run())
        running.settled()
        stage.execute("ALTER TABLE {}.k ADD CONSTRAINT f FOREIGN KEY (p) REFERENCES {}.s (id) ON DELETE CASCADE")
        running.settled()
        if restart:
            running_until.pop_all().close()
            running = running_until.enter_context(stage.run())
            running.settled()
        assert list(running.pipeline.progress.aside) == [k]
        stage.execute(
            "RENAME TABLE {}.k TO {}.swapped, {}.o TO {}.k, {}.swapped TO {}.o", "DELETE FROM {}.s", "INSERT INTO {}.k VALUES (8, 8)"
        )
        running.settled()
        assert list(running.pipeline.progress.aside) == [o], "the rows that the cascade deleted are in no log"
    stage.compare("s", "k")


@pytest.mark.timeout(300)
def test_tables_that_a_merge_table_names_are_set_aside_as_long_as_it_does(stage: Stage, elsewhere: str) -> None:
    """What is changed through it is in the log under its name, whether that is captured or not."""
    definition = "(id INT NOT NULL PRIMARY KEY, v INT) ENGINE = MyISAM"
    stage.execute(*(f"CREATE TABLE {{}}.{name} {definition}" for name in ("a", "b", "c")), "INSERT INTO {}.a VALUES (1, 1)")
    a, b = f"{stage.name}.a", f"{stage.name}.b"
    merge = f"{elsewhere}.m"
    with stage.run() as running:
        running.settled()
        stage.execute(f"CREATE TABLE {merge} (id INT NOT NULL, v INT, KEY (id)) ENGINE = MERGE UNION = ({{}}.a) INSERT_METHOD = LAST")
        stage.execute(f"UPDATE {merge} SET v = 2", "INSERT INTO {}.s VALUES (2)")
        running.settled()
        assert list(running.pipeline.progress.aside) == [a]
        assert "MERGE table" in running.pipeline.progress.aside[a]
        stage.execute(f"ALTER TABLE {merge} UNION = ({{}}.a, {{}}.b)", f"INSERT INTO {merge} VALUES (3, 3)")
        running.settled()
        assert sorted(running.pipeline.progress.aside) == [a, b]
        stage.compare("s", "c")
    # Asked for or not, none comes back, nor does another table that takes the name of one.
    with stage.run(recopy=[b]) as running:
        running.settled()
        stage.execute("RENAME TABLE {}.a TO {}.old, {}.c TO {}.a", f"INSERT INTO {merge} VALUES (4, 4)", "INSERT INTO {}.old VALUES (9, 9)")
        running.settled()
        assert sorted(running.pipeline.progress.aside) == [a, b]
        stage.compare("s", "old")
    stage.execute(f"DROP TABLE {merge}")
    with stage.run(recopy=[a, b]) as running:
        running.settled()
        stage.execute("UPDATE {}.b SET v = 5", "INSERT INTO {}.a VALUES (6, 6)")
        running.settled()
        assert running.pipeline.progress.aside == {}
    stage.compare("s", "a", "b", "old")


@pytest.mark.timeout(300)
def test_a_rename_that_renames_nothing_copies_nothing(stage: Stage) -> None:
    stage.execute("CREATE TABLE {}.t (id INT NOT NULL PRIMARY KEY, v INT)", "INSERT INTO {}.t VALUES (1, 1)")
    name = TableId(stage.name, "t")
    with stage.run() as running:
        running.settled()
        before = running.pipeline.ledger.tables.get(name).incarnation  # type: ignore[union-attr]
        stage.execute("RENAME TABLE IF EXISTS {}.nope TO {}.t, {}.s TO {}.renamed, {}.nope TO {}.t", "UPDATE {}.t SET v = 2")
        running.settled()
        assert running.pipeline.ledger.tables.get(name).incarnation == before  # type: ignore[union-attr]
    stage.compare("t", "renamed")


@pytest.mark.timeout(300)
def test_text_of_a_table_that_inherits_another_character_set_stays_what_it_is(stage: Stage) -> None:
    stage.execute("ALTER DATABASE {} CHARACTER SET latin1")
    with stage.run() as running:
        running.settled()
        stage.execute("CREATE TABLE {}.t (id INT NOT NULL PRIMARY KEY, s VARCHAR(20))", "ALTER TABLE {}.t ADD COLUMN n INT")
        stage.execute("INSERT INTO {}.t VALUES (1, 'Ã©', 1)")
        running.settled()
        stage.execute("ALTER TABLE {}.t ADD COLUMN m INT", "INSERT INTO {}.t VALUES (2, 'xé', 1, 2)")
        running.settled()
    stage.compare("t")


@pytest.mark.timeout(300)
def test_a_table_without_a_key_that_is_made_later_is_left_out_until_it_has_one(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    with stage.run() as running:
        running.settled()
        stage.execute("CREATE TABLE {}.scratch (v INT)", "INSERT INTO {}.scratch VALUES (1), (1)", "INSERT INTO {}.s VALUES (2)")
        running.settled()
    stage.compare("s")
    assert [
        record.__dict__["why"]
        for record in caplog.records
        if record.message == "a table is left out" and "no key" in record.__dict__["why"]
    ]
    with stage.run() as running:
        running.settled()
        stage.execute(
            "ALTER TABLE {}.scratch ADD COLUMN id INT NOT NULL AUTO_INCREMENT PRIMARY KEY", "INSERT INTO {}.scratch (v) VALUES (3)"
        )
        running.settled()
    stage.compare("s", "scratch")


@pytest.mark.timeout(300)
def test_rows_without_their_key_set_aside_a_table_that_is_read_and_nothing_else(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The image of a session with binlog_row_image = MINIMAL lacks the key of the row as it is after the update."""
    run_tasks_here(monkeypatch)
    stage.execute("CREATE TABLE {}.t (id INT NOT NULL PRIMARY KEY, v INT)", "INSERT INTO {}.t VALUES (1, 1), (2, 2)")
    with stage.run() as running, held_reads("t", monkeypatch) as released:
        running.wait_for(lambda: running.pipeline.progress.phases.get(f"{stage.name}.s") == "released")
        stage.execute("SET SESSION binlog_row_image = 'MINIMAL'", "UPDATE {}.t SET v = v + 1", "INSERT INTO {}.s VALUES (2)")
        upto = running.pipeline.progress.captured
        running.wait_for(lambda: running.pipeline.progress.done_upto > upto)
        released.set()
        running.wait_for(lambda: running.pipeline.progress.aside)
        assert "partial rows" in running.pipeline.progress.aside[f"{stage.name}.t"]
        running.wait_for(running.pipeline.caught_up)
    stage.compare("s")
