"""What a union read shows: planned and read in this process, by the modules that Spark's own processes use."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from snowmelt.engine.union.options import UnionOptions, parse_options
from snowmelt.engine.union.plan import UnionTask, plan_tasks, read_schema_of
from snowmelt.engine.union.tasks import run_task
from snowmelt.fluss.server import FlussServer
from snowmelt.model.table import TableId
from tests.integration.tiering import in_order


def options(server: FlussServer, path: TableId, **more: str) -> dict[str, str]:
    return {"table": f"{path.database}.{path.name}", "bootstrap": server.bootstrap, "warehouse": str(server.warehouse), **more}


def planned(server: FlussServer, path: TableId, **more: str) -> tuple[UnionOptions, list[UnionTask]]:
    parsed = parse_options(options(server, path, **more))
    # As tasks have them.
    return parsed, pickle.loads(pickle.dumps(plan_tasks(parsed, os.getpid())))


def read(parsed: UnionOptions, tasks: Iterable[UnionTask]) -> pa.Table:
    """What the tasks read, in this process and in Fluss' own types."""
    schema = read_schema_of(parsed).arrow
    found = pa.Table.from_batches([batch for task in tasks for batch in run_task(parsed, task, schema.names)], schema)
    found.validate(full=True)
    return found


def union(server: FlussServer, path: TableId) -> list[dict[str, Any]]:
    return in_order(read(*planned(server, path)).to_pylist())
