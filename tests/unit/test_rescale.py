"""The order in which a table gets another number of buckets while epochs go on."""

from __future__ import annotations

import pytest

from snowmelt.commit.records import Staged
from snowmelt.errors import InvariantBroken
from snowmelt.maintenance.compaction import LEVEL_MAX
from snowmelt.maintenance.files import BucketFiles, DataFile, TableFiles
from snowmelt.maintenance.rescale import (
    CLOSE_BYTES,
    FAILURES_MAX,
    ROUNDS_MAX,
    DiscardAll,
    LookAtTable,
    OfferAll,
    Rescale,
    RescaleRequest,
    RescaleState,
    RescaleStep,
    RewriteInto,
)

TARGET = "ods.orders"
ALIVE = 7


def table(*buckets: tuple[int, tuple[str, ...]], size: int = 10, snapshot: int = 5, identity: str = "t") -> TableFiles:
    def files(names: tuple[str, ...]) -> tuple[DataFile, ...]:
        return tuple(DataFile(name=name, level=0, size_bytes=size, rows=1, deletes=0, created_ms=0) for name in names)

    found = tuple(BucketFiles(partition=(), bucket=bucket, files=files(names)) for bucket, names in buckets)
    return TableFiles(snapshot=snapshot, identity=identity, schema=0, keyed=True, buckets=found)


def staged(name: str) -> Staged:
    return Staged((name,), (name.encode(),), 1)


def begun(*, tasks_max: int = 2) -> Rescale:
    return Rescale(RescaleRequest(TARGET, 8), tasks_max=tasks_max, file_bytes=100)


def step(rescale: Rescale, *, at_rest: bool = False, incarnation: int | None = ALIVE) -> RescaleStep | None:
    return rescale.next_step(incarnation=incarnation, at_rest=at_rest)


def rewriting(rescale: Rescale, *, at_rest: bool = False) -> list[tuple[int, tuple[str, ...], int, bool]]:
    """The works of a whole round, each staged as its first input's name."""
    found = []
    while isinstance(works := step(rescale, at_rest=at_rest), RewriteInto):
        found += [(work.bucket, work.inputs, work.level, work.drops_deletes) for work in works.works]
        rescale.rewrote([staged(f"new-{work.inputs[0]}") for work in works.works])
        if rescale.state in (RescaleState.LOOKING, RescaleState.LAST_LOOK):
            return found
    raise AssertionError(works)


def test_a_large_table_is_rewritten_beside_the_epochs_and_what_they_bring_while_they_wait() -> None:
    rescale, large = begun(), CLOSE_BYTES
    assert step(rescale) == LookAtTable()
    assert step(rescale) is None, "it was asked already"
    rescale.saw(table((0, ("a", "b")), (1, ("c",)), (2, ("d",)), size=large))
    assert (rescale.begun, rescale.closed) == (True, False)
    first = rewriting(rescale)
    assert first == [(0, ("a", "b"), LEVEL_MAX, True), (1, ("c",), LEVEL_MAX, True), (2, ("d",), LEVEL_MAX, True)]
    assert step(rescale) == LookAtTable()
    # An epoch has brought a little.
    rescale.saw(table((0, ("a", "b", "e")), (1, ("c",)), (2, ("d",)), snapshot=6))
    assert rescale.closed
    assert step(rescale) is None, "an epoch is under way"
    assert step(rescale, at_rest=True) == LookAtTable()
    # It has ended, and brought more, to a bucket without files, too.
    rescale.saw(table((0, ("a", "b", "e", "f")), (1, ("c",)), (2, ("d",)), (3, ("g",)), snapshot=7))
    assert rewriting(rescale, at_rest=True) == [(0, ("e", "f"), 0, False), (3, ("g",), LEVEL_MAX, True)]
    assert step(rescale, at_rest=True) == LookAtTable()
    rescale.saw(table((0, ("a", "b", "e", "f")), (1, ("c",)), (2, ("d",)), (3, ("g",)), snapshot=7))
    names = ["new-a", "new-c", "new-d", "new-e", "new-g"]
    assert step(rescale, at_rest=True) == OfferAll(tuple(map(staged, names)), 7)
    rescale.took()
    assert rescale.closed
    assert step(rescale) is None
    rescale.ended(won=True)
    assert (rescale.state, rescale.over, rescale.begun, rescale.closed) == (RescaleState.DONE, True, False, False)


def test_a_table_that_grows_as_fast_as_it_is_rewritten_lets_epochs_wait_in_the_end() -> None:
    rescale, names = begun(), list[str]()
    for number in range(ROUNDS_MAX):
        assert step(rescale) == LookAtTable()
        names.append(f"a{number}")
        rescale.saw(table((0, tuple(names)), size=CLOSE_BYTES + 1))
        assert not rescale.closed
        rewriting(rescale)
    assert step(rescale) == LookAtTable()
    rescale.saw(table((0, (*names, "last")), size=CLOSE_BYTES + 1))
    assert rescale.closed


def test_it_waits_for_a_table_that_is_not_live_and_an_empty_one_is_offered_as_it_is() -> None:
    rescale = begun()
    assert step(rescale, incarnation=None) is None
    assert not rescale.begun
    assert step(rescale) == LookAtTable()
    rescale.saw(table(snapshot=0))
    assert step(rescale, at_rest=True) == LookAtTable()
    rescale.saw(table(snapshot=0))
    assert step(rescale) == OfferAll((), 0)


@pytest.mark.parametrize("anew", [table((0, ("b",))), table((0, ("a", "b")), identity="another")])
def test_what_was_rewritten_and_is_gone_or_another_tables_is_thrown_away(anew: TableFiles) -> None:
    rescale = begun()
    step(rescale)
    rescale.saw(table((0, ("a",)), size=CLOSE_BYTES + 1))
    rewriting(rescale)
    assert step(rescale) == LookAtTable()
    rescale.saw(anew)
    assert step(rescale) == DiscardAll((staged("new-a"),))
    rescale.discarded()
    assert (rescale.state, rescale.closed) == (RescaleState.WAITING, False)
    assert step(rescale) == LookAtTable()
    rescale.saw(table((0, ("b",)), size=CLOSE_BYTES + 1))
    assert rewriting(rescale) == [(0, ("b",), LEVEL_MAX, True)]


@pytest.mark.parametrize("incarnation", [None, ALIVE + 1])
def test_a_table_that_is_emptied_or_copied_again_meanwhile_begins_anew(incarnation: int | None) -> None:
    rescale = begun()
    step(rescale)
    rescale.saw(table((0, ("a",))))
    assert rescale.closed
    assert step(rescale, at_rest=True, incarnation=incarnation) == DiscardAll(())
    rescale.discarded()
    assert step(rescale, incarnation=None) is None


def test_an_offer_that_was_dropped_or_lost_begins_it_anew() -> None:
    rescale = begun()
    step(rescale)
    rescale.saw(table())
    step(rescale, at_rest=True)
    rescale.saw(table())
    step(rescale, at_rest=True)
    rescale.took()
    assert step(rescale, incarnation=None) is None, "an intent may name the files"
    rescale.ended(won=False)
    assert step(rescale) == DiscardAll(())


def test_one_whose_epoch_is_dropped_again_and_again_is_refused_and_epochs_go_on() -> None:
    """Each time all rows are written anew, and epochs wait."""
    rescale = begun()
    for _ in range(FAILURES_MAX):
        step(rescale)
        rescale.saw(table())
        step(rescale, at_rest=True)
        rescale.saw(table())
        step(rescale, at_rest=True)
        rescale.took()
        rescale.ended(won=False)
        step(rescale)
        rescale.discarded()
    assert (rescale.state, rescale.closed) == (RescaleState.REFUSED, False)
    assert "dropped" in rescale.why


def test_one_that_fails_again_and_again_is_refused_and_says_why() -> None:
    rescale = begun()
    for number in range(FAILURES_MAX):
        assert step(rescale) == LookAtTable()
        if number % 2:
            rescale.saw(table((0, ("a",)), size=CLOSE_BYTES + 1))
            step(rescale)
        rescale.failed("the disk is full")
        assert step(rescale) == DiscardAll(())
        rescale.discarded()
    assert (rescale.state, rescale.why, rescale.over, rescale.closed) == (RescaleState.REFUSED, "the disk is full", True, False)
    assert step(rescale) is None


def test_an_outcome_that_nothing_asked_for_is_a_bug() -> None:
    with pytest.raises(InvariantBroken, match="invalid transition of a rescale"):
        begun().took()
    with pytest.raises(InvariantBroken, match="no task"):
        begun(tasks_max=0)
