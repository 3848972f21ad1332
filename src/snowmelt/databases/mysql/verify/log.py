"""A table's changes between two places of the log, read from the server into a temporary folder."""

from __future__ import annotations

import secrets
import tempfile
from pathlib import Path

import numpy as np

from snowmelt.databases.comparing.rows import RowHashes
from snowmelt.databases.mysql.connect import MySqlOptions, Server
from snowmelt.databases.mysql.log.capture import capture_until
from snowmelt.databases.mysql.log.decode import ABSENT, ChangeBatch, LogReader, LogServer
from snowmelt.databases.mysql.log.images import DELETE, UPDATE_BEFORE
from snowmelt.databases.mysql.types.columns import MySqlTable, TypeOptions
from snowmelt.databases.mysql.verify.forms import MySqlRowForms
from snowmelt.errors import SourceDrift
from snowmelt.model.position import Position
from snowmelt.model.table import SchemaHistory
from snowmelt.segments import list_segments

_TIMEOUT_S = 600.0


def read_changes(
    options: MySqlOptions,
    server: Server,
    table: MySqlTable,
    forms: MySqlRowForms,
    types: TypeOptions,
    after: Position,
    upto: Position,
    *,
    keyed: bool,
    lower_case_names: bool,
) -> RowHashes:
    """The changes in (after, upto], as `rounds.World.changes` has them."""
    parts: list[RowHashes] = []
    with tempfile.TemporaryDirectory(prefix="snowmelt-verify-") as folder:
        # A server_id of its own: of two connections with one server_id the server ends one.
        capture_until(options, Path(folder), after, upto, server_id=2**31 + secrets.randbelow(2**30), timeout_s=_TIMEOUT_S)
        schemas: SchemaHistory[MySqlTable] = SchemaHistory()
        schemas.put(table.id, Position(0, 0), table)
        reader = LogReader(
            server=LogServer(server.flavour, server.version, lower_case_names),
            schemas=schemas,
            captured=lambda name: name == table.id,
            options=types,
        )
        for segment in list_segments(Path(folder)):
            for item in reader.read_segment(segment):
                if isinstance(item, ChangeBatch):
                    parts.append(_part(item, forms, upto, segment.start.file))
                elif item.changes and item.position <= upto:
                    raise SourceDrift("a statement changed the table while it was verified", detail=str(table.id), hint="verify it again")
    rows = RowHashes.joined(parts)
    return _last_of_each(rows) if keyed else rows


def _part(item: ChangeBatch, forms: MySqlRowForms, upto: Position, file: int) -> RowHashes:
    if ABSENT in item.rows.schema.names:
        raise SourceDrift("the log holds partial rows", detail=str(item.table.id), hint="set binlog_row_image to FULL")
    keys, rows = forms.hash(item.rows)
    operations = item.rows.column("_op").to_numpy()
    counts = np.where((operations == DELETE) | (operations == UPDATE_BEFORE), -1, 1)
    ends = item.rows.column("_position").to_numpy()
    inside = np.full(len(keys), file < upto.file) if file != upto.file else ends <= upto.offset
    return RowHashes(keys, rows, counts.astype(np.int64)).where(np.asarray(inside, np.bool_))


def _last_of_each(rows: RowHashes) -> RowHashes:
    """The last state of each key: a before-image takes its key away, and the after-image that follows brings its own."""
    _, backwards = np.unique(rows.keys[::-1], return_index=True)
    last = len(rows.keys) - 1 - backwards
    return RowHashes(rows.keys[last], rows.rows[last], np.maximum(rows.counts[last], 0))
