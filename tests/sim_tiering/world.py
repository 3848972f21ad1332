"""The simulated world of tiering: one seed, a virtual clock, several services, a coordinator that restarts, and the oracles.

In each step somebody goes on by a step, or something happens: rows, a KV snapshot, a compaction, an expiry, a crash, a pause of minutes
after which a service goes on as a zombie, a restart of the coordinator, a table dropped and made anew. The second part of a run is
quiet, and all must come to its end.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from snowmelt.errors import InvariantBroken, SnowmeltError
from snowmelt.model.fluss import Bucket, KvSnapshot
from snowmelt.tiering.fence import Tiered
from snowmelt.tiering.offsets import Offsets
from snowmelt.tiering.rounds import RoundState
from tests.sim.lake import Violation
from tests.sim.store import Faulty
from tests.sim_tiering.fluss import Fluss, Refused, Table
from tests.sim_tiering.lake import LakeTable
from tests.sim_tiering.service import Flink, Running, Service

QUIET_STEPS_MAX = 8_000
SERVICES_MAX = 4


@dataclass(frozen=True, slots=True)
class Profile:
    """How hostile this world is. Each danger is absent from some, so that it does not hide another."""

    tables: tuple[tuple[str, bool, bool], ...]
    """Name, with a key, with partitions."""
    steps: int
    rows_max: int
    faults: float
    task_failure: float
    crash: float
    pause: float
    spite: float
    """Pauses and crashes right when something was found to be so, or has become so."""
    restart: float
    compact: float
    expire: float
    foreign_expiry: bool
    drop: float
    reshape: float
    flink: bool
    burst: int


def draw(rng: Random) -> Profile:
    def some(rate: float, often: float = 0.5) -> float:
        return rate * rng.uniform(0.5, 2) if rng.random() < often else 0.0

    return Profile(
        tables=rng.choice(
            (
                (("log", False, False),),
                (("pk", True, False),),
                (("log", False, True),),
                (("pk", True, True),),
                (("log", False, False), ("pk", True, False)),
            )
        ),
        steps=rng.choice((150, 400, 800)),
        rows_max=rng.choice((2, 5, 1000)),
        faults=some(0.15),
        task_failure=some(0.05),
        crash=some(0.01),
        pause=some(0.03),
        spite=some(0.1),
        restart=some(0.02),
        compact=some(0.05),
        expire=some(0.06),
        foreign_expiry=rng.random() < 0.25,
        drop=some(0.005, 0.4),
        reshape=some(0.01, 0.3),
        flink=rng.random() < 0.3,
        burst=rng.choice((1, 3, 8)),
    )


@dataclass(slots=True)
class Actor:
    service: Service
    steps: Generator[None, None, Any]


class World:
    def __init__(self, seed: int, service: Callable[[World, int], Service] = Service) -> None:
        self.rng = rng = Random(seed)
        self.profile = draw(rng)
        self.service = service
        self.now_ms = 0
        self.trace = 0
        self.late: list[Callable[[], object]] = []
        self.faulty = Faulty(rng, self.profile.faults, self.late)
        self.fluss = Fluss(rng, rng.choice((5_000, 60_000)))
        self.lakes: dict[str, LakeTable] = {}
        self.lakes_by_identity: dict[str, LakeTable] = {}
        self.actors: list[Actor] = []
        self.services: list[Service] = []
        self.numbers = 0
        self.stopped: set[str] = set()
        """Lake tables that tiering rightly refuses to go on with."""
        self.judged: set[int] = set()
        """For a planted bug: rounds that have asked."""
        self.counts: Counter[str] = Counter()
        for name, keyed, partitioned in self.profile.tables:
            self.make(name, keyed, partitioned)

    # ---- running

    def run(self) -> None:
        rng = self.rng
        for _ in range(rng.choice((1, 2, 3))):
            self.start_service()
        for _ in range(self.profile.steps):
            self.now_ms += rng.choice((50, 200, 500, 2_000))
            self.fluss.tick(self.now_ms)
            if rng.random() < 0.7:
                self.go_on()
            else:
                self.happen()
        self.end_quietly()

    def happen(self) -> None:
        rng, profile = self.rng, self.profile
        name = rng.choice(sorted(self.fluss.tables))
        table, lake = self.fluss.tables[name], self.lakes[name]
        self.write(table)
        if table.keyed and rng.random() < 0.15:
            self.copy(table)
        if rng.random() < 0.1:
            self.fluss.trim(table)
        if self.late and rng.random() < 0.06:
            self.land(self.late.pop(rng.randrange(len(self.late))))
        if rng.random() < profile.compact * 3:
            self.say("compact")
            lake.compact(f"{lake.identity}/{self.nonce()}")
        if rng.random() < profile.expire * (9 if profile.foreign_expiry else 3) and lake.latest:
            told = self.fluss.told.get(table.table_id)
            keep = {lake.latest - 1, *([told.snapshot] if told is not None else [])} & lake.snapshots.keys()
            foreign = profile.foreign_expiry and rng.random() < 0.7
            lake.expire(set() if foreign else keep, foreign=foreign)
        if rng.random() < profile.restart * 3:
            self.say("coordinator restarts")
            self.counts["restarts"] += 1
            self.fluss.restart(self.now_ms)
        if rng.random() < profile.crash * 3 and self.services:
            self.crash(rng.choice(self.services))
        if rng.random() < profile.pause * 3 and self.services:
            self.pause(rng.choice(self.services))
        if rng.random() < profile.drop * 3:
            self.say(f"{name} is dropped and made anew")
            self.fluss.drop(name)
            self.make(name, table.keyed, any(bucket.partition is not None for bucket in table.logs))
            self.counts["made anew"] += 1
        elif rng.random() < profile.drop * 6 and len(partitions := {bucket.partition for bucket in table.logs}) > 1:
            gone = rng.choice(sorted(partition for partition in partitions if partition is not None))
            for bucket in [bucket for bucket in table.logs if bucket.partition == gone]:
                del table.logs[bucket], table.earliest[bucket], table.first[bucket]
                table.copies.pop(bucket, None)
            self.counts["partition dropped"] += 1
        if rng.random() < profile.reshape * 3:
            table.schema_id += 1
            lake.schema += 1
        if not self.services or rng.random() < 0.01:
            self.start_service()

    def write(self, table: Table) -> None:
        # One bucket is busy for a while, then another: rounds do not move all of them.
        buckets = list(table.logs)
        bucket = buckets[self.now_ms // 60_000 % len(buckets)] if self.rng.random() < 0.9 else self.rng.choice(buckets)
        empty = self.rng.random() < 0.15
        for _ in range(self.rng.randint(1, 4)):
            key, value = self.rng.randrange(4), self.numbered()
            gone = table.keyed and self.rng.random() < 0.25
            table.logs[bucket].append(None if empty else (key, None if gone else value))

    def copy(self, table: Table) -> None:
        bucket = self.rng.choice(list(table.logs))
        table.copies[bucket] = KvSnapshot(bucket, self.numbered(), len(table.logs[bucket]))

    def go_on(self) -> None:
        """One actor goes on by a step or a few."""
        ready = [actor for actor in self.actors if actor.service.paused_until_ms <= self.now_ms]
        if ready:
            actor = self.rng.choice(ready)
            for _ in range(self.rng.randint(1, self.profile.burst)):
                if actor not in self.actors or actor.service.paused_until_ms > self.now_ms or not self.step(actor):
                    break

    def step(self, actor: Actor) -> bool:
        try:
            next(actor.steps)
            return True
        except StopIteration:
            self.actors.remove(actor)
            return False
        except InvariantBroken as error:
            raise Violation(f"a guard of ours: {error}") from error

    def spawn(self, service: Service, steps: Generator[None, None, Any]) -> None:
        self.actors.append(Actor(service, steps))

    def start_service(self) -> None:
        if len(self.services) >= SERVICES_MAX:
            return
        make = Flink if self.profile.flink and self.rng.random() < 0.5 else self.service
        service = make(self, self.numbered())
        self.services.append(service)
        self.spawn(service, service.serve())

    def crash(self, service: Service) -> None:
        self.say(f"service {service.number} crashes")
        self.counts["crashes"] += 1
        self.services.remove(service)
        self.actors = [actor for actor in self.actors if actor.service is not service]

    def pause(self, service: Service) -> None:
        self.say(f"service {service.number} sleeps")
        self.counts["pauses"] += 1
        service.paused_until_ms = self.now_ms + self.rng.choice((30_000, 130_000, 400_000))
        if self.rng.random() < 0.7:
            self.start_service()

    def spite(self, service: Service) -> None:
        if self.rng.random() < self.profile.spite and service in self.services:
            (self.crash if self.rng.random() < 0.3 else self.pause)(service)

    def land(self, act: Callable[[], object]) -> None:
        try:
            act()
        except Refused:
            return

    # ---- tables

    def make(self, name: str, keyed: bool, partitioned: bool) -> None:
        """A table of Fluss and, as its coordinator does it, an empty one in the lake."""
        partitions = [self.numbered(), self.numbered()] if partitioned else [None]
        buckets = [(number, partition) for partition in partitions for number in range(1 if partitioned else 2)]
        self.fluss.create(name, self.now_ms, keyed=keyed, buckets=buckets, cut=0 if keyed else self.rng.choice((0, 0, 3)))
        lake = LakeTable(f"{name}{self.numbered()}", keyed)
        self.lakes[name] = self.lakes_by_identity[lake.identity] = lake

    def lake(self, name: str) -> LakeTable:
        return self.lakes[name]

    def offsets(self, name: str, tiered: Tiered) -> Offsets:
        if tiered.path not in self.fluss.files:
            raise Violation(f"{name}: the offsets of {tiered} are gone, and with them the way on")
        return self.fluss.files[tiered.path]

    def publish(self, lake: LakeTable, name: str, on: int, path: str, files: tuple[str, ...]) -> bool:
        """A snapshot of the tiering user, and what the oracles say to it."""
        if lake is not self.lakes[name]:
            return False
        before = lake.newest()
        if not lake.publish(on, path, files):
            return False
        self.say(f"{name} has {path} as {lake.latest}")
        self.counts["commits"] += 1
        self.counts["empty commits"] += not files
        offsets = self.fluss.files[path]
        table = self.fluss.by_id(offsets.table_id)
        if table is None:
            return True
        if before is not None:
            for bucket, end in self.offsets(name, before).ends.items():
                if offsets.ends.get(bucket, -1) < end:
                    raise Violation(f"{name}: {bucket} went back from {end} to {offsets.ends.get(bucket)}")
        self.check(lake, table, dict(offsets.ends))
        return True

    def check(self, lake: LakeTable, table: Table, ends: dict[Bucket, int]) -> None:
        for bucket, log in table.logs.items():
            end = ends.get(bucket)
            if table.keyed:
                expected = table.fold(bucket, end) if end is not None else {}
                if (found := lake.merged(bucket)) != expected:
                    raise Violation(f"{table.name}: {bucket} at {end} has {found}, and should have {expected}")
            else:
                rows = [] if end is None else [offset for offset in range(table.first[bucket], end) if log[offset] is not None]
                if (found_rows := sorted(row.offset for row in lake.rows() if row.bucket == bucket)) != rows:
                    raise Violation(f"{table.name}: {bucket} at {end} has {found_rows}, and should have {rows}")

    # ---- what the oracles hear

    def report(self, running: Running, table_id: int, finished: bool, more: bool) -> None:
        key = (self.fluss.restarts, running.owner)
        if finished:
            self.fluss.finish(table_id, running.epoch, self.now_ms, more=more)
            self.fluss.finished.add(key)
            return
        standing = self.fluss.standings.get(table_id)
        self.fluss.fail(table_id, running.epoch)
        # Behind a restart nobody can tell; before one, epochs do.
        if running.restarts == self.fluss.restarts and standing is not None and standing.owner != running.owner:
            raise Violation("a round failed a table that was another's")
        if key in self.fluss.finished:
            raise Violation("a round that had finished failed its table, which was due at once")

    def on_stop(self, running: Running, error: SnowmeltError) -> None:
        lake = self.lakes[running.table]
        table = self.fluss.tables[running.table]
        if table.table_id != running.round.table_id:
            return
        if not lake.expired:
            raise Violation(f"tiering stops: {error}")
        self.counts["stopped by foreign expiry"] += 1
        self.stopped.add(lake.identity)

    def on_end(self, running: Running) -> None:
        machine = running.round
        self.counts[machine.state.value] += 1
        self.say(f"round {running.owner} of {running.table} is {machine.state.value}")
        if machine.state in (RoundState.FAILED, RoundState.FENCED) and not running.unclear:
            for lake in self.lakes_by_identity.values():
                left = running.staged & lake.storage.keys() - lake.referenced()
                if left:
                    raise Violation(f"a round that came to nothing left files: {left}")

    # ---- the end

    def end_quietly(self) -> None:
        self.faulty.rate = 0.0
        self.profile = replace(self.profile, task_failure=0.0, spite=0.0, rows_max=1000, flink=False)
        for act in self.late:
            self.land(act)
        self.late.clear()
        for service in self.services:
            service.paused_until_ms = 0
            if isinstance(service, Flink):
                self.actors = [actor for actor in self.actors if actor.service is not service]
        self.services = [service for service in self.services if not isinstance(service, Flink)]
        self.start_service()
        for step in range(QUIET_STEPS_MAX):
            self.now_ms += 200
            self.fluss.tick(self.now_ms)
            if step % 20 == 0 and self.settled():
                return
            self.go_on()
        raise Violation(f"it does not come to its end: {self.where()}")

    def settled(self) -> bool:
        """The lake has all, and Fluss knows it."""
        for name, table in self.fluss.tables.items():
            lake = self.lakes[name]
            if lake.identity in self.stopped:
                continue
            newest, told = lake.newest(), self.fluss.told.get(table.table_id)
            if newest != told and not lake.expired:
                return False
            if told is not None and told.path not in self.fluss.files:
                return False
            ends = {} if told is None else self.fluss.files[told.path].ends
            for bucket, log in table.logs.items():
                if ends.get(bucket, table.first[bucket]) != len(log):
                    return False
            self.check(lake, table, dict(ends))
        return True

    def where(self) -> str:
        rounds = [f"{one.owner} {one.table} {one.round.state.value}" for service in self.services for one in service.running]
        return f"{rounds}, told {self.fluss.told}"

    # ---- small things

    def numbered(self) -> int:
        self.numbers += 1
        return self.numbers

    def nonce(self) -> str:
        return f"n{self.numbered()}"

    def say(self, text: str) -> None:
        self.trace = zlib.crc32(text.encode(), self.trace)


def live(seed: int, service: Callable[[World, int], Service] = Service) -> World:
    """Live through a seed and give back the world, or raise `Violation`."""
    world = World(seed, service)
    world.run()
    return world
