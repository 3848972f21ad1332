"""`snowmelt status`: a pipeline as its state shows it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from snowmelt.status import Status
from snowmelt.cli.output import age_text, print_json, print_line, size, utc_text


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
        print_json(asdict(found))
    else:
        _print_status(found, into_fluss=settings.sink.fluss is not None)
    if found.stopped_badly:
        raise typer.Exit(1)


def _print_status(found: Status, *, into_fluss: bool) -> None:
    from snowmelt.status import Life
    from snowmelt.supervise.terminal import phase_of

    ago = "" if found.sign_s is None else f"{age_text(found.sign_s)} ago"
    print_line(
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
        print_line(f"last error, at {utc_text(found.error_ms)}: {found.error}")
    for one in found.tables:
        since = f" since {utc_text(one.aside_ms)}" if one.aside_ms is not None else ""
        told = [f"{one.source} -> {one.target} ({one.mode}): {phase_of(one.phase)}{f'{since}: {one.aside}' if one.aside else ''}"]
        if one.chunks is not None:
            told.append(f"{one.chunks} of {one.chunks_known or '?'} chunks copied")
        if one.snapshot is not None:
            told.append(f"{'changes in Fluss' if into_fluss else 'lake snapshot'} {one.snapshot}")
        if one.committed_ms is not None:
            told.append(f"has all committed up to {utc_text(one.committed_ms)}")
        if one.files is not None:
            told.append(f"{one.files} files, {size(one.size_bytes or 0)}, {one.runs} runs")
        if one.compacted_ms is not None:
            told.append(f"compacted {utc_text(one.compacted_ms)}")
        if one.expired_ms is not None:
            told.append(f"expired {utc_text(one.expired_ms)}")
        print_line(", ".join(told))
    for left_out in found.left_out:
        print_line(f"{left_out.table}: left out: {left_out.why}")
    for listener in found.listeners:
        failing = f"; its calls fail: {listener.why}" if listener.why else ""
        print_line(f"listener {listener.name}: has taken epoch {listener.epoch} of {listener.newest}{failing}")
    under_way = ", another is under way" if found.under_way else ""
    lag = "lag not known" if found.lag_s is None else f"lag {age_text(found.lag_s)}"
    full = ", as much as may be held: capture waits for the lake" if found.full else ""
    print_line(f"epoch {found.epoch} is done{under_way}; {lag}; {found.waiting_bytes:,} bytes of the log wait{full}")
