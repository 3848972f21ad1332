"""`snowmelt maintain`: one round of maintenance of a pipeline's lake tables."""

from __future__ import annotations

import contextlib
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from snowmelt.cli.failures import failures_told
from snowmelt.cli.output import plain_text, print_line, print_machine, print_warning, size
from snowmelt.machine import check_machine

if TYPE_CHECKING:
    from snowmelt.engine.maintenance.once import Maintained


def maintain(
    file: Annotated[Path, typer.Argument(help="The pipeline's description.", metavar="pipeline.yaml", show_default=False)],
    table: Annotated[
        list[str] | None,
        typer.Option("--table", "-t", help="Only these: database.table of source or lake, with * and ?. Repeatable. Default: all."),
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Merge all files of each bucket, whatever their number and sizes.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be merged and expired, and change nothing.")] = False,
    master: Annotated[
        str | None, typer.Option(help="Where Spark runs: local[*], spark://host:7077, … Default: what the file says, or local[*].")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one object on each line.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks and Spark's messages.")] = False,
) -> None:
    """Compact the lake tables of a pipeline, expire their snapshots and delete orphans: one round, by the rules of the file.

    A pipeline that runs does this by itself. You can run it beside one: where both rewrite the same files, one gives up. What readers get
    does not change. Tables with `enabled: no` are maintained, too. Exit code 1: a table could not be maintained; the others were.

    Examples:

      snowmelt maintain pipeline.yaml --dry-run

      snowmelt maintain pipeline.yaml --table ods.orders --full
    """
    with failures_told(as_json=as_json, debug=debug):
        _maintain(file, table or [], full=full, dry_run=dry_run, master=master, as_json=as_json, debug=debug)


def _maintain(file: Path, tables: list[str], *, full: bool, dry_run: bool, master: str | None, as_json: bool, debug: bool) -> None:
    from snowmelt.config import read_pipeline
    from snowmelt.engine.maintenance.once import MaintenanceRound
    from snowmelt.supervise.session import spark_session
    from snowmelt.supervise.terminal import JsonLines

    config = read_pipeline(file)
    settings = config.to_settings()
    # What is wrong with these is told before Spark is started.
    work = MaintenanceRound(settings)
    targets = work.targets(tables)
    told = JsonLines(print_line)
    done: list[Maintained] = []
    console = Console(stderr=True)
    with contextlib.ExitStack() as stack:
        spark = None
        shown = stack.enter_context(console.status("looking")) if console.is_terminal and not as_json else None
        if not dry_run:
            master = config.master(master)
            print_machine(check_machine(master))
            if shown is not None:
                shown.update("starting Spark")
            session = spark_session(config.pipeline.name, master=master, ui=False, debug=debug, entries=config.spark)
            spark = stack.enter_context(session)
        for number, target in enumerate(targets, 1):

            def watch(what: str, at: str = f"{number} of {len(targets)}, {target}") -> None:
                if shown is not None:
                    shown.update(plain_text(f"{at}: {what}"))

            one = work.plan(target, full=full) if dry_run else work.maintain(spark, target, full=full, watch=watch)
            done.append(one)
            if as_json:
                told.tell("planned" if dry_run else "maintained", **asdict(one))
            else:
                _print(one, dry_run=dry_run)
    failed = sum(bool(one.error) for one in done)
    if as_json:
        told.tell("done", tables=len(done), failed=failed)
    if failed:
        raise typer.Exit(1)


def _print(one: Maintained, *, dry_run: bool) -> None:
    if one.error:
        print_warning(f"{one.target}: not maintained: {one.error}")
        return
    if dry_run:
        would = f"would merge {one.rewritten} of them" if one.rewrites else "nothing to merge"
        print_line(f"{one.target}: {one.files} files, {size(one.size_bytes)}: {would}, would expire {one.snapshots} snapshots")
        return
    became = f"{one.files} files, {size(one.size_bytes)} became {one.files_after}, {size(one.size_bytes_after)}"
    print_line(f"{one.target}: {became}; {one.snapshots} snapshots expired, {one.orphans} orphans deleted")
