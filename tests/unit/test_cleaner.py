"""Staged files that no intent can name any more are really deleted, in the thread beside the loop and by a sweep."""

from __future__ import annotations

from typing import Any

from snowmelt.commit.cleaning import CleaningView
from snowmelt.commit.records import Staged
from snowmelt.engine.driver.cleaning import Cleaner, sweep

TARGET = "ods.orders"
STANDING = CleaningView(generation=5, epoch=7, intent_generation=5, named={"sm-5-e7-won-f"}, jobs=20, under_way={18})


class Lake:
    """It has files, of which snapshots refer to some."""

    def __init__(self, *staged: str, referenced: str = "") -> None:
        self.files = [*staged, referenced]
        self._referenced = {referenced}

    def staged(self, target: str) -> list[str]:
        return [name for name in self.files if name]

    def referenced(self, target: str) -> set[str]:
        return self._referenced

    def delete(self, target: str, names: list[str]) -> None:
        assert target == TARGET
        self.files = [name for name in self.files if name not in names]

    def discard(self, target: str, staged: Staged) -> None:
        self.delete(target, list(staged.files))


class Jobs:
    def submit(self, *_: Any) -> None:
        pass


class Place:
    def __init__(self, lake: Lake) -> None:
        self._lake = lake

    def lake(self) -> Lake:
        return self._lake


def test_files_that_a_dropped_job_left_are_deleted_once_their_epoch_is_won() -> None:
    lake: Any = Lake("sm-5-e7-won-f", "sm-5-e7-dropped-f", "sm-5-e8-next-f", "sm-5-c18-read-f")
    jobs: Any = Jobs()
    place: Any = Place(lake)
    cleaner = Cleaner(jobs, place, every=20)
    for name in lake.staged(TARGET):
        cleaner.reported(TARGET, Staged((name,), (b"m",), 1))
    cleaner.discard(cleaner.leftovers.take(STANDING))
    cleaner._thread.shutdown()
    assert lake.staged(TARGET) == ["sm-5-e7-won-f", "sm-5-e8-next-f", "sm-5-c18-read-f"]


def test_a_sweep_deletes_what_no_intent_and_no_snapshot_names() -> None:
    lake: Any = Lake("sm-5-e7-won-f", "sm-3-e6-dead-f", "sm-5-e8-next-f", "sm-4-c2-dead-f", referenced="sm-2-e3-old-f")
    assert sweep(lake, TARGET, STANDING) == 2
    assert lake.staged(TARGET) == ["sm-5-e7-won-f", "sm-5-e8-next-f", "sm-2-e3-old-f"]
