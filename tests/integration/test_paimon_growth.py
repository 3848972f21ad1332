"""What a task's writer, a commit and a cleaning pass open does not grow with the commits that a table has had."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from snowmelt.sinks.paimon.sink import PaimonSink
from tests.integration.paimon_tables import KEYED, PLAIN, Row, bring, entry_of, folder, intent_of, make_tables, read, stage

FEW, MANY = 50, 300
RUN = 16


class Opened:
    """Counts the files that pypaimon opens to read, by the folder they lie in."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from pypaimon.filesystem.local_file_io import LocalFileIO

        self.files: Counter[str] = Counter()
        opened = LocalFileIO.new_input_stream

        def count(io: Any, path: str, *rest: Any, **more: Any) -> Any:
            self.files[Path(path).parent.name] += 1
            return opened(io, path, *rest, **more)

        monkeypatch.setattr(LocalFileIO, "new_input_stream", count)


@pytest.fixture
def lake(tmp_path: Path) -> PaimonSink:
    return make_tables(tmp_path)


@pytest.mark.parametrize("target", [KEYED, PLAIN])
def test_a_tasks_writer_opens_no_manifest(lake: PaimonSink, target: str) -> None:
    bring(lake, 1, target, (1, "a", 10), (2, "a", 12))
    manifests = folder(lake, target) / "manifest"
    manifests.rename(manifests.with_name("hidden"))
    part = stage(lake, target, [(1, "b", 20), (3, "c", 22)], number=2)
    manifests.with_name("hidden").rename(manifests)
    entry = entry_of(lake, target, part)
    lake.commit(intent_of(2, entry), entry)
    after = [(1, "b", 20), (2, "a", 12), (3, "c", 22)]
    assert read(lake, target) == (after if target == KEYED else sorted([*after, (1, "a", 10)]))


def test_a_commit_opens_no_more_files_for_a_table_that_has_had_many(lake: PaimonSink, monkeypatch: pytest.MonkeyPatch) -> None:
    from pypaimon.manifest.manifest_list_manager import ManifestListManager

    opened = Opened(monkeypatch)
    seen: list[int] = []
    rows: dict[int, Row] = {}
    for epoch in range(1, MANY + 1):
        # Now and then all that is there is removed, so that manifests tell of that too.
        empties = ("shop.orders",) if epoch % 70 == 0 else ()
        brought = [(key, str(epoch), 2 * epoch) for key in (epoch, epoch + 1)]
        rows = {**({} if empties else rows), **{row[0]: row for row in brought}}
        opened.files.clear()
        bring(lake, epoch, KEYED, *brought, empties=empties)
        if not empties:
            seen.append(sum(opened.files.values()))
    early, late = seen[2:FEW], seen[-FEW:]
    assert max(late) <= max(early) + RUN, "of those that merge, because there is one more round of it"
    assert median(late) == median(early)
    table = lake.table(KEYED)
    assert len(ManifestListManager(table).read_all(table.snapshot_manager().get_latest_snapshot())) <= 3 * RUN
    assert read(lake, KEYED) == sorted(rows.values())
