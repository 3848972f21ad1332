"""Worlds whose drivers maintain their lake tables, while other compactors do, too: by which rules, how slowly, and what must hold of it.

A rewrite changes nothing that a reader gets and carries our newest marker on. It is published by no driver that a newer one has passed. An
expiry takes no marker of ours that is the newest. That nothing goes which a snapshot or a tag names is for `LakeTable.delete` to say.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

from snowmelt.commit.records import StagedName, generation_of
from snowmelt.driving import letting_go
from snowmelt.errors import Unavailable
from snowmelt.maintenance.compaction import LEVEL_MAX, CompactionRules
from snowmelt.maintenance.expiry import ExpiryRules
from snowmelt.maintenance.lane_steps import PublishRewrites
from snowmelt.maintenance.rules import MaintenanceRules
from snowmelt.relay.retention import Effect
from tests.sim.database import STEP_MS
from tests.sim.lake import Key, LakeTable, Part, Row, Violation
from tests.sim.store import Steps, move

if TYPE_CHECKING:
    from tests.sim.driver import Driver
    from tests.sim.world import World


class Care:
    def __init__(self, world: World, chance: Random) -> None:
        self.world = world
        self.chance = chance
        self.slots = chance.choice((1, 2, 4))
        self.rules = MaintenanceRules(
            compaction=CompactionRules(
                runs_max=chance.choice((2, 3, 4, 4, 5)),
                size_amplification_percent=chance.choice((50, 500, 5000)),
                size_ratio_percent=chance.choice((1, 50)),
                file_bytes=chance.choice((2, 4, 100)),
            ),
            expiry=ExpiryRules(
                count_min=chance.choice((1, 2)),
                count_max=chance.choice((2, 4, 2**31 - 1)),
                age_ms=chance.choice((0, 10, 60)) * STEP_MS,
                at_once_max=chance.choice((1, 3, 50)),
            ),
            orphan_age_ms=chance.choice((40, 200)) * STEP_MS,
        )
        self.slow = chance.choice((1, 6, 30))
        self.catches_up = chance.choice((0.0, 0.0, 0.2))
        self.hostile, self.evils = True, 12
        profile = world.profile
        # Tables that get little are never rewritten.
        world.profile = replace(
            profile,
            epoch_bytes=min(4, profile.epoch_bytes),
            crash=profile.crash / 2,
            spite=profile.spite / 2,
            task_failure=profile.task_failure / 2,
            stuck=profile.stuck / 4,
        )
        buckets = chance.choice((1, 1, 2))
        for lake in world.lakes.values():
            lake.buckets = buckets if lake.keyed else 1

    @classmethod
    def some(cls, world: World) -> Care | None:
        """In some worlds."""
        chance = Random(f"care {world.seed}")
        return cls(world, chance) if chance.random() < 0.35 else None

    def wants_ripe(self) -> Random | None:
        """Most of these worlds begin with tables that are live: what is still being copied gets few files."""
        return self.chance if self.chance.random() < 0.8 else None

    # ---- what happens to steps

    def pauses(self) -> bool:
        return self.chance.random() < self.catches_up

    def may_fail(self) -> None:
        if self.task_fails():
            raise Unavailable("the lake does not answer")

    def task_fails(self) -> bool:
        return self.chance.random() < self.world.profile.task_failure

    def runs_again(self) -> bool:
        """A task whose first run has left its files."""
        return self.task_fails()

    def takes_time(self) -> Steps[None]:
        yield
        for _ in range(self.chance.randint(0, self.slow)):
            yield

    def at_publish(self, driver: Driver, lake: LakeTable) -> Steps[None]:
        """What is bad for a rewrite that is about to be published: a takeover, another compactor, an emptying; and that it hangs."""
        evil = self.chance.random() if self.hostile and self.evils else 1.0
        self.evils -= evil < 1
        yield
        if evil < 0.2:
            driver.paused_until = self.world.clock + self.chance.choice((60, 200, 400))
            self.world.start_driver()
            self.world.db.write(self.world.time_ms)
            self.show_all()
        elif evil < 0.28:
            lake.compact(False, f"compact-{self.world.nonce()}")
        elif evil < 0.5 and self.world.shared is None and not self.world.eager:
            tables = [table for table in self.world.db.tables if self.world.target_of(table) == lake.name]
            self.show_all()
            self.world.db.state(Effect.EMPTIES, self.world.time_ms, tables)
            self.show_all()
        if evil < 0.6:
            for _ in range(self.chance.choice((5, 60, 200))):
                yield

    def show_all(self) -> None:
        while self.world.db.hidden:
            self.world.db.show()

    # ---- other compactors

    def others(self, lake: LakeTable) -> None:
        if self.chance.random() < 0.5:
            lake.compact(False, f"compact-{self.world.nonce()}")
        else:
            self.world.spawn(None, self.compact(lake), "foreign compaction")
        if self.world.profile.foreign_expiry and self.chance.random() < 0.5:
            lake.expire(False, rude=self.world.rude)

    def compact(self, lake: LakeTable) -> Steps[None]:
        """All of a bucket, in two steps. It loses where it is late, and now and then it dies and leaves its files."""
        parts = lake.snapshots[lake.newest].parts
        bucket = self.chance.randrange(lake.buckets)
        taken = [part for part in parts if lake.bucket_of(part.rows) == bucket]
        if not taken or any(part.name not in lake.storage for part in taken):
            return
        if len(taken) == 1 and lake.keyed and taken[0].level < LEVEL_MAX and all(row.value is not None for row in taken[0].rows):
            # Lifted as it is.
            outputs = [Part(taken[0].name, taken[0].rows, LEVEL_MAX)]
        else:
            rows = tuple(live(taken).values()) if lake.keyed else tuple(row for part in taken for row in part.rows)
            name = f"compact-{self.world.nonce()}"
            lake.write(name, rows)
            outputs = [Part(name, rows, LEVEL_MAX if lake.keyed else 0)]
        began = self.world.time_ms
        yield from self.takes_time()
        newest, inputs = lake.snapshots[lake.newest], [part.name for part in taken]
        late = self.world.time_ms - began > self.rules.orphan_age_ms // 2
        if late or not {(part.name, part.level) for part in taken} <= {(part.name, part.level) for part in newest.parts}:
            if self.chance.random() < 0.5 and not {part.name for part in outputs} & set(inputs):
                lake.delete([part.name for part in outputs])
            return
        lake.add(False, None, placed(newest.parts, inputs, [part for part in outputs if part.rows]))
        self.world.counts["foreign compaction"] += 1

    # ---- what must hold

    def publish(self, generation: int, step: PublishRewrites, on: int, marker: tuple[int, str] | None, rewrite: str) -> bool:
        """The exclusive create of a rewrite's snapshot, with an oracle behind it."""
        lake = self.world.lakes[step.target]
        if on != lake.newest or lake.uuid != step.works[0].rewrite.identity:
            return False
        before = after = lake.snapshots[on].parts
        for work, staged in zip(step.works, step.staged, strict=True):
            if gone := [name for name in staged.files if name not in lake.storage]:
                raise Violation(f"{lake.name}: a rewrite is published whose files were deleted: {gone}")
            outputs = [Part(name, lake.storage[name], work.rewrite.level) for name in staged.files]
            after = placed(after, work.rewrite.inputs, outputs)
        self.check_rewrite(lake, before, after)
        self.check_marker(lake, generation, marker)
        lake.add(False, marker, after, rewrite)
        self.world.counts["rewrite"] += 1
        self.world.say(f"rewrite of {lake.name} by {generation}")
        return True

    def check_rewrite(self, lake: LakeTable, before: tuple[Part, ...], after: tuple[Part, ...]) -> None:
        if not lake.keyed:
            rows = [[row for part in parts for row in part.rows] for parts in (before, after)]
            if rows[0] != rows[1]:
                raise Violation(f"{lake.name}: a rewrite changes what was appended, from {rows[0]} to {rows[1]}")
            return
        if live(before) != live(after):
            raise Violation(f"{lake.name}: a rewrite changes what readers get, from {live(before)} to {live(after)}")
        levels: dict[tuple[int, int], Counter[Key]] = {}
        for part in after:
            if part.level:
                found = levels.setdefault((lake.bucket_of(part.rows), part.level), Counter())
                found.update({row.key for row in part.rows})
        if any(count > 1 for found in levels.values() for count in found.values()):
            raise Violation(f"{lake.name}: files of one level have rows of the same key after a rewrite")

    def check_marker(self, lake: LakeTable, generation: int, marker: tuple[int, str] | None) -> None:
        if self.world.foreign is not None and self.world.foreign.done:
            return
        epoch = max(epoch for target, epoch in self.world.published if target == lake.name)
        newest = (epoch, self.world.published[lake.name, epoch])
        if generation_of(newest[1]) > generation:
            raise Violation(f"{lake.name}: driver {generation} publishes a rewrite after a commit of {newest[1]}")
        if marker != newest:
            raise Violation(f"{lake.name}: a rewrite has marker {marker}, and our newest commit is {newest}")

    def expire(self, lake: LakeTable, number: int) -> None:
        """One snapshot goes."""
        newest = max((at for at, one in lake.snapshots.items() if one.marker is not None), default=None)
        if number in (newest, lake.newest):
            raise Violation(f"{lake.name}: snapshot {number} is expired, which is the newest or has our newest marker")
        if any(0 < at < number for at in lake.snapshots):
            raise Violation(f"{lake.name}: snapshot {number} is expired before an older one")
        self.world.counts["expired"] += lake.snapshots.pop(number, None) is not None

    def is_left_over(self, lake: LakeTable, name: StagedName, newest: Driver) -> bool:
        """Whether nobody will publish a rewrite's file any more, and nothing refers to it."""
        assert newest.upkeep is not None
        if name.generation == newest.generation:
            return name.number not in newest.upkeep.lane.under_way.jobs
        return name.generation < generation_of(newest.ledger.last_commits.get(lake.name, ""))

    def check_end(self, newest: Driver) -> None:
        """A search leaves no orphan that is old enough."""
        assert newest.machines is not None
        assert newest.upkeep is not None
        before_ms = self.world.time_ms - self.rules.orphan_age_ms
        standing = run(move(letting_go.stand(newest.machines), newest.act))
        for target in newest.upkeep.wanted:
            lake = self.world.lakes[target]
            run(newest.upkeep.search(target, letting_go.of_table(standing, newest.ledger, target), before_ms))
            newest.upkeep.ended.pop()
            known = lake.referenced()
            names = (name for name in lake.storage if lake.written[name] < before_ms and not name.startswith("sm-"))
            if left := [name for name in names if name not in known]:
                raise Violation(f"{target}: orphans are left over: {left}")


def placed(parts: tuple[Part, ...], inputs: Iterable[str], outputs: list[Part]) -> tuple[Part, ...]:
    """Where the first of the inputs was. Inputs that are not there are no reason why not: that is for others to judge."""
    taken, found, put = frozenset(inputs), list[Part](), False
    for part in parts:
        if part.name not in taken:
            found.append(part)
        elif not put:
            found += outputs
            put = True
    return (*found, *([] if put else outputs))


def live(parts: Iterable[Part]) -> dict[Key, Row]:
    """What readers get of a keyed table."""
    best: dict[Key, Row] = {}
    for row in (row for part in parts for row in part.rows):
        if row.key not in best or row.sequence >= best[row.key].sequence:
            best[row.key] = row
    return {key: row for key, row in best.items() if row.value is not None}


def run(steps: Steps[Any]) -> Any:
    """To their end, with nothing between."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value
