"""A table's rows in another number of buckets: files of one bucket are read, merged, and written by the hash of their keys.

Laws:
- The rows go through the table's own writer, with the wanted number in place of the table's. So each key is in the bucket that later
  commits of it go to.
- The output of a merge without deletes, whose keys nothing else can have, is one sorted run: it has the level that the merge wants. All
  else is of level 0, and readers merge it by `_seq`.
- Nothing refers to the output, and its messages say of how many buckets it is (`sinks.paimon.sink`, `PaimonSink.rescale`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, Final

import pyarrow as pa

from snowmelt.commit.records import Staged
from snowmelt.errors import check
from snowmelt.maintenance.files import Rewrite
from snowmelt.sinks.paimon.maintenance.files import maintainable, sequence_field
from snowmelt.sinks.paimon.maintenance.merging import Order, merged, without_deletes
from snowmelt.sinks.paimon.maintenance.reading import KIND, FileLayout, layout_of, read_file
from snowmelt.sinks.paimon.maintenance.rewriting import inputs_of_work, runs_of
from snowmelt.sinks.paimon.table import messages_of
from snowmelt.sinks.paimon.writer import PaimonWriter

_USER: Final = "snowmelt-maintenance"
_BUFFERS_BYTES: Final = 256 << 20
"""Of all buckets that one task writes, together."""
_BUFFER_BYTES_MIN: Final = 32 << 10
_COMPACTED: Final = 1
"""Paimon's word for where a file comes from."""


def redistribute(table: Any, work: Rewrite, buckets: int, prefix: str) -> Staged:
    """`Unavailable`: an input is gone, or has newer columns than `work.schema`."""
    entries = inputs_of_work(maintainable(table), work)
    layout = layout_of(table, work.schema)
    check(layout.keyed, "a table without a key has no buckets to change", work.target)
    order = Order(tuple(layout.keys), sequence_field(table), str(table.identifier))
    read = partial(read_file, layout, work.partition, work.bucket)
    rows: Iterable[pa.Table] = merged(runs_of(layout, [entry.file for entry in entries], read, order), order)
    if work.drops_deletes:
        rows = (without_deletes(part) for part in rows)
    writer = PaimonWriter(_with_buckets(layout, buckets, prefix), _USER, sequenced=True)
    try:
        for batch in _as_written(layout, rows):
            writer.write(batch)
        staged = writer.finish()
    finally:
        writer.abandon()
    # Each new bucket has keys of one old bucket alone.
    alone = all(buckets % entry.total_buckets == 0 for entry in entries)
    return _told(table, staged, buckets, level=work.level if alone and work.drops_deletes else 0)


def _with_buckets(layout: FileLayout, buckets: int, prefix: str) -> Any:
    """The table as it will be. pypaimon's own copy takes no other number of buckets, and would be right if it were for rows to commit."""
    from pypaimon.table.file_store_table import FileStoreTable

    table = layout.table
    more = {
        "bucket": str(buckets),
        "data-file.prefix": prefix,
        "write.parquet-buffer-size": f"{max(_BUFFER_BYTES_MIN, _BUFFERS_BYTES // buckets)}b",
    }
    schema = layout.schema.copy(new_options={**table.table_schema.options, **more})
    return FileStoreTable(table.file_io, table.identifier, table.table_path, schema, table.catalog_environment)


def _as_written(layout: FileLayout, tables: Iterable[pa.Table]) -> Iterator[pa.RecordBatch]:
    """The table's columns, and then the kind of each row."""
    from pypaimon.schema.data_types import PyarrowFieldParser

    schema = PyarrowFieldParser.from_paimon_schema(layout.schema.fields).append(pa.field(KIND, pa.int8(), nullable=False))
    for table in tables:
        for batch in table.select(schema.names).to_batches():
            yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)


def _told(table: Any, staged: Staged, buckets: int, *, level: int) -> Staged:
    """The writer's messages do not say of how many buckets they are."""
    from pypaimon.write.commit_message_serializer import serialize_commit_message

    messages = messages_of(table, staged.messages)
    for message in messages:
        message.total_buckets = buckets
        for file in message.new_files if level else ():
            file.level, file.file_source = level, _COMPACTED
    written = tuple(serialize_commit_message(message, table.partition_keys_fields) for message in messages)
    return Staged(staged.files, written, staged.rows, staged.places)
