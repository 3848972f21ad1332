"""What a run needs of this machine: packages, Java, a Python for Spark's workers, memory. Looked at before Spark is started, because Spark
says what it lacks late, at length, or not at all."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from snowmelt.databases.contract.findings import Finding, Level
from snowmelt.errors import InvalidConfig

_EXTRAS: Final[Mapping[str, str]] = {
    "pyspark": "spark",
    "pypaimon": "paimon",
    "pypaimon_rust": "paimon",
    "google.protobuf": "fluss",
    "google_crc32c": "fluss",
    "rocksdict": "fluss",
}
SPARK_OLDEST: Final = (3, 5)
SPARK_NEWEST: Final = (4, 3)
"""`./run matrix` runs on these and all between them."""
_JAVA_OLDEST: Final[Mapping[tuple[int, int], int]] = {(0, 0): 8, (4, 0): 17}
"""By the first version of Spark that it holds for."""
_JAVA_TOO_NEW: Final[Mapping[tuple[int, int], int]] = {(0, 0): 24, (4, 2): 1 << 30}
"""The same; Hadoop's part of older Sparks calls what Java 24 took away ("getSubject is not supported")."""
MEMORY_BYTES: Final = 2 << 30
"""What a pipeline on one machine takes: Spark's JVM, workers and the driver."""
_WORKERS_NEED: Final = ("snowmelt", "pyspark", "pypaimon", "pypaimon_rust", "pyarrow", "numba")
_LIMIT_S: Final = 30.0


def inspect_machine(master: str, *extras: str) -> list[Finding]:
    """Errors, which would end a run here, and warnings. `extras`: those that are needed besides `spark` and `paimon`.

    Of a cluster's workers nothing can be said from here: they have a Java, a Python and memory of their own.
    """
    missing = missing_extras("spark", "paimon", *extras)
    if missing:
        # Without them there is nothing more to ask.
        fact = f"not installed: {' and '.join(missing)}"
        return [Finding("packages", Level.ERROR, fact, f"pip install 'snowmelt[{','.join(missing)}]'")]
    spark = _spark_version()
    findings = [_spark(spark), _java(spark)]
    if master.startswith("local"):
        findings += [_python(), _memory()]
    return [finding for finding in findings if finding is not None]


def check_machine(master: str, *extras: str) -> list[Finding]:
    """The same, with the first error raised as `InvalidConfig`; what is returned are warnings."""
    findings = inspect_machine(master, *extras)
    for finding in findings:
        if finding.level is Level.ERROR:
            raise InvalidConfig(finding.fact, hint=finding.remedy)
    return findings


def missing_extras(*wanted: str) -> list[str]:
    return sorted({extra for module, extra in _EXTRAS.items() if extra in wanted and not _is_there(module)})


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        # The package that it is in.
        return False


# ---- Spark and Java


def _spark_version() -> tuple[int, int]:
    major, minor = importlib.metadata.version("pyspark").split(".")[:2]
    return int(major), int(minor)


def _spark(version: tuple[int, int]) -> Finding | None:
    found = f"pyspark {importlib.metadata.version('pyspark')}"
    fits = f"pip install 'pyspark>={SPARK_OLDEST[0]}.{SPARK_OLDEST[1]},<{SPARK_NEWEST[0]}.{SPARK_NEWEST[1] + 1}'"
    if version < SPARK_OLDEST:
        return Finding("spark", Level.ERROR, f"{found} is too old", fits)
    if version > SPARK_NEWEST:
        return Finding("spark", Level.WARNING, f"{found} is newer than what snowmelt was tested with", fits)
    return None


def _java(spark: tuple[int, int]) -> Finding | None:
    oldest, too_new = _at(_JAVA_OLDEST, spark), _at(_JAVA_TOO_NEW, spark)
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(f"{home}/bin/java") if home else shutil.which("java")
    remedy = f"install Java 17 (on Debian: apt install openjdk-17-jre-headless), and let JAVA_HOME or PATH lead to it; found is {java}"
    if java is None:
        where = f"JAVA_HOME is {home}, which has no bin/java" if home else "JAVA_HOME is not set, and PATH has no java"
        return Finding("java", Level.ERROR, f"Spark needs Java, and there is none: {where}", remedy.partition("; found")[0])
    version = java_version(java)
    if version is None:
        return Finding("java", Level.ERROR, "Spark needs Java, and the one that is there does not say its version", remedy)
    wanted = f"{oldest} to {too_new - 1}" if too_new < 1 << 30 else f"{oldest} or newer"
    if not oldest <= version < too_new:
        return Finding("java", Level.ERROR, f"Spark {spark[0]}.{spark[1]} needs Java {wanted}, this is Java {version}", remedy)
    return None


def _at(table: Mapping[tuple[int, int], int], version: tuple[int, int]) -> int:
    return max((since, value) for since, value in table.items() if version >= since)[1]


def java_version(java: str) -> int | None:
    """Its feature version: 8 of 1.8.0_392, 17 of 17.0.15; None if it does not say."""
    try:
        ran = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', ran.stderr + ran.stdout)
    return int(found[1]) if found and ran.returncode == 0 else None


# ---- workers


def _python() -> Finding | None:
    """Workers run the Python that PYSPARK_PYTHON names, or this one."""
    given = os.environ.get("PYSPARK_PYTHON")
    if given is None or given == sys.executable:
        return None
    remedy = f"unset PYSPARK_PYTHON, or let it be {sys.executable}"
    found = shutil.which(given)
    if found is None:
        return Finding("python", Level.ERROR, f"PYSPARK_PYTHON is {given}, and there is no such program", remedy)
    question = (
        "import importlib.util, json, sys; "
        f"print(json.dumps([list(sys.version_info[:2]), [m for m in {_WORKERS_NEED!r} if importlib.util.find_spec(m) is None]]))"
    )
    try:
        ran = subprocess.run([found, "-c", question], capture_output=True, text=True, timeout=_LIMIT_S, check=True)
        version, missing = json.loads(ran.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return Finding("python", Level.ERROR, f"PYSPARK_PYTHON is {given}, which does not run as a Python", remedy)
    if tuple(version) != sys.version_info[:2]:
        fact = f"PYSPARK_PYTHON is Python {version[0]}.{version[1]}, and the driver is {sys.version_info.major}.{sys.version_info.minor}"
        return Finding("python", Level.ERROR, fact, remedy)
    if missing:
        fact = f"PYSPARK_PYTHON is {given}, which lacks {', '.join(missing)}"
        return Finding("python", Level.ERROR, fact, remedy)
    return None


def _memory() -> Finding | None:
    free = free_bytes()
    if free is None or free >= MEMORY_BYTES:
        return None
    fact = f"{free / 2**30:.1f} GiB of memory are free, and a pipeline takes about {MEMORY_BYTES / 2**30:.0f} GiB"
    return Finding("memory", Level.WARNING, fact, "end what is not needed, or give this machine or container more memory")


def free_bytes(proc: Path = Path("/proc/meminfo"), group: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Of the machine, or of the container where that has less; None where neither can be read."""
    found = []
    with contextlib.suppress(OSError, ValueError, IndexError):
        found += [int(line.split()[1]) << 10 for line in proc.read_text().splitlines() if line.startswith("MemAvailable:")]
    # No limit, or no such group.
    with contextlib.suppress(OSError, ValueError):
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        # Files that were read and can be read again are no use of memory.
        used = int((group / "memory.current").read_text()) - int(stat.get("inactive_file", "0"))
        found.append(max(0, int((group / "memory.max").read_text()) - used))
    return min(found, default=None)
