from __future__ import annotations

import pytest

from snowmelt.errors import InvariantBroken
from snowmelt.planning.ordinals import Bounds, RangeSet


def of(*added: int) -> RangeSet:
    ordinals = RangeSet()
    for ordinal in added:
        ordinals.add(ordinal)
    return ordinals


class TestOrdinals:
    def test_what_is_adopted_in_order_is_one_range(self) -> None:
        assert list(of(0, 1, 2, 3)) == [(0, 3)]

    def test_a_chunk_that_is_late_leaves_a_gap_and_closes_it(self) -> None:
        ordinals = of(0, 1, 3, 4)
        assert list(ordinals) == [(0, 1), (3, 4)]
        assert ordinals.first_missing(0) == 2
        ordinals.add(2)
        assert list(ordinals) == [(0, 4)]
        assert ordinals.first_missing(0) == 5

    def test_a_range_grows_downwards_too(self) -> None:
        assert list(of(5, 4, 3)) == [(3, 5)]

    def test_what_is_added_twice_is_there_once(self) -> None:
        assert of(1, 2, 1, 2) == of(1, 2)

    def test_the_first_missing_one_is_where_one_asks_if_that_is_missing(self) -> None:
        ordinals = of(2, 3)
        assert [ordinals.first_missing(start) for start in range(6)] == [0, 1, 4, 4, 4, 5]

    def test_it_counts_numbers_and_not_ranges(self) -> None:
        assert [ordinals.count for ordinals in (of(), of(5), of(0, 1, 3, 4, 9))] == [0, 1, 5]

    def test_an_empty_set_has_nothing(self) -> None:
        assert 0 not in RangeSet()
        assert list(RangeSet()) == []
        assert RangeSet().first_missing(7) == 7


class TestBounds:
    def test_bounds_of_any_length_come_out_as_they_went_in(self) -> None:
        bounds = Bounds()
        bounds.extend((b"a", b"", b"ccc"))
        bounds.extend(())
        bounds.extend((b"dd",))
        assert [bounds.upper(ordinal) for ordinal in (1, 2, 3, 4)] == [b"a", b"", b"ccc", b"dd"]
        assert bounds.last == 4

    @pytest.mark.parametrize("ordinal", [0, 3])
    def test_a_bound_that_is_not_held_is_an_error_and_never_an_empty_key(self, ordinal: int) -> None:
        bounds = Bounds()
        bounds.extend((b"a", b"b"))
        with pytest.raises(InvariantBroken, match="a bound is asked for that is not held: "):
            bounds.upper(ordinal)

    def test_a_finished_beginning_is_let_go_of_once_that_is_worth_a_copy(self) -> None:
        bounds = Bounds()
        bounds.extend((b"a", b"b", b"c", b"d", b"e"))
        bounds.forget(3)
        assert bounds.first == 1, "two of five are not yet half of it"
        bounds.forget(4)
        assert (bounds.first, bytes(bounds.data), list(bounds.ends)) == (4, b"de", [1, 2])
        assert bounds.upper(4) == b"d"
        with pytest.raises(InvariantBroken):
            bounds.upper(3)

    def test_numbers_go_on_behind_what_was_let_go_of(self) -> None:
        bounds = Bounds()
        bounds.extend((b"a", b"b"))
        bounds.forget(99)
        assert (bounds.first, bounds.last, len(bounds.data)) == (3, 2, 0)
        bounds.extend((b"c",))
        assert bounds.upper(3) == b"c"

    def test_to_forget_again_what_is_forgotten_changes_nothing(self) -> None:
        bounds = Bounds()
        bounds.extend((b"a", b"b"))
        bounds.forget(2)
        bounds.forget(2)
        bounds.forget(0)
        assert (bounds.first, bytes(bounds.data)) == (2, b"b")
