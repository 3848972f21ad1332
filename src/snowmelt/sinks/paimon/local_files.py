"""Files of a warehouse on this machine, asked for once.

pypaimon parses each path as an address, makes objects of it, and asks the system two to five times for each file. That was a third of what
a commit costs the processor. Its own class has to stay, because its native half looks for just that.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

import pyarrow.fs as pafs


def hasten(file_io: Any) -> None:
    """Let pypaimon's access to local files ask the system as seldom as it can. Paths are plain ones from here on."""
    from pypaimon.filesystem.local_file_io import LocalFileIO

    # One of another class, such as one that keeps files, does more than these functions.
    if type(file_io) is LocalFileIO:
        for name, act in _METHODS.items():
            setattr(file_io, name, act)


@dataclass(frozen=True, slots=True, kw_only=True)
class _FileStatus:
    """As pypaimon's own."""

    path: str
    original_path: str
    base_name: str
    size: int | None
    type: pafs.FileType
    mtime: float


def _exists(path: str) -> bool:
    """Where the system refuses to tell, that is an error, as it is for pypaimon."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _open_to_read(path: str) -> IO[bytes]:
    return open(path, "rb")


def _open_to_write(path: str) -> IO[bytes]:
    try:
        return open(path, "wb")
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return open(path, "wb")


def _status(path: str) -> _FileStatus:
    found = os.stat(path)
    folder = stat.S_ISDIR(found.st_mode)
    kind = pafs.FileType.Directory if folder else pafs.FileType.File
    return _FileStatus(
        path=os.path.abspath(path),
        original_path=path,
        base_name=os.path.basename(path),
        size=None if folder else found.st_size,
        type=kind,
        mtime=found.st_mtime,
    )


def _list(path: str) -> list[_FileStatus]:
    found = []
    try:
        with os.scandir(path) as entries:
            names = [entry.name for entry in entries]
    except FileNotFoundError:
        return []
    except NotADirectoryError:
        return [_status(path)]
    for name in names:
        try:
            found.append(_status(f"{path.rstrip('/')}/{name}"))
        except FileNotFoundError:
            # It was removed meanwhile.
            continue
    return found


_METHODS: Final = {
    "_to_file": Path,
    "exists": _exists,
    "new_input_stream": _open_to_read,
    "new_output_stream": _open_to_write,
    "get_file_status": _status,
    "list_status": _list,
}
