"""Files in a table's folders that nothing refers to: what a crash, an expiry that was stopped, or a commit that lost left.

Laws:
- What is old is listed first, and references are read then. So a file that is brought meanwhile is referred to by then, or was staged long
  ago, which is for `ours` to say.
- Whatever can't be read stops the search. A reference that was missed would cost a file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from snowmelt.errors import InvariantBroken
from snowmelt.model.moment import TimeMs
from snowmelt.sinks.paimon.maintenance.expiry import check_coupled
from snowmelt.sinks.paimon.references import referenced_paths
from snowmelt.sinks.paimon.table import local_path, names_in, remove_files

_MANIFESTS: Final = "manifest"
_TEMPORARY: Final = re.compile(r"\.(?!\.).*")
_WITH_TEMPORARIES: Final = ("snapshot", "schema", "tag", "consumer")
_BUCKET: Final = "bucket-"


def find_orphans(table: Any, *, before_ms: TimeMs, ours: Callable[[str], bool]) -> Iterator[str]:
    check_coupled(table)
    old = [path for path in _old_files(table, before_ms) if not ours(path.rpartition("/")[2])]
    if old:
        known = referenced_paths(table, metadata=True)
        yield from (path for path in old if path not in known)


def delete_files(table: Any, paths: Iterable[str]) -> int:
    """How many were there."""
    paths = list(paths)
    for path in paths:
        if os.path.normpath(path) != path or path.startswith(("/", "..")) or "/" not in path:
            raise InvariantBroken("a file to be deleted is not in its table's folders", detail=f"{table.identifier}: {path}")
    return remove_files(table, paths)


def _old_files(table: Any, before_ms: TimeMs) -> Iterator[str]:
    root = str(table.table_path)
    yield from _old_in(table, _MANIFESTS, before_ms)
    for folder in _WITH_TEMPORARIES:
        yield from (path for path in _old_in(table, folder, before_ms) if _TEMPORARY.fullmatch(path.rpartition("/")[2]))
    folders = [name for name in names_in(table, root) if name.startswith(_BUCKET) or "=" in name]
    while folders:
        folder = folders.pop()
        if folder.rpartition("/")[2].startswith(_BUCKET):
            yield from _old_in(table, folder, before_ms)
        else:
            folders += [f"{folder}/{name}" for name in names_in(table, f"{root}/{folder}") if name.startswith(_BUCKET) or "=" in name]


def _old_in(table: Any, folder: str, before_ms: TimeMs) -> Iterator[str]:
    """Files of a folder that were last written before."""
    root = local_path(table)
    if root is None:
        for status in table.file_io.list_status(f"{table.table_path}/{folder}"):
            if status.mtime is not None and status.is_file and status.mtime.timestamp() * 1000 < before_ms:
                yield f"{folder}/{status.base_name}"
        return
    try:
        with os.scandir(f"{root}/{folder}") as found:
            for entry in found:
                if entry.is_file(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_mtime * 1000 < before_ms:
                    yield f"{folder}/{entry.name}"
    except FileNotFoundError:
        return
