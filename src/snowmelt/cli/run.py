"""`snowmelt run`: check, start Spark, keep the pipeline running."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from snowmelt import preflight
from snowmelt.databases.contract.findings import Level
from snowmelt.errors import InvalidConfig
from snowmelt.machine import check_machine
from snowmelt.model.table import TableId

if TYPE_CHECKING:
    from snowmelt.config import PipelineConfig
from snowmelt.cli.failures import failures_told
from snowmelt.cli.output import count_tables, list_tables, print_line, print_machine, print_warning

SET_ASIDE = 4
"""Exit code: the lake is current, but for tables that are set aside."""


def run(
    file: Annotated[Path, typer.Argument(help="The pipeline's description.", metavar="pipeline.yaml", show_default=False)],
    until_current: Annotated[
        bool, typer.Option("--until-current", help="End when every table is copied and the lake has what the database had at the start.")
    ] = False,
    recopy: Annotated[
        list[str] | None,
        typer.Option(
            "--recopy",
            help="Copy this table (database.table of the source) again, whether it is set aside or not. Repeatable.",
            metavar="TABLE",
        ),
    ] = None,
    adopt_state: Annotated[
        bool, typer.Option("--adopt-state", help="The state was moved here. Not for a copy whose original may run again.")
    ] = False,
    master: Annotated[
        str | None, typer.Option(help="Where Spark runs: local[*], spark://host:7077, … Default: what the file says, or local[*].")
    ] = None,
    ui: Annotated[bool, typer.Option("--ui", help="Let Spark serve its web page.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one object on each line.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks and Spark's messages.")] = False,
) -> None:
    """Copy tables into the lake and keep them there live, exactly once.

    Checks the server first, and stops if something stands in the way. Ctrl-C finishes the current epoch; a second one ends the run at
    once. After both, and after a crash, the next run resumes from the state. A second run takes over, and the older one ends.

    A table that can't continue is set aside; the others continue. Its lake table stays as it is, `status` shows why, and --until-current
    exits with 4. Correct the cause, then start with --recopy: the lake table is emptied, or created again where its key changed, and the
    table is copied. If the run is killed before the copy began, the table is still set aside; later, the next run continues the copy.

    Examples:

      DB_PASSWORD=… snowmelt run pipeline.yaml

      DB_PASSWORD=… snowmelt run pipeline.yaml --recopy shop.orders

    where pipeline.yaml is, for example:

    \b
      source:
        type: mysql
        host: db.example.com
        username: repl
        password: ${DB_PASSWORD}
        tables: [shop.*, crm.customers]
      sink:
        type: paimon
        warehouse: /data/lake
      pipeline:
        name: shop-to-lake
        state: /data/snowmelt/shop
    """
    with failures_told(as_json=as_json, debug=debug):
        _run(
            file,
            until_current=until_current,
            adopt_state=adopt_state,
            recopy=recopy or [],
            master=master,
            ui=ui,
            as_json=as_json,
            debug=debug,
        )


def _table_id(text: str) -> TableId:
    database, dot, name = text.partition(".")
    if not (database and dot and name):
        raise InvalidConfig("--recopy takes database.table of the source", detail=repr(text), hint="for example --recopy shop.orders")
    return TableId(database, name)


def _run(
    file: Path, *, until_current: bool, adopt_state: bool, recopy: list[str], master: str | None, ui: bool, as_json: bool, debug: bool
) -> None:
    from snowmelt.config import read_pipeline
    from snowmelt.engine.driver.pipeline import PipelineDriver
    from snowmelt.planning.asides import Requests
    from snowmelt.supervise.restarts import Interrupts, start_compiling, supervise
    from snowmelt.supervise.session import spark_session
    from snowmelt.supervise.terminal import JsonLines, Lines, Screen, Watcher, notes_of_log

    config = read_pipeline(file)
    master = config.master(master)
    requests = Requests(map(_table_id, recopy))
    print_machine(check_machine(master, *extras(config)))
    _preflight(config, adopt_state=adopt_state, as_json=as_json)
    console = Console(stderr=True)
    watcher: Watcher
    if as_json:
        watcher = JsonLines(print_line)
    else:
        watcher = Screen(console, config.pipeline.name) if console.is_terminal else Lines(print_line)
    interrupts = Interrupts(watcher)
    interrupts.install()
    watcher.note("note", "starting Spark")
    # Workers of other machines have caches of their own.
    compiled = start_compiling(watcher) if master.startswith("local") else None
    session = spark_session(config.pipeline.name, master=master, ui=ui, debug=debug, entries=config.spark)
    with session as spark, notes_of_log(watcher, debug=debug):
        if compiled is not None:
            compiled(interrupts.asked)
        settings = replace(config.to_settings(), adopt_state=adopt_state)
        watcher.begin()
        try:
            last = supervise(lambda: PipelineDriver(spark, settings, requests), watcher, interrupts.asked, until_current=until_current)
        finally:
            watcher.end()
        asked = interrupts.asked.is_set()
        why = "ended as asked" if asked else "current"
        but = f", set aside: {', '.join(sorted(last.aside))}" if last.aside else ""
        watcher.note("done", f"{why}, epoch {last.epoch}, rows {last.rows:,}{but}")
    if asked and until_current:
        # A script that waits for a current lake must not take this for it.
        raise typer.Exit(1)
    if last.aside and until_current:
        raise typer.Exit(SET_ASIDE)


def _preflight(config: PipelineConfig, *, adopt_state: bool, as_json: bool) -> None:
    """Errors end the run here, with their remedies; warnings are told and left."""
    from snowmelt.supervise.terminal import JsonLines

    looked = preflight.of_pipeline(config, adopt_state=adopt_state)
    if as_json:
        JsonLines(print_line).tell("preflight", **looked.as_json())
    else:
        print_line(f"{looked.server}, {count_tables(looked.found)}")
        for finding in looked.findings:
            if finding.level is not Level.INFO:
                where = f" [{list_tables(finding.tables)}]" if finding.tables else ""
                print_warning(f"{finding.level.value}: {finding.fact}{where} (hint: {finding.remedy})")
    if looked.errors:
        print_warning(f"snowmelt: {looked.server} can't be captured as it is, errors: {looked.errors}")
        raise typer.Exit(1)


def extras(config: PipelineConfig) -> tuple[str, ...]:
    return ("fluss",) if config.sink.fluss() is not None else ()
