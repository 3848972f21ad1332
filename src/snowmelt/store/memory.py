"""The store in this process' memory: for tests, and the model that other stores are compared with."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from snowmelt.errors import check
from snowmelt.store.contract import Store, checked_data, checked_key, different, too_short


class MemoryStore(Store):
    """As durable as the process. Memory: all objects, until they are deleted."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._objects: dict[str, bytes] = {}
        self._folders: set[str] = set()

    def put_if_absent(self, key: str, value: bytes) -> bool:
        view = checked_data(checked_key(key), value)
        with self._lock:
            if key in self._objects:
                return False
            self._place(key, bytes(view))
            return True

    def get(self, key: str) -> bytes | None:
        with self._lock:
            return self._objects.get(checked_key(key))

    def read_into(self, key: str, at: int, into: memoryview) -> None:
        found = self.read(key)[at : at + len(into)]
        if len(found) < len(into):
            raise too_short(key)
        into[:] = found

    def put_data(self, key: str, data: bytes | memoryview) -> None:
        view = checked_data(checked_key(key), data)
        with self._lock:
            if key not in self._objects:
                self._place(key, bytes(view))
            elif self._objects[key] != view:
                raise different(key)

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            with self._lock:
                self._objects.pop(checked_key(key), None)

    def names(self, prefix: str) -> list[str]:
        start = checked_key(prefix) + "/"
        with self._lock:
            names = [key.removeprefix(start) for key in self._objects if key.startswith(start)]
        return [name for name in names if "/" not in name]

    def _place(self, key: str, value: bytes) -> None:
        # A file system could not do this either, and a test should notice it first.
        folders = [key[:end] for end, letter in enumerate(key) if letter == "/"]
        check(key not in self._folders, "a key of the store is the folder of another", key)
        check(not any(folder in self._objects for folder in folders), "a key of the store lies under another", key)
        self._folders.update(folders)
        self._objects[key] = value

    def __repr__(self) -> str:
        return "MemoryStore()"
