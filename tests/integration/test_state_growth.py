"""What an epoch writes to the store is as large as what happened in it, however many tables lie still."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from snowmelt.store.local import LocalStore
from tests.integration.running import Running, lake_rows, settings, source_rows
from tests.kit.servers import Fresh, Server

FEW, MANY = 5, 60
EPOCHS = 3


class Written:
    """Counts what is put into stores, by the first word of the key."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.objects: dict[str, list[int]] = defaultdict(list)
        put, put_data = LocalStore.put_if_absent, LocalStore.put_data

        def count(store: LocalStore, key: str, value: bytes) -> bool:
            self.objects[key.partition("/")[0]].append(len(value))
            return put(store, key, value)

        def count_data(store: LocalStore, key: str, data: bytes | memoryview) -> None:
            self.objects["data"].append(len(data))
            put_data(store, key, data)

        monkeypatch.setattr(LocalStore, "put_if_absent", count)
        monkeypatch.setattr(LocalStore, "put_data", count_data)


def make_tables(server: Server, numbers: range) -> None:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE IF NOT EXISTS shop")
        for number in numbers:
            cursor.execute(f"CREATE TABLE shop.t{number} (id INT NOT NULL PRIMARY KEY, v INT)")


def small_epochs(server: Server, running: Running, written: Written) -> dict[str, list[int]]:
    """What some epochs write in which a row of one table changes each."""
    running.settled()
    written.objects.clear()
    for number in range(EPOCHS):
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"REPLACE INTO shop.t0 VALUES (1, {number})")
        running.settled()
    return {kind: list(sizes) for kind, sizes in written.objects.items()}


@pytest.mark.timeout(600)
def test_an_epoch_writes_no_more_for_tables_that_lie_still(
    fresh_mariadb: Fresh, tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = fresh_mariadb()
    make_tables(server, range(FEW))
    written = Written(monkeypatch)
    # A summary is as large as the tables are many, and comes once in so many epochs.
    with Running(spark, settings(server, tmp_path, summary_every=100_000, chunks_at_once=8)) as running:
        few = small_epochs(server, running, written)
        make_tables(server, range(FEW, MANY))
        many = small_epochs(server, running, written)
        assert len(running.pipeline.progress.phases) == MANY
    assert lake_rows(tmp_path, "ods.shop_t0") == source_rows(server, "shop.t0")
    assert {"intent", "done", "relay"} <= set(few)
    for kind in ("intent", "done", "relay"):
        # An epoch may come without a change, when the log has moved; none is larger.
        assert max(many[kind]) <= 1.2 * max(few[kind]), (kind, few[kind], many[kind])
    # Signs of life come by the clock.
    assert set(many) | {"sign"} == set(few) | {"sign"}
