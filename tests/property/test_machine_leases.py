"""The lease book beside a model coordinator, moved by hypothesis: what the book lets rounds read is there, and nothing is kept."""

from __future__ import annotations

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from snowmelt.model.fluss import Bucket, KvSnapshot
from snowmelt.model.table import TableId
from snowmelt.tiering.lease_steps import Acquire, Answer, Drop, NoAnswer, Step
from snowmelt.tiering.leases import LeaseBook
from tests.sim.coordinator import Coordinator

DURATION_MS = 600
TABLES = ("a", "b")


class LeaseMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 0
        self.book = LeaseBook(duration_ms=DURATION_MS)
        self.coordinator = Coordinator()
        self.numbers = 0
        for name in TABLES:
            self.create(name)
        self.open: dict[str, int] = {}
        """Leases of rounds under way, and their tables."""
        self.asked: Step | None = None
        self.sent_ms = 0
        self.answered: Answer | None = None
        """What the server said, which has not arrived yet."""
        self.dropped: set[str] = set()
        """Leases whose drop the server has confirmed."""
        self.connection = 1

    def number(self) -> int:
        self.numbers += 1
        return self.numbers

    def create(self, name: str) -> None:
        table = self.number()
        self.coordinator.create(name, table, 2)
        self.coordinator.add(Bucket(table, 0))

    # ---- the world

    @rule(ms=st.sampled_from([1, 20, DURATION_MS // 3, DURATION_MS - 1, 2 * DURATION_MS]), looks=st.booleans(), purges=st.booleans())
    def time_passes(self, ms: int, looks: bool, purges: bool) -> None:
        self.now_ms += ms
        if looks:
            self.coordinator.expire(self.now_ms)
        if purges:
            self.coordinator.purge()

    @rule(rare=st.booleans(), purges=st.booleans())
    def snapshots_are_made(self, rare: bool, purges: bool) -> None:
        for bucket in list(self.coordinator.snapshots)[:: 2 if rare else 1]:
            self.coordinator.add(bucket)
        if purges:
            self.coordinator.purge()

    @rule(name=st.sampled_from(TABLES))
    def a_table_is_made_anew(self, name: str) -> None:
        self.coordinator.drop_table(name)
        self.create(name)

    @rule()
    def the_coordinator_starts_again(self) -> None:
        self.coordinator.expire(self.now_ms)
        self.connection = self.number()

    # ---- rounds

    @rule(name=st.sampled_from(TABLES))
    def a_round_begins(self, name: str) -> None:
        table = self.coordinator.tables[name]
        lease = f"r{self.number()}"
        self.book.open(
            lease, TableId("shop", name), table, {bucket: None for bucket in self.coordinator.snapshots if bucket.table == table}
        )
        self.open[lease] = table

    @precondition(lambda self: self.open)
    @rule(number=st.integers(0, 3))
    def a_bucket_is_released(self, number: int) -> None:
        lease = list(self.open)[number % len(self.open)]
        self.book.release(lease, frozenset(list(self.book.standing(lease, self.now_ms).snapshots)[:1]), self.now_ms)

    @precondition(lambda self: self.open)
    @rule(number=st.integers(0, 3))
    def a_round_ends(self, number: int) -> None:
        lease = list(self.open)[number % len(self.open)]
        self.book.end(lease)
        del self.open[lease]

    # ---- calls

    @precondition(lambda self: self.asked is None)
    @rule()
    def a_call_is_made(self) -> None:
        self.asked, self.sent_ms, self.answered = self.book.step(self.now_ms), self.now_ms, None
        if self.asked is not None:
            assert self.asked.lease not in self.dropped, "something is sent behind a drop"
            if isinstance(self.asked, Acquire):
                assert self.asked.snapshots, "an empty renewal makes an empty lease"

    @precondition(lambda self: self.asked is not None and self.answered is None)
    @rule()
    def it_arrives(self) -> None:
        assert self.asked is not None
        self.answered = self.coordinator.answer(self.asked, self.connection, self.now_ms)

    @precondition(lambda self: self.asked is not None)
    @rule(lost=st.booleans())
    def it_comes_back(self, lost: bool) -> None:
        assert self.asked is not None
        step, answer = self.asked, self.answered
        if answer is None or lost:
            answer = NoAnswer("no answer")
        elif isinstance(step, Drop):
            self.dropped.add(step.lease)
        self.asked = None
        if isinstance(answer, NoAnswer):
            self.connection = self.number()
        self.book.answer(step, answer, self.sent_ms, self.now_ms)

    @rule(count=st.integers(1, 10))
    def calls_go_well_for_a_while(self, count: int) -> None:
        for _ in range(count):
            if self.asked is None:
                self.a_call_is_made()
            if self.asked is not None:
                if self.answered is None:
                    self.it_arrives()
                self.it_comes_back(lost=False)

    @rule(name=st.sampled_from(TABLES))
    def a_round_is_made_ready(self, name: str) -> None:
        self.a_round_begins(name)
        self.calls_go_well_for_a_while(10)

    # ---- what holds

    @invariant()
    def what_may_be_read_is_there_and_leased(self) -> None:
        for lease, table in self.open.items():
            if table in self.coordinator.tables.values():
                for one in self.book.standing(lease, self.now_ms).snapshots.values():
                    self.check(lease, one.snapshot)

    def check(self, lease: str, snapshot: KvSnapshot) -> None:
        assert self.coordinator.exists(snapshot), (lease, snapshot)
        assert (snapshot.bucket, snapshot.snapshot) not in self.coordinator.doomed, (lease, snapshot)
        assert self.coordinator.leases[lease].snapshots[snapshot.bucket] == snapshot.snapshot, (lease, snapshot)

    @invariant()
    def what_is_due_is_known(self) -> None:
        if self.asked is None and self.book.due_ms() is None:
            for lease in self.open:
                standing = self.book.standing(lease, self.now_ms)
                assert standing.ready or standing.failure

    def teardown(self) -> None:
        """All rounds end and the server answers: nothing is left, neither here nor there."""
        if self.asked is not None:
            self.it_comes_back(lost=True)
        self.book.close()
        while not self.book.empty:
            due_ms = self.book.due_ms()
            assert due_ms is not None, "the book waits for nothing"
            self.now_ms = max(self.now_ms, due_ms)
            self.a_call_is_made()
            if self.asked is not None:
                self.it_arrives()
                self.it_comes_back(lost=False)
        self.coordinator.expire(self.now_ms)
        assert self.coordinator.leases == {}


def test_what_a_round_may_read_is_there_and_no_lease_is_kept() -> None:
    phases = (Phase.explicit, Phase.reuse, Phase.generate)
    run_state_machine_as_test(LeaseMachine, settings=settings(max_examples=250, stateful_step_count=40, deadline=None, phases=phases))
