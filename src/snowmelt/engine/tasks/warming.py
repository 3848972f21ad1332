"""The kernels of a pipeline's tasks: those that read the database's log, and those that merge the sink's files."""

from __future__ import annotations

from snowmelt.columnar import kernels
from snowmelt.databases import registry as databases
from snowmelt.sinks import registry as sinks


def warm(tell: kernels.Progress = kernels.silent) -> None:
    """Compile them, or load them from the cache on disk. `tell` gets the progress of compiling."""
    kernels.compile_kernels((*databases.task_kernels(), *sinks.task_kernels()), _call, tell)


def _call() -> None:
    databases.warm()
    sinks.warm()
