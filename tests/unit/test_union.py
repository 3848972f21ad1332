"""What a union read takes from the lake and what from Fluss, so that no change is shown twice and none is missing."""

from __future__ import annotations

import pytest

from snowmelt.credentials import Secret
from snowmelt.engine.union.options import parse_options
from snowmelt.errors import InvalidConfig, InvariantBroken, SourceDrift
from snowmelt.fluss.target import Login
from snowmelt.model.fluss import Bucket, KvSnapshot
from snowmelt.model.table import TableId
from snowmelt.tiering.fence import KnownToFluss, LakeView, Tiered
from snowmelt.tiering.offsets import Offsets
from snowmelt.tiering.splits import BucketLog
from snowmelt.tiering.union import BucketPart, LakeOffsets, decide_pair, plan_union

TABLE = 7
ONE, TWO = (Bucket(TABLE, number) for number in range(2))
OFFSETS = Offsets(TABLE, {ONE: 10})


def lake(latest: int = 0, *tiered: int, whole_from: int = 1, rows: bool = False) -> LakeView:
    return LakeView(
        identity="id",
        schema=0,
        latest=latest,
        whole_from=whole_from,
        tiered=tuple(Tiered(number, f"{number}.offsets") for number in tiered),
        rows=rows,
    )


class TestWhatTheLakeHas:
    def test_rows_and_offsets_are_those_of_one_snapshot_though_a_compaction_came_behind_it(self) -> None:
        assert decide_pair(TABLE, lake(6, 5, rows=True), OFFSETS, KnownToFluss(5, {ONE: 10})) == LakeOffsets(5, OFFSETS)

    @pytest.mark.parametrize("known", [None, KnownToFluss(4, {ONE: 3})])
    def test_a_snapshot_that_fluss_never_heard_of_counts_with_its_own_offsets(self, known: KnownToFluss | None) -> None:
        assert decide_pair(TABLE, lake(5, 5, rows=True), OFFSETS, known) == LakeOffsets(5, OFFSETS)

    def test_where_the_tiered_snapshot_is_expired_what_came_behind_it_has_its_rows(self) -> None:
        assert decide_pair(TABLE, lake(7, whole_from=6, rows=True), None, KnownToFluss(5, {ONE: 10})) == LakeOffsets(7, OFFSETS)

    def test_a_table_that_was_never_tiered_has_nothing_in_the_lake(self) -> None:
        assert decide_pair(TABLE, lake(), None, None) == LakeOffsets(0, Offsets(TABLE, {}))
        # Somebody compacted nothing.
        assert decide_pair(TABLE, lake(1), None, None) == LakeOffsets(0, Offsets(TABLE, {}))

    def test_a_lake_of_which_nobody_knows_what_it_has_is_not_read(self) -> None:
        with pytest.raises(SourceDrift, match="no record of how far"):
            decide_pair(TABLE, lake(3, rows=True), None, None)
        with pytest.raises(SourceDrift, match="another Fluss table"):
            decide_pair(TABLE, lake(5, 5), Offsets(8, {}), None)


class TestWhatIsReadOfABucket:
    def test_behind_the_lake_the_log_up_to_its_end(self) -> None:
        assert plan_union(keyed=True, starts={ONE: 10}, logs=[BucketLog(ONE, 4, 30, KvSnapshot(ONE, 1, 20))]) == (
            BucketPart(ONE, True, None, 10, 30),
        )

    def test_without_an_offset_the_kv_snapshot_and_the_log_behind_it(self) -> None:
        copy = KvSnapshot(TWO, 1, 20)
        logs = [BucketLog(ONE, 0, 30), BucketLog(TWO, 4, 30, copy)]
        assert plan_union(keyed=True, starts={}, logs=logs) == (BucketPart(ONE, False, None, 0, 30), BucketPart(TWO, False, copy, 20, 30))

    def test_a_kv_snapshot_made_behind_the_end_that_was_asked_for_is_the_end(self) -> None:
        copy = KvSnapshot(ONE, 1, 40)
        assert plan_union(keyed=True, starts={}, logs=[BucketLog(ONE, 0, 30, copy)]) == (BucketPart(ONE, False, copy, 40, 40),)

    def test_a_log_table_is_read_from_what_is_left_of_it(self) -> None:
        assert plan_union(keyed=False, starts={}, logs=[BucketLog(ONE, 5, 30)]) == (BucketPart(ONE, False, None, 5, 30),)

    @pytest.mark.parametrize("keyed", [True, False])
    def test_a_log_that_does_not_reach_back_to_the_lake_stops_loudly(self, keyed: bool) -> None:
        with pytest.raises(SourceDrift, match="lost rows"):
            plan_union(keyed=keyed, starts={ONE: 10}, logs=[BucketLog(ONE, 11, 30)])

    def test_a_bucket_is_read_once(self) -> None:
        with pytest.raises(InvariantBroken, match="listed twice"):
            plan_union(keyed=True, starts={}, logs=[BucketLog(ONE, 0, 1), BucketLog(ONE, 0, 1)])


GIVEN = {"table": "shop.orders", "bootstrap": "one:9123,two:9123", "warehouse": "/lake"}


class TestOptions:
    def test_names_are_in_any_case_and_secrets_stay_references(self) -> None:
        found = parse_options({**GIVEN, "Columns": "a, b", "LEASE": "0.5", "remote.region": "x", "remote.secret_access_key": "${KEY}"})
        assert (found.table, found.columns, found.lease_ms, found.target) == (TableId("shop", "orders"), ("a", "b"), 500, "shop.orders")
        assert found.login is None
        assert parse_options({**GIVEN, "username": "a", "password": "${A}"}).login == Login("a", Secret("${A}"))
        assert found.remote == {"region": "x", "secret_access_key": Secret("${KEY}")}

    @pytest.mark.parametrize(
        ("wrong", "said"),
        [
            ({"table": "orders"}, "not database.table"),
            ({"table": "a.b.c"}, "not database.table"),
            ({"bootstrap": "nowhere"}, "not host:port"),
            ({"warehouse": " "}, "lacks an option: warehouse"),
            ({"colums": "a"}, "not known: colums"),
            ({"lease": "soon"}, "not a number of seconds"),
            ({"lease": "nan"}, "not a number of seconds"),
            ({"lease": "inf"}, "not a number of seconds"),
            ({"lease": "-1"}, "not a number of seconds"),
            ({"username": "a"}, "lacks its password"),
            ({"password": "${A}"}, "lacks its username"),
            ({"username": "a", "password": "hunter2"}, "by reference"),
        ],
    )
    def test_what_can_not_be_meant_is_told(self, wrong: dict[str, str], said: str) -> None:
        with pytest.raises(InvalidConfig, match=said):
            parse_options({**GIVEN, **wrong})
