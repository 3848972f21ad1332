"""Staged files that nothing needs go, and the loop never looks into the lake for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from snowmelt.commit import checks
from snowmelt.driving import committing
from snowmelt.sinks.paimon.sink import PaimonSink
from tests.integration.running import Running, lake_rows, settings, source_rows
from tests.kit.servers import Fresh, Server

TARGET = "ods.shop_orders"


def change(server: Server, *keys: int) -> None:
    with server.connect() as connection, connection.cursor() as cursor:
        for key in keys:
            cursor.execute(f"REPLACE INTO shop.orders VALUES ({key}, {key})")


@pytest.mark.timeout(300)
def test_what_was_dropped_goes_at_once_and_what_a_crash_left_is_found_by_a_sweep(
    fresh_mariadb: Fresh, tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = fresh_mariadb()
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE shop")
        cursor.execute("CREATE TABLE shop.orders (id INT PRIMARY KEY, v INT)")
    change(server, 1, 2, 3)
    wanted = settings(server, tmp_path)
    with Running(spark, wanted) as running:
        running.settled()
    lake = PaimonSink(wanted.sink.warehouse, user="reader")
    bucket = Path(str(lake.table(TARGET).table_path)) / "bucket-0"
    bucket.mkdir(exist_ok=True)
    # Of a driver that died: a read that nobody adopted, and one of an epoch that it may still win for all that is known.
    orphan, promised = bucket / "sm-1-c99-dead-0.parquet", bucket / "sm-1-e99999-dead-0.parquet"
    for path in (orphan, promised):
        path.write_bytes(b"x")
    looked: list[str] = []
    for name in ("staged", "referenced", "delete"):
        real = getattr(PaimonSink, name)
        monkeypatch.setattr(PaimonSink, name, lambda *rest, name=name, real=real: looked.append(name) or real(*rest))
    dropped: list[str] = []

    def refuse_the_first(plan: Any, messages: Any, **more: Any) -> str | None:
        files = [file.name for message in messages for file in message.files]
        if files and not dropped:
            dropped.extend(files)
            return "the test says so"
        return checks.refusal(plan, messages, **more)

    monkeypatch.setattr(committing, "refusal", refuse_the_first)
    with Running(spark, wanted) as running:
        for key in range(10, 20):
            change(server, key)
            running.settled()
        assert dropped
        running.wait_for(lambda: not orphan.exists())
        running.wait_for(lambda: not any((folder / name).exists() for folder in bucket.parent.glob("bucket-*") for name in dropped))
        assert looked == [], "that is for tasks"
        assert promised.exists()
    promised.unlink()
    assert lake_rows(tmp_path, TARGET) == source_rows(server, "shop.orders")
    assert set(lake.staged(TARGET)) == lake.referenced(TARGET), "nothing is left over, and nothing is missing"
