"""The lake tables that an epoch changes: their present state, and whether they can take the change (`driving.entries`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from snowmelt.commit.ledger import Ledger
from snowmelt.commit.records import Reshape
from snowmelt.databases.contract import Database
from snowmelt.driving.entries import TargetNow, TargetWork, targets_of
from snowmelt.engine.driver.shapes import Shapes
from snowmelt.engine.loop.lake_threads import LakeThreads
from snowmelt.engine.tasks.rows import lake_schema
from snowmelt.errors import RECOPY, Corrupt, SourceDrift, TableStuck
from snowmelt.model.table import TableId
from snowmelt.planning.epochs import EpochPlan
from snowmelt.sinks.contract import Partition, Sink


class Entries:
    """Of one driver; used by the thread that owns the machines."""

    def __init__(
        self,
        lake: Sink,
        ledger: Ledger,
        shapes: Shapes,
        source: Database,
        threads: LakeThreads,
        partition: Callable[[TableId], Partition],
    ) -> None:
        """`partition`: how the target of a table is divided."""
        self._lake = lake
        self._threads = threads
        self._ledger = ledger
        self._shapes = shapes
        self._source = source
        self._partition = partition

    def unfit(self, plan: EpochPlan) -> list[TableStuck]:
        """An error for each table that the plan changes in a way that the lake can't take."""
        found: list[TableStuck] = []
        for target, one in targets_of(plan, self._ledger).items():
            try:
                self._change(target, one)
            except TableStuck as error:
                found.append(error)
        return found

    def describe(self, works: Mapping[str, TargetWork]) -> dict[str, TargetNow]:
        """The present state of lake tables, for `driving.entries.Describe`. `TableStuck`: that of one of them can't be read."""
        changes = {target: self._change(target, one) for target, one in works.items()}
        found = self._threads.each(lambda target: self._now(target, works[target], changes[target]), works)
        return dict(zip(works, found, strict=True))

    def _now(self, target: str, one: TargetWork, change: Reshape | None) -> TargetNow:
        """In any thread."""
        try:
            state = self._lake.describe(target)
        except (SourceDrift, Corrupt) as error:
            raise one.table.stuck(error.fact, detail=error.detail, hint=RECOPY) from error
        try:
            preface = self._lake.preface(target)
        except SourceDrift as error:
            raise one.table.stuck(error.fact, detail=error.detail, hint=error.hint) from error
        return TargetNow(
            uuid=state.identity, buckets=state.buckets, schema=state.schema, base=state.progress, preface=preface, change=change
        )

    def _change(self, target: str, one: TargetWork) -> Reshape | None:
        """How a lake table's columns change; None: they don't. Raises if the lake can't take the change."""
        if one.empties and not self._lake.empties:
            raise one.table.stuck(
                "a table was emptied or made anew, and its target can't be emptied",
                detail=f"{one.empties[0]} into {target}",
                hint="exclude it; or begin with a new state, and with another table for it",
            )
        if one.buckets is not None:
            try:
                return self._lake.rescale(target, one.buckets)
            except (SourceDrift, Corrupt) as error:
                raise one.table.stuck(error.fact, detail=error.detail, hint=error.hint) from error
        if one.schema is None:
            return None
        shape = self._shapes.of(one.schema)
        key = shape.table.key if one.keyed else ()
        columns, partition = lake_schema(shape.table, self._source, keyed=one.keyed), self._partition(one.table)
        try:
            if partition is not None and (why := partition.why_not(self._source.schema_of(shape.table), key)):
                raise SourceDrift("a table can't be divided into partitions any more", detail=f"{target}: {why}", hint=RECOPY)
            return self._lake.reshape(target, columns, key, dict(shape.renamed), emptied=one.anew)
        except (SourceDrift, Corrupt) as error:
            statement = f"; the statement was {shape.statement}" if shape.statement else ""
            raise one.table.stuck(error.fact, detail=f"{error.detail}{statement}", hint=error.hint) from error
