"""Connections to the servers of a cluster, and what is asked over them."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Final

from snowmelt.errors import Unavailable
from snowmelt.fluss.answers import FetchFrom
from snowmelt.fluss.client import FlussClient
from snowmelt.fluss.formats.batches import log_batches
from snowmelt.fluss.tablets import Tablets
from snowmelt.model.fluss import Bucket
from snowmelt.model.table import TableId

_TAIL_BYTES: Final = 64


@dataclass(slots=True)
class Links:
    """Connections, kept until something goes wrong on one of them."""

    coordinator: FlussClient
    tablets: dict[str, Tablets] = field(default_factory=dict)

    def tablets_of(self, target: str) -> Tablets:
        if target not in self.tablets:
            self.tablets[target] = Tablets(self.coordinator.cluster(table_path(target)))
        return self.tablets[target]

    def close(self) -> None:
        self.coordinator.connection.close()
        for tablets in self.tablets.values():
            tablets.close()


def last_batch(client: FlussClient, bucket: Bucket, end: int) -> tuple[int, int]:
    """Writer and number of the last batch in front of `end`."""
    with contextlib.suppress(StopIteration):
        for fetched in client.fetch_log([FetchFrom(bucket, end - 1, _TAIL_BYTES)], bytes_max=_TAIL_BYTES):
            if fetched.error is not None:
                raise fetched.error
            batch = next(log_batches(fetched.records, from_offset=end - 1))
            if batch.next == end:
                return batch.writer, batch.sequence
    raise Unavailable("the end of a Fluss bucket's log can't be read", detail=f"{bucket} at {end}")


def table_path(target: str) -> TableId:
    database, _, name = target.partition(".")
    return TableId(database, name)
