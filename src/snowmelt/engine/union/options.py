"""The options of a union read, as Spark gives them: texts by name, in any case.

It needs nothing of the extra `fluss`: `snowmelt.programs` takes its defaults from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from snowmelt.credentials import Secret
from snowmelt.errors import InvalidConfig
from snowmelt.fluss.target import Login, make_login, parse_bootstrap
from snowmelt.model.table import TableId
from snowmelt.tiering.leases import DURATION_MS_MIN

LEASE_S: Final = 3600.0
_REMOTE: Final = "remote."
_NEEDED: Final = ("table", "bootstrap", "warehouse")
_KNOWN: Final = frozenset({*_NEEDED, "columns", "lease", "username", "password"})


@dataclass(frozen=True, slots=True, kw_only=True)
class UnionOptions:
    table: TableId
    bootstrap: str
    """Servers of the Fluss cluster, host:port with commas between them. At least one must answer."""
    login: Login | None = None
    """For servers that ask for a login."""
    warehouse: str
    columns: tuple[str, ...] = ()
    """The columns to read; none: all."""
    lease_ms: int = round(LEASE_S * 1000)
    """How long KV snapshots are kept from deletion for a read, at most."""
    remote: Mapping[str, str | Secret] = field(default_factory=lambda: MappingProxyType({}))
    """Options of obstore for Fluss' remote storage, if that is not a folder that all machines share."""

    @property
    def target(self) -> str:
        return f"{self.table.database}.{self.table.name}"


def parse_options(given: Mapping[str, str]) -> UnionOptions:
    options = {name.lower(): value for name, value in given.items()}
    remote = {name: options.pop(name) for name in list(options) if name.startswith(_REMOTE)}
    if unknown := sorted(options.keys() - _KNOWN):
        known = f"{', '.join(sorted(_KNOWN))} and {_REMOTE}* are known"
        raise InvalidConfig("a union read has an option that is not known", detail=unknown[0], hint=known)
    for name in _NEEDED:
        if not options.get(name, "").strip():
            raise InvalidConfig("a union read lacks an option", detail=name, hint=f"{', '.join(_NEEDED)} are required")
    database, _, table = options["table"].strip().partition(".")
    if not database or not table or "." in table:
        raise InvalidConfig("the name of a Fluss table is not database.table", detail=options["table"])
    parse_bootstrap(options["bootstrap"])
    return UnionOptions(
        table=TableId(database, table),
        bootstrap=options["bootstrap"].strip(),
        login=make_login(options.get("username", ""), Secret(options.get("password", ""))),
        warehouse=options["warehouse"].strip(),
        columns=tuple(name.strip() for name in options.get("columns", "").split(",") if name.strip()),
        lease_ms=_milliseconds(options.get("lease", str(LEASE_S))),
        remote={name.removeprefix(_REMOTE): _value(value) for name, value in remote.items()},
    )


def _milliseconds(text: str) -> int:
    try:
        found = round(float(text) * 1000)
    except (ValueError, OverflowError):
        found = 0
    if not DURATION_MS_MIN <= found < 1 << 53:
        raise InvalidConfig("the duration of a lease is not a number of seconds", detail=text[:40])
    return found


def _value(text: str) -> str | Secret:
    return Secret(text) if text.startswith(("${", "file:")) else text
