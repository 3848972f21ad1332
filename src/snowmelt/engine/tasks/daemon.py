"""Spark's daemon of Python workers, with all that our tasks need loaded before the first worker is forked.

Workers are forked from it, so imports and compiled kernels are paid for once on a machine and not in every worker. What is
loaded is frozen for the garbage collector: Spark collects after every task, and going through all of these modules each time
cost more than a small task does.

Its standard output is Spark's: nothing may be printed before `manager` takes it.
"""

from __future__ import annotations

import gc
from collections.abc import Callable


def serve(load: Callable[[], None]) -> None:
    """Load what all tasks need, and what these do, and fork workers from then on."""
    import pyspark.worker  # noqa: F401
    from pyspark.daemon import manager

    from snowmelt.sinks.registry import preload

    preload()
    load()
    gc.collect()
    gc.freeze()
    manager()


def _load() -> None:
    import snowmelt.engine.tasks.chunk
    import snowmelt.engine.tasks.log  # noqa: F401
    from snowmelt.databases.registry import warm

    warm()


if __name__ == "__main__":
    serve(_load)
