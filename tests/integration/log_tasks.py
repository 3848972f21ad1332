"""Log tasks over logs that are made by hand, as the engine runs them: tables in a Paimon warehouse, and the task in a process of its own.

python -m tests.integration.log_tasks FILE    # runs the tasks in it, pickled, and tells the peak memory of the last
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from snowmelt.databases.mysql.connect import Server
from snowmelt.databases.mysql.database import MySql
from snowmelt.databases.mysql.log.events import Event
from snowmelt.databases.mysql.types.columns import MySqlColumn, MySqlTable
from snowmelt.engine.tasks.context import TaskContext
from snowmelt.engine.tasks.log import LogTask, run_log
from snowmelt.engine.tasks.rows import CHANGE_FIELDS, Sourced, lake_schema
from snowmelt.model.table import TableId
from snowmelt.planning.epochs import Rule
from snowmelt.planning.facts import Incarnation
from snowmelt.relay.limits import Limits
from snowmelt.sinks.paimon.sink import PaimonSink
from snowmelt.store.generations import take_generation
from snowmelt.store.objects import open_store
from snowmelt.supervise.session import MALLOC
from tests.integration.logs import table_map_body
from tests.kit.inflight import LogFolder
from tests.kit.streams import Log, gtid_body, query_body

BUCKETS = 2
_SERVER = Server("mysql", (8, 0, 33), "made by hand")


@dataclass(frozen=True)
class Made:
    """A log, and the tables that it changes."""

    log: LogFolder
    tables: tuple[Sourced, ...]

    def place(self, warehouse: Path, limits: Limits) -> TaskContext:
        return replace(self.log.place, warehouse=str(warehouse), user="snowmelt", limits=limits)

    def task(self) -> LogTask:
        end = self.log.relay.end
        names = [source.table.id for source in self.tables]
        return LogTask(
            epoch=1,
            writer=0,
            after=0,
            upto=end,
            segments=tuple(self.log.relay.covering(0, end)),
            rules={name: Rule(incarnation=Incarnation(name, 1), after=0, emits_all=True) for name in names},
            marks={},
            tables=dict(zip(names, self.tables, strict=True)),
        )

    def lake(self, warehouse: Path, *, buckets: int = BUCKETS) -> PaimonSink:
        """A warehouse with all of its tables. Those of one shape are copies of the first: to make a table takes a while."""
        lake, first = PaimonSink(str(warehouse), user="snowmelt"), ""
        for source in self.tables:
            name = source.target.partition(".")[2]
            if source.keyed and first:
                shutil.copytree(warehouse / "ods.db" / first, warehouse / "ods.db" / name)
                continue
            schema = lake_schema(source.table, MySql(), keyed=source.keyed)
            key, system = (source.table.key, None) if source.keyed else ((), CHANGE_FIELDS)
            lake.create(source.target, schema, key, buckets=buckets, system=system)
            first = first or name
        return lake


def sourced(name: str, *, keyed: bool = True) -> Sourced:
    """A table of a key, a number and a text of up to 64 KiB."""
    table = MySqlTable(
        id=TableId("d", name),
        columns=(
            MySqlColumn(name="id", base="int", nullable=False),
            MySqlColumn(name="price", base="decimal", precision=10, scale=2),
            MySqlColumn(name="v", base="blob"),
        ),
        key=("id",),
    )
    return Sourced(table, f"ods.{name}", keyed=keyed)


def row(key: int, price: int, value: bytes) -> bytes:
    """An image of a row. The price is a whole number."""
    return b"\0" + key.to_bytes(4, "little") + b"\x80" + price.to_bytes(3, "big") + b"\0" + struct.pack("<H", len(value)) + value


def make(folder: Path, tables: Sequence[Sourced], transactions: Iterable[Iterable[tuple[int, Event, bytes]]]) -> Made:
    """Transactions of row events: the number of a table, the kind and the images of its rows."""
    log, cuts, number = Log(), [], 0
    for number, events in enumerate(transactions, 1):
        log.add(Event.GTID, gtid_body(number))
        log.add(Event.QUERY, query_body(b"BEGIN"))
        for index, kind, images in events:
            map_ = table_map_body(9 + index, tables[index].table.id.name, types=b"\x03\xf6\xfc", meta=b"\x0a\x02\x02")
            log.add(Event.TABLE_MAP, map_)
            bitmaps = b"\xff\xff" if kind == Event.UPDATE_ROWS_V1 else b"\xff"
            log.add(kind, struct.pack("<IHH", 9 + index, 0, 1) + b"\x03" + bitmaps + images)
        log.add(Event.XID, bytes(8), cut=True)
        cuts.append((sum(map(len, log.stored)), log.offset))
    found = LogFolder(folder, _SERVER)
    found.add(b"".join(log.stored), 4, cuts)
    take_generation(open_store(found.place.state), found.place.nonce)
    return Made(found, tuple(tables))


def growth_bytes(file: Path, *tasks: tuple[TaskContext, LogTask]) -> int:
    """By how much the memory of a process of its own grows at most while it runs the last of these tasks."""
    file.write_bytes(pickle.dumps(tasks))
    command = [sys.executable, "-m", __name__, str(file)]
    done = subprocess.run(command, env={**os.environ, **MALLOC}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return int(json.loads(done.stdout))


def _status_bytes(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{name}:"))


def _main(file: Path) -> None:
    *before, last = pickle.loads(file.read_bytes())
    for one in before:
        run_log(*one)
    pa.default_memory_pool().release_unused()
    # The kernel's peak begins anew.
    Path("/proc/self/clear_refs").write_text("5")
    held = _status_bytes("VmRSS")
    run_log(*last)
    print(json.dumps(_status_bytes("VmHWM") - held))


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
