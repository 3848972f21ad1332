"""Tags in the simulated world: requests that are lost or come late, and the oracle that knows which snapshot has which hour."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from snowmelt.commit.listeners import Tag
from snowmelt.commit.records import Done
from snowmelt.errors import OutcomeUnknown, Unavailable
from snowmelt.relay.retention import Effect
from tests.sim.database import Transaction
from tests.sim.lake import Violation
from tests.sim.store import Steps

if TYPE_CHECKING:
    from tests.sim.world import World

HOUR_MS = 3_600_000


def end_of(tag: Tag) -> int:
    return int(datetime.strptime(tag.name, "%Y-%m-%dT%H").replace(tzinfo=UTC).timestamp()) * 1000 + HOUR_MS


class Tags:
    """What is known of the tags of all lake tables, whoever makes them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.due: dict[str, int] = {}
        """By lake table, the end of the last hour that has its tag or needs none."""
        self.unmade: set[tuple[str, str]] = set()
        """Tags that could not be made, since the last done epoch."""
        self.doubted: set[tuple[str, str]] = set()
        """The same, since ever. Some exist, and their drivers do not know."""
        self.whole: set[str] = set()
        """Lake tables that have had a watermark."""

    def make(self, owed: Sequence[Tag], epoch: int) -> Steps[list[str]]:
        """Each by one request, which may be lost, or come late. The lake tables whose tag is known to exist."""
        made = []
        for tag in owed:
            known = (tag.target, tag.name) not in self.doubted
            if known and epoch not in self.world.dones and end_of(tag) <= self.due.get(tag.target, 0):
                raise Violation(f"{tag.target}: tag {tag.name} is owed again")
            try:
                there = yield from self.world.faulty.call(partial(self.put, tag))
            except (Unavailable, OutcomeUnknown):
                there = False
            if there:
                made.append(tag.target)
            else:
                self.unmade.add((tag.target, tag.name))
                self.doubted.add((tag.target, tag.name))
        return made

    def put(self, tag: Tag) -> bool:
        """At the lake. False: it has no such snapshot, any more or at all."""
        lake = self.world.lakes[tag.target]
        if tag.name in lake.tags:
            return True
        if not lake.tag(tag.name, tag.snapshot, tag.identity):
            if any(snapshot.ours and snapshot.marker and snapshot.marker[1] == tag.identity for snapshot in lake.snapshots.values()):
                raise Violation(f"{tag.target}: tag {tag.name} asks for snapshot {tag.snapshot}, which {tag.identity} did not make")
            self.world.counts["tag without its snapshot"] += 1
            return False
        self.world.counts["tag"] += 1
        self.world.say(f"tag {tag.target} {tag.name} of {tag.snapshot}")
        self.check_tag(tag)
        return True

    def check_tag(self, tag: Tag) -> None:
        """Its snapshot has everything that was committed in its hour or before."""
        world = self.world
        end = end_of(tag)
        if tag.target not in self.whole:
            raise Violation(f"{tag.target}: hour {tag.name} was over before the table was whole, and has a tag")
        if end > world.time_ms:
            raise Violation(f"{tag.target}: hour {tag.name} is not over and has a tag")
        epoch = max(epoch for (target, epoch), identity in world.published.items() if (target, identity) == (tag.target, tag.identity))
        # Epochs that bring nothing to the table leave it as of their own ends: an empty chunk adopted, other tables' changes.
        while (later := world.intents.get(epoch + 1)) is not None and all(entry.target != tag.target for entry in later.entries):
            epoch += 1
        lacks = next((one for one in self.committed_after(tag.target, epoch) if one.time_ms < end), None)
        if lacks is not None:
            raise Violation(
                f"{tag.target}: tag {tag.name} names snapshot {tag.snapshot}, which lacks transaction {lacks.number} of that hour"
            )

    def committed_after(self, target: str, epoch: int) -> Iterator[Transaction]:
        """What changes rows of a lake table's source and comes after what an epoch has."""
        world = self.world
        for transaction in world.db.log[bisect_right(world.offsets, world.intents[epoch].upto) :]:
            changed = {change.table for change in transaction.changes}
            changed |= {name for name, effect, _ in transaction.statements if effect is Effect.EMPTIES}
            if any(world.target_of(table) == target for table in changed):
                yield transaction

    def check_done(self, done: Done) -> None:
        """Each hour that is over has its tag with the epoch, unless that could not be made; then it is owed. `World.watermarks` are those
        before the epoch."""
        world = self.world
        fed = {world.target_of(table) for table, truth in world.truths.items() if not truth.gone}
        has_snapshot = {target for target, _ in world.published}
        # Of a table that never had a snapshot nothing is remembered but its watermark.
        known = has_snapshot | world.claimed[done.epoch].keys()
        self.due = {target: end for target, end in self.due.items() if target in fed & known}
        for target, time_ms in world.claimed[done.epoch].items():
            before = world.watermarks.get(target)
            if before is not None:
                self.due.setdefault(target, before - before % HOUR_MS)
            end = time_ms - time_ms % HOUR_MS
            if target not in self.due or target not in has_snapshot:
                # Before its first watermark a table is not whole; without a snapshot there is nothing to name.
                self.due[target] = end
            if end > self.due[target]:
                name = datetime.fromtimestamp((end - HOUR_MS) / 1000, UTC).strftime("%Y-%m-%dT%H")
                if name in world.lakes[target].tags:
                    self.due[target] = end
                elif (target, name) not in self.unmade:
                    raise Violation(f"{target}: hour {name} is over with epoch {done.epoch} and has no tag")
        self.unmade.clear()
        self.whole.update(world.claimed[done.epoch])

    def check_end(self) -> None:
        """What a tag names is still there."""
        for lake in self.world.lakes.values():
            for name, snapshot in lake.tags.items():
                gone = [part.name for part in snapshot.parts if part.name not in lake.storage]
                if gone:
                    raise Violation(f"{lake.name}: tag {name} refers to files that were deleted: {gone}")
