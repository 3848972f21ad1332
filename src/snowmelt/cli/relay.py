"""`snowmelt relay`: capture the log while no run does."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from snowmelt.cli.failures import failures_told
from snowmelt.cli.output import print_line


def relay(
    file: Annotated[Path, typer.Argument(help="The pipeline's description.", metavar="pipeline.yaml", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one object on each line.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
) -> None:
    """Capture the log while no `snowmelt run` does, so that the database may purge it.

    Spark is not needed. A run that starts takes over without gap or overlap and resumes with what was captured. After the run has ended
    or died, this process captures again. So you can keep it running beside the runs. Start the pipeline once with `snowmelt run` before.
    Ctrl-C ends it.

    Example:

      DB_PASSWORD=… snowmelt relay pipeline.yaml
    """
    with failures_told(as_json=as_json, debug=debug):
        _relay(file, as_json=as_json, debug=debug)


def _relay(file: Path, *, as_json: bool, debug: bool) -> None:
    from snowmelt.config import read_pipeline
    from snowmelt.engine.log.standby import keep_capturing
    from snowmelt.supervise.restarts import Interrupts
    from snowmelt.supervise.terminal import JsonLines, Lines, Watcher, notes_of_log, relay_teller

    settings = read_pipeline(file).to_settings()
    watcher: Watcher = JsonLines(print_line) if as_json else Lines(print_line)
    interrupts = Interrupts(watcher)
    interrupts.install()
    with notes_of_log(watcher, debug=debug):
        keep_capturing(settings, interrupts.asked, relay_teller(print_line, as_json=as_json))
    watcher.note("done", "ended as asked")
