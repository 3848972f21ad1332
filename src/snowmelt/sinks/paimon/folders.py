"""What has to be made durable of a table's folder before a snapshot names it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from snowmelt.store.contract import Store

_FOLDERS_MAX: Final = 10_000
"""Partitions are folders, too. A set that is dropped costs a few syncs."""


@dataclass(slots=True)
class TableFolder:
    """What a process keeps of one table's folder between two publishes, so that it need not be made durable again. A table that was
    dropped and made anew has another one. One thread at a time."""

    store: Store
    identity: str
    """Of the table (`table.identity_of`)."""
    durable: set[str] = field(default_factory=set)
    """Folders of it, as paths from it, whose names are durable."""

    def keep(self, folders: Iterable[str]) -> None:
        """The names of these are durable, too."""
        if len(self.durable) > _FOLDERS_MAX:
            self.durable.clear()
        self.durable.update(folders)


@dataclass(slots=True)
class NewManifests:
    """The manifests and lists of them that were written for a snapshot. pypaimon does not tell."""

    names: set[str]

    def noting(self, write: Callable[[str, Sequence[Any]], int]) -> Callable[[str, Sequence[Any]], int]:
        def noted(name: str, metas: Sequence[Any]) -> int:
            self.names.add(name)
            # `-0` is the list of what was there before.
            if not name.endswith("-0"):
                self.names.update(meta.file_name for meta in metas)
            return write(name, metas)

        return noted


def leading_to(folder: str) -> Iterator[str]:
    """It and those above it: a partition is a folder, or several, and each may be new."""
    while folder:
        yield folder
        folder = os.path.dirname(folder)
