"""What other programs and operators do to the state and to the lake, once all has come to rest: what a driver finds then it may not write
over. Each of these worlds has one such deed, and says how the pipeline must end: by which error, or by going on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

from snowmelt.commit.records import Done, Entry, Intent
from snowmelt.errors import Corrupt, Fenced, SnowmeltError, SourceDrift
from snowmelt.model.table import TableId
from snowmelt.planning.tables import TablePhase
from snowmelt.relay.retention import Effect
from tests.sim.lake import LakeTable, Snapshot, Violation
from tests.sim.store import Store

if TYPE_CHECKING:
    from tests.sim.world import World

WRITES, EMPTIES, RESHAPES = "rows", "an emptying", "another shape"
"""What the epoch brings during which it is done."""


def made_anew(lake: LakeTable, intent: Intent, entry: Entry) -> bool:
    lake.uuid = "another"
    return True


def reshaped(lake: LakeTable, intent: Intent, entry: Entry) -> bool:
    lake.schema, lake.shape = lake.schema + 1, b"theirs"
    return True


def reshaped_twice(lake: LakeTable, intent: Intent, entry: Entry) -> bool:
    lake.schema, lake.shape = lake.schema + 2, b"theirs"
    return True


def rolled_back(lake: LakeTable, intent: Intent, entry: Entry) -> bool:
    """To an older commit of ours."""
    older = [number for number, one in lake.snapshots.items() if one.ours and one.marker and one.marker[1] != entry.previous]
    if not older:
        return False
    lake.newest = max(older)
    lake.snapshots = {number: one for number, one in lake.snapshots.items() if number <= lake.newest}
    return True


def files_removed(lake: LakeTable, intent: Intent, entry: Entry) -> bool:
    for name in entry.files:
        lake.storage.pop(name, None)
    return True


def committed_under_its_number(lake: LakeTable, intent: Intent, entry: Entry) -> bool:
    return committed(lake, (intent.epoch, "theirs"))


def committed_under_a_later_number(lake: LakeTable, intent: Intent, entry: Entry) -> bool:
    return committed(lake, (intent.epoch + 3, "theirs"))


def committed(lake: LakeTable, marker: tuple[int, str] | None) -> bool:
    parts = lake.snapshots[lake.newest].parts
    lake.newest += 1
    lake.snapshots[lake.newest] = Snapshot(lake.newest, False, marker, parts)
    return True


def snapshots_removed(lake: LakeTable, intent: Intent, entry: Entry) -> bool:
    """Somebody commits after us, and all snapshots before that go, whatever consumers hold."""
    committed(lake, None)
    lake.snapshots = {lake.newest: lake.snapshots[lake.newest]}
    return True


def nothing(lake: LakeTable, intent: Intent, entry: Entry) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Deed:
    what: str
    by: Callable[[LakeTable, Intent, Entry], bool]
    """False: it can't be done here."""
    brings: str = WRITES
    published: bool = False
    """It is done right after the epoch is published, and every driver ends then; else right after the intent is won."""
    ends_by: type[SnowmeltError] | None = SourceDrift
    """None: the pipeline goes on."""
    generation_gone: bool = False
    restored: bool = False


DEEDS = (
    Deed("the lake table is made anew", made_anew),
    Deed("its schema is changed", reshaped),
    Deed("another change of its schema comes before ours", reshaped, RESHAPES, published=True),
    Deed("its schema is changed twice before ours", reshaped_twice, RESHAPES, published=True),
    Deed("it is rolled back", rolled_back),
    Deed("staged files are removed", files_removed),
    Deed("another pipeline commits under the same number", committed_under_its_number, ends_by=Fenced),
    Deed("another pipeline commits under a later number", committed_under_a_later_number, ends_by=Fenced),
    Deed("snapshots are removed after an emptying", snapshots_removed, EMPTIES, published=True),
    Deed("snapshots are removed after a commit", snapshots_removed, published=True, ends_by=None),
    Deed("the record of the generation is removed", nothing, ends_by=Corrupt, generation_gone=True),
    Deed("an older copy of the state is put back", nothing, restored=True),
)


class Foreign:
    def __init__(self, world: World, deed: Deed, chance: Random) -> None:
        self.world = world
        self.deed = deed
        self.chance = chance
        self.target: str | None = None
        """The lake table that it happens to, from when all has come to rest on."""
        self.open: Intent | None = None
        self.done = False
        self.copy: tuple[int, dict[tuple[str, int], Any], dict[str, Any]] | None = None
        """The newest epoch of an older copy of the state, its records and its data."""

    @classmethod
    def some(cls, world: World) -> Foreign | None:
        chance = Random(f"foreign {world.seed}")
        return cls(world, chance.choice(DEEDS), chance) if chance.random() < 0.2 else None

    def expects(self, error: SnowmeltError) -> bool:
        """A driver that starts only then is told by its first look at the lake."""
        if not self.done or self.deed.ends_by is None:
            return False
        return isinstance(error, self.deed.ends_by) or error.fact == "the lake is ahead of the store"

    def happen(self) -> None:
        """An epoch comes for a table that is whole, and meanwhile it is done."""
        world = self.world
        # The driver may have ended with its calls of listeners.
        world.come_to_rest()
        newest = world.newest_driver()
        assert newest is not None
        if self.deed.restored:
            self.restore()
            return
        whole = [table for table in newest.ledger.tables if table.phase is TablePhase.RELEASED and table.keyed]
        if not whole or (world.shared is not None and self.deed.brings != WRITES):
            return
        table = self.chance.choice(whole)
        self.target = table.target
        self.bring(table.incarnation.table)
        world.come_to_rest()
        if not self.done:
            return
        if self.deed.ends_by is not None and not world.stopped:
            raise Violation(f"{self.deed.what}, and the pipeline goes on")
        world.counts["foreign deeds"] += 1
        if self.deed.ends_by is None:
            world.check_table(self.target, world.offsets[-1])

    def bring(self, table: TableId) -> None:
        db, world = self.world.db, self.world
        if self.deed.brings == WRITES:
            while not db.log or all(change.table != table for change in db.log[-1].changes):
                while db.hidden:
                    db.show()
                db.write(world.time_ms)
        else:
            db.state(Effect.EMPTIES if self.deed.brings == EMPTIES else Effect.RESHAPES, world.time_ms, [table])
        while db.hidden:
            db.show()

    def restore(self) -> None:
        """Every driver ends, and the state is what it was. The lake knows of later epochs."""
        world = self.world
        newest = max((marker[0] for lake in world.lakes.values() if (marker := lake.newest_commit()) is not None), default=0)
        if self.copy is None or newest <= self.copy[0]:
            return
        for driver in list(world.drivers):
            world.drop(driver)
        _, records, data = self.copy
        world.store.records.clear()
        world.store.records.update(records)
        world.store.data.clear()
        world.store.data.update(data)
        world.generation = max(number for kind, number in records if kind == "generation")
        self.done = True
        world.come_to_rest()
        if not world.stopped:
            raise Violation(f"{self.deed.what}, and the pipeline goes on")
        world.counts["foreign deeds"] += 1

    # ---- when it is done

    def at_intent(self, intent: Intent) -> None:
        if self.done and self.deed.restored:
            raise Violation(f"{self.deed.what}, and intent {intent.epoch} is put after it")
        self.open = intent
        if self.target is not None and not self.done and not self.deed.published:
            for entry in intent.entries:
                if entry.target == self.target and (entry.new_schema is None):
                    self.do(intent, entry)

    def at_publish(self, entry: Entry) -> None:
        if entry.target != self.target or self.done or not self.deed.published or self.open is None:
            return
        wanted = {
            WRITES: bool(entry.files),
            EMPTIES: bool(entry.empties) and not entry.files,
            RESHAPES: entry.new_schema is not None,
        }
        if wanted[self.deed.brings]:
            self.do(self.open, entry)
            if self.deed.brings != RESHAPES:
                for driver in list(self.world.drivers):
                    self.world.drop(driver)

    def do(self, intent: Intent, entry: Entry) -> None:
        self.done = self.deed.by(self.world.lakes[entry.target], intent, entry)
        if self.deed.generation_gone:
            del self.world.store.records["generation", self.world.generation]

    def at_done(self, done: Done, store: Store) -> None:
        if self.done and self.deed.ends_by is not None:
            raise Violation(f"{self.deed.what}, and epoch {done.epoch} is done")
        if self.deed.restored and self.copy is None and self.chance.random() < 0.1:
            self.copy = done.epoch, dict(store.records), dict(store.data)
