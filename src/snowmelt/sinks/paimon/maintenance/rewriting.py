"""Files of one bucket become fewer: read, merged, and written as files that no snapshot names yet."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import pyarrow as pa

from snowmelt.commit.records import Staged
from snowmelt.errors import Unavailable
from snowmelt.maintenance.files import Rewrite
from snowmelt.sinks.paimon.maintenance.files import inputs_of, maintainable, sequence_field
from snowmelt.sinks.paimon.maintenance.merging import Open, Order, merged, merged_whole, without_deletes
from snowmelt.sinks.paimon.maintenance.reading import FileLayout, layout_of, read_file
from snowmelt.sinks.paimon.maintenance.writing import Place, write_files
from snowmelt.sinks.paimon.references import live_entries
from snowmelt.sinks.paimon.table import identity_of, latest_snapshot

_SMALL_BYTES: Final = 1 << 20
"""A smaller file is read as a whole."""
_TOGETHER_BYTES: Final = 4 << 20
"""Of small files that are in memory at once, as a run."""
_TOGETHER_MAX: Final = 500


def rewrite(table: Any, work: Rewrite, prefix: str) -> Staged:
    """`Unavailable`: an input is gone, or has newer columns than `work.schema`."""
    from pypaimon.write.commit_message import CommitMessage
    from pypaimon.write.commit_message_serializer import serialize_commit_message

    entries = inputs_of_work(maintainable(table), work)
    layout = layout_of(table, work.schema)
    files = [entry.file for entry in entries]
    read = partial(read_file, layout, work.partition, work.bucket)
    numbers = None
    if layout.keyed:
        order = Order(tuple(layout.keys), sequence_field(table), str(table.identifier))
        rows = merged(runs_of(layout, files, read, order), order)
        if work.drops_deletes:
            rows = (without_deletes(part) for part in rows)
    else:
        rows = (part for file in files for part in read(file))
        numbers = (min(file.min_sequence_number for file in files), max(file.max_sequence_number for file in files))
    place = Place(
        layout=layout,
        partition=work.partition,
        bucket=work.bucket,
        level=work.level if layout.keyed else 0,
        prefix=prefix,
        file_bytes=work.file_bytes,
        numbers=numbers,
    )
    written = write_files(place, rows)
    if not written:
        return Staged((), (), 0)
    message = CommitMessage(work.partition, work.bucket, written, total_buckets=entries[0].total_buckets)
    staged = serialize_commit_message(message, table.partition_keys_fields)
    return Staged(tuple(file.file_name for file in written), (staged,), sum(file.row_count for file in written))


def inputs_of_work(table: Any, work: Rewrite) -> list[Any]:
    # The snapshot that they were seen in may be expired. Files that are left are in later ones, too.
    seen = table.snapshot_manager().get_snapshot_by_id(work.snapshot) or latest_snapshot(table)
    found = None
    if identity_of(table) == work.identity:
        found = inputs_of(live_entries(table, seen, [work.bucket]), work.partition, work.bucket, work.inputs)
    if not found:
        hint = "another program has compacted or removed them"
        raise Unavailable("files that were to be compacted are gone", detail=work.target, hint=hint)
    if any(entry.file.schema_id > work.schema for entry in found):
        # The table was loaded before its columns changed, and its files were listed after that. The output would lack the new columns.
        hint = "the next look has both"
        raise Unavailable("a lake table's columns changed while its files were looked at", detail=work.target, hint=hint)
    return found


def runs_of(layout: FileLayout, files: Sequence[Any], read: Callable[[Any], Iterable[pa.Table]], order: Order) -> list[Open]:
    """The files as sorted runs, as few as can be: neighbours that are small together, and large ones that do not overlap as a chain."""
    runs: list[Open] = []
    together: list[Any] = []
    large: list[Any] = []
    for file in files:
        if file.file_size >= _SMALL_BYTES:
            large.append(file)
            continue
        if len(together) == _TOGETHER_MAX or sum(one.file_size for one in together) + file.file_size > _TOGETHER_BYTES:
            runs.append(partial(_whole, layout, together, read, order))
            together = []
        together.append(file)
    chains: list[list[Any]] = []
    for file in sorted(large, key=lambda file: tuple(file.min_key.values)):
        fitting = next((chain for chain in chains if tuple(chain[-1].max_key.values) < tuple(file.min_key.values)), None)
        if fitting is not None:
            fitting.append(file)
        else:
            chains.append([file])
    # Large files are older, mostly.
    runs[:0] = [partial(_chained, chain, read) for chain in chains]
    if together:
        runs.append(partial(_whole, layout, together, read, order))
    return runs


def _chained(files: Sequence[Any], read: Callable[[Any], Iterable[pa.Table]]) -> Iterator[pa.Table]:
    return (piece for file in files for piece in read(file))


def _whole(layout: FileLayout, files: Sequence[Any], read: Callable[[Any], Iterable[pa.Table]], order: Order) -> Iterator[pa.Table]:
    tables = [pa.concat_tables(list(read(file)) or [layout.arrow.empty_table()]) for file in files]
    yield merged_whole(tables, order)
