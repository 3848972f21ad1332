"""The writer of one Paimon table, in a task: rows become files that no snapshot names yet."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from snowmelt.commit.records import Staged
from snowmelt.errors import InvalidConfig, check
from snowmelt.maintenance.compaction import name_place
from snowmelt.sinks.paimon.table import (
    messages_of,
    our_errors,
)


class PaimonWriter:
    """Writes rows of one table, in a task. Not shared; `finish` or `abandon` once."""

    def __init__(self, table: Any, user: str, *, sequenced: bool) -> None:
        """`sequenced`: `_seq` tells the order of rows, and no two files hold a key with the same, so that it does not matter which numbers
        Paimon gives them. A writer that has to continue those of the files that are there reads all manifests before its first row."""
        from pypaimon.write.native_commit import create_native_write_table

        native = create_native_write_table(table)
        if native is None:
            raise InvalidConfig("this kind of Paimon table has no native writer", detail=str(table.identifier))
        builder = native.new_batch_write_builder()._with_commit_user(user)
        # One that is to replace everything begins with number 0. Whether anything is replaced is up to the commit, which is ours.
        self._write: Any = (builder.with_overwrite({}) if sequenced else builder).new_write()
        self._target = str(table.identifier)
        self._rows = 0
        self._table = table

    def write(self, batch: pa.RecordBatch) -> None:
        """Rows in the order of their changes, `_seq` and the kind included. After an error nothing is left to be done with it."""
        with self._working():
            self._write.write_arrow(batch)
        self._rows += batch.num_rows

    def finish(self) -> Staged:
        with self._working():
            messages = tuple(bytes(message.serialize()) for message in self._write.prepare_commit())
        self.abandon()
        read = messages_of(self._table, messages)
        placed = [(file.file_name, name_place(message.partition, message.bucket)) for message in read for file in message.new_files]
        return Staged(tuple(name for name, _ in placed), messages, self._rows, tuple(place for _, place in placed))

    def abandon(self) -> None:
        """Files that were written stay, for the cleaner. Twice is fine."""
        if self._write is not None:
            self._write.close()
            self._write = None

    @contextlib.contextmanager
    def _working(self) -> Iterator[None]:
        check(self._write is not None, "a writer is used after its end", self._target)
        with our_errors(self._target, rows=True):
            try:
                yield
            except BaseException:
                # Here and now, and no frame may hold it: the error would carry it into another thread, where it can't be freed.
                self.abandon()
                raise
