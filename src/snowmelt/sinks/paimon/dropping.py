"""Dropping one very table, and none that was made in its place.

Laws:
- Who drops a table says which one (`identity_of`). One of another identity stays, whenever it was made: also if this process slept
  between two of its steps.
- On a disk handles hold that: they belong to one folder, also when another folder has the path by now. Where a late writer's file kept the
  table's own folder, the folder of schemas in it tells: a handle of it is held, and it is compared before each removal.
- In a bucket only names tell, and a table that is made anew has some names of the old one. So the identity is read before each of
  these is deleted. A process that sleeps exactly between the two can delete one such object of the new table, which then stops with
  an error.
- The first schema goes last, when all else is durably gone. Until then the table has its identity, and a drop that was broken off is
  repeated.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any, Final

from snowmelt.errors import SourceDrift
from snowmelt.sinks.paimon.table import identity_of, local_path

_SCHEMAS: Final = "schema"
_FIRST: Final = "schema-0"
_OURS_ALONE: Final = ("/manifest/", "/bucket-")
"""In these folders no two tables have a file of one name."""


def drop_this(table: Any, identity: str) -> None:
    """Durable on return. Twice is fine. `SourceDrift`: the table is another one, which is left as it is."""
    path = local_path(table)
    if path is None:
        _drop_objects(table, identity)
    else:
        with contextlib.suppress(FileNotFoundError):
            _drop_folder(path, identity)


def _drop_folder(path: str, identity: str) -> None:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        schemas = os.open(_SCHEMAS, os.O_RDONLY | os.O_DIRECTORY, dir_fd=folder)
        try:

            def still() -> None:
                _check_folder(path, folder, schemas)

            with open(os.open(_FIRST, os.O_RDONLY, dir_fd=schemas), "rb") as first:
                _check_same(path, hashlib.sha256(first.read()).hexdigest()[:32], identity)
            _empty(folder, _SCHEMAS, still)
            _empty(schemas, _FIRST, still)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(_FIRST, dir_fd=schemas)
            still()
            os.rmdir(_SCHEMAS, dir_fd=folder)
        finally:
            os.close(schemas)
    finally:
        os.close(folder)
    try:
        os.rmdir(path)
    except OSError as error:
        # By now it may be the folder of another table; or a writer that is late has left a file, which nothing refers to.
        if error.errno not in (errno.ENOTEMPTY, errno.ENOENT):
            raise
    above = os.open(os.path.dirname(path), os.O_RDONLY)
    try:
        os.fsync(above)
    finally:
        os.close(above)


def _check_folder(path: str, folder: int, schemas: int) -> None:
    """That the folder of schemas is the one whose handle is held: while it is, no other one has its number."""
    ours = os.fstat(schemas)
    try:
        there = os.stat(_SCHEMAS, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        raise _made_anew(path) from None
    if (there.st_dev, there.st_ino) != (ours.st_dev, ours.st_ino):
        raise _made_anew(path)


def _empty(folder: int, kept: str, still: Callable[[], None]) -> None:
    """Remove all entries but one, durably. Each may vanish meanwhile. `still` raises if the folder is another table's by now."""
    for name in os.listdir(folder):
        if name == kept:
            continue
        still()
        with contextlib.suppress(FileNotFoundError):
            try:
                os.unlink(name, dir_fd=folder)
            except (IsADirectoryError, PermissionError):
                shutil.rmtree(name, dir_fd=folder)
    os.fsync(folder)


def _drop_objects(table: Any, identity: str) -> None:
    root = str(table.table_path).rstrip("/")
    _check_same(root, identity_of(table), identity)
    found = list(_objects(table, root))
    last = f"/{_SCHEMAS}/{_FIRST}"
    ordered = sorted(found, key=lambda path: (path.endswith(last), f"/{_SCHEMAS}/" in path, not _is_unique(path)))
    for path in ordered:
        if not _is_unique(path):
            _check_same(root, identity_of(table), identity)
        with contextlib.suppress(FileNotFoundError):
            table.file_io.delete(path, False)


def _objects(table: Any, folder: str) -> Iterator[str]:
    for one in table.file_io.list_status(folder):
        path = f"{folder}/{one.base_name}"
        if one.type.name == "Directory":
            yield from _objects(table, path)
        else:
            yield path


def _is_unique(path: str) -> bool:
    return any(part in path for part in _OURS_ALONE)


def _check_same(path: str, found: str, identity: str) -> None:
    if found != identity:
        raise _made_anew(path)


def _made_anew(path: str) -> SourceDrift:
    return SourceDrift("a lake table was made anew meanwhile", detail=path, hint="does another driver bring rows into it?")
