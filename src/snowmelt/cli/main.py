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
from snowmelt.cli.output import print_warning
from snowmelt.cli.relay import relay
from snowmelt.cli.run import run
from snowmelt.cli.status import status
from snowmelt.cli.tier import tier
from snowmelt.cli.verify import verify
from snowmelt.errors import InvalidConfig, SnowmeltError

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


for _command in (check, run, tier, relay, verify, status, demo):
    app.command()(_command)
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
