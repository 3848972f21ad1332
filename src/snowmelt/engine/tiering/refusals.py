"""Clusters and tables that the service does not tier, and how it leaves a refused table to other services.

Laws:
- What a cluster or table asks for and the service does not do is refused by name, before anything is written. Nothing is ignored silently.
- A refused table is handed back to the coordinator at once, without a round, so that another service can have it. After `REFUSED_S` a
  round checks it again: its properties may have changed.
- Each reason is reported once in the life of a service.
- Fluss puts a table that is handed back at the end of its queue. So the service continues to ask until it sees a refused table twice: then
  nothing else is due, and it rests. Rests double while only refused tables come, up to `REST_S_MAX`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

from snowmelt.errors import InvalidConfig, SnowmeltError
from snowmelt.fluss.answers import Claim
from snowmelt.fluss.tables import ReadableTable

REFUSED_S: Final = 600.0
REST_S_MAX: Final = 10.0
_DOUBLED_MAX: Final = 10

_CATALOG: Final = "filesystem"
_METASTORE: Final = "datalake.paimon.metastore"
_EXPIRE_ALL: Final = "lake.tiering.auto-expire-snapshot"
_LOG_FORMATS: Final = ("ARROW", "COMPACTED")
_KV_FORMATS: Final = ("COMPACTED",)
_SWITCHES: Final = {
    "table.datalake.auto-compaction": "set it to false and compact the lake table by a job of Paimon's",
    "table.datalake.auto-expire-snapshot": "set it to false and expire the lake table's snapshots by a job of Paimon's",
    "paimon.deletion-vectors.enabled": "create the table without deletion vectors",
}
"""Properties of a table that are not supported, and what to do instead."""
_LEAVE: Final = "or leave the table to Fluss' own tiering service"


def check_cluster(told: Mapping[str, str]) -> None:
    """`InvalidConfig` if no table of a cluster with these settings can be tiered."""
    if (lake := told.get("datalake.format", "paimon")) != "paimon":
        raise InvalidConfig("the Fluss cluster was set up for another lake than Paimon", detail=lake, hint="see its datalake.format")
    if (catalog := told.get(_METASTORE, _CATALOG)) != _CATALOG:
        raise InvalidConfig(
            "the Fluss cluster registers its lake tables in a catalog that is not supported",
            detail=f"{_METASTORE} is {catalog:.40}",
            hint=f"tier it with Fluss' own service; only {_CATALOG} is supported here",
        )
    if _is_on(told.get(_EXPIRE_ALL)):
        raise InvalidConfig(
            "the Fluss cluster asks the tiering service to expire lake snapshots, which is not supported",
            detail=f"{_EXPIRE_ALL} is true",
            hint="set it to false and expire snapshots by a job of Paimon's, or tier it with Fluss' own service",
        )


def check_table(table: ReadableTable) -> None:
    """`InvalidConfig` if the table asks for what the service does not do."""
    for name, remedy in _SWITCHES.items():
        if _is_on(table.properties.get(name)):
            raise _refused(table, f"{name} is on", f"{remedy}, {_LEAVE}")
    catalog = table.properties.get(f"table.{_METASTORE}", _CATALOG)
    if catalog != _CATALOG:
        raise _refused(table, f"table.{_METASTORE} is {catalog:.40}", f"only {_CATALOG} is supported; leave it to Fluss' own service")
    if (lake := (table.lake_format or "paimon").lower()) != "paimon":
        raise _refused(table, f"table.datalake.format is {lake:.40}", "only paimon is supported; leave it to Fluss' own service")
    for name, found, known in (("log", table.log_format, _LOG_FORMATS), ("kv", table.kv_format, _KV_FORMATS)):
        if found not in known:
            raise _refused(table, f"table.{name}.format is {found:.40}", f"create the table with {known[0]}, {_LEAVE}")


def _refused(table: ReadableTable, why: str, hint: str) -> InvalidConfig:
    return InvalidConfig("the table needs what this service does not do", detail=f"{table.path}, {why}", hint=hint)


def _is_on(value: str | None) -> bool:
    return value is not None and value.strip().lower() not in ("false", "off", "no", "0")


class Refusals:
    """Which tables a service refuses, and when it asks for tables again. One thread uses it."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._until_s: dict[int, float] = {}
        self._told: set[tuple[int, str]] = set()
        self._back: list[Claim] = []
        self._seen: set[int] = set()
        self._rests = 0
        self.resting = False
        """Only refused tables are due: ask for none before the rest is over."""

    def refuse(self, table: int) -> None:
        self._until_s[table] = self._now_s() + REFUSED_S

    def holds(self, table: int) -> bool:
        """Whether the table was refused recently."""
        return table in self._until_s and self._now_s() < self._until_s[table]

    def is_news(self, table: int, error: SnowmeltError) -> bool:
        """Whether this reason is new. It counts as reported from now on."""
        reason = (table, str(error))
        news = reason not in self._told
        self._told.add(reason)
        return news

    def hand_back(self, claim: Claim) -> None:
        """Report the table as failed with the next heartbeat."""
        self._back.append(claim)
        self.resting = claim.table in self._seen
        self._seen.add(claim.table)

    def take_back(self) -> list[Claim]:
        """The tables that the next heartbeat hands back. If it is lost, the coordinator hands them out again after two minutes."""
        back, self._back = self._back, []
        return back

    def began(self) -> None:
        """A table that is not refused was handed out."""
        self._rests = 0

    def pause_s(self, poll_s: float) -> float:
        """How long to wait before the next heartbeat, if nothing is urgent."""
        self._seen.clear()
        if not self.resting:
            return poll_s
        self.resting = False
        self._rests = min(self._rests + 1, _DOUBLED_MAX)
        return max(poll_s, min(poll_s * (1 << self._rests), REST_S_MAX))
