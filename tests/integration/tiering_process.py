"""A tiering service in a process of its own, to be killed: `python -m tests.integration.tiering_process BOOTSTRAP WAREHOUSE MASTER`.

MASTER is Spark's, or `none`: then splits are read in the process itself, which tells nothing of Spark and starts in no time. What it is
handed out is a line of its output, `handed TABLE COORDINATOR_EPOCH TIERING_EPOCH`.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from snowmelt.engine.tiering import split_job
from snowmelt.engine.tiering.service import Tiering
from snowmelt.engine.tiering.settings import TieringSettings
from snowmelt.fluss.answers import HandedOut
from snowmelt.supervise.session import spark_session


@contextlib.contextmanager
def spark_or_none(master: str) -> Iterator[Any]:
    if master != "none":
        with spark_session("test", master=master, ui=False, debug=True) as spark:
            yield spark
        return

    def here(_: Any, tasks: Sequence[Any], run: Callable[[Any], Any]) -> list[Any]:
        return [run(task) for task in tasks]

    split_job.run_on_spark = here  # type: ignore[assignment,attr-defined]
    yield None


class Telling(Tiering):
    def _begin(self, pool: Any, host: Any, handed: HandedOut, epoch: int) -> None:
        print("handed", handed.table, epoch, handed.tiering_epoch, flush=True)
        super()._begin(pool, host, handed, epoch)


def main() -> None:
    bootstrap, warehouse, master = sys.argv[1:]
    settings = TieringSettings(name="killed", bootstrap=bootstrap, warehouse=warehouse, poll_s=0.05, lease_ms=5_000)
    with spark_or_none(master) as spark:
        Telling(spark, settings, lambda end: print(end, flush=True)).run()


if __name__ == "__main__":
    main()
