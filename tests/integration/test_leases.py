"""Leases on a real coordinator that keeps one KV snapshot and makes another twice a second."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from snowmelt.engine.tiering.leasing import Leasing, _Calls, lease_id
from snowmelt.errors import Unavailable
from snowmelt.fluss.client import FlussClient
from snowmelt.fluss.rpc import GoneFromFluss
from snowmelt.fluss.server import FlussServer, ServerProcess
from snowmelt.model.fluss import Bucket, KvSnapshot
from snowmelt.model.table import TableId
from snowmelt.tiering.lease_steps import Acquire, Acquired, Listed, ListSnapshots
from tests.kit.fluss_servers import FreshFluss, Tables
from tests.kit.waiting import until


class Desk:
    """A table, and what a test does to it and asks of it."""

    def __init__(self, tables: Tables, name: str, *, buckets: int = 2) -> None:
        self.server = tables.server
        self.tables = tables
        self.path = tables.make(buckets=buckets)
        self.client = FlussClient(self.server.connect())
        self.table = self.client.table_info(self.path).table
        self.lease = lease_id(name, self.table, "1")
        self.wanted: dict[Bucket, str | None] = {Bucket(self.table, bucket): None for bucket in range(buckets)}
        self._written = 0
        self.write()
        until(lambda: self.newest().keys() == self.wanted.keys())

    def write(self) -> None:
        """So many rows that each bucket gets some, and its next snapshot."""
        self.tables.upsert(self.path, [{"id": number, "name": "", "n": self._written} for number in range(64)])
        self._written += 1

    def newest(self) -> Mapping[Bucket, KvSnapshot]:
        return self.client.latest_snapshots(self.path).snapshots

    def grow(self, count: int) -> None:
        """Until each bucket has so many more snapshots."""
        goal = {bucket: one.snapshot + count for bucket, one in self.newest().items()}

        def grown() -> bool:
            self.write()
            return all(one.snapshot >= goal[bucket] for bucket, one in self.newest().items())

        until(grown)

    def acquire(self, leasing: Leasing) -> dict[Bucket, int]:
        return {bucket: one.snapshot.snapshot for bucket, one in leasing.acquire(self.lease, self.path, self.table, self.wanted).items()}

    def there(self, snapshots: Mapping[Bucket, int]) -> set[Bucket]:
        """Those of which the server has everything, down to the last file."""
        found = set()
        for bucket, snapshot in snapshots.items():
            try:
                files = self.client.snapshot_files(bucket, snapshot).files
            except GoneFromFluss:
                continue
            if all(Path(file.path).exists() for file in files):
                found.add(bucket)
        return found

    def lease_files(self) -> list[Path]:
        """What the server has written down of the lease."""
        return list((self.server.remote / "lease").glob(f"**/{self.lease}/**/*.metadata"))


@pytest.fixture
def desk(fluss_tables: Tables, request: pytest.FixtureRequest) -> Desk:
    return Desk(fluss_tables, request.function.__name__)


@pytest.fixture
def leasing(fluss: FlussServer) -> Iterator[Leasing]:
    """Its leases are short, and have to be renewed."""
    with Leasing(fluss.bootstrap, duration_ms=1500) as made:
        yield made


@pytest.fixture
def patient(fluss: FlussServer) -> Iterator[Leasing]:
    """Its leases do not expire while a test runs: what is gone was let go of."""
    with Leasing(fluss.bootstrap, duration_ms=600_000) as made:
        yield made


def test_a_lease_outlives_its_duration_by_renewal_and_a_release_lets_its_snapshot_go(desk: Desk, leasing: Leasing) -> None:
    unleased = {bucket: one.snapshot for bucket, one in desk.newest().items()}
    desk.grow(1)
    held = desk.acquire(leasing)
    assert held.keys() == desk.wanted.keys()
    # Longer than the lease lasts without renewal, and until the server has looked.
    desk.grow(8)
    assert desk.there(held) == set(held), "a snapshot under a lease was deleted"
    assert desk.there(unleased) == set()
    leasing.check(desk.lease)
    first, second = held
    leasing.release(desk.lease, frozenset({first}))
    until(lambda: desk.write() or desk.there(held) == {second})
    desk.grow(2)
    assert desk.there(held) == {second}
    leasing.end(desk.lease)
    until(lambda: desk.write() or not desk.there(held))


def test_the_end_of_a_round_drops_what_it_has_while_the_service_lives(desk: Desk, patient: Leasing) -> None:
    desk.acquire(patient)
    assert desk.lease_files()
    patient.end(desk.lease)
    until(lambda: not desk.lease_files())


def test_the_server_leases_a_snapshot_that_is_gone_and_ours_is_the_newest_and_there(desk: Desk, leasing: Leasing) -> None:
    dead = {bucket: one.snapshot for bucket, one in desk.newest().items()}
    desk.grow(2)
    assert desk.there(dead) == set()
    assert desk.client.acquire(desk.lease, 60_000, dead) == frozenset()
    held = desk.acquire(leasing)
    assert desk.there(held) == set(held)
    assert all(held[bucket] > dead[bucket] for bucket in held)


def test_nothing_is_left_of_a_holder_that_was_killed_once_its_lease_has_expired(desk: Desk) -> None:
    command = [sys.executable, "-m", "tests.integration.lease_holder", desk.server.bootstrap, desk.path.database, desk.path.name]
    with subprocess.Popen([*command, desk.lease, "1500"], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        held = {bucket: one.snapshot for bucket, one in desk.newest().items()}
        assert desk.lease_files()
        holder.kill()
    until(lambda: not desk.lease_files())
    until(lambda: desk.write() or not desk.there(held))


def test_a_table_dropped_under_a_lease_fails_the_round_and_leaves_no_lease(desk: Desk, fluss: FlussServer) -> None:
    # The renewal after 20 s is refused; it would last for 40 s more.
    with Leasing(fluss.bootstrap, duration_ms=60_000) as leasing:
        lost: list[str] = []
        leasing.acquire(desk.lease, desk.path, desk.table, desk.wanted, lost.append)
        desk.tables.drop(desk.path)
        leasing._book._leases[desk.lease].renewal_ms = 0
        until(lambda: lost)
        with pytest.raises(Unavailable, match="lease was lost"):
            leasing.check(desk.lease)
        until(lambda: not desk.lease_files(), seconds_max=30)


def test_a_release_that_the_server_refuses_ends_in_a_drop(desk: Desk, patient: Leasing) -> None:
    held = desk.acquire(patient)
    desk.tables.drop(desk.path)
    patient.release(desk.lease, frozenset(held))
    until(lambda: not desk.lease_files())
    # All of it had been read by then.
    patient.check(desk.lease)


def test_a_release_that_fails_in_the_server_itself_ends_in_a_drop(desk: Desk, patient: Leasing) -> None:
    """As 0.9 does where the lease has nothing of the table any more."""
    held = desk.acquire(patient)
    other = Desk(desk.tables, "other", buckets=1)
    desk.client.drop(desk.lease)
    desk.client.acquire(desk.lease, 600_000, {bucket: one.snapshot for bucket, one in other.newest().items()})
    assert desk.lease_files()
    patient.release(desk.lease, frozenset(held))
    until(lambda: not desk.lease_files())


def test_a_connection_that_was_lost_is_never_taken_for_the_next_one(desk: Desk, fluss: FlussServer) -> None:
    """Their coordinators may have the same epoch, and not the same leases."""
    calls = _Calls(fluss.bootstrap, None, 10.0)
    first = calls.perform(ListSnapshots(desk.lease, desk.path, (None,)))
    calls.disconnect()
    second = calls.perform(ListSnapshots(desk.lease, desk.path, (None,)))
    acquired = calls.perform(Acquire(desk.lease, 1000, {}))
    calls.disconnect()
    assert isinstance(first, Listed)
    assert isinstance(second, Listed)
    assert first.place.epoch == second.place.epoch
    assert first.place != second.place
    assert acquired == Acquired(second.place.connection)


def test_a_table_that_was_made_anew_is_not_leased(desk: Desk, leasing: Leasing) -> None:
    with pytest.raises(Unavailable, match="could not be leased"):
        leasing.acquire(desk.lease, desk.path, desk.table + 1, {Bucket(desk.table + 1, 0): None})
    assert not desk.lease_files()


def test_close_drops_what_is_held(desk: Desk, fluss: FlussServer) -> None:
    with Leasing(fluss.bootstrap) as leasing:
        desk.acquire(leasing)
        assert desk.lease_files()
    assert not desk.lease_files()


def test_no_server_is_no_lease_and_no_round() -> None:
    with Leasing("127.0.0.1:1", timeout_s=1) as leasing, pytest.raises(Unavailable, match="could not be leased"):
        leasing.acquire("nobody", TableId("shop", "orders"), 1, {Bucket(1, 0): None})


def test_a_lease_outlives_a_coordinator_that_was_killed_and_an_outage_longer_than_it_is_a_loss(fresh_fluss: FreshFluss) -> None:
    server = fresh_fluss()
    tables = Tables(server)
    desk, brief = Desk(tables, "long"), Desk(tables, "brief")
    with Leasing(server.bootstrap, duration_ms=30_000) as leasing, Leasing(server.bootstrap, duration_ms=1000) as hasty:
        held, doomed = desk.acquire(leasing), brief.acquire(hasty)
        server.kill(ServerProcess.COORDINATOR)
        server.start()
        desk.client, brief.client = FlussClient(server.connect()), FlussClient(server.connect())
        until(lambda: len(desk.newest()) == len(desk.wanted))
        desk.grow(3)
        leasing.check(desk.lease)
        assert desk.there(held) == set(held), "a snapshot under a lease was deleted"
        # The server is back, and would say yes to any renewal.
        with pytest.raises(Unavailable, match="lease was lost"):
            hasty.check(brief.lease)
        until(lambda: brief.write() or not brief.there(doomed))
        hasty.end(brief.lease)
    assert not desk.lease_files()
    assert not brief.lease_files()
