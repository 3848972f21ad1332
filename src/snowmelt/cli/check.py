"""`snowmelt check`: can a server and its tables be captured?"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from snowmelt import preflight
from snowmelt.cli.output import count_tables, list_tables, plain_text, print_json, print_line, size
from snowmelt.cli.run import extras
from snowmelt.databases.contract import Database
from snowmelt.databases.contract.capture import CaptureLimits
from snowmelt.databases.contract.findings import Level, gravest_first
from snowmelt.errors import InvalidConfig, printable
from snowmelt.machine import inspect_machine
from snowmelt.preflight import Preflight
from snowmelt.relay.limits import Limits

if TYPE_CHECKING:
    from snowmelt.config import PipelineConfig

PASSWORD_VARIABLE = "DB_PASSWORD"


def check(
    context: typer.Context,
    file: Annotated[
        Path | None,
        typer.Argument(help="A pipeline's description, instead of all options but --json.", metavar="[pipeline.yaml]", show_default=False),
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
    tls: Annotated[str, typer.Option(help="Which TLS: disabled, preferred, required, verify-ca or verify-identity.")] = "preferred",
    tls_ca: Annotated[str | None, typer.Option(help="The certificate authority's PEM file.")] = None,
    allow_password_to_unverified_server: Annotated[
        bool, typer.Option("--allow-password-to-unverified-server", help="Send the password even if no certificate was verified.")
    ] = False,
    cascades: Annotated[
        str, typer.Option(help="What to do with tables that foreign keys change without writing it to the log: refuse or ignore.")
    ] = "refuse",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check whether a MySQL or MariaDB server and its tables can be captured, and what to do if not.

    Nothing is changed and no row is read. Exit code 1: errors were found. Warnings alone give 0.

    Examples:

      DB_PASSWORD=… snowmelt check pipeline.yaml

      DB_PASSWORD=… snowmelt check --host db.example.com --user repl --tables 'shop.*' --exclude 'shop.tmp_*'
    """
    if (file is None) == (tables is None):
        raise InvalidConfig("check needs either a pipeline's file or --tables", hint="`snowmelt check --help` shows an example of each")
    if file is not None:
        config = _described(file, context)
        source, capture, reading = config.source.database(), config.relay.limits(), config.relay.reading()
        looked = _with_machine(preflight.of_pipeline(config), config)
    else:
        given = {
            "host": None if socket else host,
            "port": str(port),
            "socket": socket,
            "username": user,
            "password": password_ref or _password(),
            "tables": tables,
            "exclude": exclude,
            "tls": tls,
            "tls_ca": tls_ca,
            "allow_password_to_unverified_server": "yes" if allow_password_to_unverified_server else "no",
            "cascades": cascades,
        }
        source, capture, reading = _database(given), CaptureLimits(), Limits()
        looked = preflight.of_server(source, tables or [], exclude or [])
    if as_json:
        limits = {"capture": asdict(capture), "copy": {"row_bytes_max": source.row_bytes_max}, "task": asdict(reading)}
        print_json(looked.as_json() | {"limits": limits})
    else:
        _print_findings(looked)
        _print_limits(capture, reading, source.row_bytes_max)
    if looked.errors:
        raise typer.Exit(1)


def _described(file: Path, context: typer.Context) -> PipelineConfig:
    from snowmelt.config import read_pipeline

    sources = {one.name: context.get_parameter_source(one.name or "") for one in context.command.params}
    given = {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"} - {"file", "as_json"}
    if given:
        beside = ", ".join(one.opts[0] for one in context.command.params if one.name in given)
        raise InvalidConfig(f"check takes a file or {beside}, not both", hint="write it into the file, or leave the file out")
    return read_pipeline(file)


def _database(given: Mapping[str, object]) -> Database:
    from snowmelt.config.registry import source_of

    return source_of({"type": "mysql"} | {key: value for key, value in given.items() if value is not None}).database()


def _with_machine(looked: Preflight, config: PipelineConfig) -> Preflight:
    """A run may be meant for another machine, so what this one lacks is no error here."""
    here = [replace(one, level=Level.WARNING) for one in inspect_machine(config.master(None), *extras(config))]
    return replace(looked, findings=gravest_first([*looked.findings, *here]))


def _print_limits(limits: CaptureLimits, reading: Limits, row_bytes_max: int) -> None:
    """What a pipeline takes at most, with defaults where `pipeline.yaml` says nothing else."""
    print_line(
        f"capture: memory {size(limits.memory_bytes)} ({limits.buffers} buffers of {size(limits.buffer_bytes)}), "
        f"segments of {size(limits.segment_bytes)} or {limits.seal_ms} ms, heartbeat {limits.heartbeat_s:.0f} s, "
        f"disk {size(limits.disk_bytes_max)}, for one transaction up to {size(limits.disk_bytes_hard)}"
    )
    print_line(f"a task that copies a table: rows of up to {size(row_bytes_max)}")
    print_line(
        f"a task that reads the log: {size(reading.prefilter_bytes)} of it at a time, "
        f"{size(reading.pool_bytes)} that wait for the lake, "
        f"{size(reading.writers_bytes)} for all of its writers, "
        f"an event of up to {size(reading.assembly_bytes)} in memory and {size(reading.spill_bytes_max)} in TMPDIR, "
        f"rows of up to {size(reading.row_bytes_max)}"
    )


def _password() -> str | None:
    return f"${{{PASSWORD_VARIABLE}}}" if PASSWORD_VARIABLE in os.environ else None


_COLOURS = {Level.ERROR: "bold red", Level.WARNING: "yellow", Level.INFO: "cyan"}


def _print_findings(looked: Preflight) -> None:
    console = Console()
    # Names and remedies are data: none of it is read as rich's markup, nor by the terminal.
    found, findings = looked.found, looked.findings
    console.print(plain_text(f"{looked.server}, {count_tables(found)}"))
    for source, target in (looked.targets or {}).items():
        console.print(plain_text(f"  {source} -> {target}"))
    if findings:
        table = Table(show_lines=True)
        for heading in ("level", "finding", "remedy"):
            table.add_column(heading, overflow="fold", no_wrap=heading == "level")
        for finding in findings:
            fact = plain_text(finding.fact)
            if finding.tables:
                fact.append("\n" + printable(list_tables(finding.tables)), style="dim")
            table.add_row(Text(finding.level.value, style=_COLOURS[finding.level]), fact, plain_text(finding.remedy))
        console.print(table)
    counts = {level: sum(finding.level is level for finding in findings) for level in Level}
    if counts[Level.ERROR]:
        console.print(Text(f"can't be captured as it is, errors: {counts[Level.ERROR]}", style=_COLOURS[Level.ERROR]))
    else:
        console.print(Text(f"ready to be captured, warnings: {counts[Level.WARNING]}", style="bold green"))
