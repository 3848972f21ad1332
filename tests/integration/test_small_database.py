"""A pipeline from the tests' own small database into Paimon, on Spark: what the engine does is of no one database.

No module of the product knows this database. Its section is named here, the settings have it as a value, and Spark's workers get it
pickled.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import pytest

from snowmelt.config import PipelineConfig
from snowmelt.config.registry import SOURCES, TYPES
from snowmelt.databases.contract.section import SourceSection
from snowmelt.engine.driver.settings import Settings
from snowmelt.engine.failpoints import BEFORE_DONE
from snowmelt.errors import SnowmeltError
from snowmelt.model.table import TableId
from snowmelt.sections.document import Choice, read_file
from snowmelt.status import TableStatus, read_status
from snowmelt.verify import TableOutcome, verify
from snowmelt.verify.rounds import DifferenceKind
from tests.integration.killed import PipelineProcess
from tests.integration.running import Running, changed, folded, history, lake_rows, repeated
from tests.kit.small.database import KIND, SmallDatabase, SmallSource
from tests.kit.small.server import Change, Definition, SmallServer
from tests.kit.waiting import until

ROWS = 6_000
WAIT_S_MAX = 240
ORDERS = Definition(TableId("shop", "orders"), (("id", "int"), ("k", "int"), ("v", "text")), ("id",))
NAMES = Definition(TableId("shop", "names"), (("name", "text"), ("v", "int")), ("name",))
"""Only the server orders its keys: one read copies it."""
NOTES = Definition(TableId("shop", "notes"), (("id", "int"), ("v", "text")), ("id",))
JOURNAL = Definition(TableId("shop", "journal"), (("id", "int"), ("change_number", "int")), ("id",))
"""Each of its changes is kept, and has a number that no other has."""
LATER = Definition(TableId("shop", "later"), (("id", "int"), ("v", "text")), ("id",))


class Shop:
    """The server, and what writes to it."""

    def __init__(self, folder: Path) -> None:
        self.server = SmallServer(folder)
        self._tables: dict[TableId, Definition] = {}
        self._lock = threading.Lock()
        for table in (ORDERS, NAMES, NOTES, JOURNAL):
            self.run("CREATE", table)
        self.server.write([(ORDERS.id, None, (number, number % 1000, f"order {number}")) for number in range(ROWS)])
        self.server.write([(NAMES.id, None, (f"Näme {number}", number)) for number in range(300)])
        self.server.write([(NOTES.id, None, (number, None)) for number in range(50)])
        self.server.write([(JOURNAL.id, None, (number, -number - 1)) for number in range(1_000)])

    def run(self, statement: str, table: Definition) -> None:
        with self._lock:
            self.server.run(statement, table)
            self._tables[table.id] = table

    def write(self, number: int) -> None:
        """A transaction: rows of each table come, change, change their key, and go."""
        chance = random.Random(number)
        with self._lock:
            self.server.write(change for table in self._tables.values() for change in self._changes(table, number, chance))

    def _changes(self, table: Definition, number: int, chance: random.Random) -> Iterator[Change]:
        rows, count = self.server.rows(table.id), 1 if table is JOURNAL else 3
        olds = chance.sample(rows, count) if len(rows) >= count else [None] * count
        for index, old in enumerate(olds):
            # No row ever had this key, and no other change of the table has this number.
            fresh = ROWS + 10 * number + index
            key, *values = (fresh if kind == "int" else f"new {fresh} ä" for _, kind in table.columns)
            match chance.choice(["insert", "delete", "update", "move"]):
                case "delete":
                    new = None
                case "update" if old is not None:
                    new = (old[0], *values)
                case "insert":
                    old, new = None, (key, *values)  # noqa: PLW2901
                case _:
                    new = (key, *values)
            if old is not None or new is not None:
                yield table.id, old, new

    def rows(self, table: Definition) -> list[dict[str, object]]:
        """As the lake's are told."""
        names = self._tables[table.id].names
        rows = [dict(zip(names, row, strict=True)) for row in self.server.rows(table.id)]
        return sorted(rows, key=lambda row: repr(sorted(row.items())))


class Config(PipelineConfig):
    """`pipeline.yaml` with one type of source more, as a line in the registry would make it."""

    source: Annotated[SourceSection, Choice({**SOURCES, KIND: SmallSource}, f"{TYPES}, {KIND}")]


def settings(shop: Shop, folder: Path) -> Settings:
    file = folder / "pipeline.yaml"
    file.write_text(f"""\
source: {{type: small, folder: {shop.server.folder}, tables: [shop.*]}}
sink: {{type: paimon, warehouse: {folder / "lake"}}}
routes:
  - {{source: shop.journal, target: ods.journal, mode: changelog}}
  - {{source: shop.*, target: "ods.shop_{{table}}"}}
pipeline: {{name: small, state: {folder / "state"}, interval: 300ms, rows_per_chunk: 250, chunks_at_once: 1}}
""")
    return changed(read_file(file, Config, "run").to_settings(), summary_every=4)


def status_of(wanted: Settings, table: Definition) -> TableStatus | None:
    with suppress(SnowmeltError):
        return next((one for one in read_status(wanted).tables if one.source == str(table.id)), None)
    return None


@pytest.mark.timeout(900)
def test_a_database_that_the_product_does_not_know_flows_into_the_lake_whatever_dies(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop(tmp_path / "server")
    wanted = settings(shop, tmp_path)
    assert wanted.source == SmallDatabase(shop.server.folder)
    widened = replace(ORDERS, columns=(*ORDERS.columns, ("w", "int")))

    def half_copied() -> bool:
        table = status_of(wanted, ORDERS)
        return table is not None and table.chunks is not None and 3 <= table.chunks < (table.chunks_known or ROWS) - 3

    with repeated(shop.write, pause_s=0.02):
        process = PipelineProcess(wanted, tmp_path)
        until(half_copied, seconds_max=WAIT_S_MAX)
        process.kill()
        assert half_copied(), "the table was copied when its driver was killed"
        # While nothing runs.
        shop.run("ALTER", widened)
        process = PipelineProcess(wanted, tmp_path, BEFORE_DONE)
        process.wait_for(tmp_path / "released")
        shop.run("TRUNCATE", NOTES)
        shop.run("CREATE", LATER)
        process.die_at(BEFORE_DONE)
        process.kill()
        (tmp_path / "released").unlink()
        process = PipelineProcess(wanted, tmp_path)
        process.wait_for(tmp_path / "released")
        until(lambda: (one := status_of(wanted, LATER)) is not None and one.phase == "released", seconds_max=WAIT_S_MAX)
        # A lake that follows is verified under load.
        verdicts = verify(wanted, spark)
        assert {one.table for one in verdicts} == {one.id for one in (ORDERS, NAMES, NOTES, JOURNAL, LATER)}
        assert {one.outcome for one in verdicts} == {TableOutcome.VERIFIED}, verdicts
    (tmp_path / "stop").touch()
    process.wait_for(tmp_path / "current")
    process.kill()
    for table in (ORDERS, NAMES, NOTES, LATER):
        assert lake_rows(tmp_path, f"ods.shop_{table.id.name}") == shop.rows(table), table.id
    # Every change once: each fits what was there before it, and what comes of them all is the source.
    assert folded(tmp_path, "ods.journal") == shop.rows(JOURNAL)
    made = [row["change_number"] for row in history(tmp_path, "ods.journal") if row["_op"] in ("insert", "update_after")]
    assert len(made) == len(set(made)), "a change came twice"


@pytest.mark.timeout(600)
def test_rows_that_the_lake_has_wrong_are_named(tmp_path: Path, spark: Any) -> None:
    shop = Shop(tmp_path / "server")
    wanted = settings(shop, tmp_path)
    with Running(spark, wanted) as running:
        running.settled()
    # The log now says that a row was another one, and the lake has it as it was.
    log = shop.server.folder / "log"
    told = log.read_bytes()
    assert told.count(b'"order 77"') == told.count(b"[77, -78]") == 1
    log.write_bytes(told.replace(b'"order 77"', b'"order 78"').replace(b"[77, -78]", b"[78, -78]"))
    found = {verdict.table: verdict for verdict in verify(wanted, spark)}
    assert {one.id for one in (ORDERS, NAMES, NOTES, JOURNAL)} == found.keys()
    (wrong,) = found[ORDERS.id].differences
    assert (wrong.key, wrong.kind, wrong.columns) == ((("id", "77"),), DifferenceKind.CHANGED, ("v",))
    assert {one.kind for one in found[JOURNAL.id].differences} == {DifferenceKind.LOST, DifferenceKind.EXTRA}
    assert {found[one.id].outcome for one in (NAMES, NOTES)} == {TableOutcome.VERIFIED}
