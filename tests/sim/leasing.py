"""The lease book in a simulated world: a model coordinator, rounds that read under leases, a virtual clock, and what can go wrong.

Requests and answers are lost, come late, or are done although nobody waits for them any more; the coordinator is out of reach, shorter and
longer than a lease lasts, or starts again with the same epochs; a server that lags behind answers; tables are dropped and made anew;
the process stands still, or dies and another one comes. The oracles know what the coordinator had at each moment.
"""

from __future__ import annotations

import heapq
import itertools
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from snowmelt.model.fluss import Bucket, KvSnapshot
from snowmelt.model.table import TableId
from snowmelt.tiering.lease_steps import Acquire, Answer, ListSnapshots, NoAnswer, ReadFiles, Step
from snowmelt.tiering.leases import LeaseBook
from tests.sim.coordinator import Coordinator
from tests.sim.lake import Violation

DURATION_MS = 1200
CHECK_MS = 300
CALL_MS_MAX = 100
HOSTILE_MS = 6_000
LATE_MS_MAX = 500
STEPS_MAX = 50_000


@dataclass(frozen=True, slots=True)
class Profile:
    """How hostile this world is. Rates are per second; each danger is absent from some worlds, so that it hides no other."""

    retained: int
    snapshot_ms: int
    read_ms: int
    """How long a bucket is read at most."""
    request_lost: float
    reply_lost: float
    late: float
    """Of requests that are lost, those which the server does nevertheless, when nobody waits any more."""
    outages: float
    outage_ms: int
    restarts: float
    lagging: float
    drops: float
    stalls: float
    spite: float
    """Of renewals, those whose answer is seen late, and which are the last for long."""
    crashes: float
    round_fails: float

    @property
    def calm(self) -> bool:
        """Nothing happens by which a lease that is held could be lost."""
        if self.drops or self.stalls or self.spite or self.crashes or self.outage_ms > DURATION_MS // 2:
            return False
        # Each costs less time than there is until a lease is over, but not both in a row.
        if self.outages and (self.lagging or self.restarts):
            return False
        return self.request_lost + self.reply_lost < 0.2


def draw(rng: Random) -> Profile:
    def some(rate: float, often: float = 0.5) -> float:
        return rate * rng.uniform(0.5, 2) if rng.random() < often else 0.0

    return Profile(
        retained=rng.choice([1, 1, 2]),
        snapshot_ms=rng.choice([30, 100, 400, 1500]),
        read_ms=rng.choice([100, 1000, 4000]),
        request_lost=some(0.1),
        reply_lost=some(0.1),
        late=some(0.3),
        outages=some(0.3),
        outage_ms=rng.choice([DURATION_MS // 3, DURATION_MS // 2, 2 * DURATION_MS, 4 * DURATION_MS]),
        restarts=some(1.0),
        lagging=some(0.5),
        drops=some(0.2),
        stalls=some(0.7),
        spite=some(0.1, often=0.3),
        crashes=some(0.15),
        round_fails=some(0.2),
    )


@dataclass(slots=True)
class Round:
    lease: str
    path: TableId
    table: int
    committed: set[Bucket]
    reads: dict[Bucket, list[str]]
    """What was wrong with the reads of each bucket."""
    ready: bool = False
    over: bool = False


class LeaseWorld:
    def __init__(self, seed: int, book: Callable[[], LeaseBook] | None = None) -> None:
        self.rng = Random(seed)
        self.profile = draw(self.rng)
        self._new_book = book or (lambda: LeaseBook(duration_ms=DURATION_MS))
        self.now_ms = 0
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self.counts: Counter[str] = Counter()
        self.trace = 0
        self.told: list[str] | None = None
        self.coordinator = Coordinator(retained=self.profile.retained)
        self.ids = itertools.count(1)
        self.excused: set[str] = set()
        """Leases that nobody can let go of, but time: their process died, or a request of theirs was done when nobody waited any more."""
        self.hostile = True
        self.reachable_ms = 0
        """The coordinator is out of reach before."""
        self.stalled_ms = 0
        self.connection: int | None = None
        self.lagging: Coordinator | None = None
        self.past = self.coordinator.as_it_is()
        """What a server that lags behind sees."""
        for name in ("a", "b"):
            self.create(name)
        self.start()

    # ---- time

    def after(self, delay_ms: int, what: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now_ms + delay_ms, next(self._numbers), what))

    def tell(self, what: str) -> None:
        line = f"{self.now_ms:6} {what}"
        self.trace = zlib.crc32(line.encode(), self.trace)
        self.counts[what.split(":", maxsplit=1)[0]] += 1
        if self.told is not None:
            self.told.append(line)

    def run(self) -> None:
        self.after(0, self.snapshots)
        self.after(0, self.expiry)
        self.after(0, self.trouble)
        for _ in range(3):
            self.after(self.rng.randrange(500), self.begin_round)
        self.until(lambda: self.now_ms >= HOSTILE_MS)
        self.quiet()

    def until(self, condition: Callable[[], bool]) -> None:
        for _ in range(STEPS_MAX):
            if condition():
                return
            self.now_ms, _, what = heapq.heappop(self._events)
            what()
        raise Violation("the world comes to no end")

    def quiet(self) -> None:
        """No more trouble; the rounds under way may end, then the service is closed."""
        self.hostile = False
        self.until(lambda: all(one.over for one in self.rounds))
        self.book.close()
        self.tell("closed")
        self.until(lambda: self.book.empty and self.in_flight is None)
        for lease, found in self.coordinator.leases.items():
            if lease not in self.excused and found.expires_ms >= self.now_ms:
                raise Violation(f"{lease} is kept, although its table is done")
        over_ms = self.now_ms + LATE_MS_MAX + DURATION_MS + CHECK_MS
        self.until(lambda: self.now_ms > over_ms)
        if self.coordinator.leases:
            raise Violation(f"{sorted(self.coordinator.leases)} never go")

    # ---- the world around

    def create(self, name: str) -> None:
        self.coordinator.create(name, next(self.ids), self.rng.randint(1, 3))

    def snapshots(self) -> None:
        for bucket in list(self.coordinator.snapshots):
            if self.rng.random() < 0.5:
                self.coordinator.add(bucket)
        self.after(self.rng.randint(1, CALL_MS_MAX), self.coordinator.purge)
        self.after(self.rng.randint(1, self.profile.snapshot_ms), self.snapshots)

    def expiry(self) -> None:
        self.coordinator.expire(self.now_ms)
        self.after(CHECK_MS, self.expiry)

    def trouble(self) -> None:
        if not self.hostile:
            return
        slice_ms = 20
        if self.profile.lagging and self.rng.random() < 0.4:
            self.past = self.coordinator.as_it_is()
        profile = self.profile

        def happens(rate: float) -> bool:
            return self.rng.random() < rate * slice_ms / 1000

        if happens(profile.outages):
            self.reachable_ms = self.now_ms + self.rng.randint(1, profile.outage_ms)
            self.tell("outage")
        if happens(profile.restarts):
            self.connection = None
            self.coordinator.expire(self.now_ms)
            self.tell("restart")
        if happens(profile.drops):
            name = self.rng.choice(["a", "b"])
            self.coordinator.drop_table(name)
            self.create(name)
            self.tell(f"dropped: {name}")
        if happens(profile.stalls):
            self.stalled_ms = self.now_ms + self.rng.randint(1, self.rng.choice([DURATION_MS, 2 * DURATION_MS]))
            self.tell("stalled")
        if happens(profile.crashes):
            self.excused |= {one.lease for one in self.rounds if not one.over} | self.coordinator.leases.keys()
            self.tell("crashed")
            for one in self.rounds:
                one.over = True
            self.start()
            for _ in range(2):
                self.after(self.rng.randrange(500), self.begin_round)
        self.after(slice_ms, self.trouble)

    # ---- the service: the one thread that speaks to the coordinator

    def start(self) -> None:
        self.book = self._new_book()
        self.rounds: list[Round] = []
        self.in_flight: Step | None = None
        self.connection = None
        self.after(0, lambda book=self.book: self.work(book))  # type: ignore[misc]

    def work(self, book: LeaseBook) -> None:
        if book is not self.book:
            return
        if self.now_ms < self.stalled_ms:
            self.after(self.stalled_ms - self.now_ms, lambda: self.work(book))
            return
        step = book.step(self.now_ms)
        if step is None:
            due_ms = book.due_ms()
            # A round may come or go meanwhile.
            self.after(max(1, min(30, 30 if due_ms is None else due_ms - self.now_ms)), lambda: self.work(book))
        else:
            self.send(book, step)

    def send(self, book: LeaseBook, step: Step) -> None:
        self.in_flight = step
        if self.hostile and self.rng.random() < self.profile.lagging / 2:
            # Cut while nobody used it.
            self.connection = None
        if self.connection is None:
            self.connection = next(self.ids)
            self.lagging = self.past if self.hostile and self.rng.random() < self.profile.lagging else None
        connection, lagging, sent_ms = self.connection, self.lagging, self.now_ms
        self.tell(f"{type(step).__name__}: {step.lease}")
        there_ms = self.rng.randint(1, CALL_MS_MAX // 3)
        back_ms = self.rng.randint(1, CALL_MS_MAX // 3)

        def done() -> Answer:
            if lagging is not None and not isinstance(step, ListSnapshots | ReadFiles):
                return NoAnswer("not the coordinator")
            return self.coordinator.answer(step, connection, self.now_ms, lagging)

        def arrive() -> None:
            lost = self.hostile and (self.now_ms < self.reachable_ms or self.rng.random() < self.profile.request_lost)
            if lost or connection != self.connection:
                if self.hostile and self.rng.random() < self.profile.late and isinstance(step, Acquire):
                    self.after(self.rng.randint(1, LATE_MS_MAX), late)
                self.after(CALL_MS_MAX - there_ms, lambda: self.answer(book, step, NoAnswer("no answer"), sent_ms))
                return
            answer = done()
            if self.hostile and isinstance(step, Acquire) and self.rng.random() < self.profile.spite:
                self.stalled_ms = self.now_ms + self.rng.randint(1, DURATION_MS // 2)
                self.reachable_ms = self.now_ms + 2 * DURATION_MS
                self.tell("spite")
            if self.hostile and self.rng.random() < self.profile.reply_lost:
                answer = NoAnswer("no answer")
            self.after(back_ms, lambda: self.answer(book, step, answer, sent_ms))

        def late() -> None:
            self.excused.add(step.lease)
            done()
            self.tell(f"late: {step.lease}")

        self.after(there_ms, arrive)

    def answer(self, book: LeaseBook, step: Step, answer: Answer, sent_ms: int) -> None:
        if book is not self.book:
            return
        if self.now_ms < self.stalled_ms:
            self.after(self.stalled_ms - self.now_ms, lambda: self.answer(book, step, answer, sent_ms))
            return
        self.in_flight = None
        if isinstance(answer, NoAnswer):
            self.connection = None
        self.tell(f"{type(answer).__name__}: {step.lease}")
        book.answer(step, answer, sent_ms, self.now_ms)
        self.work(book)

    # ---- rounds

    def begin_round(self) -> None:
        if not self.hostile:
            return
        name = self.rng.choice(["a", "b"])
        table = self.coordinator.tables[name]
        wanted = {bucket: None for bucket in self.coordinator.snapshots if bucket.table == table}
        one = Round(f"r{next(self.ids)}", TableId("shop", name), table, set(), {})
        self.rounds = [other for other in self.rounds if not other.over] + [one]
        self.book.open(one.lease, one.path, table, wanted)
        self.tell(f"round: {one.lease}")
        self.after(20, lambda: self.wait(one))

    def over(self, one: Round, why: str) -> None:
        if not one.over:
            one.over = True
            self.book.end(one.lease)
            self.tell(f"{why}: {one.lease}")
            self.after(self.rng.randint(1, 500), self.begin_round)

    def wait(self, one: Round) -> None:
        if one.over:
            return
        standing = self.book.standing(one.lease, self.now_ms)
        if standing.failure:
            self.over(one, "not ready")
        elif not standing.ready:
            self.after(40, lambda: self.wait(one))
        else:
            one.ready = True
            self.tell(f"ready: {one.lease}")
            if not standing.snapshots:
                self.over(one, "nothing")
            for bucket, leased in standing.snapshots.items():
                one.reads[bucket] = []
                self.read(one, leased.snapshot, self.now_ms + self.rng.randint(1, self.profile.read_ms))

    def read(self, one: Round, snapshot: KvSnapshot, end_ms: int) -> None:
        if one.over:
            return
        if self.hostile and self.rng.random() < self.profile.round_fails / 20:
            self.over(one, "failed")
            return
        if snapshot.bucket not in self.coordinator.snapshots:
            # Its files went with the table.
            self.over(one, "table gone")
            return
        wrong = one.reads[snapshot.bucket]
        if not self.coordinator.in_lease(snapshot.bucket, snapshot.snapshot):
            wrong.append(f"{snapshot} was in no lease at {self.now_ms}")
        if not self.coordinator.exists(snapshot):
            wrong.append(f"{snapshot} did not exist at {self.now_ms}")
        if self.now_ms < end_ms:
            self.after(self.rng.randint(1, 100), lambda: self.read(one, snapshot, end_ms))
        else:
            self.commit(one, snapshot.bucket)

    def commit(self, one: Round, bucket: Bucket) -> None:
        standing = self.book.standing(one.lease, self.now_ms)
        if standing.failure or not standing.ready:
            self.tell(f"held and lost: {one.lease}")
            if self.profile.calm and self.coordinator.tables.get(one.path.name) == one.table:
                raise Violation(f"{one.lease} was lost for no reason: {standing.failure}")
            self.over(one, "not committed")
            return
        if bucket not in standing.snapshots:
            raise Violation(f"{one.lease} has no {bucket} any more")
        if one.reads[bucket]:
            raise Violation(f"{one.lease} committed: {one.reads[bucket][0]}")
        self.tell(f"committed: {one.lease}")
        one.committed.add(bucket)
        self.book.release(one.lease, frozenset({bucket}), self.now_ms)
        if one.committed == one.reads.keys():
            self.over(one, "finished")


def live(seed: int, book: Callable[[], LeaseBook] | None = None) -> LeaseWorld:
    world = LeaseWorld(seed, book)
    world.run()
    return world
