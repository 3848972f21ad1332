"""Where a lake is, and how a warehouse in a bucket is reached.

The options are Paimon's own (`s3.endpoint`, `s3.access-key`, …). Three clients need them: pypaimon for metadata, its Rust half for data,
and obstore for the exclusive creates that publish a snapshot. Each has names of its own for the same thing, so the names are settled here.
"""

from __future__ import annotations

import contextlib
import os
import socket
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote, urlsplit

from snowmelt.credentials import Secret
from snowmelt.errors import InvalidConfig, OutcomeUnknown, Unavailable
from snowmelt.store.contract import Store
from snowmelt.store.generations import check_exclusive
from snowmelt.store.objects import ObjectStore, open_bucket, open_store

_S3: Final[Mapping[str, tuple[str, ...]]] = {
    "s3.endpoint": ("endpoint",),
    "s3.region": ("region",),
    "s3.path.style.access": ("path.style.access", "path-style-access"),
    "s3.access-key": ("access-key", "access.key", "accessKeyId"),
    "s3.secret-key": ("secret-key", "secret.key", "accessKeySecret"),
    "s3.session.token": ("session.token", "session-token", "security.token", "security-token", "securityToken"),
}
"""The name that every client knows, and the others that pypaimon takes, after one of the prefixes."""
_PREFIXES: Final = ("s3.", "s3a.", "fs.s3.", "fs.s3a.")
_SETTLED: Final = {prefix + name: key for key, names in _S3.items() for name in names for prefix in _PREFIXES}
PLAIN_OPTIONS: Final = ("s3.endpoint", "s3.region", "s3.path.style.access")
"""What may stand in a file; every other option is a secret."""
_OBSTORE: Final = {
    "s3.endpoint": "endpoint",
    "s3.region": "region",
    "s3.access-key": "access_key_id",
    "s3.secret-key": "secret_access_key",
    "s3.session.token": "session_token",
}
_MARK: Final = "_snowmelt/warehouse"
_TRIES_MAX: Final = 10
_REGIONS: Final = ("AWS_REGION", "AWS_DEFAULT_REGION")


@dataclass(frozen=True, slots=True)
class Warehouse:
    """The address of a warehouse, as it is given to the process that opens it. It holds no secret: options that are one are references,
    which each process looks up for itself."""

    address: str
    options: tuple[tuple[str, str | Secret], ...] = ()

    def __str__(self) -> str:
        return self.address

    def reveal(self) -> dict[str, str]:
        """The options for pypaimon. Hand them straight on; don't keep them."""
        options = {name: value.reveal() if isinstance(value, Secret) else value for name, value in self.options}
        if self.address.startswith("s3://") and "s3.region" not in options:
            # The Rust half would look for it when the first row is written.
            region = next((os.environ[name] for name in _REGIONS if os.environ.get(name)), "")
            if not region:
                hint = "add s3.region to the options of the warehouse, or set AWS_REGION for the driver and the workers"
                raise InvalidConfig("the region of the warehouse's bucket is unknown", detail=self.address, hint=hint)
            options["s3.region"] = region
        return options


def warehouse_of(address: str, options: Mapping[str, str | Secret]) -> Warehouse:
    """A warehouse with its options under the names that every client knows. Nothing is looked up yet.

    `InvalidConfig`: an option is not known, is given twice, or is a secret in clear text.
    """
    if options and not address.startswith("s3://"):
        raise InvalidConfig("options are for a warehouse in an S3 bucket", hint="write the warehouse as s3://bucket/prefix")
    settled: dict[str, str | Secret] = {}
    for name, value in options.items():
        key = _SETTLED.get(name)
        if key is None:
            raise InvalidConfig("an option of the warehouse is not known", detail=name, hint=f"known are {', '.join(_S3)}")
        if key in settled:
            raise InvalidConfig("an option of the warehouse is given twice", detail=f"{name} is {key}")
        if not isinstance(value, Secret) and key not in PLAIN_OPTIONS:
            hint = f"write ${{NAME}} or file:/path; {', '.join(PLAIN_OPTIONS)} may be clear text"
            raise InvalidConfig("an option of the warehouse must be given by reference", detail=name, hint=hint)
        if isinstance(value, str) and ("@" in value or "?" in value):
            raise InvalidConfig("an option of the warehouse may hold credentials", detail=name, hint="they have options of their own")
        settled[key] = value
    return Warehouse(address, tuple(settled.items()))


def plain_warehouse(warehouse: str) -> str:
    """A local warehouse as an absolute path: of an address with escapes pypaimon's two halves make two different folders."""
    if not warehouse:
        raise InvalidConfig("no warehouse is named", hint="a path, or an address that pypaimon knows")
    if not warehouse.startswith("file:"):
        return warehouse if "://" in warehouse else os.path.abspath(warehouse)
    address = urlsplit(warehouse)
    if address.netloc not in ("", "localhost") or not address.path.startswith("/") or address.query or address.fragment:
        raise InvalidConfig("a file:// address must be of this machine, and a path alone", hint="write file:///path")
    return os.path.abspath(unquote(address.path))


def mark(warehouse: str | Warehouse) -> str:
    """The mark of a warehouse, left by the first driver that used it: a process that sees another mark, or none, is in another place.

    `InvalidConfig`: a bucket that does not keep two writers apart, where no snapshot could be published safely.
    """
    path = plain_warehouse(str(warehouse))
    store = _store(warehouse)
    if "://" in path:
        check_exclusive(store, uuid.uuid4().hex)
    for _ in range(_TRIES_MAX):
        found = store.get(_MARK)
        if found is not None:
            return found.decode("ascii", "replace")
        with contextlib.suppress(OutcomeUnknown):
            store.put_if_absent(_MARK, uuid.uuid4().hex.encode())
    raise Unavailable("the warehouse does not keep what is written to it", detail=path)


def check_marked(warehouse: str | Warehouse, expected: str) -> None:
    """For a process that is to write what the driver commits: does it see the driver's warehouse?"""
    path = plain_warehouse(str(warehouse))
    found = _store(warehouse).get(_MARK)
    if found != expected.encode():
        raise InvalidConfig(
            "a Spark worker does not see the warehouse",
            detail=f"{path} on {socket.gethostname()} " + ("has no mark of the driver's" if found is None else "is another warehouse"),
            hint="put the warehouse into a bucket, or into a folder that is mounted on all machines",
        )


def _store(warehouse: str | Warehouse) -> Store:
    return store_at(plain_warehouse(str(warehouse)), warehouse.reveal() if isinstance(warehouse, Warehouse) else {})


def store_at(path: str, options: Mapping[str, str]) -> Store:
    """What lies below a path of a warehouse, for exclusive creates. `options`: those that pypaimon has."""
    scheme, separator, rest = path.partition("://")
    if scheme != "s3" or not separator:
        return open_store(path)
    bucket, _, prefix = rest.partition("/")
    # Requests name the bucket in the path: a bucket in the host's name would need another endpoint.
    known = {_OBSTORE[name]: value for name, value in options.items() if name in _OBSTORE}
    return ObjectStore(open_bucket(scheme, bucket, prefix.strip("/"), known, timeout_s=30, retries_max=4), path)
