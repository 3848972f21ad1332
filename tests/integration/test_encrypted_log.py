"""A server that encrypts its log sends it in the clear to who may read it, with one more event in each file."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from tests.integration.running import Running, lake_rows, run_tasks_here, settings, source_rows
from tests.kit.servers import Fresh, NotRun, Server, fetched, give_up

PLAIN = "no one else may read this"


def execute(server: Server, *statements: str) -> None:
    with server.connect(autocommit=True) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("compressed", ["OFF", "ON"])
def test_a_pipeline_follows_an_encrypted_log_over_its_files_and_a_restart(
    fresh_mariadb: Fresh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compressed: str
) -> None:
    try:
        plugins = fetched("mariadb-keys", "MariaDB with encrypted logs")
    except NotRun as reason:
        give_up(reason)
    keys = tmp_path / "keys"
    keys.write_text(f"1;{secrets.token_hex(32)}\n")
    server = fresh_mariadb(
        plugin_dir=str(plugins),
        plugin_load_add="file_key_management",
        file_key_management_filename=str(keys),
        encrypt_binlog="ON",
        log_bin_compress=compressed,
        log_bin_compress_min_len=10,
    )
    execute(
        server,
        "CREATE DATABASE shop",
        "CREATE TABLE shop.orders (id INT NOT NULL PRIMARY KEY, v LONGTEXT)",
        f"INSERT INTO shop.orders VALUES (1, '{PLAIN}'), (2, REPEAT('x', 100000))",
    )
    run_tasks_here(monkeypatch)
    with Running(None, settings(server, tmp_path)) as running:
        running.settled()
        execute(
            server,
            f"UPDATE shop.orders SET v = CONCAT(v, ' {PLAIN}')",
            "FLUSH BINARY LOGS",
            "ALTER TABLE shop.orders ADD COLUMN w INT NOT NULL DEFAULT 7",
            f"INSERT INTO shop.orders VALUES (3, '{PLAIN}', 8)",
            "XA START 'x'",
            f"INSERT INTO shop.orders VALUES (4, '{PLAIN}', 9)",
            "XA END 'x'",
            "XA PREPARE 'x'",
        )
        running.settled()
    server.restart()
    execute(server, "XA COMMIT 'x'", "DELETE FROM shop.orders WHERE id = 1", f"INSERT INTO shop.orders VALUES (5, '{PLAIN}', 1)")
    with Running(None, settings(server, tmp_path)) as running:
        running.settled()
    assert lake_rows(tmp_path, "ods.shop_orders") == source_rows(server, "shop.orders")
    logs = sorted(server.data.glob("binlog.0*"))
    assert len(logs) >= 3
    assert all(PLAIN.encode() not in log.read_bytes() for log in logs)
