"""The programs beside a soaked pipeline: one changes the database, the other reads the lake. Each ends when its standard input does.

    python -m tests.bench._soak_load writer HOST PORT USER PASSWORD_FILE TABLES ROWS PAUSE_S
    python -m tests.bench._soak_load reader WAREHOUSE TABLES ROWS PAUSE_S

Rows of a table are pairs, of the keys 2k and 2k + 1. Each transaction changes every table: both rows of pair 0 get its number, two other
pairs get new values, one pair is deleted and another inserted, and one moves to other keys. So at each commit a table has as many rows as
at the beginning, in whole pairs with equal values, and its pair 0 has the number of the newest transaction. A reader that finds anything
else has found a wrong snapshot. It prints a line of JSON for each table that it has read.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pymysql

from snowmelt.sinks.paimon.sink import PaimonSink
from tests.kit.servers import Server

DATABASE = "bench"
UPDATED = 2
_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
NATIVE = {"read.native.enabled": "true"}


def note_of(chance: random.Random) -> str:
    return "".join(chance.choices(_LETTERS, k=80))


def fill(server: Server, tables: int, rows: int) -> None:
    """Each table gets `rows` rows, in pairs."""
    chance = random.Random(1)
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {DATABASE}")
        for table in range(tables):
            cursor.execute(f"CREATE TABLE {DATABASE}.t{table} (id BIGINT NOT NULL PRIMARY KEY, v BIGINT NOT NULL, note VARCHAR(100))")
            values = [(key, 0 if key < 2 else key // 2, note_of(chance)) for key in range(rows)]
            cursor.executemany(f"INSERT INTO {DATABASE}.t{table} VALUES (%s, %s, %s)", values)
        connection.commit()


# ---- the writer


class Pairs:
    """Which pairs a table has."""

    def __init__(self, rows: int) -> None:
        self._there = list(range(1, rows // 2))
        self._free = list(range(rows // 2, rows))

    def some(self, chance: random.Random) -> int:
        return chance.choice(self._there)

    def swap(self, chance: random.Random) -> tuple[int, int]:
        """One that goes and one that comes."""
        place, other = chance.randrange(len(self._there)), chance.randrange(len(self._free))
        old, new = self._there[place], self._free[other]
        self._there[place], self._free[other] = new, old
        return old, new


def change(cursor: Any, table: str, pairs: Pairs, number: int, chance: random.Random) -> None:
    cursor.execute(f"UPDATE {table} SET v = %s WHERE id IN (0, 1)", (number,))
    for _ in range(UPDATED):
        pair = pairs.some(chance)
        cursor.execute(f"UPDATE {table} SET v = %s, note = %s WHERE id IN (%s, %s)", (number, note_of(chance), 2 * pair, 2 * pair + 1))
    old, new = pairs.swap(chance)
    cursor.execute(f"DELETE FROM {table} WHERE id IN (%s, %s)", (2 * old, 2 * old + 1))
    note = note_of(chance)
    cursor.execute(f"INSERT INTO {table} VALUES (%s, %s, %s), (%s, %s, %s)", (2 * new, number, note, 2 * new + 1, number, note))
    old, new = pairs.swap(chance)
    cursor.execute(f"UPDATE {table} SET id = id + %s WHERE id IN (%s, %s)", (2 * (new - old), 2 * old, 2 * old + 1))


def write(connection: pymysql.Connection[Any], tables: int, rows: int, pause_s: float, over: threading.Event) -> None:
    chance, number = random.Random(2), 0
    names = {f"{DATABASE}.t{table}": Pairs(rows) for table in range(tables)}
    with connection, connection.cursor() as cursor:
        while not over.wait(pause_s):
            number += 1
            for name, pairs in names.items():
                change(cursor, name, pairs, number, chance)
            connection.commit()


# ---- the reader


def read_table(lake: PaimonSink, target: str) -> pa.Table:
    """The whole table at its newest snapshot."""
    builder = lake.table(target).copy(NATIVE).new_read_builder()
    return builder.new_read().to_arrow(builder.new_scan().plan().splits())


def wrong(table: pa.Table, rows: int, before: int) -> str:
    """What no commit has ever made; empty: nothing. `before`: the number that pair 0 had at the last look."""
    ids, values = table.column("id").to_numpy(), table.column("v").to_numpy()
    order = np.argsort(ids)
    ids, values = ids[order], values[order]
    if len(ids) != rows:
        return f"{len(ids)} rows instead of {rows}"
    if (ids[::2] % 2).any() or (ids[1::2] != ids[::2] + 1).any():
        return "a row without the other one of its pair"
    if (values[::2] != values[1::2]).any():
        return "a pair with two values"
    if values[0] < before:
        return f"it went back from {before} to {values[0]}"
    return ""


def read_on(warehouse: str, tables: int, rows: int, pause_s: float, over: threading.Event) -> None:
    lake = PaimonSink(warehouse, user="reader")
    newest = [0] * tables
    number = 0
    while not over.wait(pause_s):
        table, said = number % tables, ""
        number += 1
        wall, cpu = time.perf_counter(), time.process_time()
        try:
            found = read_table(lake, f"ods.t{table}")
        except Exception as error:
            said = f"a read failed: {type(error).__name__}: {str(error)[:300]}"
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        if not said and not (said := wrong(found, rows, newest[table])):
            newest[table] = int(found.filter(pc.equal(found.column("id"), 0)).column("v")[0].as_py())
        print(json.dumps({"table": table, "wall_s": round(wall, 4), "cpu_s": round(cpu, 4), "wrong": said}), flush=True)


def main() -> None:
    role, *given = sys.argv[1:]
    # What is measured goes first.
    os.nice(5)
    over = threading.Event()

    def watch() -> None:
        sys.stdin.read()
        over.set()

    threading.Thread(target=watch, daemon=True).start()
    if role == "writer":
        host, port, user, password, tables, rows, pause_s = given
        connection = pymysql.connect(host=host, port=int(port), user=user, password=Path(password).read_text(), ssl_disabled=True)
        write(connection, int(tables), int(rows), float(pause_s), over)
    else:
        warehouse, tables, rows, pause_s = given
        read_on(warehouse, int(tables), int(rows), float(pause_s), over)


if __name__ == "__main__":
    main()
