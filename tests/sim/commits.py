"""The commits of a driver in the simulated world: of several lake tables at once, each by requests that are lost or come late."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from snowmelt.commit import publish
from snowmelt.commit.coordinator import Coordinator, TableCommitted
from snowmelt.commit.records import Committed, Entry, Intent
from snowmelt.errors import Fenced, OutcomeUnknown, SourceDrift, Unavailable
from tests.sim.capture import Capturing
from tests.sim.store import Steps

if TYPE_CHECKING:
    from tests.sim.world import World


class Commits(Capturing):
    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.committing: dict[tuple[int, str], int | None] = {}
        """By epoch and lake table, the snapshot that has it; None: that is under way."""

    def commit_entries(self, intent: Intent, entries: Iterable[Entry]) -> Steps[list[Committed]]:
        """Each is an actor of its own: they end in any order, and with the driver."""
        for entry in entries:
            if (intent.epoch, entry.target) not in self.committing:
                self.committing[intent.epoch, entry.target] = None
                self.world.spawn(self, self.commit_entry(intent, entry), "commit of a table")
        self.world.counts["tables at once"] += sum(snapshot is None for snapshot in self.committing.values()) > 1
        yield
        over = [(key, snapshot) for key, snapshot in self.committing.items() if snapshot is not None]
        for key, _ in over:
            del self.committing[key]
        return [Committed(target, snapshot) for (epoch, target), snapshot in over if epoch == intent.epoch]

    def commit_entry(self, intent: Intent, entry: Entry) -> Steps[None]:
        if self.world.rng.random() < 0.1:
            # A try that hangs, is given up on, and comes to its end whenever it likes.
            self.world.spawn(self, self.commit_late(self.coordinator, intent, entry), "late commit")
        try:
            self.committing[intent.epoch, entry.target] = yield from self.commit_table(intent, entry)
        except (Fenced, SourceDrift):
            # The one that was given up on may have come first, and others of this driver after it.
            if self.ledger.open is intent:
                raise

    def commit_late(self, machine: Coordinator, intent: Intent, entry: Entry) -> Steps[None]:
        for _ in range(self.world.rng.randint(0, 30)):
            yield
        try:
            snapshot = yield from self.commit_table(intent, entry)
        except (Fenced, SourceDrift):
            return
        machine.apply(TableCommitted(intent.epoch, entry.target, snapshot))

    def commit_table(self, intent: Intent, entry: Entry) -> Steps[int]:
        world, lake = self.world, self.world.lakes[entry.target]
        while True:
            view = yield from world.faulty.read(lambda: lake.view(entry.base, entry.files))
            verdict = publish.judge(intent, entry, view)
            if isinstance(verdict, publish.EpochInLake):
                snapshot = verdict.snapshot
                break
            try:
                yield from self.hold(entry)
                if (yield from self.publish(intent, entry, verdict.on)):
                    snapshot = verdict.on + 1
                    break
            except (Unavailable, OutcomeUnknown):
                continue
        while publish.judge_schema(entry, *(yield from world.faulty.read(lambda: (lake.schema, lake.shape)))):
            try:
                yield from world.faulty.call(lambda: lake.alter(entry.schema, entry.new_schema or 0, entry.shape))
            except (Unavailable, OutcomeUnknown):
                continue
        return snapshot

    def hold(self, entry: Entry) -> Steps[None]:
        """Others do not expire what tells whether the entry is there."""
        lake = self.world.lakes[entry.target]
        yield from self.world.faulty.call(lambda: lake.hold(entry.base + 1))

    def publish(self, intent: Intent, entry: Entry, on: int) -> Steps[bool]:
        world = self.world
        return (yield from world.faulty.call(lambda: world.publish(self.generation, intent, entry, on)))
