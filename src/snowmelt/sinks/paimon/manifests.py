"""Manifests of a Paimon table: kept few by merging small ones, and read to tell which files are referred to.

Every commit adds a manifest and writes the list of all of them anew. Without merging a commit costs what the table has ever had.

Laws:
- Neighbours are merged in their order, into one that stands where they stood. What was added and removed among them is in neither.
- The newest commit's own manifests are left as they are: by their names a commit tells whether the next one builds on it.
- An entry is merged about once for each power of `_RUN`, and never again in a manifest of `_LARGE` entries. So what merging costs a
  commit does not grow, and the list grows by one manifest for each `_LARGE` entries. After the last large one are less than twice `_RUN`.
- A compaction takes out what was added and removed, once there is as much of that as of files. So the list is bounded by the files that
  there are, and an entry that was removed costs a few more, once.
- Manifests that were merged stay, because older snapshots name them.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any, Final

_RUN: Final = 16
_LARGE: Final = _RUN**2


def run_to_merge(sizes: Sequence[int]) -> int | None:
    """From which manifest on all are to be merged into one, by their numbers of entries from the oldest on; None: none are.

    Of those since the last large one `_RUN` are small or `_RUN` are not. Where they are small, what a compaction brought may lie among
    them, which has more entries than an epoch.
    """
    first = len(sizes)
    while first and sizes[first - 1] < _LARGE:
        first -= 1
    small = [place for place in range(first, len(sizes)) if sizes[place] < _RUN]
    if len(sizes) - first - len(small) >= _RUN:
        return first
    if len(small) < _RUN:
        return None
    # What is left before a large one would stay there.
    return first if sum(sizes[small[0] :]) >= _LARGE else small[0]


def is_wasteful(added: int, removed: int) -> bool:
    """Whether manifests with as many entries are to be written anew, without those that removed each other."""
    return removed >= max(_LARGE, added - removed)


def existing_manifests(table: Any, latest: Any, *, thoroughly: bool) -> tuple[list[Any], list[str]]:
    """The manifests that a commit on `latest` builds on, and the names of those among them that were merged just now. `thoroughly`: all
    of them are, if that takes out enough."""
    from pypaimon.manifest.manifest_file_manager import ManifestFileManager
    from pypaimon.manifest.manifest_list_manager import ManifestListManager
    from pypaimon.manifest.schema.file_entry import FileEntry

    if latest is None:
        return [], []
    lists = ManifestListManager(table)
    base, newest = lists.read_base(latest), lists.read_delta(latest)
    wasteful = thoroughly and is_wasteful(sum(meta.num_added_files for meta in base), sum(meta.num_deleted_files for meta in base))
    first = 0 if wasteful else run_to_merge([meta.num_added_files + meta.num_deleted_files for meta in base])
    if first is None:
        return [*base, *newest], []
    manifests = ManifestFileManager(table)
    entries = [entry for meta in base[first:] for entry in manifests.read(meta.file_name, drop_stats=False, file_size=meta.file_size)]
    try:
        left = FileEntry.merge_entries(entries)
    except RuntimeError:
        # A file was removed and brought again. Readers go by the order, which one manifest would not tell.
        return [*base, *newest], []
    if not table.primary_keys and not first:
        # Their order as rows are: some readers go by the place in the list alone.
        left.sort(key=lambda entry: entry.file.min_sequence_number)
    merged = manifests.rolling_write(left, table.options.manifest_target_size(), f"manifest-{uuid.uuid4()}")
    return [*base[:first], *merged, *newest], [meta.file_name for meta in merged]
