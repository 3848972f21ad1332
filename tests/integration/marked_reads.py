"""Reads under load and the log of that time: which transactions a read contains, and which its mark covers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from snowmelt.databases.mysql.catalog import read_tables
from snowmelt.databases.mysql.connect import Session
from snowmelt.databases.mysql.read.marks import Mark, covers
from snowmelt.databases.mysql.read.reads import log_end
from snowmelt.databases.mysql.types.columns import MySqlTable
from snowmelt.model.table import TableId
from tests.integration.dump import Dump, Transaction, await_that, open_session
from tests.kit.servers import Server

DURABLE = {"sync_binlog": 1, "innodb_flush_log_at_trx_commit": 1}
WRITERS = 8
SECONDS_MAX = 40


def create(session: Session, *, engine: str = "InnoDB", name: str = "shop.g") -> MySqlTable:
    session.execute("CREATE DATABASE IF NOT EXISTS shop")
    session.execute(f"DROP TABLE IF EXISTS {name}")
    session.execute(f"CREATE TABLE {name} (id BIGINT NOT NULL PRIMARY KEY) ENGINE={engine}")
    return table_of(session, name)


def table_of(session: Session, name: str = "shop.g") -> MySqlTable:
    table = TableId(*name.split("."))
    return read_tables(session, [table])[table]


@contextmanager
def writers(server: Server) -> Iterator[None]:
    """Many connections that insert one row a transaction.

    Each rests for about as long as a durable commit takes, so that at any moment some commit while the table stays small: reading a
    table that outgrows its readers would cost most of the time and prove nothing more."""
    stop = threading.Event()

    def write(first: int) -> None:
        with server.connect(database="shop") as connection, connection.cursor() as cursor:
            number = first
            while not stop.wait(0.004):
                cursor.execute(f"INSERT INTO g VALUES ({number})")
                number += WRITERS

    threads = [threading.Thread(target=write, args=(first,)) for first in range(1, WRITERS + 1)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@dataclass
class Observation:
    mark: Mark
    ids: set[int]


def observe(
    server: Server, look: Callable[[], Observation], enough: Callable[[list[Observation]], bool]
) -> tuple[list[Observation], list[Transaction]]:
    """Observations under load, and the log of that time."""
    dump = Dump(server)
    seen: list[Observation] = []
    deadline = time.monotonic() + SECONDS_MAX
    with writers(server):
        while not enough(seen) and time.monotonic() < deadline:
            seen.append(look())
    with open_session(server) as session:
        end = log_end(session, era=0)
    await_that(lambda: bool(dump.transactions) and dump.transactions[-1].end >= end)
    dump.close()
    return seen, dump.transactions


def missing(one: Observation, log: list[Transaction]) -> list[Transaction]:
    return [t for t in log if t.id not in one.ids and covers(one.mark, position=t.end, gtid=t.gtid)]
