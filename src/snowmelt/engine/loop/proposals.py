"""What the next epoch should say of tables as wholes: those that can't continue, were asked for, are new, or are excluded by now; and the
next bounds of those that are being split."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

import pyarrow as pa

from snowmelt.databases.contract.tables import TableShape
from snowmelt.engine.driver.discovery import Discovery
from snowmelt.engine.driver.routes import Target
from snowmelt.engine.driver.splitting import Splitter
from snowmelt.engine.driver.state import Shape
from snowmelt.engine.loop.fitness import Asides, Fitness
from snowmelt.engine.loop.knowledge import Knowledge
from snowmelt.engine.loop.resources import Resources
from snowmelt.engine.tasks.rows import CHANGE_FIELDS, lake_schema
from snowmelt.errors import RECOPY, Corrupt, Fenced, InvalidConfig, SourceDrift, Unavailable
from snowmelt.model.numbers import EpochNumber
from snowmelt.model.patterns import TablePredicate
from snowmelt.model.table import TableId
from snowmelt.planning.asides import forget, reborn
from snowmelt.planning.facts import Durable, Found, Gone, Incarnation, SetAside
from snowmelt.planning.tables import Table, TablePhase
from snowmelt.store.generations import newest_generation

log = logging.getLogger(__name__)


class Proposals:
    """Of one driver; used by the thread that owns the machines."""

    def __init__(
        self,
        resources: Resources,
        known: Knowledge,
        fitness: Fitness,
        asides: Asides,
        discovery: Discovery,
        splitter: Splitter,
        captured: TablePredicate,
    ) -> None:
        self._resources = resources
        self._known = known
        self._fitness = fitness
        self._asides = asides
        self._discovery = discovery
        self._splitter = splitter
        self._captured = captured
        self._found: dict[TableId, int] = {}
        """Numbers of shapes that a `Found` was proposed with and that the ledger does not have yet."""

    def __iter__(self) -> Iterator[Durable]:
        """The proposals as of now. Iterate anew for each plan. It may create or remake lake tables, and number shapes."""
        known, ledger = self._known, self._known.ledger
        yield from self._asides.troubles.propose(ledger.upto, known.relay.time_at(ledger.upto) or 0)
        yield from self._forgotten()
        for table in self._resources.requests.open(ledger.tables):
            if self._can_begin_anew(table):
                yield reborn(table, epoch=EpochNumber(ledger.epoch + 1), at=ledger.upto)
        yield from self._new()
        for table in ledger.tables:
            if table.phase is TablePhase.SPLITTING:
                yield from self._splitter.next(table, known.shapes.of(table.schema).table)

    @property
    def settled(self) -> bool:
        """Whether no epoch is owed: no table is new, in trouble, asked for, or excluded after it was set aside."""
        open_ones = self._asides.troubles.open or self._resources.requests.open(self._known.ledger.tables) or any(self._forgotten())
        return not open_ones and self._discovery.complete

    def let_go(self) -> set[int]:
        """Forget the proposed tables that the ledger has by now. Returns the shape numbers of the others."""
        self._found = {name: number for name, number in self._found.items() if self._known.ledger.tables.get(name) is None}
        return set(self._found.values())

    def _new(self) -> Iterator[Durable]:
        ledger = self._known.ledger
        taken = {known.target: known.incarnation.table for known in ledger.tables}
        gone = {known.target for known in ledger.tables if known.phase is TablePhase.GONE}
        for shape, why in self._discovery.found():
            try:
                target = self._fitness.router.of(shape.id)
                # One that is gone makes room when its epoch is done.
                if target.name in gone:
                    continue
                if why and target.name not in ledger.last_commits:
                    self._discovery.leave_out(shape.id, why)
                    continue
                found = self._find(shape, target, taken)
                yield found
                if why:
                    # The lake has rows of a table that had its name, and is left with them.
                    log.warning("a table is set aside", extra={"table": str(shape.id), "why": why})
                    time_ms = self._known.relay.time_at(found.at) or 0
                    yield SetAside(found.incarnation, found.at, time_ms, f"{why}; then {RECOPY}")
            except (InvalidConfig, SourceDrift, Corrupt) as error:
                # One that is made later, or whose lake table is no longer ours, must not stop all others.
                if not ledger.epoch:
                    raise
                self._discovery.leave_out(shape.id, str(error))

    def _forgotten(self) -> Iterator[Gone]:
        """Tables that were set aside and are excluded by now."""
        ledger = self._known.ledger
        excluded = [table.incarnation.table for table in ledger.tables if not self._captured(table.incarnation.table)]
        return forget(ledger.tables, excluded, ledger.upto)

    def _find(self, shape: TableShape, target: Target, taken: dict[str, TableId]) -> Found:
        """`taken`: which table goes to which target; this one too, from now on."""
        name, lake, settings = shape.id, self._resources.lake, self._resources.settings
        ledger, shapes = self._known.ledger, self._known.shapes
        if target.name in taken:
            raise InvalidConfig(
                f"two tables would go to {target.name}", detail=f"{taken[target.name]} and {name}", hint="give each a route of its own"
            )
        schema = lake_schema(shape, settings.source, keyed=target.keyed)
        partition = self._fitness.router.partition(name)
        if not lake.exists(target.name):
            key, system = (shape.key, None) if target.keyed else ((), CHANGE_FIELDS)
            lake.create(target.name, schema, key, buckets=settings.sink.buckets, system=system, partition=partition)
        elif (has := lake.describe(target.name).partition) != partition:
            detail = f"{target.name}: by {has or 'nothing'}, not {partition or 'nothing'}"
            hint = "give the table another target, or drop this one"
            raise InvalidConfig("a lake table is partitioned in another way", detail=detail, hint=hint)
        elif target.name not in ledger.last_commits and lake.describe(target.name).progress:
            raise InvalidConfig(
                "a lake table holds rows that this pipeline did not bring",
                detail=target.name,
                hint="give the table another target, or drop it",
            )
        if name not in self._found or shapes.of(self._found[name]).table != shape:
            self._found[name] = shapes.number(Shape(shape))
        taken[target.name] = name
        return Found(Incarnation(name, ledger.epoch + 1), target.name, target.keyed, self._found[name], ledger.upto)

    def _can_begin_anew(self, table: Table) -> bool:
        """Whether a table that was asked for can be copied from the next epoch on. If so, its lake table takes the rows: the epoch's intent
        empties it, or it was remade here before, which is safe because nothing relies on the lake table of a table that is set aside."""
        name, known = table.incarnation.table, self._known
        shape = known.shapes.of(table.schema).table
        if not known.has(known.began) or known.relay.statements(known.ledger.upto, known.relay.end, name):
            # Its shape is not yet what the source has, whose trouble may be over.
            return False
        try:
            why = self._fitness.unfit([shape]).get(name, "")
        except Unavailable:
            return False
        schema = lake_schema(shape, self._resources.settings.source, keyed=table.keyed)
        try:
            if why or not self._resources.lake.empties:
                raise InvalidConfig("it can't be captured" if why else "its target can't be emptied", detail=why)
            return self._make_room(table, shape, schema)
        except (InvalidConfig, Corrupt) as error:
            log.warning("a table that was asked for can't be copied anew", extra={"table": str(name), "why": str(error)})
            self._resources.requests.drop(name)
            return False

    def _make_room(self, table: Table, shape: TableShape, schema: pa.Schema) -> bool:
        """Make the lake table of one that was asked for take its rows: leave it if emptying is enough, else remake it. A table that is not
        set aside yet is set aside first. False: not yet."""
        name, target, lake = table.incarnation.table, table.target, self._resources.lake
        key, system = (shape.key, None) if table.keyed else ((), CHANGE_FIELDS)
        partition = self._fitness.router.partition(name)
        if lake.exists(target):
            with contextlib.suppress(SourceDrift):
                lake.reshape(target, schema, key, emptied=table.keyed)
                if lake.describe(target).partition == partition:
                    return True
        if table.phase is not TablePhase.SET_ASIDE:
            self._asides.add(name, name.stuck("its lake table is made anew, as it was asked for"))
            return False
        if self._known.ledger.open is not None:
            return False
        # First the identity, then the generation: a table that a newer driver makes has another one, however long we sleep from here on.
        identity = lake.identity(target)
        self._look_for_a_newer_driver()
        try:
            buckets = self._resources.settings.sink.buckets
            lake.remake(target, schema, key, buckets=buckets, system=system, partition=partition, identity=identity)
        except SourceDrift:
            self._look_for_a_newer_driver()
            return False
        return True

    def _look_for_a_newer_driver(self) -> None:
        generation = self._known.generation
        if newest_generation(self._resources.state.store, generation) > generation:
            raise Fenced("a newer driver runs this pipeline", detail=f"this is generation {generation}")
