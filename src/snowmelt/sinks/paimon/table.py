"""What holds of every Paimon table, whatever program writes it: how it is found, published to, read through, and how its errors are told.

Laws:
- A snapshot is published by an exclusive create of its file, after the fsync of all that it names: pypaimon's own way is a look
  and a rename, which overwrites. So of two that build on one snapshot one wins, and whatever is published is durable.
- A number that was expired is free again, so a writer that slept that long wins a name that leads nowhere. Therefore the newest snapshot
  is found by a listing and not by the hint; and a publish counts, and moves the hint, only when nothing newer is there that does
  not build on it.
- A table that was made anew begins with number 1 again, so a writer that slept wins a name there, too. A publish counts only in the table
  that was judged, which its first schema tells.
- What pypaimon raises or logs is never the user's answer: errors are ours, with the system's reason and a hint.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from snowmelt import budgets
from snowmelt.errors import BEGIN_ANEW, Corrupt, InvalidConfig, InvariantBroken, OutcomeUnknown, SnowmeltError, SourceDrift, Unavailable
from snowmelt.sinks.paimon.folders import NewManifests, TableFolder, leading_to
from snowmelt.sinks.paimon.local_files import hasten
from snowmelt.sinks.paimon.manifests import existing_manifests
from snowmelt.sinks.warehouse import Warehouse, plain_warehouse, store_at
from snowmelt.store.contract import Store

AS_BEFORE: Final = -1
"""For `publish`: the watermark of the snapshot before."""
_MOVED: Final = frozenset({"data-file.path-directory", "data-file.external-paths"})
"""Options by which data files are elsewhere than in a table's own folders of buckets."""
_SNAPSHOT: Final = re.compile(r"snapshot-([0-9]+)")
_SYSTEM_ERROR: Final = re.compile(r"\[Errno ([0-9]+)\]|\(os error ([0-9]+)\)")
_FORBIDDEN: Final = (errno.EACCES, errno.EPERM, errno.EROFS)
_REMOTE_ERRORS: Final = (
    # pyarrow, which says no more where it does not know the code; then opendal, in the Rust half.
    re.compile(r"AWS Error (?!UNKNOWN)([A-Z_]{3,40})"),
    re.compile(r"(HTTP status [1-5][0-9][0-9])"),
    re.compile(r"^(Bucket) '[^']*' not found"),
    re.compile(r"\b([A-Z][A-Za-z]{3,30}) \((?:temporary|permanent|persistent)\)"),
)
_DENIED: Final = (
    "PermissionDenied", "ACCESS_DENIED", "INVALID_ACCESS_KEY_ID", "SIGNATURE_DOES_NOT_MATCH", "HTTP status 401", "HTTP status 403",
)  # fmt: skip
_NO_BUCKET: Final = ("Bucket", "NO_SUCH_BUCKET")
_REMOVERS: Final = 8
"""Requests to a bucket at once."""
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def open_catalog(warehouse: str | Warehouse) -> Any:
    try:
        from pypaimon import CatalogFactory
    except ImportError as error:
        raise InvalidConfig("pypaimon is not installed", hint="install snowmelt[paimon]") from error

    # Without a handler its warnings, with their stacks, would go to the user's terminal.
    log = logging.getLogger("pypaimon")
    if not log.handlers:
        log.addHandler(logging.NullHandler())
    try:
        revealed = (warehouse if isinstance(warehouse, Warehouse) else Warehouse(warehouse)).reveal()
        plain = plain_warehouse(str(warehouse))
        catalog = CatalogFactory.create({**revealed, "warehouse": plain})
        if "://" not in plain:
            hasten(catalog.file_io)
        return catalog
    except SnowmeltError:
        raise
    except Exception as error:
        hint = "a path, or an address that pypaimon knows, with the options that it needs"
        raise InvalidConfig("the warehouse can't be opened", detail=type(error).__name__, hint=hint) from error


# ---- publishing


def publish(
    table: Any,
    latest: Any,
    messages: Sequence[Any],
    *,
    user: str,
    identifier: int,
    properties: Mapping[str, str],
    kind: str = "APPEND",
    watermark_ms: int | None = AS_BEFORE,
    folder: TableFolder | None = None,
) -> bool:
    """One try to publish these messages on `latest`. False: another writer was first, or the outcome is unknown; the next look tells.

    `kind`: OVERWRITE takes out all files that `latest` has, COMPACT those that the messages name. `watermark_ms` is the watermark of the
    new snapshot; None: it has none. `folder`: what is known of this very table from earlier calls.
    """
    from pypaimon.write.file_store_commit import FileStoreCommit

    existing, merged = existing_manifests(table, latest, thoroughly=kind == "COMPACT")
    written = NewManifests(set(merged))
    folder = folder or TableFolder(store_of(table), identity_of(table))
    exclusive = _exclusive(table, folder, messages, written, watermark_ms)
    commit = FileStoreCommit(exclusive, table, user)
    commit.manifest_list_manager.write = written.noting(commit.manifest_list_manager.write)
    if kind == "OVERWRITE":
        entries = commit._overwrite_changes_provider(None, messages).provide(latest)
    else:
        entries = commit._collect_manifest_entries(messages)
    # All that it asks for from here on: what the new snapshot has from `latest`.
    commit.manifest_list_manager.read_all = lambda _: existing
    done = commit._try_commit_once(
        retry_result=None,
        commit_kind=kind,
        commit_entries=entries,
        changelog_entries=commit._collect_changelog_entries(messages),
        commit_identifier=identifier,
        latest_snapshot=latest,
        snapshot_properties=dict(properties),
    )
    if done.is_success():
        return True
    # pypaimon keeps what was raised for its own next try. To try again helps only where it may have happened.
    if done.exception is not None and not isinstance(done.exception, OutcomeUnknown):
        raise done.exception
    return False


def crowded(target: str) -> Unavailable:
    return Unavailable(
        "a lake table can't be committed to",
        detail=f"{target}: {budgets.PAIMON_COMMIT.tries_max} tries met others' commits",
        hint="let other programs write to it less often",
    )


def _exclusive(table: Any, folder: TableFolder, messages: Sequence[Any], written: NewManifests, watermark_ms: int | None) -> Any:
    """pypaimon's snapshot commit, with a create that fails when the number is taken and all that the snapshot names made durable."""
    from pypaimon.common.json_util import JSON
    from pypaimon.snapshot.snapshot_commit import SnapshotCommit

    store = folder.store

    class Exclusive(SnapshotCommit):  # type: ignore[misc]
        def commit(self, base_snapshot_uuid: str | None, snapshot: Any, statistics: list[Any]) -> bool:
            _sync(table, folder, messages, written)
            # pypaimon gives it the one of the snapshot before, as Java does where a commit has none of its own.
            if watermark_ms != AS_BEFORE:
                snapshot.watermark = watermark_ms
            name = f"snapshot/snapshot-{snapshot.id}"
            # Without an indent, for which Python's encoder would be used instead of the compiled one.
            if not store.put_if_absent(name, JSON.to_json(snapshot).encode()):
                _drop_lost(table, snapshot, written)
                return False
            if not (_is_still(table, folder.identity) and _stands(table, snapshot)):
                store.delete([name])
                return False
            _hint(table, snapshot.id)
            return True

        def close(self) -> None:
            pass

    return Exclusive()


def _drop_lost(table: Any, snapshot: Any, written: NewManifests) -> None:
    """Delete what was written for a snapshot whose number another writer has taken: on a busy table that is many files a day. Where the
    other's snapshot can't be read it may be ours, published by a request whose reply was lost. A search for orphans finds what is left."""
    there = table.snapshot_manager().get_snapshot_by_id(snapshot.id)
    if there is not None and there.base_manifest_list != snapshot.base_manifest_list:
        with contextlib.suppress(OSError):
            remove_files(table, [f"manifest/{name}" for name in sorted(written.names)])


def _is_still(table: Any, identity: str) -> bool:
    """Whether the table that has this name is the one with this identity."""
    try:
        return identity_of(table) == identity
    except SourceDrift as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return False
        raise OutcomeUnknown("it is not known which table got a snapshot", detail=str(table.identifier)) from error


def _stands(table: Any, snapshot: Any) -> bool:
    """Whether the table's newest snapshot is this one or builds on it.

    If not, its number had been published and expired before: this is a new file of an old name, below what the table is now.
    """
    from pypaimon.manifest.manifest_list_manager import ManifestListManager

    if max(snapshot_numbers(table), default=0) <= snapshot.id:
        return True
    lists = ManifestListManager(table)
    ours = {meta.file_name for meta in lists.read_delta(snapshot)}
    following = table.snapshot_manager().get_snapshot_by_id(snapshot.id + 1)
    # If another program has expired it or merged its manifests already, this says no where it is yes. Then ours is one that may go, too.
    return following is not None and ours.issubset(meta.file_name for meta in lists.read_all(following))


def store_of(table: Any) -> Store:
    """What lies in a table's folder, for exclusive creates."""
    return store_at(str(table.table_path), table.file_io.properties.to_map() if "://" in str(table.table_path) else {})


def _hint(table: Any, number: int) -> None:
    """Where readers look first. It is no more than a hint, so that a failure is no error."""
    manager = table.snapshot_manager()
    try:
        table.file_io.overwrite_file_utf8(manager.latest_file, str(number))
    except OSError:
        return


def _sync(table: Any, folder: TableFolder, messages: Iterable[Any], written: NewManifests) -> None:
    """On a local path: what a snapshot names is durable before it exists. The writer has synced the data files themselves."""
    path = local_path(table)
    if path is None:
        return
    for name in sorted(written.names):
        _fsync(f"{path}/manifest/{name}")
    holds_files = {"manifest"}
    for message in messages:
        for file in [*message.new_files, *message.changelog_files]:
            holds_files.add(os.path.relpath(os.path.dirname(file_path(table, message.partition, message.bucket, file.file_name)), path))
    new = {above for one in holds_files for above in leading_to(one)} - folder.durable
    # The name of a new folder is in the one above it.
    sync_folders(table, sorted(holds_files | {os.path.dirname(one) for one in new}))
    folder.keep(new)


def hold_snapshots(table: Any, name: str, first: int) -> None:
    """Keep expiry from the snapshots from `first` on, as a consumer of this name. Durable on return; the last one who says so counts."""
    folder = f"{table.table_path}/consumer"
    text = json.dumps({"nextSnapshot": first})
    path = local_path(table)
    if path is None:
        table.file_io.overwrite_file_utf8(f"{folder}/consumer-{name}", text)
        return
    # A program that expires snapshots reads it at any moment, and stops at one that is cut short.
    os.makedirs(folder, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=folder, prefix=".", delete=False) as file:
        os.fchmod(file.fileno(), 0o644)
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(file.name, f"{folder}/consumer-{name}")
    sync_folders(table, ["consumer", ""])


def tagged_snapshot(table: Any, name: str) -> int | None:
    """The snapshot that has this name, if one has."""
    tag = table.tag_manager().get(name)
    return None if tag is None else int(tag.id)


def tag_snapshot(table: Any, name: str, snapshot: Any) -> int:
    """Give a snapshot a name, once: an exclusive create, where pypaimon looks and then overwrites. Durable on return. Returns the snapshot
    that has the name."""
    from pypaimon.common.json_util import JSON

    # As pypaimon and Java write a tag that does not expire by itself.
    if store_of(table).put_if_absent(f"tag/tag-{name}", JSON.to_json(snapshot, indent=2).encode()):
        return int(snapshot.id)
    return int(table.tag_manager().get_or_throw(name).id)


def sync_table(table: Any) -> None:
    """On a local path: a new table is durable, and the folders that lead to it."""
    path = local_path(table)
    if path is None:
        return
    for name in os.listdir(f"{path}/schema"):
        _fsync(f"{path}/schema/{name}")
    # The warehouse's own name is in the folder above it, which may have another owner.
    sync_folders(table, ["schema", "", "..", "../.."])
    with contextlib.suppress(PermissionError):
        sync_folders(table, ["../../.."])


def sync_folders(table: Any, names: Iterable[str]) -> None:
    """On a local path: names that are in these folders of a table are durable."""
    path = local_path(table)
    if path is not None:
        for name in names:
            _fsync(os.path.normpath(f"{path}/{name}"))


def remove_files(table: Any, paths: Iterable[str]) -> int:
    """Remove files in a table's folder, in this order as far as they are on this machine. Returns how many were there."""

    def remove(path: str) -> bool:
        try:
            if local_path(table) is not None:
                os.unlink(f"{table.table_path}/{path}")
                return True
            return bool(table.file_io.delete(f"{table.table_path}/{path}"))
        except FileNotFoundError:
            return False

    if local_path(table) is not None:
        return sum(map(remove, paths))
    with ThreadPoolExecutor(_REMOVERS) as pool:
        return sum(pool.map(remove, paths))


def sync_file(table: Any, path: str) -> None:
    """On a local path: a file that was just written is durable, and its name is."""
    if local_path(table) is not None:
        _fsync(path)
        _fsync(os.path.dirname(path))


def local_path(table: Any) -> str | None:
    """Its folder, if that is one of this machine."""
    path = str(table.table_path)
    return None if "://" in path else path


def _fsync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# ---- looking


def identity_of(table: Any) -> str:
    """Tells a table from one of the same name that was made later: its first schema has the time of its making."""
    first = f"{table.table_path}/schema/schema-0"
    try:
        return hashlib.sha256(table.file_io.read_file_utf8(first).encode()).hexdigest()[:32]
    except OSError as error:
        raise SourceDrift("a lake table's first schema is gone", detail=str(table.identifier)) from error


def bucket_count(table: Any) -> int:
    return int(table.total_buckets)


def latest_snapshot(table: Any) -> Any:
    """The newest snapshot, by a listing: a hint may be old, and where its successor was removed nothing would show it."""
    for _ in budgets.PAIMON_COMMIT.tries():
        numbers = snapshot_numbers(table)
        if not numbers:
            return None
        snapshot = table.snapshot_manager().get_snapshot_by_id(max(numbers))
        if snapshot is not None:
            return snapshot
    raise Unavailable("a lake table's newest snapshot can't be read", detail=str(table.identifier), hint="find what removes its snapshots")


def snapshot_numbers(table: Any, branch: str = "main") -> list[int]:
    """The numbers of the snapshots that exist."""
    return numbers_in(table, table.snapshot_manager().copy_with_branch(branch).snapshot_dir, _SNAPSHOT)


def numbers_in(table: Any, folder: str, pattern: re.Pattern[str]) -> list[int]:
    """The numbers in the names of a folder's files."""
    found = (pattern.fullmatch(name) for name in names_in(table, folder))
    return [int(match[1]) for match in found if match]


def messages_of(table: Any, messages: Sequence[bytes]) -> list[Any]:
    """What writers have left, read."""
    from pypaimon.write.commit_message_serializer import deserialize_commit_message

    partition, key = table.partition_keys_fields, table.trimmed_primary_keys_fields
    return [deserialize_commit_message(message, partition, key) for message in messages]


def file_path(table: Any, partition: Sequence[Any], bucket: int, name: str) -> str:
    """Where a data file lies."""
    from pypaimon.utils.file_store_path_factory import canonical_data_file_path

    if not partition and bucket >= 0 and not _MOVED.intersection(table.table_schema.options):
        # What it would come to.
        return f"{str(table.table_path).rstrip('/')}/bucket-{bucket}/{name}"
    path: str = canonical_data_file_path(table, tuple(partition), bucket, name)
    return path


def names_in(table: Any, folder: str) -> list[str]:
    """What is in a folder; one that is not there yet is empty."""
    if "://" not in folder:
        try:
            # pypaimon asks the system three times for each name.
            return os.listdir(folder)
        except FileNotFoundError:
            return []
    return [status.path.rstrip("/").rpartition("/")[2] for status in table.file_io.list_status(folder)]


# ---- errors


@contextlib.contextmanager
def our_errors(target: str, *, rows: bool = False) -> Iterator[None]:
    """What pypaimon raises inside, as an error of ours. `rows`: rows are written, so what the system does not explain is their fault."""
    from pypaimon.catalog.catalog_exception import DatabaseNotExistException, TableNotExistException

    try:
        yield
    except SnowmeltError:
        raise
    except (TableNotExistException, DatabaseNotExistException) as error:
        hint = f"was it dropped or renamed? if it can't be brought back, {BEGIN_ANEW}"
        raise SourceDrift("a lake table is not there", detail=target, hint=hint) from error
    except Exception as error:
        raise _translated(error, target, rows=rows) from error


def _translated(error: Exception, target: str, *, rows: bool) -> SnowmeltError:
    number, remote = _system_error(error), _remote_error(error)
    detail = f"{target}: {os.strerror(number) if number is not None else remote or type(error).__name__}"
    if number in _FORBIDDEN or remote in _DENIED:
        hint = "who owns it, and is it mounted read-only?" if remote is None else "check the credentials, and their rights in the bucket"
        return InvalidConfig("the warehouse refuses access", detail=detail, hint=hint)
    if remote in _NO_BUCKET:
        return InvalidConfig("the warehouse's bucket does not exist", detail=detail, hint="check its name; snowmelt does not make it")
    if remote == "ConfigInvalid":
        return InvalidConfig("the warehouse's options can't be used", detail=detail, hint="check sink.options")
    if number in (errno.ENOTDIR, errno.EEXIST):
        return InvalidConfig("the warehouse is not a folder, or something in it is not", detail=detail, hint="is its path right?")
    if number in _FULL:
        return Unavailable("a lake table can't be written", detail=detail, hint="is the disk full?")
    if number is not None or remote is not None or isinstance(error, OSError):
        return Unavailable("a lake table can't be read or written", detail=detail, hint="is its storage there, and in order?")
    if rows:
        # pypaimon's text may quote values, so it is not repeated.
        return InvariantBroken("rows do not fit into a lake table", detail=detail)
    return Corrupt("a lake table's metadata can't be read", detail=detail, hint="is it damaged, or of another version of Paimon?")


def _remote_error(error: BaseException | None) -> str | None:
    """What a bucket's server or the way to it says, in one word: of both clients that pypaimon has. Their texts quote requests and answers,
    so nothing else of them is repeated."""
    while error is not None:
        found = next((match for sign in _REMOTE_ERRORS for match in [sign.search(str(error))] if match), None)
        if found is not None:
            return found[1]
        error = error.__cause__ or error.__context__
    return None


def _system_error(error: BaseException | None) -> int | None:
    """The system's reason, which pypaimon wraps, quotes or has from its native half."""
    while error is not None:
        if isinstance(error, OSError) and error.errno is not None:
            return error.errno
        quoted = _SYSTEM_ERROR.search(str(error))
        if quoted is not None:
            return int(quoted[1] or quoted[2])
        error = error.__cause__ or error.__context__
    return None
