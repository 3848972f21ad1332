"""The pre-filter segment, the pool and their limits. The first six tests are those of FLINK-39519, in its order."""

from __future__ import annotations

import pytest

from snowmelt.errors import InvalidConfig, InvariantBroken
from snowmelt.relay.limits import POOL_BYTES_MIN, PREFILTER_BYTES_MIN, WRITERS_BYTES_MIN, Limits
from snowmelt.relay.pool import Pool
from snowmelt.relay.prefilter import PreFilter


def test_the_segment_is_not_of_the_pool() -> None:
    pool, prefilter = Pool(POOL_BYTES_MIN), PreFilter(PREFILTER_BYTES_MIN)
    pool.take(POOL_BYTES_MIN)
    segment = prefilter.lend()
    assert (len(segment), pool.taken) == (PREFILTER_BYTES_MIN, POOL_BYTES_MIN)
    prefilter.give_back()
    prefilter.close()
    assert pool.taken == POOL_BYTES_MIN


def test_what_is_not_read_through_the_segment_allocates_none() -> None:
    prefilter = PreFilter(Limits().prefilter_bytes)
    assert not prefilter.allocated
    prefilter.close()
    assert not prefilter.allocated


def test_the_segment_is_used_again() -> None:
    prefilter = PreFilter(PREFILTER_BYTES_MIN)
    first = prefilter.lend()
    prefilter.give_back()
    for _ in range(5):
        # The first is held here, so that another one could not lie at its place.
        assert prefilter.lend() is first
        assert prefilter.lent
        prefilter.give_back()
    assert not prefilter.lent


def test_a_second_request_while_one_is_out_is_our_bug() -> None:
    prefilter = PreFilter(PREFILTER_BYTES_MIN)
    prefilter.lend()
    with pytest.raises(InvariantBroken, match="second"):
        prefilter.lend()
    prefilter.give_back()
    prefilter.lend()


def test_the_segment_is_freed_on_close() -> None:
    prefilter = PreFilter(PREFILTER_BYTES_MIN)
    prefilter.lend()
    prefilter.close()
    prefilter.close()
    assert not prefilter.allocated
    with pytest.raises(InvariantBroken, match="after its end"):
        prefilter.lend()


def test_the_segments_size_is_told_and_checked() -> None:
    assert PreFilter(9000).size == 9000
    for wrong in (-1, 0, PREFILTER_BYTES_MIN - 1):
        with pytest.raises(InvalidConfig, match="too small"):
            PreFilter(wrong)
        with pytest.raises(InvalidConfig, match="prefilter_bytes is too small"):
            Limits(prefilter_bytes=wrong)
        with pytest.raises(InvalidConfig, match="pool_bytes is too small"):
            Limits(pool_bytes=wrong)


def test_what_is_not_out_can_not_be_given_back() -> None:
    prefilter = PreFilter(PREFILTER_BYTES_MIN)
    with pytest.raises(InvariantBroken):
        prefilter.give_back()


class TestPool:
    def test_it_has_room_up_to_its_size(self) -> None:
        pool = Pool(10_000)
        pool.take(6000)
        assert pool.has_room(4000)
        assert not pool.has_room(4001)
        with pytest.raises(InvariantBroken, match="room"):
            pool.take(4001)
        pool.give_back(6000)
        assert pool.taken == 0

    def test_a_batch_larger_than_the_pool_goes_alone(self) -> None:
        pool = Pool(10_000)
        pool.take(1)
        assert not pool.has_room(50_000)
        pool.give_back(1)
        pool.take(50_000)
        assert not pool.has_room(0)

    def test_more_than_was_taken_does_not_come_back(self) -> None:
        pool = Pool(10_000)
        pool.take(5)
        with pytest.raises(InvariantBroken, match="given back"):
            pool.give_back(6)

    def test_one_that_is_too_small_is_refused(self) -> None:
        with pytest.raises(InvalidConfig, match="too small"):
            Pool(POOL_BYTES_MIN - 1)


def test_what_writers_share_is_checked_and_a_third_of_it_waits() -> None:
    with pytest.raises(InvalidConfig, match="writers_bytes is too small"):
        Limits(writers_bytes=WRITERS_BYTES_MIN - 1)
    assert Limits(writers_bytes=WRITERS_BYTES_MIN).held_bytes == WRITERS_BYTES_MIN // 3
    # What is written together has offsets of 31 bits.
    assert Limits(writers_bytes=64 << 30).held_bytes == 1 << 30
