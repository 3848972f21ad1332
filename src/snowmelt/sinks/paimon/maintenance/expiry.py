"""Snapshots of a table that go, and what only they named.

Laws:
- Files that only they had are found in the manifests of their commits and not by a look at all files (`maintenance.expiry.GoingFiles`).
- A branch has what it began with.
- The hint, then the snapshots, then data files, manifests, lists. So whatever stops it, a snapshot that is there has all that it names.
- Tags are read once the snapshots are gone: none can be made of them any more.
- Snapshots are judged and go in one table: one of the same name that was made later has other snapshots under their numbers.
- The newest snapshot stays, as does the newest that names a commit of ours. Of Fluss' tiering the last two stay, because Fluss may not have
  heard of the last.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from snowmelt.errors import InvalidConfig
from snowmelt.maintenance.expiry import GoingFiles, count_removable
from snowmelt.maintenance.files import SnapshotFacts, TableHistory
from snowmelt.model.moment import TimeMs
from snowmelt.sinks.maintenance import Expired
from snowmelt.sinks.paimon import references, tiering
from snowmelt.sinks.paimon.markers import marker_of
from snowmelt.sinks.paimon.table import identity_of, local_path, names_in, remove_files, snapshot_numbers, sync_folders

_DECOUPLED: Final = ("changelog.num-retained.min", "changelog.num-retained.max", "changelog.time-retained")
_CONSUMER: Final = "consumer-"


class Histories:
    """What was read of tables' snapshots, which never change. In memory as many as there are."""

    def __init__(self) -> None:
        self._known: dict[str, dict[int, tuple[SnapshotFacts, bool]]] = {}
        """By the table's identity and the snapshot's number. The second: it is a round of Fluss' tiering."""

    def read(self, table: Any, identity: str) -> TableHistory:
        known = self._known.get(identity, {})
        manager = table.snapshot_manager()
        found: dict[int, tuple[SnapshotFacts, bool]] = {}
        for number in sorted(snapshot_numbers(table)):
            if number in known:
                found[number] = known[number]
            elif (snapshot := manager.get_snapshot_by_id(number)) is not None:
                found[number] = (_facts(snapshot), snapshot.commit_user == tiering.USER)
        # Before the holders, so that one that came meanwhile is seen.
        self._known[identity] = found
        rounds = [number for number, (_, is_round) in found.items() if is_round]
        held = [*_consumers(table), *rounds[-2:]]
        snapshots = tuple(facts for facts, _ in found.values())
        return TableHistory(identity=identity, snapshots=snapshots, held_from=min(held, default=None))


def _facts(snapshot: Any) -> SnapshotFacts:
    marker = marker_of(snapshot)
    epoch = marker.epoch if marker is not None else None
    return SnapshotFacts(number=int(snapshot.id), time_ms=TimeMs(snapshot.time_millis), epoch=epoch)


def _consumers(table: Any) -> list[int]:
    """The snapshots that consumers read next. One that is cut short by its writer holds everything, until it is whole."""
    found = []
    folder = f"{table.table_path}/consumer"
    for name in names_in(table, folder):
        if name.startswith(_CONSUMER):
            with contextlib.suppress(FileNotFoundError):
                try:
                    found.append(int(json.loads(table.file_io.read_file_utf8(f"{folder}/{name}"))["nextSnapshot"]))
                except (ValueError, KeyError, TypeError):
                    found.append(1)
    return found


# ---- expiry


@dataclass(slots=True)
class _Going:
    """What goes with some snapshots."""

    data: GoingFiles = field(default_factory=GoingFiles)
    """Data and changelog files."""
    manifests: dict[str, int] = field(default_factory=dict)
    lists: dict[str, int] = field(default_factory=dict)

    def keep(self, data: set[str], manifests: Sequence[str], lists: Sequence[str]) -> None:
        self.data.keep(data)
        for name in manifests:
            self.manifests.pop(name, None)
        for name in lists:
            self.lists.pop(name, None)


def expire(table: Any, identity: str, histories: Histories, numbers: Sequence[int]) -> Expired:
    """`identity`: of the table in which these were seen."""
    nothing = Expired(snapshots=0, files=0, size_bytes=0)
    check_coupled(table)
    if identity_of(table) != identity:
        return nothing
    history = histories.read(table, identity)
    there = [facts.number for facts in history.snapshots]
    count = count_removable(history, numbers)
    if not count:
        return nothing
    manager = table.snapshot_manager()
    gone = [snapshot for number in there[:count] if (snapshot := manager.get_snapshot_by_id(number)) is not None]
    first = manager.get_snapshot_by_id(there[count])
    if first is None:
        # Another program expires them.
        return nothing
    going = _going(table, gone, first)
    if identity_of(table) != identity:
        return nothing

    _write_hint(table, there[count])
    remove_files(table, [f"snapshot/snapshot-{number}" for number in there[:count]])
    sync_folders(table, ["snapshot"])
    _keep_tagged(table, going, there[count])
    remove_files(table, going.data)
    remove_files(table, [f"manifest/{name}" for name in (*going.manifests, *going.lists)])
    metadata = [*going.manifests.values(), *going.lists.values()]
    return Expired(snapshots=count, files=len(going.data) + len(metadata), size_bytes=going.data.size_bytes + sum(metadata))


def check_coupled(table: Any) -> None:
    """A table's changelogs go with its snapshots."""
    options = table.options.options.to_map()
    if decoupled := [name for name in _DECOUPLED if options.get(name)]:
        hint = "leave the expiry of this table to Paimon's own"
        detail = f"{table.identifier}: {decoupled[0]}"
        raise InvalidConfig("a lake table keeps changelogs for longer than snapshots", detail=detail, hint=hint)


def _going(table: Any, gone: Sequence[Any], first: Any) -> _Going:
    from pypaimon.manifest.manifest_list_manager import ManifestListManager

    lists = ManifestListManager(table)
    going = _Going()
    for snapshot in [*gone[1:], first]:
        removed: dict[str, int] = {}
        brought: set[str] = set()
        for entry in references.entries_in(table, lists.read_delta(snapshot)):
            paths = references.paths_of(table, entry)
            if entry.kind == 0:
                brought.update(paths)
            else:
                removed |= {path: entry.file.file_size if not place else 0 for place, path in enumerate(paths)}
        going.data.commit(snapshot.id, brought=brought, removed=removed)
    for snapshot in gone:
        for entry in references.entries_in(table, lists.read_changelog(snapshot)):
            going.data.drop(snapshot.id + 1, dict.fromkeys(references.paths_of(table, entry), entry.file.file_size))
        going.manifests |= references.manifests_of(table, snapshot)
        sizes = snapshot.base_manifest_list_size, snapshot.delta_manifest_list_size, snapshot.changelog_manifest_list_size
        names = snapshot.base_manifest_list, snapshot.delta_manifest_list, snapshot.changelog_manifest_list
        going.lists |= {name: size or 0 for name, size in zip(names, sizes, strict=True) if name}
    going.keep(set(), list(references.manifests_of(table, first)), references.lists_of(first))
    return going


def _keep_tagged(table: Any, going: _Going, first: int) -> None:
    """Take out what tags and branches need."""
    tags = {tag.id: tag for tag in references.tags_of(table) if tag.id < first}
    for tag in tags.values():
        going.keep(set(), list(references.manifests_of(table, tag)), references.lists_of(tag))
        going.keep(references.changelog_paths(table, tag), [], [])
    for number in going.data.tags_to_ask(tags):
        going.keep(references.live_paths(table, tags[number]), [], [])
    for branch in references.branches_of(table):
        snapshots = references.snapshots_of(table, branch)
        for snapshot in [*snapshots, *references.tags_of(table, branch)]:
            going.keep(set(), list(references.manifests_of(table, snapshot)), references.lists_of(snapshot))
        for snapshot in [*snapshots[:1], *references.tags_of(table, branch)]:
            going.keep(references.live_paths(table, snapshot) | references.changelog_paths(table, snapshot), [], [])


def _write_hint(table: Any, number: int) -> None:
    """Where Paimon's readers look for the oldest snapshot. Before the older ones go: what it names must be there."""
    path = local_path(table)
    if path is None:
        table.file_io.overwrite_file_utf8(f"{table.table_path}/snapshot/EARLIEST", str(number))
        return
    with tempfile.NamedTemporaryFile("w", dir=f"{path}/snapshot", prefix=".", delete=False) as file:
        os.fchmod(file.fileno(), 0o644)
        file.write(str(number))
    os.replace(file.name, f"{path}/snapshot/EARLIEST")
