"""The published Fluss server, fetched once into the cache and checked against what is written here.

The server is one jar of Maven Central that contains all it needs except logging. The jars come with it by which the coordinator makes
Paimon tables. A folder of jars appears in the cache whole and at once, by a rename; a second process waits meanwhile. Only the standard
library and `errors` are used: `scripts/fetch_servers` runs this before anything is installed.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Final

from snowmelt.errors import Corrupt, Unavailable

VERSION: Final = "0.9.1"
REPOSITORY: Final = "https://repo1.maven.org/maven2"
REPOSITORY_VARIABLE: Final = "SNOWMELT_MAVEN"
"""Names a mirror of Maven Central, for machines that can't reach it."""
_TIMEOUT_S: Final = 60.0
_PIECE_BYTES: Final = 1 << 20

_JARS: Final = {
    "org/apache/fluss/fluss-server/0.9.1-incubating": "fdda82aa7cc936086c420090920836066d48d741cf7e0aadde3c0e6f0832a169",
    "org/apache/fluss/fluss-lake-paimon/0.9.1-incubating": "b14ba33929f3c2e15d7d2220d1f5337217c74971f3c7e59d33625047ca68192b",
    "org/apache/paimon/paimon-bundle/1.3.1": "ec0a91c0cf6c1da46c7175b7778e3207395eca10272d891fa49770ec7a780162",
    "org/apache/hadoop/hadoop-client-api/3.3.6": "f3d2347a6e1c6885d5bcfd4f60c3ac3810ec11068fc161e04329baabf412d963",
    "org/apache/hadoop/hadoop-client-runtime/3.3.6": "15f01bc804294df06d2effc87de363a83cf589f50558bdbf48f72541ad8de854",
    "commons-logging/commons-logging/1.2": "daddea1ea0be0f56978ab3006b8ac92834afeefbd9b7e4e6316fca57df0fa636",
    "com/google/code/findbugs/jsr305/3.0.2": "766ad2a0783f2687962c8ad74ceecc38a28b9f72a2d085ee438b7813e928d0c7",
    "org/slf4j/slf4j-api/1.7.36": "d3ef575e3e4979678dc01bf1dcce51021493b4d11fb7f1be8ad982877c16a1c0",
    "org/slf4j/slf4j-simple/1.7.36": "2f39bed943d624dfa8f4102d0571283a10870b6aa36f197a8a506f147010c10f",
}
"""By their folder in the repository; the last two parts of the folder give a jar's name."""


def fetch_jars() -> Path:
    """The folder of all jars, 180 MB. `Unavailable` if they can't be fetched, `Corrupt` if a checksum differs."""
    servers = Path(os.environ.get("SNOWMELT_CACHE") or Path.home() / ".cache" / "snowmelt") / "servers"
    target = servers / f"fluss-{VERSION}"
    if target.is_dir():
        return target
    servers.mkdir(parents=True, exist_ok=True)
    with open(servers / "fluss.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if target.is_dir():
            return target
        print(f"fetching Fluss {VERSION} into {target} (once)", file=sys.stderr)
        with tempfile.TemporaryDirectory(prefix=".fluss-", dir=servers) as work:
            jars = Path(work) / "jars"
            jars.mkdir()
            for place, digest in _JARS.items():
                _fetch(place, digest, jars)
            jars.rename(target)
    return target


def _fetch(place: str, digest: str, folder: Path) -> None:
    artifact, version = place.split("/")[-2:]
    name = f"{artifact}-{version}.jar"
    repository = (os.environ.get(REPOSITORY_VARIABLE) or REPOSITORY).rstrip("/")
    read = hashlib.sha256()
    try:
        with urllib.request.urlopen(f"{repository}/{place}/{name}", timeout=_TIMEOUT_S) as answer, open(folder / name, "wb") as file:
            while piece := answer.read(_PIECE_BYTES):
                read.update(piece)
                file.write(piece)
    except OSError as error:
        hint = f"{REPOSITORY_VARIABLE} may name a mirror of Maven Central"
        raise Unavailable(f"Fluss {VERSION} can't be fetched", detail=f"{name}, {getattr(error, 'reason', error)}", hint=hint) from error
    if read.hexdigest() != digest:
        raise Corrupt(f"Fluss {VERSION} is not what was published", detail=f"{name} has another checksum")
