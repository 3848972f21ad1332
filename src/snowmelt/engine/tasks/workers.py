"""Whether Spark's workers can do a pipeline's tasks: they need the driver's Python and packages, and must see its state and its warehouse.

A driver asks them when it starts, before it fences another one. Executors may join later, so every task repeats the cheap checks
(`TaskContext.check`).
"""

from __future__ import annotations

import hashlib
import platform
import socket
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from snowmelt.errors import InvalidConfig, SnowmeltError
from snowmelt.sinks.warehouse import Warehouse, check_marked
from snowmelt.store.contract import numbered
from snowmelt.store.objects import BucketAddress, open_store

Packages = tuple[tuple[str, str], ...]

_PACKAGES: Final = ("snowmelt", "pypaimon", "pypaimon-rust", "pyarrow")
_TASKS_MAX: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What a worker must find, because the driver has it."""

    packages: Packages
    state: Path | BucketAddress
    owner: str
    """A digest of the state's owner record."""
    warehouse: str | Warehouse
    mark: str
    """The mark in the warehouse; empty if the sink has none."""


@cache
def packages() -> Packages:
    """This process's Python, and the packages that driver and workers must agree on."""
    return (("Python", ".".join(platform.python_version_tuple()[:2])), *((name, _version(name)) for name in _PACKAGES))


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "none"


def check_packages(expected: Packages) -> None:
    found = dict(packages())
    for name, wanted in expected:
        if found[name] != wanted:
            raise InvalidConfig(
                "a Spark worker has other packages than the driver",
                detail=f"{name} {found[name]} on {socket.gethostname()}, {wanted} in the driver",
                hint="install the same versions on every worker, or ship one environment to all with spark.archives",
            )


def owner_digest(state: Path | BucketAddress) -> str:
    """A digest that differs between the state of this pipeline and any other folder or bucket."""
    return hashlib.sha256(open_store(state).get(numbered("owner", 1)) or b"").hexdigest()


def tasks_to_ask(spark: Any, slots: int) -> list[int]:
    """One task for each slot, so that they reach all executors. One is enough for a local master, whose workers are all alike."""
    master: str = getattr(getattr(spark, "sparkContext", None), "master", "")
    return list(range(1 if master.startswith("local[") else min(_TASKS_MAX, max(1, slots))))


def look_around(expected: Expected, _: int) -> str:
    """Check a worker, in a task. Returns the name of its machine."""
    host = socket.gethostname()
    check_packages(expected.packages)
    try:
        if owner_digest(expected.state) != expected.owner:
            raise InvalidConfig(
                "a Spark worker does not see the pipeline's state",
                detail=f"{expected.state} on {host} is not what the driver sees",
                hint="put the state into a bucket, or into a folder that is mounted on all machines",
            )
        if expected.mark:
            check_marked(expected.warehouse, expected.mark)
    except SnowmeltError as error:
        if host not in error.detail:
            raise type(error)(error.fact, detail=f"{error.detail}, on the worker {host}".removeprefix(", "), hint=error.hint) from error
        raise
    return host
