"""Where compiled kernels are kept, and how far compiling them is."""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numba
import pytest
from numba.core.dispatcher import Dispatcher

import snowmelt
from snowmelt.columnar import kernels, memory
from snowmelt.columnar.kernels import KernelLocator

PROGRAM = """
import json
from snowmelt.columnar.kernels import compile_kernels, kernel_folder
from snowmelt.databases.mysql.types import dates
told = []
compile_kernels([dates.days_of, dates.month_days], lambda: (dates.days_of(2026, 1, 2), dates.month_days(2026, 2)),
                lambda *far: told.append(far))
print(json.dumps([str(kernel_folder()), told]))
"""


def run(home: Path) -> tuple[Path, list[list[int]]]:
    """Where a process of this user keeps kernels, and what it tells of compiling two of them."""
    kept = {name: value for name, value in os.environ.items() if name not in ("XDG_CACHE_HOME", "NUMBA_CACHE_DIR")}
    ran = subprocess.run([sys.executable, "-c", PROGRAM], env={**kept, "HOME": str(home)}, capture_output=True, text=True, check=True)
    folder, told = json.loads(ran.stdout)
    return Path(folder), told


def test_kernels_lie_in_the_users_cache_folder_and_are_compiled_once(tmp_path: Path) -> None:
    folder, told = run(tmp_path)
    assert folder.is_relative_to(tmp_path / ".cache/snowmelt/kernels")
    assert told == [[0, 2], [1, 2], [2, 2]]
    assert re.fullmatch(rf"[0-9.]+-numba-{re.escape(numba.__version__)}-python-3\.{sys.version_info.minor}", folder.parent.name)
    assert any(folder.glob("dates.days_of-*.nbi"))
    assert run(tmp_path) == (folder, []), "they were compiled again"


def test_a_folder_that_can_not_be_used_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file in its place, and one that others may write to: what is loaded from there is run."""
    own, find = tmp_path / "tmp" / f"snowmelt-kernels-{os.geteuid()}", kernels.kernel_folder.__wrapped__
    own.parent.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(own.parent))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert find().is_relative_to(tmp_path / "xdg/snowmelt/kernels")
    (tmp_path / "xdg/snowmelt/kernels").chmod(0o770)
    assert find().is_relative_to(tmp_path / ".cache/snowmelt/kernels")
    shutil.rmtree(tmp_path / ".cache")
    (tmp_path / ".cache").write_text("")
    assert find().is_relative_to(own)
    own.chmod(0o777)
    assert find().parent == own.parent
    own.chmod(0o700)
    own.rename(tmp_path / "elsewhere")
    own.symlink_to(tmp_path / "elsewhere")
    last = find()
    assert last.parent == own.parent
    assert last.stat().st_mode & 0o077 == 0


def test_a_folder_of_the_users_for_numba_wins_and_other_functions_are_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = memory.valid_utf8.py_func
    assert KernelLocator.from_function(kernel, memory.__file__) is not None
    assert KernelLocator.from_function(run, __file__) is None
    monkeypatch.setattr("numba.config.CACHE_DIR", "/somewhere")
    assert KernelLocator.from_function(kernel, memory.__file__) is None


def dispatchers() -> Iterator[tuple[str, Any]]:
    for found in pkgutil.walk_packages(snowmelt.__path__, "snowmelt."):
        if not found.name.endswith(("__main__", ".daemon")):
            for name, value in vars(importlib.import_module(found.name)).items():
                if isinstance(value, Dispatcher) and value.py_func.__module__.startswith("snowmelt."):
                    yield f"{found.name}.{name}", value


def test_every_kernel_is_kept_there() -> None:
    found = dict(dispatchers())
    cached = {name: kernel._cache._impl for name, kernel in found.items() if hasattr(kernel._cache, "_impl")}
    assert len(cached) > 80
    wrong = [name for name, cache in cached.items() if not isinstance(cache.locator, KernelLocator)]
    assert wrong == [], "made before snowmelt.columnar.kernels was imported"


def test_a_change_of_any_file_with_kernels_is_a_change_of_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel has the code of those it calls inside it."""
    monkeypatch.setattr(kernels, "_PACKAGE", tmp_path)
    monkeypatch.setattr(kernels, "source_stamp", kernels.source_stamp.__wrapped__)
    (tmp_path / "callee.py").write_text("@njit(**JIT)\ndef f(): return 1")
    (tmp_path / "other.py").write_text("x = 1")
    before = kernels.source_stamp()
    (tmp_path / "other.py").write_text("x = 2")
    assert kernels.source_stamp() == before
    (tmp_path / "callee.py").write_text("@njit(**JIT)\ndef f(): return 2")
    assert kernels.source_stamp() != before
