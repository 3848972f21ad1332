"""The store in a bucket, by obstore, and the function that opens a store of any kind.

Laws:
- Put-if-absent is the server's: a conditional PUT (S3: If-None-Match, Google: generation 0, Azure: If-None-Match).
- A write that failed may have happened: `OutcomeUnknown`, unless the server says that it refused.
- A missing bucket is not an empty store. Its 404 looks like that of an absent key, so the text of the error is read.
- Texts of obstore quote addresses, headers and answers of the server. Only words known to be harmless are taken from them.
- A store stays in the process that opened it: pickled it would carry credentials, and in a forked process it would hang.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, NoReturn
from urllib.parse import unquote, urlsplit

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PermissionDeniedError, UnauthenticatedError, UnknownConfigurationKeyError
from obstore.store import AzureStore, GCSStore, S3Store

from snowmelt.credentials import Secret
from snowmelt.errors import Corrupt, InvalidConfig, InvariantBroken, OutcomeUnknown, SnowmeltError, Unavailable, check
from snowmelt.store.contract import DATA_BYTES_MAX, Store, checked_data, checked_key, different, lacking, too_short
from snowmelt.store.local import LocalStore
from snowmelt.store.memory import MemoryStore

_FAILURES: Final = (BaseError, OSError, NotImplementedError, ValueError)
_BUCKETS: Final[Mapping[str, Any]] = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}
_NO_BUCKET: Final = re.compile(r"<Code>(NoSuchBucket|ContainerNotFound)</Code>")
_NO_RANGE: Final = re.compile(r"status code: 416\b|StartTooLarge")
_STATUS: Final = re.compile(r"status code: ([1-5][0-9][0-9])\b")
_CODE: Final = re.compile(r"<Code>([A-Za-z]{1,60})</Code>")
_REASONS: Final[Mapping[str, str]] = {
    "TimedOut": "timed out",
    "IncompleteMessage": "connection closed",
    "ConnectionReset": "connection reset",
    "ConnectionRefused": "connection refused",
    "dns error": "no such host",
    "certificate": "its certificate is not trusted",
}
PLAIN_OPTIONS: Final = ("account_name", "endpoint", "region", "skip_signature", "virtual_hosted_style_request")
"""Options that a file may have in the clear; every other one might be a secret."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")


@dataclass(frozen=True, slots=True)
class BucketAddress:
    """The address of a store in a bucket, for the code that opens it in another process or on another machine. It holds no secret:
    secret options are references."""

    url: str
    options: tuple[tuple[str, str | Secret], ...] = ()

    def __str__(self) -> str:
        return self.url


class ObjectStore(Store):
    """Objects in a bucket. `name` is its address for errors, without credentials."""

    def __init__(self, bucket: Any, name: str) -> None:
        self._bucket = bucket
        self._name = name
        self._process = os.getpid()

    def put_if_absent(self, key: str, value: bytes) -> bool:
        return self._put(key, checked_data(checked_key(key), value))

    def get(self, key: str) -> bytes | None:
        try:
            found = obstore.get(self._here(), checked_key(key))
            size = found.meta["size"]
            if size > DATA_BYTES_MAX:
                raise Corrupt("an object of the store is too large", detail=f"{key}: {size} bytes")
            return bytes(found.bytes())
        except FileNotFoundError as error:
            if _NO_BUCKET.search(str(error)):
                self._refuse(error, key)
            return None
        except _FAILURES as error:
            self._refuse(error, key)
            raise self._unavailable(error, key) from None

    def read_into(self, key: str, at: int, into: memoryview) -> None:
        if not into:
            return
        try:
            found = memoryview(obstore.get_range(self._here(), checked_key(key), start=at, length=len(into)))
        except FileNotFoundError as error:
            if _NO_BUCKET.search(str(error)):
                self._refuse(error, key)
            raise lacking(key) from None
        except _FAILURES as error:
            self._refuse(error, key)
            if _NO_RANGE.search(str(error)):
                raise too_short(key) from None
            raise self._unavailable(error, key) from None
        if len(found) < len(into):
            raise too_short(key)
        into[:] = found

    def put_data(self, key: str, data: bytes | memoryview) -> None:
        view = checked_data(checked_key(key), data)
        if self._put(key, view):
            return
        found = self.get(key)
        if found is None:
            raise Unavailable("an object of the store was deleted while it was written", detail=f"{self._name}: {key}")
        if found != view:
            raise different(key)

    def delete(self, keys: Iterable[str]) -> None:
        # One by one: in a request for many keys, some servers stop at the first that is absent.
        for key in keys:
            try:
                obstore.delete(self._here(), checked_key(key))
            except FileNotFoundError as error:
                if _NO_BUCKET.search(str(error)):
                    self._refuse(error, key)
            except _FAILURES as error:
                self._refuse(error, key)
                raise self._unavailable(error, key) from None

    def names(self, prefix: str) -> list[str]:
        try:
            listed = obstore.list_with_delimiter(self._here(), checked_key(prefix))
            return [meta["path"].rpartition("/")[2] for meta in listed["objects"]]
        except _FAILURES as error:
            self._refuse(error, prefix)
            raise self._unavailable(error, prefix) from None

    def _put(self, key: str, value: memoryview) -> bool:
        try:
            # A multipart upload has no condition that all servers support.
            obstore.put(self._here(), key, value, mode="create", use_multipart=False)
            return True
        except AlreadyExistsError:
            return False
        except _FAILURES as error:
            self._refuse(error, key)
            raise OutcomeUnknown("a write to the store has no known outcome", detail=self._detail(error, key)) from None

    def _here(self) -> Any:
        check(self._process == os.getpid(), "a store is used in another process than it was opened in", self._name)
        return self._bucket

    def _refuse(self, error: Exception, key: str) -> None:
        """Raise errors that a retry can't change."""
        fact, hint = "", ""
        status = _STATUS.search(str(error))
        # For a listing obstore only says that it failed.
        if isinstance(error, PermissionDeniedError | UnauthenticatedError) or (status and status[1] in ("401", "403")):
            fact = "the store refuses access"
            hint = "it needs the rights to get, put, delete and list; without the last, S3 forbids to ask for what is absent"
        elif _NO_BUCKET.search(str(error)):
            fact, hint = "the store's bucket does not exist", "check its name; snowmelt does not create buckets"
        elif isinstance(error, NotImplementedError):
            fact, hint = "the store can't put if absent", "is conditional put switched off in its options or environment?"
        if fact:
            raise InvalidConfig(fact, detail=self._detail(error, key), hint=hint) from None

    def _unavailable(self, error: Exception, key: str) -> SnowmeltError:
        return Unavailable("the store can't be reached", detail=self._detail(error, key))

    def _detail(self, error: Exception, key: str) -> str:
        return f"{self._name}: {key}: {why(error)}"

    def __repr__(self) -> str:
        return f"ObjectStore({self._name!r})"

    def __reduce__(self) -> NoReturn:
        raise InvariantBroken("a store can't be pickled; open it where it is used", detail=self._name)


def why(error: Exception) -> str:
    """The part of an obstore error that is safe to show."""
    text = str(error)
    words = [f"status {match[1]}" for match in [_STATUS.search(text)] if match]
    words += [match[1] for match in [_CODE.search(text)] if match]
    words += [reason for sign, reason in _REASONS.items() if sign in text]
    return ", ".join(words) or type(error).__name__


def open_store(
    where: str | Path | BucketAddress,
    options: Mapping[str, str | Secret] | None = None,
    *,
    timeout_s: float = 30,
    retries_max: int = 4,
) -> Store:
    """Open a store by its address. No request is sent yet, so the first use finds a wrong address.

    A path or `file:///path`, `s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix`, or `memory://`, a new one each
    time. `options` are obstore's (`region`, `endpoint`, …), secrets by reference; the environment gives the missing ones.
    `timeout_s` is per request; a call makes at most 1 + `retries_max` requests.
    """
    if isinstance(where, BucketAddress):
        return open_store(where.url, dict(where.options), timeout_s=timeout_s, retries_max=retries_max)
    if isinstance(where, Path):
        return LocalStore(where)
    url = where
    scheme, separator, _ = url.partition("://")
    if not separator or scheme == "file":
        return LocalStore(_path(url) if separator else url)
    # The rest of a wrong address may hold credentials, so errors don't quote it.
    try:
        address = urlsplit(url)
        odd = address.query or address.fragment or address.username or address.password or address.port
    except ValueError:
        raise InvalidConfig("the store's address can't be read", detail=f"{scheme[:16]!a}") from None
    if odd or "@" in address.netloc or "?" in url or "#" in url:
        raise InvalidConfig(
            "the store's address has more than a bucket and a prefix",
            detail=f"{scheme[:16]!a}",
            hint="credentials and settings belong into the options or the environment",
        )
    if scheme == "memory":
        return MemoryStore()
    if scheme not in _BUCKETS:
        raise InvalidConfig(f"no store has the scheme {scheme[:16]!a}", hint="a path, s3://, gs://, az:// or memory://")
    prefix = address.path.strip("/")
    if not _NAME.fullmatch(address.netloc):
        raise InvalidConfig("the store's address has no bucket, or one that can't be", detail=f"{scheme}://")
    if prefix:
        try:
            checked_key(prefix)
        except InvariantBroken:
            raise InvalidConfig("the store's prefix can't be used", hint="parts of letters, digits and _ . = -, and few of them") from None
    name = f"{scheme}://{address.netloc}" + (f"/{prefix}" if prefix else "")
    return ObjectStore(open_bucket(scheme, address.netloc, prefix, options or {}, timeout_s, retries_max), name)


def check_options(url: str, options: Mapping[str, str | Secret]) -> None:
    """Refuse unknown options, and secrets in the clear. No reference is resolved yet."""
    clear = sorted(name for name, value in options.items() if not isinstance(value, Secret) and name not in PLAIN_OPTIONS)
    if clear:
        raise InvalidConfig(
            "an option of the store must be given by reference",
            detail=", ".join(clear),
            hint=f"write ${{NAME}} or file:/path; in the clear may be {', '.join(PLAIN_OPTIONS)}",
        )
    if any("@" in value or "?" in value for value in options.values() if isinstance(value, str)):
        raise InvalidConfig("an option of the store may hold credentials", hint="they have options of their own")
    # In base64, because some options must be. The environment may have the missing ones.
    shown = {name: "eA==" if isinstance(value, Secret) else value for name, value in options.items()}
    open_store(url, ({"account_name": "x"} if url.startswith("az://") else {}) | shown)


def _path(url: str) -> str:
    rest = url.removeprefix("file://")
    host, slash, path = rest.partition("/")
    if host not in ("", "localhost") or not slash or "?" in rest or "#" in rest:
        raise InvalidConfig("a file:// address must be of this machine, and a path alone", hint="write file:///path")
    return "/" + unquote(path)


def open_bucket(scheme: str, bucket: str, prefix: str, options: Mapping[str, str | Secret], timeout_s: float, retries_max: int) -> Any:
    """A bucket of one of the schemes that `open_store` takes."""
    config = {name: value.reveal() if isinstance(value, Secret) else value for name, value in options.items()}
    plain = any(name.lower().endswith("endpoint") and value.startswith("http://") for name, value in config.items())
    try:
        return _BUCKETS[scheme](
            bucket,
            prefix=prefix or None,
            config=config,
            client_options={
                "timeout": timedelta(seconds=timeout_s),
                "connect_timeout": timedelta(seconds=min(timeout_s, 10)),
                **({"allow_http": True} if plain else {}),
            },
            retry_config={"max_retries": retries_max, "retry_timeout": timedelta(seconds=timeout_s * (1 + retries_max))},
        )
    except UnknownConfigurationKeyError:
        raise InvalidConfig("the store has an option that is not known", detail=f"{scheme}: one of {', '.join(sorted(config))}") from None
    except _FAILURES as error:
        # The text may quote an option's value.
        raise InvalidConfig("the store's options can't be used", detail=f"{scheme}: {type(error).__name__}") from None
