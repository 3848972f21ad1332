"""The program `snowmelt`: its commands, each in a file of its own.

Exit codes: 0 done, 1 failed or errors found, 2 wrong use, 3 differences found (`verify`), 4 done except for tables that are set aside
(`run --until-current`). An error is one line on stderr; --debug adds a traceback.
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import Annotated

import typer

from snowmelt.cli.check import check
from snowmelt.cli.demo import demo
from snowmelt.cli.failures import unexpected
from snowmelt.cli.fluss import fluss
from snowmelt.cli.maintain import maintain
from snowmelt.cli.output import print_warning
from snowmelt.cli.relay import relay
from snowmelt.cli.rescale import rescale
from snowmelt.cli.run import run
from snowmelt.cli.status import status
from snowmelt.cli.tier import tier
from snowmelt.cli.verify import verify
from snowmelt.errors import InvalidConfig, SnowmeltError

app = typer.Typer(
    name="snowmelt",
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
    """Copy MySQL and MariaDB databases into Paimon or Fluss tables and keep them live, exactly once.

    Examples, from a first look to a proof:

    \b
      export DB_PASSWORD=…
      snowmelt check --host db.example.com --user repl --tables 'shop.*'
      snowmelt run pipeline.yaml        (its --help has an example of the file)
      snowmelt status pipeline.yaml
      snowmelt verify pipeline.yaml

    `snowmelt demo` shows all of it with a database of its own. Exit codes: 0 done, 1 failed, 2 wrong use, 3 differences found (verify), 4
    current except for tables that are set aside (run --until-current).
    """


# A list of commands shows a line of each.
for _command, _line in (
    (check, "Find what stands in the way of a pipeline, with remedies."),
    (run, "Copy tables into the lake and keep them live."),
    (tier, "Bring Apache Fluss tables into the lake, as a service."),
    (relay, "Capture the log while no `snowmelt run` does."),
    (verify, "Compare tables of the database with the lake."),
    (status, "Show whether a pipeline runs, its progress, its last error."),
    (maintain, "Compact lake tables, expire snapshots, delete orphans."),
    (rescale, "Give a lake table another number of buckets."),
    (demo, "Show a pipeline under load, killed, restarted and verified."),
):
    app.command(short_help=_line)(_command)
app.add_typer(fluss, name="fluss")


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
        print_warning(unexpected(error))
        sys.exit(1)
