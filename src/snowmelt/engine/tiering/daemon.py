"""Spark's daemon of Python workers for tiering, with all that its tasks need loaded before the first worker is forked (`engine.daemon`).

Its standard output is Spark's: nothing may be printed before `manager` takes it.
"""

from __future__ import annotations

import gc


def main() -> None:
    import rocksdict  # noqa: F401
    from pyspark.daemon import manager

    import snowmelt.engine.tiering.tasks  # noqa: F401
    from snowmelt.fluss.compacted import warm

    warm()
    gc.collect()
    gc.freeze()
    manager()


if __name__ == "__main__":
    main()
