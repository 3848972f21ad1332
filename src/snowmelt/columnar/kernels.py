"""Compiled kernels: where they are kept, and how far compiling them is.

numba compiles a kernel when it is first called and keeps the machine code in files. Ours lie in the user's cache folder,
`$XDG_CACHE_HOME/snowmelt/kernels` or `~/.cache/snowmelt/kernels`, below a folder for these versions of snowmelt, numba and Python and one
for the place where the package lies. Driver, worker daemon and executors find them there alike; nothing is written beside the package.
A `NUMBA_CACHE_DIR` of the user's wins.

Laws:
- A kernel has the code of those it calls inside it, whichever file they are in. So what was compiled is good as long as no file with
  kernels has changed.
- What is loaded from here is run. So the folder is the user's own and no one else may write to it.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import numba
from numba.core import event
from numba.core.caching import CacheImpl, _CacheLocator, _SourceFileBackedLocatorMixin
from numba.core.dispatcher import Dispatcher

_PACKAGE: Final = Path(__file__).parents[1]
_NAME: Final = __name__.partition(".")[0]

Progress = Callable[[int, int], None]
"""How many kernels are ready, and of how many."""


# ---- where they are kept


@cache
def kernel_folder() -> Path:
    """The folder of this process' kernels. Made, owned by this user, and writable."""
    here = hashlib.sha256(str(_PACKAGE).encode()).hexdigest()[:12]
    below = Path(_versions()) / here
    for root in _roots():
        try:
            folder = _own(root) / below
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
        except OSError:
            continue
        return folder
    # Compiled anew by every process, which is slow and right.
    return Path(tempfile.mkdtemp(prefix="snowmelt-kernels-"))


def _versions() -> str:
    try:
        ours = version(_NAME)
    except PackageNotFoundError:
        # Run from its source.
        ours = "source"
    return f"{ours}-numba-{numba.__version__}-python-{sys.version_info.major}.{sys.version_info.minor}"


def _roots() -> Iterable[Path]:
    if os.environ.get("XDG_CACHE_HOME"):
        yield Path(os.environ["XDG_CACHE_HOME"]) / "snowmelt" / "kernels"
    home = os.environ.get("HOME") or os.path.expanduser("~")
    if os.path.isabs(home):
        yield Path(home) / ".cache" / "snowmelt" / "kernels"
    yield Path(tempfile.gettempdir()) / f"snowmelt-kernels-{os.geteuid()}"


def _own(folder: Path) -> Path:
    """Make a folder that no one else may write to, or raise OSError where one is there that others may."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if found.st_uid != os.geteuid() or found.st_mode & 0o022 or folder.is_symlink():
        raise PermissionError(f"others may write to {folder}")
    return folder


@cache
def source_stamp() -> bytes:
    """Of all files with kernels together, by content."""
    stamp = hashlib.sha256()
    for path in sorted(_PACKAGE.rglob("*.py")):
        text = path.read_bytes()
        if b"@njit(" in text:
            stamp.update(str(path.relative_to(_PACKAGE)).encode() + b"\0" + hashlib.sha256(text).digest())
    return stamp.digest()


class KernelLocator(_SourceFileBackedLocatorMixin, _CacheLocator):  # type: ignore[misc]
    """Tells numba where the compiled form of a kernel of ours lies; of any other function it knows nothing."""

    def __init__(self, py_func: Any, py_file: str) -> None:
        self._py_file = py_file
        self._module = py_func.__module__

    @classmethod
    def from_function(cls, py_func: Any, py_file: str) -> KernelLocator | None:
        if numba.config.CACHE_DIR or not str(py_func.__module__).startswith(f"{_NAME}.") or not os.path.exists(py_file):
            return None
        return cls(py_func, py_file)

    def get_cache_path(self) -> str:
        return str(kernel_folder())

    def get_source_stamp(self) -> bytes:
        return source_stamp()

    def get_disambiguator(self) -> str:
        # The whole name: numba takes the last part of it alone. No line number, so a file that was edited leaves no old entries.
        return str(self._module)


if KernelLocator not in CacheImpl._locator_classes:
    CacheImpl._locator_classes.insert(0, KernelLocator)


# ---- how far compiling is


def silent(_ready: int, _of: int) -> None:
    """Reports nothing."""


def compile_kernels(entries: Iterable[Any], warm: Callable[[], None], tell: Progress) -> None:
    """Call `warm`, which calls the kernels `entries`, and tell how far compiling is; nothing if all of them are in the cache."""
    needed = _closure(entries)
    listener = _Listener(needed, tell, threading.get_ident())
    event.register("numba:compile", listener)
    try:
        warm()
    finally:
        event.unregister("numba:compile", listener)


def _closure(entries: Iterable[Any]) -> frozenset[Any]:
    """Kernels, and those that they call."""
    found: set[Any] = set()
    left = list(entries)
    while left:
        kernel = left.pop()
        if kernel in found:
            continue
        found.add(kernel)
        names = kernel.py_func.__code__.co_names
        called = (kernel.py_func.__globals__.get(name) for name in names)
        left += [one for one in called if isinstance(one, Dispatcher)]
        # Kernels of another module are named by it: module.kernel.
        modules = [one for name in names if getattr(one := kernel.py_func.__globals__.get(name), "__name__", "").startswith(_NAME)]
        left += [one for module in modules for name in names if isinstance(one := getattr(module, name, None), Dispatcher)]
    return frozenset(found)


class _Listener(event.Listener):  # type: ignore[misc]
    """Hears of every function that numba compiles. Those of other threads, and of others than we, are none of ours."""

    def __init__(self, needed: frozenset[Any], tell: Progress, thread: int) -> None:
        self._needed = {(kernel.py_func.__module__, kernel.py_func.__qualname__) for kernel in needed}
        self._of = len(self._needed)
        self._tell = tell
        self._thread = thread
        self._began = False

    def on_start(self, happened: Any) -> None:
        if not self._began and threading.get_ident() == self._thread:
            self._began = True
            self._tell(0, self._of)

    def on_end(self, happened: Any) -> None:
        function = happened.data["dispatcher"].py_func
        name = (function.__module__, function.__qualname__)
        if threading.get_ident() == self._thread and name in self._needed:
            self._needed.discard(name)
            self._tell(self._of - len(self._needed), self._of)
