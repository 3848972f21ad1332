"""`snowmelt demo`: everything once, in a temporary folder."""

from __future__ import annotations

from typing import Annotated

import typer


def demo(
    seconds: Annotated[float, typer.Option(min=2.0, help="Least number of seconds of load.")] = 60.0,
    rows: Annotated[int, typer.Option(min=10_000, help="Number of rows at the start.")] = 200_000,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the folder with the pipeline, the lake and the logs.")] = False,
) -> None:
    """Run a demo: a MariaDB under load, replicated into a lake by `snowmelt run`, killed with kill -9 in the middle, then verified.

    The last line is `verified` if every table of the lake is equal to the database. Everything is in a temporary folder, which is deleted
    at the end. Ctrl-C ends the demo at any time.

    Example:

      snowmelt demo
    """
    from snowmelt.demo import run_demo

    run_demo(seconds=seconds, rows=rows, keep=keep)
