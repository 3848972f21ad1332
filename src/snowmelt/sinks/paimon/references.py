"""What in a table's folders is referred to, by path from the table's folder.

A snapshot is a tree: lists of manifests, manifests, and the files that these name. Tags are copies of snapshots, and branches have
snapshots and tags of their own; all of them share the table's folders.

Laws:
- A snapshot has what the one before it had, but for what its own manifests say. So of a row of snapshots the first is read as a whole, and
  of the others what they brought.
- Manifests are read in their order: a file that was removed and brought again is there for some readers.
- A snapshot that can't be read is expired meanwhile, or an error. It is never taken for one without files.
- The newest of the snapshots that were listed is read, or they are listed again: where all of them expire meanwhile, those that came after
  them still have their files.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any

from snowmelt import budgets
from snowmelt.errors import Unavailable
from snowmelt.sinks.paimon.table import file_path, names_in, snapshot_numbers


def lists_of(snapshot: Any) -> list[str]:
    """A snapshot's own lists of manifests."""
    names = [snapshot.base_manifest_list, snapshot.delta_manifest_list, snapshot.changelog_manifest_list]
    return [name for name in names if name]


def manifests_of(table: Any, snapshot: Any) -> dict[str, int]:
    """All manifests that a snapshot names, with their sizes."""
    from pypaimon.manifest.manifest_list_manager import ManifestListManager

    lists = ManifestListManager(table)
    return {meta.file_name: meta.file_size for name in lists_of(snapshot) for meta in lists.read(name)}


def entries_in(table: Any, metas: Iterable[Any]) -> Iterator[Any]:
    from pypaimon.manifest.manifest_file_manager import ManifestFileManager

    manifests = ManifestFileManager(table)
    for meta in metas:
        yield from manifests.read(meta.file_name, file_size=meta.file_size)


def paths_of(table: Any, entry: Any) -> list[str]:
    """The files of one entry: the data, and what lies beside it."""
    names = [entry.file.file_name, *(entry.file.extra_files or ())]
    return [path_in(table, file_path(table, tuple(entry.partition.values), entry.bucket, name)) for name in names]


def live_entries(table: Any, snapshot: Any, buckets: Iterable[int] | None = None) -> list[Any]:
    """The manifests' entries of the files that a snapshot has, the oldest first; of all buckets, or of some."""
    from pypaimon.manifest.manifest_file_manager import ManifestFileManager
    from pypaimon.manifest.manifest_list_manager import ManifestListManager

    if snapshot is None:
        return []
    wanted = None if buckets is None else frozenset(buckets)
    manifests = ManifestFileManager(table)
    found: dict[tuple[tuple[Any, ...], int, int, str], Any] = {}
    for meta in ManifestListManager(table).read_all(snapshot):
        chosen = None if wanted is None else (lambda bucket, _: bucket in wanted)
        for entry in manifests.read(meta.file_name, early_entry_filter=chosen, file_size=meta.file_size):
            known = (tuple(entry.partition.values), entry.bucket, entry.file.level, entry.file.file_name)
            if entry.kind == 0:
                found[known] = entry
            else:
                found.pop(known, None)
    entries = list(found.values())
    if not table.primary_keys:
        # As Paimon's engines order them. A compaction adds its output at the end of the list.
        entries.sort(key=lambda entry: entry.file.min_sequence_number)
    return entries


def live_paths(table: Any, snapshot: Any) -> set[str]:
    """The data files of a snapshot."""
    return {path for entry in live_entries(table, snapshot) for path in paths_of(table, entry)}


def path_in(table: Any, path: str) -> str:
    return os.path.relpath(path, str(table.table_path)) if "://" not in path else path.removeprefix(f"{table.table_path}/")


def tags_of(table: Any, branch: str = "main") -> list[Any]:
    """Copies of snapshots that tags are. One that goes while we look is none."""
    from pypaimon import TagManager

    manager = TagManager(table.file_io, table.table_path, branch)
    found = (manager.get(name.removeprefix("tag-")) for name in names_in(table, manager.tag_directory()) if name.startswith("tag-"))
    return [tag.trim_to_snapshot() for tag in found if tag is not None]


def branches_of(table: Any) -> list[str]:
    return [name.removeprefix("branch-") for name in names_in(table, f"{table.table_path}/branch") if name.startswith("branch-")]


def snapshots_of(table: Any, branch: str) -> list[Any]:
    found: list[Any] = table.snapshot_manager().copy_with_branch(branch).list_snapshots()
    return found


def changelog_paths(table: Any, snapshot: Any) -> set[str]:
    """The changelog files that a snapshot brought. No other has them."""
    from pypaimon.manifest.manifest_list_manager import ManifestListManager

    return {path for entry in entries_in(table, ManifestListManager(table).read_changelog(snapshot)) for path in paths_of(table, entry)}


def referenced_files(table: Any) -> set[str]:
    """The names of the data files that anything of a table refers to: its snapshots, tags and branches."""
    return {path.rpartition("/")[2] for path in referenced_paths(table)}


def referenced_paths(table: Any, *, metadata: bool = False) -> set[str]:
    """What anything of a table refers to. `metadata`: manifests and their lists as well."""
    known: set[str] = set()
    for branch in ["main", *branches_of(table)]:
        known |= _paths_of_snapshots(table, branch, metadata=metadata)
        for tag in tags_of(table, branch):
            known |= live_paths(table, tag) | changelog_paths(table, tag)
            known.update(_metadata(table, tag) if metadata else ())
    return known


def _paths_of_snapshots(table: Any, branch: str, *, metadata: bool) -> set[str]:
    manager = table.snapshot_manager().copy_with_branch(branch)
    for _ in budgets.PAIMON_COMMIT.tries():
        known: set[str] = set()
        numbers, before = sorted(snapshot_numbers(table, branch)), 0
        for number in numbers:
            snapshot = manager.get_snapshot_by_id(number)
            if snapshot is None:
                continue
            try:
                known |= _brought(table, snapshot) if before and before == number - 1 else live_paths(table, snapshot)
                known |= changelog_paths(table, snapshot)
                known.update(_metadata(table, snapshot) if metadata else ())
                before = number
            except FileNotFoundError:
                # Expired while we look, or broken.
                if manager.get_snapshot_by_id(number) is not None:
                    raise
        if before == max(numbers, default=0):
            return known
    hint = "let the program that expires its snapshots keep them for longer"
    raise Unavailable("a lake table's snapshots expire while they are read", detail=str(table.identifier), hint=hint)


def _brought(table: Any, snapshot: Any) -> set[str]:
    from pypaimon.manifest.manifest_list_manager import ManifestListManager

    entries = entries_in(table, ManifestListManager(table).read_delta(snapshot))
    return {path for entry in entries if entry.kind == 0 for path in paths_of(table, entry)}


def _metadata(table: Any, snapshot: Any) -> Iterator[str]:
    names = [*lists_of(snapshot), *manifests_of(table, snapshot), *([snapshot.index_manifest] if snapshot.index_manifest else [])]
    return (f"manifest/{name}" for name in names)
