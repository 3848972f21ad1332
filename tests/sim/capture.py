"""Capture in the simulated world: what the database logs goes to segments, and each gets its record in the chain."""

from __future__ import annotations

from typing import TYPE_CHECKING

from snowmelt.errors import Corrupt, Fenced
from snowmelt.model.position import Position
from snowmelt.relay.retention import Cut, Ending, Prepared, TableStatement
from tests.sim.database import Transaction
from tests.sim.lanes import Lanes
from tests.sim.store import Steps
from tests.sim.tasks import aside

if TYPE_CHECKING:
    from tests.sim.world import World


class Capturing(Lanes):
    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.captured = 0
        """The number of the last transaction that is in the relay, as far as this driver knows."""

    def read_data(self, name: str) -> Steps[tuple[int, tuple[tuple[int, Transaction, Position], ...]]]:
        found = yield from self.world.faulty.read(lambda: self.world.store.data.get(name))
        if found is None:
            raise Corrupt("a segment's data is missing", detail=name)
        return found  # type: ignore[no-any-return]

    def capture(self) -> Steps[None]:
        world, store, rng = self.world, self.world.store, self.world.rng
        while True:
            yield
            taken = world.database_after(self.captured, 1 + int(rng.random() * 5))
            begins = ends = world.db.end
            last = self.captured
            if taken:
                last = taken[-1].number
                begins, ends = world.db.places[taken[0].number][0], world.db.places[last][1]
                world.db.fetched = max(world.db.fetched, last)
            elif self.relay.newest is None or self.relay.newest.ends == ends:
                continue
            offset, rows, cuts, statements = self.relay.end, [], [], []
            phases: list[Prepared | Ending] = []
            for transaction in taken:
                offset += transaction.bytes
                if transaction.prepares:
                    size, tables = transaction.bytes, tuple(sorted({change.table for change in transaction.prepares}))
                    xid, begins_at = f"x{transaction.number}", offset - size
                    phases.append(Prepared(xid=xid, era=ends.era, begins=begins_at, offset=offset, at=0, bytes=size, tables=tables))
                elif transaction.decides is not None:
                    phases.append(Ending(f"x{transaction.decides}", offset, transaction.committed))
                rows.append((offset, transaction, world.db.places[transaction.number][1]))
                cuts.append(Cut(offset, transaction.stamp_ms))
                statements.extend(TableStatement(offset, *statement) for statement in transaction.statements)
            if not taken:
                cuts.append(Cut(offset, world.db.log[-1].stamp_ms))
            name = f"{self.generation}-{world.nonce()}"
            sealed = self.relay.decide_record(self.generation, name, begins, ends, tuple(cuts), tuple(statements), phases)
            world.counts["prepared and moved"] += sum(len(one.group.moved) for one in sealed.decided if one.committed)
            world.segment_numbers[name] = sealed.number
            yield from store.put_data(name, (last, tuple(rows)))
            for group in sealed.put_aside:
                yield from store.put_data(aside(group.number), next(one.prepares for at, one, _ in rows if at == group.offset))
            found = yield from store.settle("relay", sealed.number, sealed)
            # The number may have been free because it was trimmed, long after this driver was the newest.
            if (yield from store.newest("generation")) > self.generation:
                raise Fenced("a newer capture has begun")
            if found != sealed:
                last, _ = yield from self.read_data(found.name)
            self.relay.apply(found)
            self.captured = last
