"""Virtual environments that tests make, beside the one that they run in: with uv, cached in `.cache/environments`."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.kit.servers import NotRun

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".cache/environments"


def find_uv() -> str:
    for uv in (shutil.which("uv"), str(ROOT / ".cache/tools/bin/uv")):
        if uv is not None and os.access(uv, os.X_OK):
            return uv
    raise NotRun("Python environments not run: uv is not there; ./run setup gets it")


def run_uv(*arguments: str) -> str:
    ran = subprocess.run([find_uv(), *arguments], cwd=ROOT, capture_output=True, text=True, check=False, env=_plain())
    if ran.returncode:
        said = ran.stderr.strip().splitlines()
        raise NotRun(f"Python environments not run: uv {arguments[0]}: {' '.join(said[-3:])[:300]}")
    return ran.stdout


def _plain() -> dict[str, str]:
    left_out = ("VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME", "UV_PROJECT_ENVIRONMENT")
    return {name: value for name, value in os.environ.items() if name not in left_out} | {"UV_PYTHON_DOWNLOADS": "never"}


def spark_environment(version: str) -> Path:
    """The Python of an environment with this version of pyspark (`3.5`), all else as uv.lock says, and snowmelt from its source here,
    so that its compiled kernels are those of the environment that tests run in. `NotRun`: it can't be made."""
    if version == locked_spark():
        return Path(sys.executable)
    wanted = [line for line in locked() if not line.startswith(("pyspark==", "py4j=="))]
    stamp = hashlib.sha256("\n".join([*wanted, version, sys.version, str(ROOT)]).encode()).hexdigest()[:12]
    FOLDER.mkdir(parents=True, exist_ok=True)
    folder = FOLDER / f"pyspark-{version}"
    with open(FOLDER / f"pyspark-{version}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        ready = folder / "ready"
        if not ready.exists() or ready.read_text() != stamp:
            shutil.rmtree(folder, ignore_errors=True)
            make_environment(folder, ["-e", ".[spark,paimon]", f"pyspark~={version}.0"], wanted)
            ready.write_text(stamp)
    return folder / "bin/python"


def locked_spark() -> str:
    (pinned,) = (line for line in locked() if line.startswith("pyspark=="))
    return ".".join(pinned.removeprefix("pyspark==").split(".")[:2])


def locked() -> list[str]:
    """What uv.lock has, each as `name==version`."""
    said = run_uv(
        "export", "--frozen", "--quiet", "--extra=spark", "--extra=paimon", "--no-dev", "--no-hashes", "--no-emit-project", "--no-annotate"
    )
    return [line for line in said.splitlines() if line and not line.startswith("#")]


def make_environment(folder: Path, packages: Sequence[str], constraints: Sequence[str]) -> Path:
    """A new one with these packages; its Python."""
    run_uv("venv", "--quiet", "--python", sys.executable, str(folder))
    limits = folder / "constraints.txt"
    limits.write_text("\n".join(constraints))
    python = folder / "bin/python"
    run_uv("pip", "install", "--quiet", "--python", str(python), "--constraint", str(limits), *packages)
    return python
