"""A failure is judged once: it passes, it is one table's, or it is the pipeline's."""

from __future__ import annotations

import pickle

import pytest

from snowmelt.engine.driver.judging import Verdict, gravest, judge
from snowmelt.errors import (
    Corrupt,
    Fenced,
    InvalidConfig,
    InvariantBroken,
    OutcomeUnknown,
    SnowmeltError,
    SourceDrift,
    TableRefused,
    TableStuck,
    Unavailable,
)
from snowmelt.model.table import TableId

STUCK = TableId("shop", "orders").stuck("its key has another type", detail="id", hint="recopy")


@pytest.mark.parametrize(
    ("error", "alone", "of_one_table"),
    [
        (Unavailable("away"), Verdict.PASSES, Verdict.PASSES),
        (OutcomeUnknown("lost"), Verdict.PASSES, Verdict.PASSES),
        (STUCK, Verdict.TABLE, Verdict.TABLE),
        (SourceDrift("another schema"), Verdict.PIPELINE, Verdict.TABLE),
        (Corrupt("broken"), Verdict.PIPELINE, Verdict.TABLE),
        (InvariantBroken("a bug"), Verdict.PIPELINE, Verdict.TABLE),
        (InvalidConfig("the warehouse lets nobody in"), Verdict.PIPELINE, Verdict.PIPELINE),
        (TableRefused("no SELECT"), Verdict.PIPELINE, Verdict.TABLE),
        (Fenced("a newer driver"), Verdict.PIPELINE, Verdict.PIPELINE),
        (KeyError("a bug"), Verdict.PIPELINE, Verdict.PIPELINE),
    ],
)
def test_what_an_error_means_depends_on_what_was_asked_for(error: Exception, alone: Verdict, of_one_table: Verdict) -> None:
    assert (judge(error), judge(error, one_table=True)) == (alone, of_one_table)


def test_of_several_errors_the_gravest_decides() -> None:
    """A newer driver must not be overheard because a table is in trouble too."""
    errors: list[SnowmeltError] = [Unavailable("away"), STUCK, Fenced("a newer driver"), Corrupt("broken")]
    assert gravest(errors) is errors[2]
    assert gravest(errors[:2]) is STUCK
    assert gravest(errors[:1]) is errors[0]


def test_a_table_in_trouble_keeps_its_name_on_its_way_from_a_task() -> None:
    again = pickle.loads(pickle.dumps(STUCK))
    assert isinstance(again, TableStuck)
    assert (again.table, str(again)) == (("shop", "orders"), "its key has another type: id (hint: recopy)")
