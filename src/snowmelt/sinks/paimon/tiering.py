"""The lake tables of Fluss tables, as Fluss' own tiering service has them.

Laws:
- A table that Fluss' coordinator made is written as it is; one that it did not make is made alike: the same types, keys, partitions,
  buckets and options, and after the columns `__bucket`, `__offset` and `__timestamp`. What is there and is different is refused.
- Commit user, identifier and property are those of Fluss' service, so that either can take over from the other. None of the three
  tells rounds apart; what does is the file of offsets (`tiering.fence`).
- Each try of a commit asks `fence.judge` of the very snapshot that it builds on, and publishes by an exclusive create.
- Rows of a key are ordered by the numbers that the writer gives them, from the greatest that the bucket has when it begins. So a writer
  is opened after its round has looked at the lake: if another round came in between, the commit is fenced.
- A row's bucket is a function of its key, in the lake and in Fluss. They must be the same one: readers join bucket by bucket. What the
  writer made of each row is checked at its end, and so is the partition.
- Deletion vectors and other merge engines are refused: what is committed to such tables is not what readers see.
"""

from __future__ import annotations

import contextlib
import re
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from snowmelt import budgets
from snowmelt.credentials import Secret
from snowmelt.errors import Corrupt, Fenced, InvalidConfig, InvariantBroken, SourceDrift, check
from snowmelt.model.table import KIND
from snowmelt.sinks.paimon.references import referenced_files
from snowmelt.sinks.paimon.table import (
    bucket_count,
    crowded,
    file_path,
    identity_of,
    latest_snapshot,
    messages_of,
    open_catalog,
    our_errors,
    publish,
    snapshot_numbers,
    sync_folders,
    sync_table,
)
from snowmelt.sinks.paimon.writer import PaimonWriter
from snowmelt.sinks.tiering import LakeColumn, LakeShape
from snowmelt.sinks.warehouse import plain_warehouse
from snowmelt.store.objects import open_store
from snowmelt.tiering.fence import Base, LakeView, RoundInLake, Tiered, judge
from snowmelt.tiering.offsets import Offsets, parse_offsets

USER: Final = "__fluss_lake_tiering"
IDENTIFIER: Final = 2**63 - 1
OFFSETS: Final = "fluss-offsets"
BUCKET, OFFSET, TIMESTAMP = "__bucket", "__offset", "__timestamp"
CHANGE: Final = "_kind"
"""In rows of ours that come from Fluss: what a row does, counted as Paimon counts."""
_SYSTEM: Final = (
    (BUCKET, ("INT",)),
    (OFFSET, ("BIGINT",)),
    (TIMESTAMP, ("TIMESTAMP(3) WITH LOCAL TIME ZONE", "TIMESTAMP(6) WITH LOCAL TIME ZONE")),
)
"""Clusters before 0.9 made the last one with microseconds."""
_ANYWHERE: Final = -1
"""The number of buckets of a table whose rows have no place: all are in bucket 0, and `__bucket` tells."""
_PREFIX: Final = "sm-t-"
_LOCAL_TIMESTAMP: Final = re.compile(r"TIMESTAMP_LTZ\(([0-9])\)")
_SWITCHES: Final = ("deletion-vectors.enabled", "ignore-delete")
_PATH_BYTES_MAX: Final = 4096


class PaimonTieringSink:
    """The tables of one warehouse. To be opened in the process that uses it."""

    def __init__(self, warehouse: str, *, remote: Mapping[str, str | Secret] | None = None) -> None:
        """`remote`: obstore's options for Fluss' remote storage, where files of offsets are."""
        self._remote = remote
        self._catalog: Any = open_catalog(warehouse)

    def check_writable(self) -> None:
        """`InvalidConfig` or `Unavailable` if not."""
        files, probe = self._catalog.file_io, f"{self._catalog.warehouse}/.snowmelt-{uuid.uuid4().hex}"
        with our_errors(self._catalog.warehouse):
            files.check_or_mkdirs(self._catalog.warehouse)
            files.write_file(probe, "", False)
            files.delete(probe, False)

    def is_at(self, warehouse: str) -> bool:
        ours: str = self._catalog.warehouse
        return plain_warehouse(warehouse).rstrip("/") == ours.rstrip("/")

    # ---- tables

    def ensure(self, target: str, shape: LakeShape) -> None:
        """The lake table is there and fits, made if need be; durable on return. `InvalidConfig`: it is another."""
        from pypaimon import Schema

        with our_errors(target):
            try:
                self._catalog.get_table(target)
            except Exception as error:
                if not _absent(error):
                    raise
                schema = Schema(
                    fields=_fields(shape), partition_keys=list(shape.partition_key), primary_keys=list(shape.key), options=_options(shape)
                )
                self._catalog.create_database(target.partition(".")[0], True)
                # Another program may make it at the same time; then it is checked like any other.
                self._catalog.create_table(target, schema, True)
            table = self._catalog.get_table(target)
            sync_table(table)
        _check_fits(target, table, shape)

    def fits(self, target: str, shape: LakeShape) -> bool:
        """Whether the lake table is there. `InvalidConfig`: it is another."""
        with our_errors(target):
            try:
                table = self._catalog.get_table(target)
            except Exception as error:
                if not _absent(error):
                    raise
                return False
        _check_fits(target, table, shape)
        return True

    def view(self, target: str, base: int | None = None) -> LakeView:
        """The table at its newest snapshot, and the tiering user's newest one, or all of its that are above `base`."""
        table = self._table(target)
        with our_errors(target):
            return _view(table, latest_snapshot(table), base)

    def offsets(self, path: str) -> Offsets:
        """What a file of offsets says. Its address is Fluss' own, of a local folder or a bucket."""
        check(len(path) <= _PATH_BYTES_MAX, "a file of offsets has too long an address")
        folder, _, name = path.strip().removeprefix("file:").rpartition("/") if "://" not in path else path.strip().rpartition("/")
        if not folder or not name or "{" in path:
            raise Corrupt(
                "a lake snapshot names no file of offsets",
                hint="was it tiered by Fluss 0.8 or older? tier the table once with Fluss' own service of 0.9",
            )
        # Hadoop's name for the same.
        found = open_store(folder.replace("s3a://", "s3://", 1), self._remote if "://" in folder else None).get(name)
        if found is None:
            raise SourceDrift(
                "a file of Fluss offsets is not there",
                detail=path,
                hint="is Fluss' remote data folder seen from here, at the same address?",
            )
        return parse_offsets(found, path)

    # ---- writing, in a task

    def writer(self, target: str, bucket: int, prefix: str) -> PaimonTieringWriter:
        """A writer for one bucket of the Fluss table, or of one of its partitions. `prefix`: of the names of its files, tells the round."""
        table = self._table(target)
        with our_errors(target):
            return PaimonTieringWriter(table.copy({"data-file.prefix": f"{_PREFIX}{prefix}-"}), bucket)

    # ---- committing

    def commit(self, target: str, base: Base, path: str, messages: Sequence[bytes]) -> int:
        """Publish a round on its base, once. Returns the snapshot that has it, durable; without messages it is an empty one.

        `Fenced`: another round came first, or the table is another; nothing of ours is in it. Any other error leaves open whether it
        happened: then `look_back`. Twice is fine.
        """
        for _ in budgets.PAIMON_COMMIT.tries():
            table = self._table(target)
            with our_errors(target):
                latest = latest_snapshot(table)
                verdict = judge(base, path, _view(table, latest, base.snapshot))
                if isinstance(verdict, RoundInLake):
                    sync_folders(table, ["snapshot"])
                    return verdict.snapshot
                read = messages_of(table, messages)
                _check_staged(table, target, read)
                if publish(table, latest, read, user=USER, identifier=IDENTIFIER, properties={OFFSETS: path}):
                    return verdict.on + 1
        raise crowded(target)

    def look_back(self, target: str, base: Base, path: str) -> int | None:
        """The snapshot that has a round, or None: it may be published still. `Fenced` as `commit`."""
        verdict = judge(base, path, self.view(target, base.snapshot))
        return verdict.snapshot if isinstance(verdict, RoundInLake) else None

    def clean(self, target: str, identity: str, messages: Sequence[bytes]) -> None:
        """Delete what a round staged in a table, but for what a snapshot, tag or branch of it refers to. Twice is fine.

        If the table was dropped, its files went with it; those of another table of its name are none of ours.
        """
        if not messages:
            return
        try:
            table = self._table(target)
        except SourceDrift:
            return
        with our_errors(target):
            if identity_of(table) != identity:
                return
            kept = referenced_files(table)
            for message in messages_of(table, messages):
                # A changelog file is referred to by the snapshot alone that brought it, together with its data.
                if kept.isdisjoint(file.file_name for file in message.new_files):
                    for file in [*message.new_files, *message.changelog_files]:
                        with contextlib.suppress(FileNotFoundError):
                            table.file_io.delete(file_path(table, message.partition, message.bucket, file.file_name))

    def _table(self, target: str) -> Any:
        with our_errors(target):
            return self._catalog.get_table(target)


class PaimonTieringWriter:
    """Writes one bucket's rows. Not shared; `finish` or `abandon` once."""

    def __init__(self, table: Any, bucket: int) -> None:
        from pypaimon.schema.data_types import PyarrowFieldParser

        self._table = table
        self._bucket = bucket
        self._schema: pa.Schema = PyarrowFieldParser.from_paimon_schema(table.fields)
        self._keyed = bool(table.primary_keys)
        self._writer = PaimonWriter(table, USER, sequenced=False)
        self.rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Rows as they are read from Fluss, in the order of the log: the table's columns, `__offset`, `__timestamp`, `_kind`.

        A column that the lake has and the rows have not was added in the lake first, as Fluss does it; it is NULL.
        """
        self._writer.write(self._shaped(batch))
        self.rows += batch.num_rows

    def finish(self) -> tuple[bytes, ...]:
        """What is staged, for the commit; nothing where no row came."""
        messages = self._writer.finish().messages
        read = messages_of(self._table, messages)
        wanted = self._bucket if bucket_count(self._table) > 0 else 0
        others = sorted({message.bucket for message in read} - {wanted})
        if others:
            raise InvariantBroken(
                "rows are in another bucket of the lake than of Fluss",
                detail=f"{self._table.identifier}: bucket {self._bucket} of Fluss, {others[0]} of the lake",
            )
        if len({tuple(message.partition) for message in read}) > 1:
            raise InvariantBroken("rows of one partition of Fluss are in several of the lake", detail=str(self._table.identifier))
        return messages

    def abandon(self) -> None:
        """Files that were written stay, for the cleaner. Twice is fine."""
        self._writer.abandon()

    def _shaped(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The lake table's columns in its order, and the kind of change if it has a key."""
        given = {name: batch.column(place) for place, name in enumerate(batch.schema.names)}
        kinds = given.pop(CHANGE)
        columns = []
        for wanted in self._schema:
            if wanted.name == BUCKET:
                columns.append(pa.repeat(pa.scalar(self._bucket, wanted.type), batch.num_rows))
            elif wanted.name in given:
                column = given.pop(wanted.name)
                if wanted.name == TIMESTAMP:
                    column = column.cast(wanted.type)
                # At a part of an array of rows with rows in them Paimon's writer panics. A copy is no part of another.
                columns.append(pa.concat_arrays([column]) if pa.types.is_nested(column.type) else column)
            else:
                check(wanted.nullable, "rows lack a column that must not be NULL", f"{self._table.identifier}: {wanted.name}")
                columns.append(pa.nulls(batch.num_rows, wanted.type))
        check(not given, "rows have columns that their lake table has not", f"{self._table.identifier}: {', '.join(sorted(given))}")
        schema = self._schema
        if self._keyed:
            schema = schema.append(pa.field(KIND, pa.int8(), nullable=False))
            columns.append(kinds)
        return pa.RecordBatch.from_arrays(columns, schema=schema)


def _options(shape: LakeShape) -> dict[str, str]:
    """The lake table's, as Fluss' coordinator sets them."""
    found = {"partition.legacy-name": "false", "bucket": str(shape.buckets if shape.bucket_key else _ANYWHERE)}
    if shape.bucket_key:
        found["bucket-key"] = ",".join(shape.bucket_key)
    if shape.key:
        found["changelog-producer"] = "input"
    for name, value in shape.properties.items():
        if name.startswith("paimon."):
            found[name.removeprefix("paimon.")] = value
        elif not name.startswith("table.datalake.paimon."):
            found[f"fluss.{name}"] = value
    return found


def _fields(shape: LakeShape) -> list[Any]:
    """With the ids that Fluss' coordinator gives: each column's, then those of the fields in it, the innermost first."""
    from pypaimon.schema.data_types import AtomicInteger, DataField, reassign_field_id

    numbers = AtomicInteger(-1)
    fields = []
    for column in (*shape.columns, *(LakeColumn(name, types[0]) for name, types in _SYSTEM)):
        number = numbers.increment_and_get()
        fields.append(DataField(number, column.name, reassign_field_id(_parsed(column.type), numbers)))
    return fields


def _parsed(kind: str | dict[str, Any]) -> Any:
    from pypaimon.schema.data_types import AtomicInteger, DataTypeParser

    return DataTypeParser.parse_data_type(kind, AtomicInteger(-1))


def _view(table: Any, latest: Any, base: int | None) -> LakeView:
    """Down from the newest snapshot: to the base, or to the first of the tiering user's."""
    manager = table.snapshot_manager()
    newest = latest.id if latest is not None else 0
    whole_from, tiered = newest + 1, list[Tiered]()
    for number in sorted((number for number in snapshot_numbers(table) if number <= newest), reverse=True):
        if number <= base if base is not None else tiered:
            break
        snapshot = latest if number == newest else manager.get_snapshot_by_id(number)
        # One that goes while we look is as one that was gone before.
        if snapshot is not None and number == whole_from - 1:
            whole_from = number
        if snapshot is not None and snapshot.commit_user == USER:
            tiered.append(Tiered(number, (snapshot.properties or {}).get(OFFSETS, "")))
    rows = latest is not None and bool(latest.total_record_count)
    return LakeView(
        identity=identity_of(table),
        schema=int(table.table_schema.id),
        latest=newest,
        whole_from=whole_from,
        tiered=tuple(tiered),
        rows=rows,
    )


def _check_staged(table: Any, target: str, messages: Sequence[Any]) -> None:
    """A round that waited for long may have met a cleaner that removes what no snapshot names."""
    for message in messages:
        for file in [*message.new_files, *message.changelog_files]:
            if not table.file_io.exists(file_path(table, message.partition, message.bucket, file.file_name)):
                raise Fenced("a round's staged files are gone", detail=target, hint="stop jobs that remove young orphan files")


def _check_fits(target: str, table: Any, shape: LakeShape) -> None:
    if wrong := _wrong(table, shape):
        raise InvalidConfig(
            "a lake table is not as its Fluss table needs it",
            detail=f"{target}: {wrong}",
            hint="name another warehouse, or drop the lake table and let it be made anew",
        )


def _wrong(table: Any, shape: LakeShape) -> str:
    """How a lake table differs from what its Fluss table needs; empty: not at all."""
    from pypaimon.table.file_store_table import FileStoreTable

    if not isinstance(table, FileStoreTable):
        return "it has no snapshots"
    for what, found, wanted in (
        ("primary key", table.primary_keys, shape.key),
        ("partition keys", table.partition_keys, shape.partition_key),
    ):
        if tuple(found) != wanted:
            return f"its {what} is {list(found)}, not {list(wanted)}"
    options = table.options.options.to_map()
    for name in ("bucket", "bucket-key"):
        if options.get(name) != _options(shape).get(name):
            return f"its {name} is {options.get(name)}, not {_options(shape).get(name)}"
    if options.get("merge-engine", "deduplicate") != "deduplicate":
        return "its merge-engine is not deduplicate"
    switches = [name for name in _SWITCHES if options.get(name, "false").lower() not in ("false", "off", "no", "0")]
    if switches:
        return f"it has {switches[0]}"
    found_fields = [(one.name, _type(one.type)) for one in table.fields]
    own, system = found_fields[: -len(_SYSTEM)], found_fields[-len(_SYSTEM) :]
    for (name, kind), (wanted_name, types) in zip(system, _SYSTEM, strict=False):
        if name != wanted_name or kind.removesuffix(" NOT NULL") not in types:
            return f"its last columns are not {', '.join(name for name, _ in _SYSTEM)}"
    for place, column in enumerate(shape.columns):
        want = (column.name, _type(_parsed(column.type)))
        if place >= len(own) or own[place] != want:
            return f"column {place + 1} is {' '.join(own[place]) if place < len(own) else 'not there'}, not {' '.join(want)}"
    # Fluss adds a column to the lake first.
    more = [name for name, kind in own[len(shape.columns) :] if kind.endswith(" NOT NULL")]
    return f"it has a column {more[0]} NOT NULL that Fluss has not" if more else ""


def _type(kind: Any) -> str:
    """A type in one of the ways to write it, without the comments of a row's fields."""
    from pypaimon.schema.data_types import ArrayType, MapType, RowType

    ending = "" if kind.nullable else " NOT NULL"
    if isinstance(kind, ArrayType):
        return f"ARRAY<{_type(kind.element)}>{ending}"
    if isinstance(kind, MapType):
        return f"MAP<{_type(kind.key)},{_type(kind.value)}>{ending}"
    if isinstance(kind, RowType):
        return f"ROW<{','.join(f'{field.name}: {_type(field.type)}' for field in kind.fields)}>{ending}"
    return _LOCAL_TIMESTAMP.sub(r"TIMESTAMP(\1) WITH LOCAL TIME ZONE", str(kind)).replace(", ", ",")


def _absent(error: Exception) -> bool:
    from pypaimon.catalog.catalog_exception import DatabaseNotExistException, TableNotExistException

    return isinstance(error, TableNotExistException | DatabaseNotExistException)
