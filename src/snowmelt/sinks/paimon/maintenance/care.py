"""Paimon's `sinks.maintenance.Maintenance`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from snowmelt.commit.records import Staged
from snowmelt.maintenance.files import Rewrite, TableFiles, TableHistory
from snowmelt.model.moment import TimeMs
from snowmelt.model.numbers import GenerationNumber
from snowmelt.sinks.maintenance import Expired, ExpiryPoint, GivenUp, unwatched
from snowmelt.sinks.paimon.maintenance.expiry import Histories, expire
from snowmelt.sinks.paimon.maintenance.files import maintainable, table_files
from snowmelt.sinks.paimon.maintenance.orphans import delete_files, find_orphans
from snowmelt.sinks.paimon.maintenance.publishing import publish_rewrites
from snowmelt.sinks.paimon.maintenance.rescaling import redistribute
from snowmelt.sinks.paimon.maintenance.rewriting import rewrite
from snowmelt.sinks.paimon.table import identity_of, latest_snapshot, open_catalog, our_errors
from snowmelt.sinks.warehouse import Warehouse


class PaimonMaintenance:
    """The tables of one warehouse. To be opened in the process that uses it."""

    def __init__(self, warehouse: str | Warehouse) -> None:
        self._catalog: Any = open_catalog(warehouse)
        self._histories = Histories()

    def files(self, target: str) -> TableFiles:
        table = self._table(target)
        with our_errors(target):
            return table_files(maintainable(table), latest_snapshot(table))

    def rewrite(self, work: Rewrite, prefix: str) -> Staged:
        table = self._table(work.target)
        with our_errors(work.target):
            return rewrite(table, work, prefix)

    def redistribute(self, work: Rewrite, buckets: int, prefix: str) -> Staged:
        table = self._table(work.target)
        with our_errors(work.target):
            return redistribute(table, work, buckets, prefix)

    def publish(self, work: Sequence[Rewrite], staged: Sequence[Staged], *, generation: GenerationNumber) -> int | GivenUp:
        target = work[0].target
        with our_errors(target):
            return publish_rewrites(lambda: self._table(target), work, staged, generation)

    def history(self, target: str) -> TableHistory:
        table = self._table(target)
        with our_errors(target):
            return self._histories.read(table, identity_of(table))

    def expire(self, target: str, numbers: Sequence[int], *, identity: str, reached: Callable[[ExpiryPoint], None] = unwatched) -> Expired:
        table = self._table(target)
        with our_errors(target):
            return expire(maintainable(table), identity, self._histories, numbers, reached)

    def orphans(self, target: str, *, before_ms: TimeMs, ours: Callable[[str], bool]) -> Iterator[str]:
        table = self._table(target)
        with our_errors(target):
            yield from find_orphans(maintainable(table), before_ms=before_ms, ours=ours)

    def delete(self, target: str, paths: Iterable[str]) -> int:
        table = self._table(target)
        with our_errors(target):
            return delete_files(table, paths)

    def _table(self, target: str) -> Any:
        with our_errors(target):
            return self._catalog.get_table(target)
