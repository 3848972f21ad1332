from __future__ import annotations

import pytest

from snowmelt.databases.mysql.gtid import MariaDbGtidSet, MySqlGtidSet, gtid_within
from snowmelt.databases.mysql.log.files import LogFile
from snowmelt.errors import Corrupt, InvariantBroken, SourceDrift
from snowmelt.model.position import Position
from snowmelt.model.table import SchemaHistory, TableId

UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
OTHER = "4aaf08a1-e0d3-11f1-87c1-02fc00000001"


class TestMySqlGtidSet:
    def test_the_text_of_the_server_is_read_with_its_line_breaks_and_upper_case(self) -> None:
        found = MySqlGtidSet.parse(f"{UUID.upper()}:1-5:7,\n{OTHER}:3")
        assert found.intervals == {UUID: ((1, 5), (7, 7)), OTHER: ((3, 3),)}
        assert str(found) == f"{UUID}:1-5:7,{OTHER}:3"

    def test_no_transaction_at_all_is_the_empty_set(self) -> None:
        assert MySqlGtidSet.parse("") == MySqlGtidSet() == MySqlGtidSet.parse(" \n")
        assert MySqlGtidSet().within(MySqlGtidSet.parse(f"{UUID}:1"))

    def test_intervals_that_touch_or_overlap_become_one(self) -> None:
        assert str(MySqlGtidSet.parse(f"{UUID}:4-6:1-3:6-9:11")) == f"{UUID}:1-9:11"
        assert str(MySqlGtidSet.parse(f"{UUID}:1,{UUID}:2")) == f"{UUID}:1-2"

    def test_a_tag_is_a_source_of_its_own(self) -> None:
        found = MySqlGtidSet.parse(f"{UUID}:1-5:blue:1-3:9:red:2")
        assert found.intervals == {UUID: ((1, 5),), f"{UUID}:blue": ((1, 3), (9, 9)), f"{UUID}:red": ((2, 2),)}
        assert MySqlGtidSet.parse(str(found)) == found
        assert not found.has(UUID, 9)

    @pytest.mark.parametrize(
        "text",
        [
            UUID,
            f"{UUID}:",
            f"{UUID}:0",
            f"{UUID}:5-3",
            f"{UUID}:1-2-3",
            f"{UUID}:x-1",
            f"{UUID}:blue",
            f"{UUID}:1:blue",
            "not-a-uuid:1",
            "0-1-100",
            f"{UUID}:²",
            f"{UUID}:1-",
            f"{UUID}:-1",
            f"{UUID}:1-x",
            f"{UUID}:1-²",
        ],
    )
    def test_text_that_is_not_a_set_is_corrupt(self, text: str) -> None:
        with pytest.raises(Corrupt):
            MySqlGtidSet.parse(text)

    def test_adding_fills_a_gap(self) -> None:
        assert str(MySqlGtidSet.parse(f"{UUID}:1-3:5").add(UUID, 4)) == f"{UUID}:1-5"

    def test_a_set_with_a_hole_does_not_hold_what_spans_it(self) -> None:
        holed = MySqlGtidSet.parse(f"{UUID}:1-3:5-9")
        assert not MySqlGtidSet.parse(f"{UUID}:3-5").within(holed)
        assert MySqlGtidSet.parse(f"{UUID}:6-8").within(holed)

    def test_equal_sets_have_equal_hashes(self) -> None:
        one, other = MySqlGtidSet.parse(f"{UUID}:1,{OTHER}:1"), MySqlGtidSet.parse(f"{OTHER}:1,{UUID}:1")
        assert one == other
        assert hash(one) == hash(other)


class TestMariaDbGtidSet:
    def test_the_last_transaction_of_each_domain_stands_for_all_before(self) -> None:
        found = MariaDbGtidSet.parse("1-7-3, 0-1-100")
        assert str(found) == "0-1-100,1-7-3"
        assert found.has(0, 100)
        assert found.has(0, 1)
        assert not found.has(0, 101)
        assert not found.has(2, 1)

    def test_of_one_domain_the_greatest_counts(self) -> None:
        assert str(MariaDbGtidSet.parse("0-1-5,0-2-9,0-3-7")) == "0-2-9"

    def test_adding_what_is_in_it_changes_nothing(self) -> None:
        held = MariaDbGtidSet.parse("0-1-100")
        assert held.add(0, 2, 50) is held
        assert str(held.add(0, 2, 101)) == "0-2-101"

    @pytest.mark.parametrize("text", ["0-1", "0-1-2-3", "a-1-2", "0-1-x", f"{UUID}:1", "0-1-100;1-1-1"])
    def test_text_that_is_not_a_set_is_corrupt(self, text: str) -> None:
        with pytest.raises(Corrupt):
            MariaDbGtidSet.parse(text)


def test_gtid_sets_of_two_kinds_are_never_compared() -> None:
    with pytest.raises(InvariantBroken):
        gtid_within(MySqlGtidSet(), MariaDbGtidSet())


class TestPosition:
    def test_order_is_by_file_and_then_by_offset(self) -> None:
        assert Position(1, 900) < Position(2, 4) < Position(2, 5)
        assert Position(2, 5) >= Position(2, 5) > Position(2, 4)
        assert not Position(2, 5) < Position(2, 5)

    def test_an_offset_beyond_four_gibibytes_is_kept_whole(self) -> None:
        assert Position.parse(str(Position(7, 2**32 + 5, 3))) == Position(7, 2**32 + 5, 3)

    def test_positions_of_two_eras_are_not_compared_by_offset(self) -> None:
        with pytest.raises(InvariantBroken, match="eras"):
            _ = Position(1, 1, 0) < Position(1, 2, 1)

    @pytest.mark.parametrize(
        "text", ["", "1:2", "0/1", "0/1:", "0/1:x", "0/1:2:3", "1/2/3:4", "0/-1:5", "0/1:-5", "-1/1:5", "0/ 1:5", "0/1_0:5"]
    )
    def test_text_that_is_not_a_position_is_corrupt(self, text: str) -> None:
        with pytest.raises(Corrupt):
            Position.parse(text)


class TestLogFile:
    def test_a_name_is_printed_as_it_was_read(self) -> None:
        assert LogFile.parse("mysql-bin.000042") == LogFile("mysql-bin", 42, 6)
        assert str(LogFile.parse("a.b.0000007")) == "a.b.0000007"

    def test_the_number_grows_beyond_its_digits(self) -> None:
        assert str(LogFile("binlog", 1_000_000)) == "binlog.1000000"

    @pytest.mark.parametrize("name", ["binlog", "binlog.", "binlog.index", "binlog.00a", "binlog.²", ""])
    def test_another_name_is_corrupt(self, name: str) -> None:
        with pytest.raises(Corrupt):
            LogFile.parse(name)


class TestSchemaHistory:
    TABLE = TableId("shop", "orders")

    def history(self) -> SchemaHistory[str]:
        history: SchemaHistory[str] = SchemaHistory()
        history.put(self.TABLE, Position(1, 100), "first")
        history.put(self.TABLE, Position(1, 200), "second")
        history.put(self.TABLE, Position(2, 50), None)
        history.put(self.TABLE, Position(2, 90), "third")
        return history

    @pytest.mark.parametrize(
        ("file", "offset", "expected"),
        [(1, 99, None), (1, 100, "first"), (1, 200, "second"), (2, 49, "second"), (2, 50, None), (2, 90, "third")],
    )
    def test_a_row_is_read_with_the_newest_schema_at_or_below_it(self, file: int, offset: int, expected: str | None) -> None:
        assert self.history().find(self.TABLE, Position(file, offset)) == expected

    def test_asking_for_a_schema_that_is_not_known_stops(self) -> None:
        with pytest.raises(SourceDrift, match=r"shop\.orders"):
            self.history().at(self.TABLE, Position(1, 4))
        with pytest.raises(SourceDrift):
            self.history().at(TableId("shop", "unknown"), Position(9, 9))

    def test_the_same_schema_again_changes_nothing(self) -> None:
        history = self.history()
        history.put(self.TABLE, Position(2, 90), "third")
        assert history.find(self.TABLE, Position(2, 90)) == "third"

    def test_a_schema_out_of_the_logs_order_is_a_bug(self) -> None:
        with pytest.raises(InvariantBroken):
            self.history().put(self.TABLE, Position(1, 150), "late")

    def test_forgetting_keeps_the_schema_that_the_next_row_is_read_with(self) -> None:
        history = self.history()
        history.forget(Position(2, 60))
        assert history.find(self.TABLE, Position(2, 60)) is None
        assert history.find(self.TABLE, Position(2, 95)) == "third"
        assert history.find(self.TABLE, Position(1, 150)) is None

    def test_a_dropped_table_is_not_listed(self) -> None:
        history = self.history()
        gone = TableId("shop", "gone")
        history.put(gone, Position(1, 1), "only")
        history.put(gone, Position(2, 99), None)
        assert history.tables() == [self.TABLE]
