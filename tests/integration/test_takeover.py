"""A driver that is paused while another takes over: exactly one of the two lives on."""

from __future__ import annotations

import logging
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from snowmelt.engine.driver.pipeline import PipelineDriver
from snowmelt.relay import takeover
from tests.integration.dump import await_that
from tests.integration.killed import Process
from tests.integration.pipeline_process import settings
from tests.integration.running import Running, lake_rows, source_rows
from tests.kit.servers import Fresh


@pytest.mark.timeout(600)
def test_a_driver_waits_for_one_that_is_paused_and_goes_on_when_that_one_ends(
    spark: Any, fresh_mariadb: Fresh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    server = fresh_mariadb()
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE shop")
        cursor.execute("CREATE TABLE shop.orders (id INT NOT NULL PRIMARY KEY, v INT)")
        cursor.execute("CREATE TABLE shop.journal (id INT NOT NULL PRIMARY KEY, v INT)")
        cursor.execute("INSERT INTO shop.orders VALUES (1, 1)")
        connection.commit()
        # The waiting driver tells of it each time this has passed, and must outlive it several times.
        monkeypatch.setattr(takeover, "TELL_MS", 1_500)
        monkeypatch.setenv("PIPELINE_PASSWORD", server.password)
        paused = Process(server, tmp_path)
        try:
            paused.wait_for(tmp_path / "released")
            os.kill(paused.pid, signal.SIGSTOP)
            cursor.execute("INSERT INTO shop.orders VALUES (2, 2)")
            connection.commit()
            # An operator who ends the wait is heard while it lasts.
            waiting = PipelineDriver(spark, settings(server.host, server.port, tmp_path))
            asked = threading.Thread(target=waiting.run, args=[lambda _: False])
            asked.start()
            await_that(lambda: len(list((tmp_path / "state" / "generation").iterdir())) >= 2, seconds=60, told=lambda: "no generation")
            waiting.stop()
            asked.join(60)
            assert not asked.is_alive()
            with caplog.at_level(logging.WARNING), Running(spark, settings(server.host, server.port, tmp_path)) as running:

                def told() -> int:
                    return sum("has not ended yet" in record.getMessage() for record in caplog.records)

                running.wait_for(lambda: told() >= 2)
                os.kill(paused.pid, signal.SIGCONT)
                await_that(lambda: paused.poll() is not None, seconds=60, told=paused.log.read_text)
                assert "a newer driver runs this pipeline" in paused.log.read_text()
                running.settled()
                assert lake_rows(tmp_path, "ods.shop_orders") == source_rows(server, "shop.orders")
        finally:
            paused.kill()
