"""A staged file goes only when its number says that no intent can name it any more."""

from __future__ import annotations

from dataclasses import replace

import pytest

from snowmelt.commit.cleaning import CleaningView, Leftovers, RewritesUnderWay, deletable, may_be_named, sweep_due
from snowmelt.commit.records import Entry, Intent, Staged, StagedFor, StagedName, generation_of

STANDING = CleaningView(generation=5, epoch=7, intent_generation=5, named=frozenset(), jobs=20, under_way=frozenset({18, 20}))


def log(epoch: int, generation: int = 5) -> StagedName:
    return StagedName(generation, StagedFor.EPOCH, epoch, "n", "f")


def chunk(job: int, generation: int = 5) -> StagedName:
    return StagedName(generation, StagedFor.CHUNK, job, "n", "f")


def naming(*names: StagedName) -> CleaningView:
    return replace(STANDING, named={str(name) for name in names})


def rewrite(job: int, generation: int = 5) -> StagedName:
    return StagedName(generation, StagedFor.REWRITE, job, "n", "f")


class TestOfTheLog:
    def test_a_failed_jobs_files_stay_until_the_intent_of_their_epoch_exists(self) -> None:
        """C2: a failed job is no rollback."""
        assert not deletable(log(8), STANDING)
        assert deletable(log(8), replace(STANDING, epoch=8))

    def test_what_a_slow_driver_staged_for_the_open_epoch_stays_when_a_newer_one_takes_over(self) -> None:
        """C3: its put can still win, and its intent would name files that are gone."""
        taking_over = replace(STANDING, generation=6, jobs=0, under_way=frozenset())
        assert not deletable(log(8, generation=5), taking_over)
        assert not deletable(log(8, generation=4), taking_over)
        assert deletable(log(7, generation=4), taking_over)

    def test_what_an_intent_names_stays(self) -> None:
        """C2: also of the epoch that is open, whoever rolls it forward."""
        assert not deletable(log(7), naming(log(7)))
        assert not deletable(log(6, generation=2), naming(log(6, generation=2)))

    def test_another_try_of_an_epoch_that_was_won_goes(self) -> None:
        lost = StagedName(5, StagedFor.EPOCH, 7, "lost", "f")
        assert deletable(lost, naming(log(7)))


class TestOfChunks:
    def test_a_chunk_that_waits_for_a_later_epoch_stays_whatever_intents_exist(self) -> None:
        """A4: staged while 7 is open, adopted in 12; an epoch's rule would delete it after 7."""
        for epoch in (6, 7, 11, 99):
            assert not deletable(chunk(18), replace(STANDING, epoch=epoch))

    def test_a_chunk_that_was_given_back_or_adopted_from_another_read_goes(self) -> None:
        assert deletable(chunk(19), STANDING)
        assert not deletable(chunk(19), naming(chunk(19)))

    def test_a_chunk_that_this_driver_has_not_launched_yet_stays(self) -> None:
        """Numbers of jobs are taken before anything is staged; one that is not known here is not judged."""
        assert not deletable(chunk(21), STANDING)

    def test_an_older_drivers_chunk_goes_once_an_intent_of_a_newer_one_exists(self) -> None:
        """A4: before, the older one can still win the next intent."""
        started = replace(STANDING, generation=6, intent_generation=5)
        assert not deletable(chunk(19, generation=5), started)
        assert deletable(chunk(19, generation=4), started)
        won = replace(started, intent_generation=6)
        assert deletable(chunk(19, generation=5), won)
        assert not deletable(chunk(19, generation=5), replace(won, named={str(chunk(19, generation=5))}))

    def test_a_job_of_an_older_driver_is_not_mistaken_for_one_of_ours_that_is_over(self) -> None:
        started = replace(STANDING, generation=6, intent_generation=5)
        assert deletable(chunk(1, generation=6), started)
        assert not deletable(chunk(1, generation=5), started)

    def test_a_newer_drivers_chunk_is_none_of_ours(self) -> None:
        assert not deletable(chunk(1, generation=9), STANDING)


class TestOfRewrites:
    """No intent names their files: the driver that launched one publishes it."""

    STANDING = replace(STANDING, rewrites=RewritesUnderWay(20, frozenset({18, 20})), table_generation=5)

    def test_what_waits_to_be_published_stays_and_what_is_over_goes(self) -> None:
        assert not deletable(rewrite(18), self.STANDING)
        assert deletable(rewrite(19), self.STANDING)

    def test_a_rewrite_that_this_driver_has_not_launched_is_not_judged(self) -> None:
        """Also one of `snowmelt maintain`, whose numbers are above those of any driver."""
        assert not deletable(rewrite(21), self.STANDING)

    def test_what_an_older_driver_rewrote_stays_until_a_newer_one_has_committed_to_the_table(self) -> None:
        """Until then its publish may still win, and the table would name files that are gone."""
        started = replace(self.STANDING, generation=6, table_generation=5)
        assert not deletable(rewrite(19, generation=5), started)
        assert deletable(rewrite(19, generation=4), started)
        assert deletable(rewrite(19, generation=5), replace(started, table_generation=6))

    def test_nothing_is_proven_of_a_table_that_has_no_commit_of_ours(self) -> None:
        assert not deletable(rewrite(19, generation=1), replace(self.STANDING, table_generation=0))

    def test_an_intent_of_a_newer_driver_for_other_tables_proves_nothing(self) -> None:
        won = replace(self.STANDING, generation=6, intent_generation=6, epoch=99, table_generation=5)
        assert not deletable(rewrite(19, generation=5), won)


def test_an_intent_tells_its_driver() -> None:
    assert (generation_of("12-ab"), generation_of("")) == (12, 0)


def files(*names: StagedName) -> Staged:
    return Staged(tuple(str(name) for name in names), (b"m",), 1)


def intent(epoch: int, *names: StagedName) -> Intent:
    entry = Entry(
        target="ods.t", uuid="u", buckets=2, schema=0, new_schema=None, base=0, empties=(), files=tuple(str(name) for name in names)
    )
    return Intent(
        epoch=epoch, generation=5, nonce="n", after=0, upto=1, time_ms=None, facts=(), entries=(entry,), sequence_max=3, segment=1
    )


class TestWhatTasksReported:
    def test_what_a_won_intent_names_is_never_left_over(self) -> None:
        leftovers = Leftovers()
        leftovers.reported("ods.t", files(log(7), StagedName(5, StagedFor.EPOCH, 7, "n", "g")))
        leftovers.reported("ods.t", files(chunk(19)))
        leftovers.won(intent(7, chunk(19), log(7), StagedName(5, StagedFor.EPOCH, 7, "n", "g")))
        assert leftovers.take(STANDING) == []

    def test_what_was_dropped_goes_once_its_number_says_so_and_is_given_out_once(self) -> None:
        leftovers = Leftovers()
        refused, given_back, waiting = files(log(8)), files(chunk(19)), files(chunk(20))
        for one in (refused, given_back, waiting):
            leftovers.reported("ods.t", one)
        assert leftovers.take(STANDING) == [("ods.t", given_back)]
        leftovers.won(intent(8, StagedName(5, StagedFor.EPOCH, 8, "again", "f")))
        assert leftovers.take(replace(STANDING, epoch=8)) == [("ods.t", refused)]
        assert leftovers.take(replace(STANDING, epoch=8)) == []

    def test_what_an_intent_that_is_asked_for_names_stays(self) -> None:
        """It was not won yet, or nobody knows whether it was."""
        leftovers = Leftovers()
        leftovers.reported("ods.t", files(chunk(19)))
        assert leftovers.take(naming(chunk(19))) == []

    def test_a_task_without_files_leaves_nothing(self) -> None:
        leftovers = Leftovers()
        leftovers.reported("ods.t", files())
        assert leftovers.take(STANDING) == []


class TestSweeps:
    def test_the_first_comes_at_once(self) -> None:
        assert sweep_due(1, last=None, every=1_000, failed=False)

    def test_later_ones_come_the_more_rarely_the_more_epochs_there_were(self) -> None:
        assert not sweep_due(999, last=0, every=1_000, failed=False)
        assert sweep_due(1_000, last=0, every=1_000, failed=False)
        assert not sweep_due(149_999, last=100_000, every=1_000, failed=False)
        assert sweep_due(150_000, last=100_000, every=1_000, failed=False)

    def test_after_a_job_that_failed_the_next_comes_sooner_but_not_for_each_of_them(self) -> None:
        assert not sweep_due(100_999, last=100_000, every=1_000, failed=True)
        assert sweep_due(101_000, last=100_000, every=1_000, failed=True)


VIEW = CleaningView(
    generation=5, epoch=7, intent_generation=5, jobs=3, under_way={2}, named={"sm-5-e7-won-f"}, rewrites=RewritesUnderWay(3, {2})
)


@pytest.mark.parametrize("name", ["sm-5-e8-next-f", "sm-5-e7-won-f", "sm-5-c2-read-f", "sm-5-r2-merge-f", "sm-4-r1-older-f"])
def test_what_an_intent_or_a_rewrite_may_still_bring_is_no_orphan(name: str) -> None:
    assert may_be_named(name, VIEW)


@pytest.mark.parametrize("name", ["sm-5-e7-lost-f", "sm-5-c3-back-f", "sm-5-r3-over-f", "sm-4-c9-dead-f", "data-1.parquet", "manifest-1"])
def test_what_nothing_can_bring_any_more_may_be_one(name: str) -> None:
    assert not may_be_named(name, VIEW)
