"""`snowmelt fluss`: a Fluss server of your own in a folder."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from snowmelt.fluss.server import FlussServer
from snowmelt.cli.output import print_line

_HELP = """Run a Fluss server of your own in a folder, to try things.

Example:

  snowmelt fluss up /tmp/fluss
"""
fluss = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help=_HELP)
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
        print_line(f"{part.value}: {f'runs, process {pid}, port {server.port(part)}' if pid is not None else 'does not run'}")
    if pids[ServerProcess.COORDINATOR] is not None:
        print_line(f"bootstrap.servers: {server.bootstrap}")
    print_line(f"warehouse: {server.warehouse}")
