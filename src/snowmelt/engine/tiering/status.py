"""The status that a tiering service reports, for `snowmelt tier status`.

A service keeps no state, and Fluss can't list leases. So a running service writes a small file on its own machine, for its own user:

    $XDG_STATE_HOME/snowmelt/tier/NAME-DIGEST/PROCESS.json      ~/.local/state by default; digests of the cluster's address, and
                                                                of the process on its host: containers may share a home

Laws:
- No decision rests on these files. If one can't be read or written, a warning is logged and the service continues.
- A file is replaced whole, by a rename. It holds no credentials: only names, numbers and the last error's text.
- A service that starts deletes the files of ended ones, except the newest: that one tells why it ended.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import platform
import re
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter, ValidationError

from snowmelt.engine.driver.signs import DriverActivity, is_alive, last_words, process_mark
from snowmelt.engine.tiering.ends import RoundEnd
from snowmelt.errors import SnowmeltError, printable
from snowmelt.model.moment import TimeMs
from snowmelt.tiering.leases import LeaseStatus

log = logging.getLogger(__name__)

VERSION: Final = 1
EVERY_S: Final = 1.0
"""Least time between two writes, unless the service ends."""
_DUE_S: Final = 15.0
"""A service in another container counts as dead after three of these, or of its heartbeats if those are rarer."""
_FILE_BYTES_MAX: Final = 1 << 20
_LEASES_MAX: Final = 1000
_ERROR_CHARACTERS_MAX: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownLease:
    lease: str
    table: str
    phase: str
    buckets: int
    """KV snapshots that it holds."""
    held_ms: TimeMs | None
    """Since when; None: not yet."""
    covered_ms: TimeMs | None
    """Until when Fluss deletes none of them, even without another renewal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceStatus:
    version: int = VERSION
    name: str
    bootstrap: str
    host: str
    process: str
    doing: DriverActivity
    started_ms: TimeMs
    at_ms: TimeMs
    every_ms: int
    tables: tuple[str, ...]
    """Tables of the rounds under way."""
    ended: dict[str, int]
    """The number of rounds by the way they ended."""
    leases: tuple[ShownLease, ...]
    error: str = ""
    """The last one, of a round or of the service."""
    error_ms: TimeMs = 0

    @property
    def life(self) -> DriverActivity | None:
        """None: it died without a report."""
        return last_words(self, time.time())


_STATUS: Final = TypeAdapter(ServiceStatus)


def status_folder(name: str, bootstrap: str) -> Path:
    try:
        base = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state")
    except RuntimeError:
        # A user without a home.
        base = Path(tempfile.gettempdir())
    plain = re.sub("[^A-Za-z0-9_-]", "_", name)[:60]
    digest = hashlib.sha256(repr((name, bootstrap)).encode()).hexdigest()[:12]
    return base / "snowmelt/tier" / f"{plain}-{digest}"


class StatusFile:
    """The file of one service. One thread uses it."""

    def __init__(self, name: str, bootstrap: str, *, beats_s: float = 0.0) -> None:
        """`beats_s`: the longest time between two calls of `beat`."""
        self._every_ms = round(max(_DUE_S, beats_s) * 1000)
        self._name = name
        self._bootstrap = bootstrap
        self._folder = status_folder(name, bootstrap)
        self._started_ms = _wall_ms()
        self._due = 0.0
        self._ended: Counter[str] = Counter()
        self._error, self._error_ms = "", 0
        self._warned = False

    def begin(self) -> None:
        """Report that the service runs, and delete the files of ended ones."""
        over: list[tuple[ServiceStatus, Path]] = []
        with contextlib.suppress(OSError):
            over += [(found, path) for found, path in _read_all(self._folder) if not is_alive(found, time.time())]
        newest = max((found.at_ms for found, _ in over), default=0)
        stale = [path for found, path in over if found.at_ms < newest]
        for path in stale:
            with contextlib.suppress(OSError):
                path.unlink()
        self._put(DriverActivity.RUNS, (), (), 0)

    def count(self, end: RoundEnd) -> None:
        self._ended[end.state.value] += 1
        if end.error is not None:
            self._note(end.error)

    def beat(self, tables: Iterable[str], leases: Sequence[LeaseStatus], now_ms: int) -> None:
        """Call it often. `now_ms`: by the clock of the leases."""
        if time.monotonic() >= self._due:
            self._put(DriverActivity.RUNS, tables, leases, now_ms)

    def end(self, error: BaseException | None) -> None:
        """The service's last report."""
        if isinstance(error, Exception):
            self._note(error)
        self._put(DriverActivity.FAILED if isinstance(error, Exception) else DriverActivity.ENDED, (), (), 0)

    def _note(self, error: Exception) -> None:
        # For an unknown error only its kind is shown: its text may hold anything.
        text = str(error) if isinstance(error, SnowmeltError) else type(error).__name__
        self._error, self._error_ms = printable(text, _ERROR_CHARACTERS_MAX), _wall_ms()

    def _put(self, doing: DriverActivity, tables: Iterable[str], leases: Sequence[LeaseStatus], now_ms: int) -> None:
        self._due, at_ms = time.monotonic() + EVERY_S, _wall_ms()
        status = ServiceStatus(
            name=self._name,
            bootstrap=self._bootstrap,
            host=platform.node(),
            process=process_mark(os.getpid()) or f"{os.getpid()}",
            doing=doing,
            started_ms=self._started_ms,
            at_ms=at_ms,
            every_ms=self._every_ms,
            tables=tuple(sorted(tables)),
            ended=dict(self._ended),
            leases=tuple(_shown(one, at_ms - now_ms) for one in leases[:_LEASES_MAX]),
            error=self._error,
            error_ms=self._error_ms,
        )
        path = self._folder / f"{hashlib.sha256(f'{status.host} {status.process}'.encode()).hexdigest()[:16]}.json"
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            fresh = path.with_suffix(".new")
            fresh.write_text(json.dumps(asdict(status)))
            fresh.replace(path)
        except OSError as error:
            if not self._warned:
                self._warned = True
                extra = {"path": str(self._folder), "why": error.strerror}
                log.warning("what the service does can't be written down, so `tier status` does not show it", extra=extra)


def _shown(one: LeaseStatus, wall_ms: int) -> ShownLease:
    """`wall_ms`: the wall clock less the clock of the leases."""

    def wall(at_ms: int | None) -> int | None:
        return None if at_ms is None else at_ms + wall_ms

    return ShownLease(
        lease=one.lease,
        table=str(one.path),
        phase=one.phase.value,
        buckets=one.buckets,
        held_ms=wall(one.held_ms),
        covered_ms=wall(one.covered_ms),
    )


def _read_all(folder: Path) -> list[tuple[ServiceStatus, Path]]:
    """The readable ones. A damaged one does not hide the others."""
    found = []
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for name in sorted(os.listdir(folder)):
            path = folder / name
            if path.suffix == ".json":
                try:
                    with path.open("rb") as file:
                        content = file.read(_FILE_BYTES_MAX)
                    found.append((_STATUS.validate_json(content), path))
                except FileNotFoundError:
                    # Another service deleted it.
                    continue
                except (OSError, ValidationError):
                    log.warning("a status file can't be read", extra={"path": str(path), "hint": "delete it"})
    return found


def read_statuses(name: str, bootstrap: str) -> list[ServiceStatus]:
    """The services that run on this machine for this user, or else the last report of the newest one that did."""
    found = sorted((status for status, _ in _read_all(status_folder(name, bootstrap))), key=lambda one: one.at_ms)
    alive = [status for status in found if is_alive(status, time.time())]
    return alive or found[-1:]


def _wall_ms() -> int:
    return round(time.time() * 1000)
