"""Spark's daemon of Python workers for tiering: `engine.tasks.daemon`, with what tiering's tasks need.

Its standard output belongs to Spark: nothing may be printed before the daemon takes it.
"""

from __future__ import annotations

from snowmelt.engine.tasks.daemon import serve


def _load() -> None:
    import rocksdict  # noqa: F401

    import snowmelt.engine.tiering.tasks  # noqa: F401
    from snowmelt.fluss.formats.compacted import warm

    warm()


if __name__ == "__main__":
    serve(_load)
