"""Errors as a user reads them: one line, one JSON object, or a traceback with --debug."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator

import typer

from snowmelt.cli.output import print_line, print_warning
from snowmelt.errors import SnowmeltError


@contextlib.contextmanager
def failures_told(*, as_json: bool, debug: bool) -> Iterator[None]:
    """Errors of ours reach `main`; an unforeseen error becomes one line, too."""
    # The engine takes a second to import, which other commands need not wait for.
    from snowmelt.supervise.terminal import JsonLines

    try:
        yield
    except (SnowmeltError, typer.Exit, KeyboardInterrupt) as error:
        if debug and isinstance(error, SnowmeltError):
            traceback.print_exc()
        if as_json and isinstance(error, SnowmeltError):
            JsonLines(print_line).tell("failed", kind=type(error).__name__, fact=error.fact, detail=error.detail, hint=error.hint)
        raise
    except Exception as error:
        # A user can do nothing with the traceback of an unforeseen error, and asks for it with --debug to report it.
        if debug:
            traceback.print_exc()
        print_warning(f"{unexpected(error)} (hint: --debug shows where it comes from)")
        raise typer.Exit(1) from None


def unexpected(error: Exception) -> str:
    said = str(error).strip().splitlines()
    text = f"{type(error).__name__}: {said[0][:300]}" if said else type(error).__name__
    return f"snowmelt: an unexpected error: {text}"
