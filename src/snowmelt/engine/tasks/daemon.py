"""Spark's daemon of Python workers, with all that our tasks need loaded before the first worker is forked.

Workers are forked from it, so a machine imports modules and compiles kernels once, not in every worker. Loaded objects are frozen for the
garbage collector: Spark collects after every task, and a collection over all modules takes longer than a small task.

Its standard output belongs to Spark: nothing may be printed before the daemon takes it.
"""

from __future__ import annotations

import gc
from collections.abc import Callable


def serve(load: Callable[[], None]) -> None:
    """Load what all tasks need, then call `load`, and fork workers from then on."""
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
    from snowmelt.engine.tasks.warming import warm

    warm()


if __name__ == "__main__":
    serve(_load)
