"""JVMs that live for seconds, as most in the tests do: `python -m tests.kit.jvm` makes their start cheap.

Half of what a start of Spark costs is to read and check classes. The JVM can keep them, read and checked, in a file: this runs a job,
lets it write that file, and leaves it in the environment that it belongs to, since it is good for these very jars alone. Where it is
not there, or does not fit, JVMs start as ever.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

# One that lives for seconds is done before its second compiler has paid for itself.
OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def set_options() -> None:
    """For all JVMs that this process starts."""
    archive = _archive()
    # One that does not fit is told on standard output, where Spark's own scripts read.
    kept = f" -Xlog:disable -XX:SharedArchiveFile={archive}" if archive.exists() else ""
    os.environ.setdefault("JDK_JAVA_OPTIONS", OPTIONS + kept)


def _archive() -> Path:
    from pyspark import __version__

    java = f"{os.environ['JAVA_HOME']}/bin/java" if "JAVA_HOME" in os.environ else shutil.which("java")
    told = subprocess.run([java, "-version"], capture_output=True, check=True).stderr if java else b""
    return Path(sys.prefix) / f"classes-{hashlib.sha256(told).hexdigest()[:12]}-spark-{__version__}.jsa"


def main() -> None:
    archive = _archive()
    if archive.exists():
        return
    new = archive.with_suffix(f".{os.getpid()}")
    os.environ["JDK_JAVA_OPTIONS"] = f"{OPTIONS} -Xlog:disable -XX:ArchiveClassesAtExit={new}"

    from snowmelt.engine.tasks.spark_job import run_on_spark
    from snowmelt.supervise.session import spark_session

    with spark_session("classes", master="local[2]", ui=False, debug=False) as spark:
        run_on_spark(spark, [1, 2], abs)
        gateway = spark.sparkContext._gateway
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()
    new.rename(archive)


if __name__ == "__main__":
    main()
