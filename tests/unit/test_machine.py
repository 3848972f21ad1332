"""What is asked of a machine before Spark is started."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest

from snowmelt import machine
from snowmelt.errors import InvalidConfig
from snowmelt.machine import check_machine, free_bytes, inspect_machine, java_version


@pytest.fixture(autouse=True)
def _as_it_should_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setattr(machine, "free_bytes", lambda: 16 << 30)


def program(path: Path, text: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def java(folder: Path, monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    program(folder / "bin/java", f"echo '{said}' >&2")
    monkeypatch.setenv("JAVA_HOME", str(folder))


def test_nothing_is_found_where_all_is_well() -> None:
    assert inspect_machine("local[*]", "fluss") == []


def test_extras_that_are_missing_are_named_with_their_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    lacking = ("pypaimon", "google.protobuf")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name in lacking else find(name))
    with pytest.raises(InvalidConfig, match=r"not installed: paimon \(hint: pip install 'snowmelt\[paimon\]'\)"):
        check_machine("local[*]")
    with pytest.raises(InvalidConfig, match=r"not installed: fluss and paimon \(hint: pip install 'snowmelt\[fluss,paimon\]'\)"):
        check_machine("local[*]", "fluss")


@pytest.mark.parametrize(
    ("spark", "said", "wrong"),
    [
        ("4.3.0", 'openjdk version "17.0.15" 2025-04-15', None),
        ("4.3.0", 'openjdk version "25" 2025-09-16', None),
        ("4.3.0", 'openjdk version "11.0.2" 2019-01-15', r"Spark 4\.3 needs Java 17 or newer, this is Java 11 "),
        ("4.1.4", 'openjdk version "25.0.1" 2025-10-21', r"Spark 4\.1 needs Java 17 to 23, this is Java 25 "),
        ("3.5.9", 'java version "1.8.0_392"', None),
        ("3.5.9", 'openjdk version "25" 2025-09-16', r"Spark 3\.5 needs Java 8 to 23, this is Java 25 "),
        ("4.3.0", "Segmentation fault", "does not say its version"),
    ],
)
def test_java_has_a_version_that_this_spark_runs_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: str, said: str, wrong: str | None
) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda _: spark)
    java(tmp_path, monkeypatch, said)
    if wrong is None:
        assert check_machine("local[*]") == []
    else:
        with pytest.raises(InvalidConfig, match=wrong):
            check_machine("spark://somewhere:7077")


def test_a_java_that_is_not_there_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(InvalidConfig, match=f"Spark needs Java, and there is none: JAVA_HOME is {tmp_path}, which has no bin/java"):
        check_machine("local[*]")
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InvalidConfig, match="JAVA_HOME is not set, and PATH has no java"):
        check_machine("local[*]")


def test_a_java_that_hangs_ends_the_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_LIMIT_S", 0.2)
    assert java_version(program(tmp_path / "java", "exec sleep 60")) is None


def test_a_spark_that_was_not_tested_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda _: "4.4.0")
    (warning,) = check_machine("local[*]")
    assert "pyspark 4.4.0 is newer than what snowmelt was tested with" in warning.fact
    monkeypatch.setattr("importlib.metadata.version", lambda _: "3.4.4")
    with pytest.raises(InvalidConfig, match=r"pyspark 3\.4\.4 is too old \(hint: pip install 'pyspark>=3\.5,<4\.4'\)"):
        check_machine("local[*]")


def test_the_python_of_the_workers_is_asked_before_spark_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def told(python: str) -> str:
        monkeypatch.setenv("PYSPARK_PYTHON", python)
        with pytest.raises(InvalidConfig) as told:
            check_machine("local[2]")
        assert "unset PYSPARK_PYTHON" in str(told.value)
        # Those of a cluster are elsewhere.
        assert check_machine("spark://somewhere:7077") == []
        return str(told.value)

    assert "/nowhere/python, and there is no such program" in told("/nowhere/python")
    assert "does not run as a Python" in told(program(tmp_path / "none", "exit 3"))
    assert "PYSPARK_PYTHON is Python 3.8" in told(program(tmp_path / "old", "echo '[[3, 8], []]'"))
    # The interpreter itself, without the packages of its environment.
    bare = program(tmp_path / "bare", f'exec {os.path.realpath(sys.executable)} -I -S "$@"')
    assert "lacks snowmelt, pyspark, pypaimon, pypaimon_rust, pyarrow, numba" in told(bare)
    monkeypatch.setenv("PYSPARK_PYTHON", program(tmp_path / "same", f'exec {sys.executable} "$@"'))
    assert check_machine("local[2]") == []


def test_too_little_memory_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "free_bytes", lambda: 1 << 29)
    (warning,) = check_machine("local[*]")
    assert warning.fact == "0.5 GiB of memory are free, and a pipeline takes about 2 GiB"
    proc, group = tmp_path / "meminfo", tmp_path / "group"
    assert free_bytes(proc, group) is None
    proc.write_text("MemTotal: 16000000 kB\nMemAvailable:   8000000 kB\n")
    assert free_bytes(proc, group) == 8_000_000 << 10
    group.mkdir()
    (group / "memory.max").write_text("max\n")
    (group / "memory.current").write_text("900\n")
    (group / "memory.stat").write_text("anon 300\ninactive_file 500\n")
    assert free_bytes(proc, group) == 8_000_000 << 10
    (group / "memory.max").write_text("1000\n")
    assert free_bytes(proc, group) == 600, "files in the cache are no use of memory"
