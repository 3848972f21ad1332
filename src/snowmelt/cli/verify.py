"""`snowmelt verify`: compare the database with the lake."""

from __future__ import annotations

import contextlib
import logging
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
from rich.console import Console

from snowmelt.cli.failures import failures_told
from snowmelt.cli.output import plain_text, print_line, print_machine
from snowmelt.cli.verdicts import print_verdict, verdict_json
from snowmelt.machine import check_machine
from snowmelt.model.patterns import match_tables


def verify(
    file: Annotated[Path, typer.Argument(help="The pipeline's description.", metavar="pipeline.yaml", show_default=False)],
    table: Annotated[
        list[str] | None, typer.Option("--table", "-t", help="Only these: database.table, with * and ?. Repeatable. Default: all.")
    ] = None,
    patience: Annotated[
        float | None,
        typer.Option(min=0, help="How many seconds the lake may lag without progress. Default: 60, or three intervals."),
    ] = None,
    master: Annotated[
        str | None, typer.Option(help="Where Spark runs: local[*], spark://host:7077, … Default: what the file says, or local[*].")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one object on each line.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks and Spark's messages.")] = False,
) -> None:
    """Compare tables of the database with the lake, row by row where checksums differ.

    You can run it at any time: while the database is written to, and while the pipeline runs. The pipeline must run if anything was written
    since its last run. Neither side is changed. Exit code 0: all are equal; 3: rows differ, and their keys are printed; 1: something could
    not be compared.

    Example:

      DB_PASSWORD=… snowmelt verify pipeline.yaml --table shop.orders --table 'crm.*'
    """
    with failures_told(as_json=as_json, debug=debug):
        _verify(file, table, patience_s=patience, master=master, as_json=as_json, debug=debug)


def _verify(file: Path, tables: list[str] | None, *, patience_s: float | None, master: str | None, as_json: bool, debug: bool) -> None:
    from snowmelt.config import read_pipeline
    from snowmelt.supervise.session import spark_session
    from snowmelt.supervise.terminal import JsonLines
    from snowmelt.verify import Step, TableOutcome, open_state, verify

    config = read_pipeline(file)
    settings = config.to_settings()
    # What is wrong with these is told before Spark is started.
    match_tables(tables or [])
    open_state(settings)
    master = config.master(master)
    print_machine(check_machine(master))
    settings.source.connect()
    console = Console(stderr=True)
    told = JsonLines(print_line)
    with contextlib.ExitStack() as stack:
        if not debug:
            stack.enter_context(_quiet_interrupt())
        shown = stack.enter_context(console.status("starting Spark")) if console.is_terminal and not as_json else None

        def watch(step: Step) -> None:
            if shown is not None:
                of = f", {step.done} of {step.of}" if step.of > 1 else ""
                shown.update(plain_text(f"{step.table or 'all tables'}: {step.what}{of}"))

        session = spark_session(config.pipeline.name, master=master, ui=False, debug=debug, entries=config.spark)
        spark = stack.enter_context(session)
        verdicts = verify(settings, spark, tables, watch, patience_s=patience_s)
    for verdict in verdicts:
        if as_json:
            told.tell("verdict", **verdict_json(verdict))
        else:
            print_verdict(verdict)
    outcomes = [verdict.outcome for verdict in verdicts]
    differ, not_verified = outcomes.count(TableOutcome.DIFFERS), outcomes.count(TableOutcome.NOT_VERIFIED)
    if as_json:
        told.tell("done", verified=outcomes.count(TableOutcome.VERIFIED), differ=differ, not_verified=not_verified)
    elif differ or not_verified:
        print_line(f"tables that differ: {differ}, not verified: {not_verified}")
    else:
        print_line("verified")
    if differ or not_verified:
        raise typer.Exit(3 if differ else 1)


@contextlib.contextmanager
def _quiet_interrupt() -> Iterator[None]:
    """Ctrl-C ends the process. Code that talks to Spark's JVM at that moment would log a traceback of it."""

    def end(_number: int, _frame: FrameType | None) -> None:
        logging.disable()
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
