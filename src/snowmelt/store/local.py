"""The store in a folder.

A record is written under a temporary name, made durable, then given its own name by link(2), which fails if the name exists. Then the
folder is made durable. So writers exclude each other between processes, no reader sees a record half written, and an answered record
survives a power loss. That includes readers: one that finds a record makes the folder durable before it answers, because the writer may
not have done so yet.

    <root>/<key>      objects
    <root>/.tmp/      files being written; a crash leaves some here, and a later writer removes them when they are an hour old

Below the root no symbolic link is followed, so no key leads out of it. A root that does not exist is an empty store, created by the first
write. `generations.check_shared` tells whether it is the intended store.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Final

from snowmelt.errors import Corrupt, InvalidConfig, InvariantBroken, OutcomeUnknown, SnowmeltError, Unavailable
from snowmelt.store.contract import DATA_BYTES_MAX, PARTS, Store, checked_data, checked_key, different, lacking, too_short

_TEMPORARY: Final = ".tmp"
_ABANDONED_S: Final = 3600
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# Not blocking, because it might be a pipe. It is checked to be a file after it is opened.
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class LocalStore(Store):
    """Objects as files. Safe for threads and processes of one machine, and of several where the file system has link(2)."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._root = os.path.abspath(root)
        self._lock = threading.Lock()
        self._durable: set[str] = set()
        """Folders whose names are known to be durable, so that only their content must be synced."""
        self._swept = False

    def put_if_absent(self, key: str, value: bytes) -> bool:
        return self._put(key, checked_data(checked_key(key), value))

    def get(self, key: str) -> bytes | None:
        above, _, name = checked_key(key).rpartition("/")
        try:
            with self._folder(above) as folder:
                file = os.open(name, _FILE, dir_fd=folder)
                try:
                    value = _read(file, key)
                finally:
                    os.close(file)
                os.fsync(folder)
                return value
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._failure(error, key) from None

    def read_into(self, key: str, at: int, into: memoryview) -> None:
        above, _, name = checked_key(key).rpartition("/")
        try:
            with self._folder(above) as folder:
                file = os.open(name, _FILE, dir_fd=folder)
                try:
                    left = into
                    while left:
                        count = os.preadv(file, [left], at)
                        if count <= 0:
                            raise too_short(key)
                        left, at = left[count:], at + count
                finally:
                    os.close(file)
        except FileNotFoundError:
            raise lacking(key) from None
        except OSError as error:
            raise self._failure(error, key) from None

    def put_data(self, key: str, data: bytes | memoryview) -> None:
        view = checked_data(checked_key(key), data)
        if self._put(key, view):
            return
        found = self.get(key)
        if found is None:
            raise Unavailable("an object of the store was deleted while it was written", detail=key)
        if found != view:
            raise different(key)

    def delete(self, keys: Iterable[str]) -> None:
        folders = set()
        for key in keys:
            above, _, name = checked_key(key).rpartition("/")
            try:
                with self._folder(above) as folder, contextlib.suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=folder)
                folders.add(above)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise self._failure(error, key) from None
        for above in sorted(folders):
            try:
                with self._folder(above) as folder:
                    os.fsync(folder)
                if above.endswith(PARTS):
                    self._remove_empty(above)
            except OSError as error:
                raise self._failure(error, above) from None

    def _remove_empty(self, path: str) -> None:
        """Otherwise an empty folder would remain for every record that ever had parts."""
        above, _, name = path.rpartition("/")
        with self._folder(above) as folder:
            try:
                os.rmdir(name, dir_fd=folder)
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
                    raise
            os.fsync(folder)

    def names(self, prefix: str) -> list[str]:
        try:
            with self._folder(checked_key(prefix)) as folder:
                return os.listdir(folder)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._failure(error, prefix) from None

    def _put(self, key: str, value: memoryview) -> bool:
        above, _, name = key.rpartition("/")
        linked = False
        try:
            with self._writable(_TEMPORARY) as temporaries, self._writable(above) as folder:
                self._remove_abandoned(temporaries)
                temporary = f"{os.getpid()}-{secrets.token_hex(8)}"
                try:
                    _write(temporary, value, temporaries)
                    try:
                        os.link(temporary, name, src_dir_fd=temporaries, dst_dir_fd=folder, follow_symlinks=False)
                        linked = True
                    except FileExistsError:
                        pass
                    os.fsync(folder)
                finally:
                    with contextlib.suppress(OSError):
                        os.unlink(temporary, dir_fd=temporaries)
            return linked
        except OSError as error:
            if linked:
                detail = f"{self._root}: {key}: {error.strerror}"
                raise OutcomeUnknown("a record is perhaps not durable", detail=detail, hint="is the disk failing?") from None
            raise self._failure(error, key) from None

    @contextlib.contextmanager
    def _folder(self, path: str) -> Iterator[int]:
        """A folder of the store, open. FileNotFoundError if it is not there."""
        folder = os.open(self._root, _FOLDER)
        try:
            for part in path.split("/") if path else ():
                folder = self._step(folder, part)
            yield folder
        finally:
            os.close(folder)

    @contextlib.contextmanager
    def _writable(self, path: str) -> Iterator[int]:
        """A folder of the store, open, created if needed. Its name is durable."""
        # A folder of parts is removed with the last of them, perhaps by another process, and may be new again: that its name was durable
        # once proves nothing.
        if path not in self._durable or path.endswith(PARTS):
            self._make(path)
        try:
            with self._folder(path) as folder:
                yield folder
        except FileNotFoundError:
            # Another process removed it. The next try creates it again.
            with self._lock:
                self._durable.discard(path)
            raise

    def _make(self, path: str) -> None:
        parts = path.split("/") if path else []
        self._make_root()
        for depth, part in enumerate(parts):
            with self._folder("/".join(parts[:depth])) as above:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, dir_fd=above)
                # Also if it existed: its creator may not have synced it yet.
                os.fsync(above)
        with self._lock:
            self._durable.add(path)

    def _make_root(self) -> None:
        missing = []
        above = self._root
        while not os.path.isdir(above):
            missing.append(above)
            above = os.path.dirname(above)
        for folder in reversed(missing):
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder)
        for folder in {os.path.dirname(folder) for folder in [self._root, *missing]}:
            # A folder that we can't open belongs to another user, so we did not create it.
            with contextlib.suppress(PermissionError):
                descriptor = os.open(folder, _FOLDER)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)

    def _step(self, folder: int, part: str) -> int:
        try:
            deeper = os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=folder)
        except OSError as error:
            if error.errno in (errno.ENOTDIR, errno.ELOOP):
                raise _not_ours(part) from None
            raise
        os.close(folder)
        return deeper

    def _remove_abandoned(self, temporaries: int) -> None:
        """Once per process. Removing a file that is still being written is harmless: its writer sees that nothing happened."""
        with self._lock:
            if self._swept:
                return
            self._swept = True
        with contextlib.suppress(OSError):
            for name in os.listdir(temporaries):
                if os.stat(name, dir_fd=temporaries, follow_symlinks=False).st_mtime < time.time() - _ABANDONED_S:
                    os.unlink(name, dir_fd=temporaries)

    def _failure(self, error: OSError, key: str) -> SnowmeltError:
        detail = f"{self._root}: {key}: {error.strerror}"
        if isinstance(error, PermissionError) or error.errno in (errno.EROFS, errno.EOPNOTSUPP):
            hint = "who owns it, is it mounted read-only, and does its file system have hard links?"
            return InvalidConfig("the store's folder refuses access", detail=detail, hint=hint)
        if isinstance(error, NotADirectoryError):
            return InvalidConfig("the store's address is not a folder", detail=self._root)
        if error.errno == errno.ELOOP:
            return _not_ours(key)
        if isinstance(error, IsADirectoryError):
            return InvariantBroken("a key of the store is the folder of another", detail=key)
        hint = "is the disk full?" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "is the disk there, and in order?"
        return Unavailable("the store's folder can't be used", detail=detail, hint=hint)

    def __repr__(self) -> str:
        return f"LocalStore({self._root!r})"


def _read(file: int, key: str) -> bytes:
    status = os.fstat(file)
    if not stat.S_ISREG(status.st_mode):
        raise _not_ours(key)
    if status.st_size > DATA_BYTES_MAX:
        raise Corrupt("an object of the store is too large", detail=f"{key}: {status.st_size} bytes")
    with open(file, "rb", buffering=0, closefd=False) as whole:
        return whole.readall()


def _write(name: str, value: memoryview, folder: int) -> None:
    """A new file, durable but for its name."""
    file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644, dir_fd=folder)
    try:
        rest = value
        while rest:
            rest = rest[os.write(file, rest) :]
        os.fsync(file)
    finally:
        os.close(file)


def _not_ours(name: str) -> Corrupt:
    return Corrupt(
        "something in the store's folder is neither a file nor a folder of it",
        detail=name,
        hint="symbolic links, pipes and the like are refused below the root",
    )
