"""Files that Fluss keeps in its remote storage: KV snapshots and old segments of the log, brought to where they can be read.

A path of this machine is linked, not copied: Fluss never changes a file that it has written. An object is copied piece by piece.

Laws:
- Paths and names come from a server. A name is one part of a path, and nothing is written outside the folder it is meant for.
- A missing file is `Unavailable`: the object that named it was deleted since, and a new plan names another file.
- Texts of obstore quote addresses and answers; only words known to be harmless are taken from them.

Memory: a piece of `_PIECE_BYTES` for each file that is copied.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import BaseError

from snowmelt.credentials import Secret
from snowmelt.errors import Corrupt, InvalidConfig, Unavailable
from snowmelt.store.objects import open_bucket, why

_PIECE_BYTES: Final = 8 << 20
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")
_SCHEMES: Final = {"s3": "s3", "s3a": "s3", "gs": "gs", "az": "az"}


class RemoteFiles:
    """Reads Fluss' remote storage with obstore's options. One thread uses it, in the process that made it."""

    def __init__(self, options: Mapping[str, str | Secret] | None = None, *, timeout_s: float = 30, retries_max: int = 4) -> None:
        self._options = dict(options or {})
        self._timeout_s = timeout_s
        self._retries_max = retries_max
        self._buckets: dict[tuple[str, str], Any] = {}

    def bring(self, path: str, folder: Path, name: str) -> Path:
        """The file at `path`, as `name` in `folder`."""
        if not _NAME.fullmatch(name):
            raise Corrupt("Fluss names a file that can't be one", detail=f"{name[:60]!a}")
        target = folder / name
        local = _local(path)
        if local is not None:
            self._link(local, target)
        else:
            self._copy(path, target)
        return target

    def _link(self, local: Path, target: Path) -> None:
        try:
            if not local.is_file():
                raise _gone(str(local))
            target.symlink_to(local)
        except OSError as error:
            raise Unavailable("a file of Fluss can't be read", detail=f"{local}: {os.strerror(error.errno or 0)}") from None

    def _copy(self, path: str, target: Path) -> None:
        bucket, key, name = self._object(path)
        try:
            with target.open("xb") as file:
                for piece in obstore.get(bucket, key).stream(min_chunk_size=_PIECE_BYTES):
                    file.write(piece)
        except FileNotFoundError:
            raise _gone(name) from None
        except (BaseError, NotImplementedError, ValueError) as error:
            raise Unavailable("a file of Fluss can't be read", detail=f"{name}: {why(error)}") from None
        except OSError as error:
            # The error may be of this machine's disk as well as of the storage.
            detail = os.strerror(error.errno) if error.errno else why(error)
            raise Unavailable("a file of Fluss can't be brought here", detail=f"{name}: {detail}") from None

    def _object(self, path: str) -> tuple[Any, str, str]:
        try:
            address = urlsplit(path)
        except ValueError:
            raise Corrupt("Fluss names a file at an address that is none") from None
        scheme = _SCHEMES.get(address.scheme)
        if scheme is None:
            raise InvalidConfig(
                "Fluss keeps its files where they can't be read from",
                detail=f"{address.scheme[:20]}://",
                hint="a path that all machines share, s3://, s3a://, gs:// or az://",
            )
        place = (scheme, address.netloc)
        if place not in self._buckets:
            self._buckets[place] = open_bucket(scheme, address.netloc, "", self._options, self._timeout_s, self._retries_max)
        key = address.path.lstrip("/")
        return self._buckets[place], key, f"{address.scheme}://{address.netloc}/{key}"


def _local(path: str) -> Path | None:
    """A path of this machine; None: an object's."""
    rest = path.removeprefix("file:")
    if rest == path and not path.startswith("/"):
        return None
    local = Path("/" + rest.lstrip("/"))
    if ".." in local.parts:
        raise Corrupt("Fluss names a file that can't be one", detail=f"{path[:60]!a}")
    return local


def _gone(name: str) -> Unavailable:
    return Unavailable("a file of Fluss is not there any more", detail=name, hint="what it belongs to was deleted since; plan again")
