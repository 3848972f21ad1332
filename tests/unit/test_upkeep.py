"""What fails in the thread of maintenance is an outcome, and never an end."""

from __future__ import annotations

from typing import Any

import pytest

from snowmelt.commit.cleaning import CleaningView, RewritesUnderWay
from snowmelt.commit.ledger import Ledger
from snowmelt.engine.maintenance.upkeep import Upkeep, attempt
from snowmelt.errors import Corrupt, InvalidConfig
from snowmelt.maintenance.lane_steps import FilesDiscarded, LaneStepFailed, LookAtFiles


class Thread:
    def __init__(self, error: Exception | None) -> None:
        self._error = error

    def act(self, step: LookAtFiles) -> FilesDiscarded:
        if self._error is not None:
            raise self._error
        return FilesDiscarded(step.target)


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (None, ""),
        (InvalidConfig("the warehouse refuses access", detail="ods.t"), "the warehouse refuses access: ods.t"),
        (Corrupt("a lake table's metadata can't be read"), "a lake table's metadata can't be read"),
        # What an error that is not ours says may hold anything.
        (ValueError("secret"), "ValueError"),
    ],
)
def test_an_error_of_a_step_is_told_and_ends_nothing(error: Exception | None, why: str) -> None:
    thread: Any = Thread(error)
    outcome = FilesDiscarded("ods.t") if error is None else LaneStepFailed("ods.t")
    assert attempt(thread, LookAtFiles("ods.t")) == (outcome, why)


class Place:
    generation = 5

    def maintenance(self) -> Any:
        raise AssertionError("nothing is due")

    lake = maintenance


def test_a_bug_in_the_lane_ends_maintenance_alone(caplog: pytest.LogCaptureFixture) -> None:
    place: Any = Place()
    nothing: Any = None
    upkeep = Upkeep(Ledger(), nothing, place, nothing, lambda _: None, slots=1, wake=lambda: None)
    upkeep._apply(FilesDiscarded("ods.unknown"))
    assert "ended by a bug" in caplog.text
    upkeep.turn(lambda _: VIEW, paused=False)
    upkeep.done(None)
    upkeep.close()


VIEW = CleaningView(
    generation=5, epoch=7, intent_generation=5, jobs=3, under_way={2}, named={"sm-5-e7-won-f"}, rewrites=RewritesUnderWay(3, {2})
)
