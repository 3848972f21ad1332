"""`snowmelt tier`: the tiering service for Apache Fluss, and its status."""

from __future__ import annotations

import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from snowmelt.errors import InvalidConfig
from snowmelt.machine import check_machine

if TYPE_CHECKING:
    from snowmelt.engine.tiering.status import ServiceStatus
from snowmelt.cli.failures import failures_told
from snowmelt.cli.output import age_text, print_json, print_line, print_machine, utc_text


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
    with failures_told(as_json=as_json, debug=debug):
        match words:
            case ["status", file]:
                _tier_status(Path(file), as_json=as_json)
            case ["status"] if not Path("status").exists():
                raise InvalidConfig("tier status needs the service's file", hint="snowmelt tier status tiering.yaml")
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
    print_machine(check_machine(master, "fluss"))
    from snowmelt.engine.tiering.service import Tiering, check_ends

    # What is wrong with the server or the warehouse is told before Spark is started.
    check_ends(settings)
    watcher: Watcher = JsonLines(print_line) if as_json else Lines(print_line)
    interrupts = Interrupts(watcher)
    interrupts.install()
    watcher.note("note", "starting Spark")
    session = spark_session(settings.name, master=master, ui=ui, debug=debug, daemon=TIERING_DAEMON)
    with session as spark, notes_of_log(watcher, debug=debug):
        watcher.note("note", f"asking {settings.bootstrap} for tables that are due")
        tiering = Tiering(spark, settings, round_teller(print_line, as_json=as_json))

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
        print_json({"services": [asdict(one) | {"life": one.life or "died"} for one in found]})
    else:
        _print_services(settings.name, found)
    if any(one.life in (None, DriverActivity.FAILED) for one in found):
        raise typer.Exit(1)


def _print_services(name: str, found: list[ServiceStatus]) -> None:
    from snowmelt.engine.driver.signs import DriverActivity

    if not found:
        print_line(f"{name}: no tiering service of this name has run on this machine for this user")
    now_ms = time.time() * 1000
    for one in found:
        ago = f"{age_text((now_ms - one.at_ms) / 1000)} ago"
        process = one.process.partition(":")[0]
        print_line(
            {
                None: f"{name}: does not run; process {process} died, last sign of life {ago}",
                DriverActivity.RUNS: f"{name}: runs as process {process} since {utc_text(one.started_ms)}",
                DriverActivity.ENDED: f"{name}: does not run; it ended as asked, {ago}",
                DriverActivity.FAILED: f"{name}: does not run; it was stopped by an error, {ago}",
            }[one.life]
        )
        ended = ", ".join(f"{count:,} {state}" for state, count in sorted(one.ended.items()))
        tables = f" ({', '.join(one.tables)})" if one.tables else ""
        print_line(f"rounds: {len(one.tables)} under way{tables}; ended: {ended or 'none'}")
        if one.error:
            print_line(f"last error, at {utc_text(one.error_ms)}: {one.error}")
        for lease in one.leases if one.life is DriverActivity.RUNS else ():
            held = f"since {utc_text(lease.held_ms)}" if lease.held_ms is not None else "not yet"
            left = f", {age_text(max(0.0, (lease.covered_ms - now_ms) / 1000))} left" if lease.covered_ms is not None else ""
            print_line(f"lease {lease.lease}: {lease.table}, {lease.phase}, {lease.buckets} KV snapshots, held {held}{left}")
