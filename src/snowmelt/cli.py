"""The command line: parse, wire, run, print.

Exit codes: 0 done, 1 failed or errors found, 2 wrong use, 3 differences found (`verify`), 4 done but for tables that are set aside
(`run --until-current`). An error is one line on stderr, a traceback
only with --debug.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Collection, Iterator
from dataclasses import asdict, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from snowmelt import preflight
from snowmelt.credentials import Secret
from snowmelt.databases.contract.findings import Finding, Level, gravest_first
from snowmelt.databases.contract.patterns import match_tables
from snowmelt.databases.mysql.connect import MySqlOptions, Tls
from snowmelt.databases.mysql.database import MySql
from snowmelt.databases.mysql.log.capture import CaptureLimits
from snowmelt.databases.mysql.preflight import Cascades
from snowmelt.databases.mysql.read.resultset import ROW_BYTES_MAX
from snowmelt.errors import InvalidConfig, SnowmeltError, printable
from snowmelt.machine import check_machine, inspect_machine
from snowmelt.model.table import TableId
from snowmelt.preflight import Preflight
from snowmelt.relay.limits import Limits

if TYPE_CHECKING:
    from snowmelt.config import PipelineConfig
    from snowmelt.engine.tiering.status import ServiceStatus
    from snowmelt.fluss.server import FlussServer
    from snowmelt.status import Status
    from snowmelt.verify import TableVerdict


PASSWORD_VARIABLE = "DB_PASSWORD"
TABLES_SHOWN_MAX = 5
SET_ASIDE = 4
"""Exit code: the lake is current, but for tables that are set aside."""

app = typer.Typer(
    name="snowmelt",
    help="Whole operational databases into lake tables, live and exactly once.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"snowmelt {version('snowmelt')}")
        raise typer.Exit


@app.callback()
def _commands(
    _: Annotated[bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")] = False,
) -> None:
    """Whole operational databases into lake tables, live and exactly once. So far: MySQL and MariaDB into Paimon tables."""


@app.command()
def check(
    file: Annotated[
        Path | None,
        typer.Argument(help="A pipeline's description, instead of all the options.", metavar="[pipeline.yaml]", show_default=False),
    ] = None,
    tables: Annotated[
        list[str] | None, typer.Option("--tables", "-t", help="Which tables: database.table, with * and ?. Repeatable.")
    ] = None,
    exclude: Annotated[list[str] | None, typer.Option("--exclude", "-x", help="Tables to leave out. Repeatable.")] = None,
    host: Annotated[str, typer.Option(help="Where the server listens.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Its port.")] = 3306,
    socket: Annotated[str | None, typer.Option(help="A unix socket, instead of host and port.")] = None,
    user: Annotated[str, typer.Option(help="The user that the pipeline will have.")] = "root",
    password_ref: Annotated[
        str | None,
        typer.Option(help=f"Where its password is: '${{NAME}}' (environment) or file:/path. Default: ${{{PASSWORD_VARIABLE}}}, if set."),
    ] = None,
    tls: Annotated[Tls, typer.Option(help="Which TLS is required.")] = Tls.PREFERRED,
    tls_ca: Annotated[str | None, typer.Option(help="The certificate authority's PEM file.")] = None,
    allow_password_to_unverified_server: Annotated[
        bool, typer.Option("--allow-password-to-unverified-server", help="Send the password even if no certificate was verified.")
    ] = False,
    cascades: Annotated[
        Cascades, typer.Option(help="What to do with tables that foreign keys change without writing it to the log.")
    ] = Cascades.REFUSE,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check whether a MySQL or MariaDB server and its tables can be captured, and what to do if not.

    Nothing is changed and no row is read. Exit code 1: errors were found. Warnings alone give 0.

    Examples:

      DB_PASSWORD=… snowmelt check pipeline.yaml

      DB_PASSWORD=… snowmelt check --host db.example.com --user repl --tables 'shop.*' --exclude 'shop.tmp_*'
    """
    if (file is None) == (tables is None):
        raise InvalidConfig("check needs either a pipeline's file or --tables")
    if file is not None:
        from snowmelt.config import read_pipeline

        config = read_pipeline(file)
        looked, capture, reading = preflight.of_pipeline(config), config.relay.limits(), config.relay.reading()
        # A run may be meant for another machine, so what this one lacks is no error here.
        here = [replace(one, level=Level.WARNING) for one in inspect_machine(config.master(None), *_extras(config))]
        looked = replace(looked, findings=gravest_first([*looked.findings, *here]))
    else:
        options = MySqlOptions(
            host=host,
            port=port,
            socket=socket,
            username=user,
            password=_password(password_ref),
            tls=tls,
            tls_ca=tls_ca,
            allow_password_to_unverified_server=allow_password_to_unverified_server,
        )
        looked = preflight.of_server(MySql(options=options, cascades=cascades), tables or [], exclude or [])
        capture, reading = CaptureLimits(), Limits()
    if as_json:
        limits = {"capture": asdict(capture), "copy": {"row_bytes_max": ROW_BYTES_MAX}, "task": asdict(reading)}
        told = looked.as_json() | {"limits": limits}
        _print_json(told)
    else:
        _print_findings(looked)
        _print_limits(capture, reading)
    if looked.errors:
        raise typer.Exit(1)


def _print_limits(limits: CaptureLimits, reading: Limits) -> None:
    """What a pipeline takes at most, with defaults where `pipeline.yaml` says nothing else."""
    _line(
        f"capture: memory {_size(limits.memory_bytes)} ({limits.buffers} buffers of {_size(limits.buffer_bytes)}), "
        f"segments of {_size(limits.segment_bytes)} or {limits.seal_ms} ms, heartbeat {limits.heartbeat_s:.0f} s, "
        f"disk {_size(limits.disk_bytes_max)}, for one transaction up to {_size(limits.disk_bytes_hard)}"
    )
    _line(f"a task that copies a table: rows of up to {_size(ROW_BYTES_MAX)}")
    _line(
        f"a task that reads the log: {_size(reading.prefilter_bytes)} of it at a time, {_size(reading.pool_bytes)} that wait for the lake, "
        f"{_size(reading.writers_bytes)} for all of its writers, "
        f"an event of up to {_size(reading.assembly_bytes)} in memory and {_size(reading.spill_bytes_max)} in TMPDIR, "
        f"rows of up to {_size(reading.row_bytes_max)}"
    )


def _size(count: int) -> str:
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    power = min(len(units) - 1, max(0, count.bit_length() - 1) // 10)
    return f"{count / (1 << 10 * power):.4g} {units[power]}"


@app.command()
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
        bool, typer.Option("--adopt-state", help="The state was moved here and now belongs to this folder or bucket.")
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
    with _failures_told(as_json=as_json, debug=debug):
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


@app.command()
def tier(
    words: Annotated[list[str], typer.Argument(help="The service's description.", metavar="[status] tiering.yaml", show_default=False)],
    master: Annotated[str, typer.Option(help="Where Spark runs: local[*], spark://host:7077, …")] = "local[*]",
    ui: Annotated[bool, typer.Option("--ui", help="Let Spark serve its web page.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one object on each line.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks and Spark's messages.")] = False,
) -> None:
    """Bring Apache Fluss tables into the lake, as Fluss' own tiering service does, and keep them there.

    Fluss decides which tables are due, and when: those with table.datalake.enabled, each as often as its table.datalake.freshness asks.
    The service has no state: kill it and start it anywhere, run several, or let Fluss' own service take over. Ctrl-C ends it after the
    current rounds; a second one ends it at once.

    Example:

      snowmelt tier tiering.yaml

    To see from another terminal whether it runs on this machine, its rounds and its leases (exit code 1: an error stopped it, or it died):

      snowmelt tier status tiering.yaml

    where tiering.yaml is, for example:

    \b
      fluss:
        bootstrap: fluss.example.com:9123
      lake:
        type: paimon
        warehouse: /data/lake
      tiering:
        name: shop
    """
    with _failures_told(as_json=as_json, debug=debug):
        match words:
            case ["status", file]:
                _tier_status(Path(file), as_json=as_json)
            case [file]:
                _tier(Path(file), master=master, ui=ui, as_json=as_json, debug=debug)
            case _:
                raise InvalidConfig("tier takes one file", detail=" ".join(words), hint="snowmelt tier [status] tiering.yaml")


def _tier(file: Path, *, master: str, ui: bool, as_json: bool, debug: bool) -> None:
    from snowmelt.config import read_tiering
    from snowmelt.supervise.restarts import Interrupts
    from snowmelt.supervise.session import TIERING_DAEMON, spark_session
    from snowmelt.supervise.terminal import JsonLines, Lines, Watcher, notes_of_log, round_teller

    settings = read_tiering(file).to_settings()
    _tell_machine(check_machine(master, "fluss"))
    from snowmelt.engine.tiering.service import Tiering, check_ends

    # What is wrong with the server or the warehouse is told before Spark is started.
    check_ends(settings)
    watcher: Watcher = JsonLines(_line) if as_json else Lines(_line)
    interrupts = Interrupts(watcher)
    interrupts.install()
    watcher.note("note", "starting Spark")
    session = spark_session(settings.name, master=master, ui=ui, debug=debug, daemon=TIERING_DAEMON)
    with session as spark, notes_of_log(watcher, debug=debug):
        watcher.note("note", f"asking {settings.bootstrap} for tables that are due")
        tiering = Tiering(spark, settings, round_teller(_line, as_json=as_json))

        def end_when_asked() -> None:
            interrupts.asked.wait()
            watcher.note("note", "ending after the rounds under way; a second Ctrl-C ends at once")
            tiering.stop()

        threading.Thread(target=end_when_asked, name="snowmelt-interrupts", daemon=True).start()
        tiering.run()
    watcher.note("done", "ended as asked")


def _tier_status(file: Path, *, as_json: bool) -> None:
    from snowmelt.config import read_tiering
    from snowmelt.engine.driver.signs import DriverActivity
    from snowmelt.engine.tiering.status import read_statuses

    settings = read_tiering(file).to_settings()
    found = read_statuses(settings.name, settings.bootstrap)
    if as_json:
        _print_json({"services": [asdict(one) | {"life": one.life or "died"} for one in found]})
    else:
        _print_services(settings.name, found)
    if any(one.life in (None, DriverActivity.FAILED) for one in found):
        raise typer.Exit(1)


def _print_services(name: str, found: list[ServiceStatus]) -> None:
    from snowmelt.engine.driver.signs import DriverActivity

    if not found:
        _line(f"{name}: no tiering service of this name has run on this machine for this user")
    now_ms = time.time() * 1000
    for one in found:
        ago = f"{_age((now_ms - one.at_ms) / 1000)} ago"
        process = one.process.partition(":")[0]
        _line(
            {
                None: f"{name}: does not run; process {process} died, last sign of life {ago}",
                DriverActivity.RUNS: f"{name}: runs as process {process} since {_utc(one.started_ms)}",
                DriverActivity.ENDED: f"{name}: does not run; it ended as asked, {ago}",
                DriverActivity.FAILED: f"{name}: does not run; it was stopped by an error, {ago}",
            }[one.life]
        )
        ended = ", ".join(f"{count:,} {state}" for state, count in sorted(one.ended.items()))
        tables = f" ({', '.join(one.tables)})" if one.tables else ""
        _line(f"rounds: {len(one.tables)} under way{tables}; ended: {ended or 'none'}")
        if one.error:
            _line(f"last error, at {_utc(one.error_ms)}: {one.error}")
        for lease in one.leases if one.life is DriverActivity.RUNS else ():
            held = f"since {_utc(lease.held_ms)}" if lease.held_ms is not None else "not yet"
            left = f", {_age(max(0.0, (lease.covered_ms - now_ms) / 1000))} left" if lease.covered_ms is not None else ""
            _line(f"lease {lease.lease}: {lease.table}, {lease.phase}, {lease.buckets} KV snapshots, held {held}{left}")


@app.command()
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
    with _failures_told(as_json=as_json, debug=debug):
        _relay(file, as_json=as_json, debug=debug)


def _relay(file: Path, *, as_json: bool, debug: bool) -> None:
    from snowmelt.config import read_pipeline
    from snowmelt.engine.log.standby import keep_capturing
    from snowmelt.supervise.restarts import Interrupts
    from snowmelt.supervise.terminal import JsonLines, Lines, Watcher, notes_of_log, relay_teller

    settings = read_pipeline(file).to_settings()
    watcher: Watcher = JsonLines(_line) if as_json else Lines(_line)
    interrupts = Interrupts(watcher)
    interrupts.install()
    with notes_of_log(watcher, debug=debug):
        keep_capturing(settings, interrupts.asked, relay_teller(_line, as_json=as_json))
    watcher.note("done", "ended as asked")


@contextlib.contextmanager
def _failures_told(*, as_json: bool, debug: bool) -> Iterator[None]:
    """Errors of ours go on to `main`; whoever meets what we did not foresee gets a line too."""
    # The engine takes a second to import, which other commands need not wait for.
    from snowmelt.supervise.terminal import JsonLines

    try:
        yield
    except (SnowmeltError, typer.Exit, KeyboardInterrupt) as error:
        if debug and isinstance(error, SnowmeltError):
            traceback.print_exc()
        if as_json and isinstance(error, SnowmeltError):
            JsonLines(_line).tell("failed", kind=type(error).__name__, fact=error.fact, detail=error.detail, hint=error.hint)
        raise
    except Exception as error:
        # Whoever meets what we did not foresee can do nothing with a traceback, and asks for it when they report it.
        if debug:
            traceback.print_exc()
        _warn(f"{_unknown(error)} (hint: --debug shows where it comes from)")
        raise typer.Exit(1) from None


def _unknown(error: Exception) -> str:
    said = str(error).strip().splitlines()
    text = f"{type(error).__name__}: {said[0][:300]}" if said else type(error).__name__
    return f"snowmelt: an unexpected error: {text}"


def _table_id(text: str) -> TableId:
    database, dot, name = text.partition(".")
    if not (database and dot and name):
        raise InvalidConfig("a table is named as database.table", detail=repr(text))
    return TableId(database, name)


def _run(
    file: Path, *, until_current: bool, adopt_state: bool, recopy: list[str], master: str | None, ui: bool, as_json: bool, debug: bool
) -> None:
    from snowmelt.config import read_pipeline
    from snowmelt.engine.driver.pipeline import Pipeline
    from snowmelt.planning.asides import Requests
    from snowmelt.supervise.restarts import Interrupts, start_compiling, supervise
    from snowmelt.supervise.session import spark_session
    from snowmelt.supervise.terminal import JsonLines, Lines, Screen, Watcher, notes_of_log

    config = read_pipeline(file)
    master = config.master(master)
    requests = Requests(map(_table_id, recopy))
    _tell_machine(check_machine(master, *_extras(config)))
    _preflight(config, adopt_state=adopt_state, as_json=as_json)
    console = Console(stderr=True)
    watcher: Watcher = JsonLines(_line) if as_json else Screen(console, config.pipeline.name) if console.is_terminal else Lines(_line)
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
            last = supervise(lambda: Pipeline(spark, settings, requests), watcher, interrupts.asked, until_current=until_current)
        finally:
            watcher.end()
        asked = interrupts.asked.is_set()
        why = "ended as asked" if asked else "current"
        but = f", set aside: {', '.join(sorted(last.aside))}" if last.aside else ""
        watcher.note("done", f"{why}, epoch {last.epoch}, rows {last.rows:,}{but}")
    if asked and until_current:
        # Whoever waits for a current lake must not take this for it.
        raise typer.Exit(1)
    if last.aside and until_current:
        raise typer.Exit(SET_ASIDE)


def _preflight(config: PipelineConfig, *, adopt_state: bool, as_json: bool) -> None:
    """Errors end the run here, with their remedies; warnings are told and left."""
    from snowmelt.supervise.terminal import JsonLines

    looked = preflight.of_pipeline(config, adopt_state=adopt_state)
    if as_json:
        JsonLines(_line).tell("preflight", **looked.as_json())
    else:
        _line(f"{looked.server}, {_tables(looked.found)}")
        for finding in looked.findings:
            if finding.level is not Level.INFO:
                where = f" [{_listed(finding.tables)}]" if finding.tables else ""
                _warn(f"{finding.level.value}: {finding.fact}{where} (hint: {finding.remedy})")
    if looked.errors:
        _warn(f"snowmelt: {looked.server} can't be captured as it is, errors: {looked.errors}")
        raise typer.Exit(1)


def _extras(config: PipelineConfig) -> tuple[str, ...]:
    return ("fluss",) if config.sink.fluss() is not None else ()


def _tell_machine(warnings: list[Finding]) -> None:
    for finding in warnings:
        _warn(f"{finding.level.value}: {finding.fact} (hint: {finding.remedy})")


def _line(text: str) -> None:
    """A line of text, or of JSON, which means the same afterwards."""
    print(printable(text), flush=True)


def _print_json(told: dict[str, Any]) -> None:
    # Not `splitlines`, which also splits at U+0085, U+2028 and U+2029: JSON leaves these in a string as they are.
    for line in json.dumps(told, ensure_ascii=False, indent=2).split("\n"):
        _line(line)


def _warn(text: str) -> None:
    print(printable(text), file=sys.stderr)


@app.command()
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
    with _failures_told(as_json=as_json, debug=debug):
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
    _tell_machine(check_machine(master))
    settings.source.connect()
    console = Console(stderr=True)
    told = JsonLines(_line)
    with contextlib.ExitStack() as stack:
        if not debug:
            stack.enter_context(_quiet_interrupt())
        shown = stack.enter_context(console.status("starting Spark")) if console.is_terminal and not as_json else None

        def watch(step: Step) -> None:
            if shown is not None:
                of = f", {step.done} of {step.of}" if step.of > 1 else ""
                shown.update(_text(f"{step.table or 'all tables'}: {step.what}{of}"))

        session = spark_session(config.pipeline.name, master=master, ui=False, debug=debug, entries=config.spark)
        spark = stack.enter_context(session)
        verdicts = verify(settings, spark, tables, watch, patience_s=patience_s)
    for verdict in verdicts:
        if as_json:
            told.tell("verdict", **_verdict_json(verdict))
        else:
            _print_verdict(verdict)
    outcomes = [verdict.outcome for verdict in verdicts]
    differ, not_verified = outcomes.count(TableOutcome.DIFFERS), outcomes.count(TableOutcome.NOT_VERIFIED)
    if as_json:
        told.tell("done", verified=outcomes.count(TableOutcome.VERIFIED), differ=differ, not_verified=not_verified)
    elif differ or not_verified:
        _line(f"tables that differ: {differ}, not verified: {not_verified}")
    else:
        _line("verified")
    if differ or not_verified:
        raise typer.Exit(3 if differ else 1)


@contextlib.contextmanager
def _quiet_interrupt() -> Iterator[None]:
    """Ctrl-C ends the process. Whoever is talking to Spark's JVM at that moment would log a traceback of it."""

    def end(_number: int, _frame: FrameType | None) -> None:
        logging.disable()
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _print_verdict(verdict: TableVerdict) -> None:
    where = f"{verdict.table} -> {verdict.target}"
    if not verdict.position:
        _line(f"{where}: {verdict.outcome}: {verdict.reason}")
        return
    differing = f", rows that differ: {verdict.differing:,}" if verdict.differing else ""
    _line(f"{where}: {verdict.outcome}, rows {verdict.rows:,}, checksums {verdict.ranges:,}, at {verdict.position}{differing}")
    for difference in verdict.differences:
        key = ", ".join(f"{name} = {text}" for name, text in difference.key)
        columns = f": {', '.join(difference.columns)}" if difference.columns else ""
        _line(f"  {difference.kind} {key}{columns}")
    if verdict.differing > len(verdict.differences):
        _line(f"  and {verdict.differing - len(verdict.differences):,} more")
    if verdict.reason:
        _line(f"  the rest is not verified: {verdict.reason}")


def _verdict_json(verdict: TableVerdict) -> dict[str, Any]:
    return {
        "table": str(verdict.table),
        "target": verdict.target,
        "outcome": verdict.outcome.value,
        "rows": verdict.rows,
        "checksums": verdict.ranges,
        "position": verdict.position,
        "differing": verdict.differing,
        "differences": [{"key": dict(one.key), "kind": one.kind.value, "columns": list(one.columns)} for one in verdict.differences],
        "reason": verdict.reason,
    }


@app.command()
def status(
    file: Annotated[Path, typer.Argument(help="The pipeline's description.", metavar="pipeline.yaml", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show whether a pipeline runs, its progress, and what stopped it.

    Reads only the pipeline's state: neither the database nor the lake is asked, and a running pipeline is not disturbed. Exit code 1: an
    error stopped it, or it died.

    Example:

      snowmelt status pipeline.yaml
    """
    from snowmelt.config import read_pipeline
    from snowmelt.status import read_status

    settings = read_pipeline(file).to_settings()
    found = read_status(settings)
    if as_json:
        _print_json(asdict(found))
    else:
        _print_status(found, into_fluss=settings.fluss is not None)
    if found.stopped_badly:
        raise typer.Exit(1)


def _print_status(found: Status, *, into_fluss: bool) -> None:
    from snowmelt.status import Life
    from snowmelt.supervise.terminal import phase_of

    ago = "" if found.sign_s is None else f"{_age(found.sign_s)} ago"
    _line(
        {
            None: f"{found.name}: no driver has left a sign of life",
            Life.RUNS: f"{found.name}: runs on {found.host}, last sign of life {ago}",
            Life.RETRIES: f"{found.name}: runs on {found.host}, and waits to try again after an error, last sign of life {ago}",
            Life.ENDED: f"{found.name}: does not run; it ended as asked, {ago}",
            Life.FAILED: f"{found.name}: does not run; it was stopped by an error, {ago}",
            Life.DIED: f"{found.name}: does not run; it died on {found.host}, last sign of life {ago}",
        }[found.life]
    )
    if found.error:
        _line(f"last error, at {_utc(found.error_ms)}: {found.error}")
    for one in found.tables:
        since = f" since {_utc(one.aside_ms)}" if one.aside_ms is not None else ""
        told = [f"{one.source} -> {one.target} ({one.mode}): {phase_of(one.phase)}{f'{since}: {one.aside}' if one.aside else ''}"]
        if one.chunks is not None:
            told.append(f"{one.chunks} of {one.chunks_known or '?'} chunks copied")
        if one.snapshot is not None:
            told.append(f"{'changes in Fluss' if into_fluss else 'lake snapshot'} {one.snapshot}")
        if one.committed_ms is not None:
            told.append(f"has all committed up to {_utc(one.committed_ms)}")
        _line(", ".join(told))
    for left_out in found.left_out:
        _line(f"{left_out.table}: left out: {left_out.why}")
    under_way = ", another is under way" if found.under_way else ""
    lag = "lag not known" if found.lag_s is None else f"lag {_age(found.lag_s)}"
    full = ", as much as may be held: capture waits for the lake" if found.full else ""
    _line(f"epoch {found.epoch} is done{under_way}; {lag}; {found.waiting_bytes:,} bytes of the log wait{full}")


def _utc(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _age(seconds: float) -> str:
    """As short as one says it: 12 s, 4 min, 3 h, 2 d."""
    for unit, of in (("s", 120), ("min", 120), ("h", 48)):
        if seconds < of:
            return f"{seconds:.0f} {unit}"
        seconds /= 24 if unit == "h" else 60
    return f"{seconds:.0f} d"


@app.command()
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


fluss = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="A Fluss server of your own in a folder, to try things.")
app.add_typer(fluss, name="fluss")

_FlussFolder = Annotated[Path, typer.Argument(help="The server's data, settings and logs.", metavar="FOLDER")]
_FLUSS_FOLDER = Path("fluss")
_AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@fluss.command("up")
def fluss_up(
    context: typer.Context,
    folder: _FlussFolder = _FLUSS_FOLDER,
    snapshot_interval: Annotated[float, typer.Option(min=0.1, help="Seconds between two KV snapshots of a bucket.")] = 60.0,
    snapshots_retained: Annotated[int, typer.Option(min=1, help="KV snapshots of a bucket that are kept without a lease.")] = 2,
    lease_check_interval: Annotated[float, typer.Option(min=0.1, help="Seconds between two checks for expired leases.")] = 60.0,
    buckets: Annotated[int, typer.Option(min=1, help="Default number of buckets of a table.")] = 1,
    as_json: _AsJson = False,
) -> None:
    """Start Fluss: ZooKeeper, coordinator and one tablet server, on this machine's loopback alone.

    Downloads the published server once (180 MB). Java is required. A folder that has a server already keeps its data, its ports and its
    settings, and starts the processes that don't run. The coordinator makes Paimon tables in `lake` below the folder.

    Example:

      snowmelt fluss up /tmp/fluss --snapshot-interval 5
    """
    from snowmelt.fluss.server import FlussServer, FlussSettings

    if (folder / "fluss.json").exists():
        server = FlussServer.open(folder)
        given = {name for name in context.params if getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"}
        if ignored := given - {"folder", "as_json"}:
            print(f"the server of this folder keeps its settings; ignored: {', '.join(sorted(ignored))}", file=sys.stderr)
    else:
        server = FlussServer.make(
            folder,
            FlussSettings(
                kv_snapshot_interval_s=snapshot_interval,
                kv_snapshots_retained=snapshots_retained,
                lease_check_interval_s=lease_check_interval,
                buckets=buckets,
            ),
        )
    server.start()
    _tell_fluss(server, as_json=as_json)


@fluss.command("down")
def fluss_down(folder: _FlussFolder = _FLUSS_FOLDER, as_json: _AsJson = False) -> None:
    """Stop the server of a folder. Its data stays; the next `up` resumes with it.

    Example:

      snowmelt fluss down /tmp/fluss
    """
    from snowmelt.fluss.server import FlussServer

    server = FlussServer.open(folder)
    print("stopping, which takes some seconds", file=sys.stderr)
    server.stop()
    _tell_fluss(server, as_json=as_json)


@fluss.command("status")
def fluss_status(folder: _FlussFolder = _FLUSS_FOLDER, as_json: _AsJson = False) -> None:
    """Show which processes of a folder's server run. Exit code 1 if not all of them do.

    Example:

      snowmelt fluss status /tmp/fluss
    """
    from snowmelt.fluss.server import FlussServer, ServerProcess

    server = FlussServer.open(folder)
    _tell_fluss(server, as_json=as_json)
    if any(server.pid(part) is None for part in ServerProcess):
        raise typer.Exit(1)


def _tell_fluss(server: FlussServer, *, as_json: bool) -> None:
    from snowmelt.fluss.server import ServerProcess

    pids = {part: server.pid(part) for part in ServerProcess}
    if as_json:
        parts = {part.value: {"pid": pid, "port": server.port(part)} for part, pid in pids.items()}
        told = {"bootstrap": server.bootstrap, "folder": str(server.folder), "warehouse": str(server.warehouse), "parts": parts}
        typer.echo(json.dumps(told, indent=2))
        return
    for part, pid in pids.items():
        _line(f"{part.value}: {f'runs, process {pid}, port {server.port(part)}' if pid is not None else 'does not run'}")
    if pids[ServerProcess.COORDINATOR] is not None:
        _line(f"bootstrap.servers: {server.bootstrap}")
    _line(f"warehouse: {server.warehouse}")


def _password(reference: str | None) -> Secret:
    if reference is not None:
        return Secret(reference)
    return Secret(f"${{{PASSWORD_VARIABLE}}}") if PASSWORD_VARIABLE in os.environ else Secret()


_COLOURS = {Level.ERROR: "bold red", Level.WARNING: "yellow", Level.INFO: "cyan"}


def _print_findings(looked: Preflight) -> None:
    console = Console()
    # Names and remedies are data: none of it is read as rich's markup, nor by the terminal.
    found, findings = looked.found, looked.findings
    console.print(_text(f"{looked.server}, {_tables(found)}"))
    for source, target in (looked.targets or {}).items():
        console.print(_text(f"  {source} -> {target}"))
    if findings:
        table = Table(show_lines=True)
        for heading in ("level", "finding", "remedy"):
            table.add_column(heading, overflow="fold", no_wrap=heading == "level")
        for finding in findings:
            fact = _text(finding.fact)
            if finding.tables:
                fact.append("\n" + printable(_listed(finding.tables)), style="dim")
            table.add_row(Text(finding.level.value, style=_COLOURS[finding.level]), fact, _text(finding.remedy))
        console.print(table)
    counts = {level: sum(finding.level is level for finding in findings) for level in Level}
    if counts[Level.ERROR]:
        console.print(Text(f"can't be captured as it is, errors: {counts[Level.ERROR]}", style=_COLOURS[Level.ERROR]))
    else:
        console.print(Text(f"ready to be captured, warnings: {counts[Level.WARNING]}", style="bold green"))


def _text(text: str) -> Text:
    return Text(printable(text))


def _tables(found: Collection[TableId]) -> str:
    return f"{len(found)} {'table' if len(found) == 1 else 'tables'}: {_listed(tuple(found))}" if found else "no tables"


def _listed(tables: tuple[TableId, ...]) -> str:
    shown = ", ".join(str(table) for table in tables[:TABLES_SHOWN_MAX])
    return f"{shown} and {len(tables) - TABLES_SHOWN_MAX} more" if len(tables) > TABLES_SHOWN_MAX else shown


def main() -> None:
    """The program `snowmelt`."""
    try:
        app(prog_name="snowmelt")
    except KeyboardInterrupt:
        print("snowmelt: interrupted", file=sys.stderr)
        sys.exit(130)
    except SnowmeltError as error:
        # Its parts are printable already, and a file that is wrong in several places is told in as many lines.
        print(f"snowmelt: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, InvalidConfig) else 1)
    except Exception as error:
        # Of a command without --debug.
        _warn(_unknown(error))
        sys.exit(1)
