"""A lake table is dropped by its identity: the one that another driver made in its place stays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from snowmelt.errors import SourceDrift
from snowmelt.sinks.paimon import dropping
from snowmelt.sinks.paimon.sink import PaimonSink
from snowmelt.sinks.warehouse import Warehouse
from tests.integration.paimon_tables import BUCKETS, KEYED, SCHEMA, Row, bring, folder, make_tables, open_sink, read
from tests.kit.s3 import BUCKET, KEY_ID, PASSWORD, S3Server, s3_server

LOW: Row = (1, "low", 10)
HIGH: Row = (2, "high", 20)


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


def remake(lake: PaimonSink, identity: str) -> None:
    lake.remake(KEYED, SCHEMA, ["id"], buckets=BUCKETS, identity=identity)


def sleep_at(monkeypatch: pytest.MonkeyPatch, step: str, newer: PaimonSink, *, after: bool) -> None:
    """The next drop sleeps before or after a step. Meanwhile a newer driver makes the table anew and goes on."""
    real = getattr(dropping, step)

    def work_of_the_newer() -> None:
        monkeypatch.setattr(dropping, step, real)
        remake(newer, newer.identity(KEYED))
        bring(newer, 2, KEYED, HIGH)

    def sleeping(*arguments: object) -> None:
        if not after:
            work_of_the_newer()
        try:
            real(*arguments)
        finally:
            if after:
                work_of_the_newer()

    monkeypatch.setattr(dropping, step, sleeping)


@pytest.mark.parametrize(("step", "after"), [("_drop_folder", False), ("_check_same", False), ("_check_same", True), ("_empty", False)])
def test_a_driver_that_slept_while_it_dropped_a_table_leaves_the_one_that_was_made_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, after: bool
) -> None:
    lake, newer = make_tables(tmp_path), open_sink(tmp_path)
    bring(lake, 1, KEYED, LOW)
    seen = lake.identity(KEYED)
    sleep_at(monkeypatch, step, newer, after=after)
    with pytest.raises(SourceDrift, match="made anew meanwhile"):
        remake(lake, seen)
    assert read(lake, KEYED) == [HIGH]
    with pytest.raises(SourceDrift, match="made anew meanwhile"):
        remake(lake, seen)
    bring(newer, 3, KEYED, LOW)
    assert read(lake, KEYED) == [LOW, HIGH]


def test_a_drop_that_was_broken_off_is_repeated_and_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake, empty = make_tables(tmp_path), dropping._empty
    bring(lake, 1, KEYED, LOW)
    bring(lake, 2, KEYED, HIGH)
    seen = lake.identity(KEYED)

    def died(handle: int, kept: str, still: Callable[[], None]) -> None:
        empty(handle, kept, still)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(dropping, "_empty", died)
        with pytest.raises(KeyboardInterrupt):
            remake(lake, seen)
    assert lake.identity(KEYED) == seen
    remake(lake, seen)
    assert lake.identity(KEYED) not in ("", seen)
    assert sorted(path.name for path in folder(lake, KEYED).iterdir()) == ["schema"]
    bring(lake, 3, KEYED, LOW)
    assert read(lake, KEYED) == [LOW]


def test_a_late_file_in_the_folder_does_not_keep_a_table_from_being_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake, empty = make_tables(tmp_path), dropping._empty
    bring(lake, 1, KEYED, LOW)

    def late(handle: int, kept: str, still: Callable[[], None]) -> None:
        empty(handle, kept, still)
        (folder(lake, KEYED) / "late").mkdir(exist_ok=True)

    monkeypatch.setattr(dropping, "_empty", late)
    remake(lake, lake.identity(KEYED))
    bring(lake, 2, KEYED, HIGH)
    assert read(lake, KEYED) == [HIGH]


def test_a_driver_that_slept_leaves_a_table_that_was_made_meanwhile_in_the_very_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A late writer's file has kept the folder. So the handle that the older driver holds is of the new table's folder, too."""
    lake, newer, empty = make_tables(tmp_path), open_sink(tmp_path), dropping._empty
    bring(lake, 1, KEYED, LOW)
    seen, path = lake.identity(KEYED), folder(lake, KEYED)

    def late(handle: int, kept: str, still: Callable[[], None]) -> None:
        empty(handle, kept, still)
        (path / "late").mkdir(exist_ok=True)

    def sleeping(handle: int, kept: str, still: Callable[[], None]) -> None:
        monkeypatch.setattr(dropping, "_empty", late)
        remake(newer, seen)
        monkeypatch.setattr(dropping, "_empty", empty)
        bring(newer, 2, KEYED, HIGH)
        empty(handle, kept, still)

    monkeypatch.setattr(dropping, "_empty", sleeping)
    with pytest.raises(SourceDrift, match="made anew meanwhile"):
        remake(lake, seen)
    assert read(lake, KEYED) == [HIGH]
    bring(newer, 3, KEYED, LOW)
    assert read(lake, KEYED) == [LOW, HIGH]


def test_in_a_bucket_no_object_of_a_table_that_was_made_meanwhile_is_deleted(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {
        "s3.endpoint": s3.endpoint,
        "s3.region": "us-east-1",
        "s3.path.style.access": "true",
        "s3.access-key": KEY_ID,
        "s3.secret-key": PASSWORD,
    }
    warehouse = Warehouse(f"s3://{BUCKET}/dropped", tuple(options.items()))
    lake, newer = (PaimonSink(warehouse, user="snowmelt") for _ in range(2))
    lake.create(KEYED, SCHEMA, ["id"], buckets=BUCKETS)
    bring(lake, 1, KEYED, LOW)
    seen, listed = lake.identity(KEYED), dropping._objects

    def sleeping(*arguments: object) -> list[str]:
        found = list(listed(*arguments))  # type: ignore[arg-type]
        monkeypatch.setattr(dropping, "_objects", listed)
        remake(newer, seen)
        bring(newer, 2, KEYED, HIGH)
        return found

    monkeypatch.setattr(dropping, "_objects", sleeping)
    with pytest.raises(SourceDrift, match="made anew meanwhile"):
        remake(lake, seen)
    assert read(lake, KEYED) == [HIGH]
    bring(newer, 3, KEYED, LOW)
    assert read(lake, KEYED) == [LOW, HIGH]
