"""Fluss' bytes, spoiled, into readers of ours: an error of ours, or rows that hold together; no crash, no byte read or written outside.

    python -m tests.fuzz.fluss [--seed 1] [--count 10000]

The last line is JSON: how often which outcome was reached. A crash ends the process, so whoever runs this runs it as one of its own.
Rows lie before a forbidden page, and so do the arenas that they are decoded into (`guard`).
"""

from __future__ import annotations

import argparse
import json
import random
import struct
from collections import Counter
from typing import Any

import google_crc32c
import numpy as np
import pyarrow as pa

from snowmelt.errors import Corrupt, SourceDrift, Unavailable
from snowmelt.fluss.formats import arrays, compacted
from snowmelt.fluss.formats.batches import BatchDecoder, log_batches
from snowmelt.fluss.formats.compacted import RowDecoder
from snowmelt.fluss.formats.types import Column, FlussType, Root, Schema, Versions
from tests.fuzz.guard import Guarded, GuardedPool, WatchedArena, WatchedLayout
from tests.fuzz.mutate import spoil_bytes
from tests.kit.fluss_bytes import arrow_body, compacted_row, log_batch, stored_row, wire_batch
from tests.kit.fluss_nested import CHOSEN, DEEP

REFUSALS = (Corrupt, SourceDrift, Unavailable)
_SLOP = 16
"""Short texts are copied as whole words."""

VALUES: dict[FlussType, list[Any]] = {
    FlussType(root=Root.INTEGER, nullable=False): [0, -1, 300, 2**31 - 1],
    FlussType(root=Root.BOOLEAN): [True, None],
    FlussType(root=Root.TINYINT): [-5, 7],
    FlussType(root=Root.SMALLINT): [-5, None],
    FlussType(root=Root.BIGINT): [-1, 2**40, 3],
    FlussType(root=Root.FLOAT): [1.5],
    FlussType(root=Root.DOUBLE): [-2.5, None],
    FlussType(root=Root.DECIMAL, precision=10, scale=2): [-5, 10**9],
    FlussType(root=Root.DECIMAL, precision=38): [-(10**30), 5, None],
    FlussType(root=Root.STRING): ["", "a text", "ä€" * 20, None],
    FlussType(root=Root.BYTES): [b"", b"\xff" * 300],
    FlussType(root=Root.BINARY, length=2): [b"ab", None],
    FlussType(root=Root.DATE): [-1, 20000],
    FlussType(root=Root.TIME, precision=0): [1000, None],
    FlussType(root=Root.TIMESTAMP, precision=3): [(1, 0), (-1, 0)],
    FlussType(root=Root.TIMESTAMP, precision=6): [(10**12, 5000), None],
    FlussType(root=Root.TIMESTAMP_LTZ, precision=9): [(-5, 999_999)],
    DEEP: CHOSEN[DEEP],
    FlussType.array(FlussType(root=Root.BOOLEAN)): [[True, None, False] * 12, []],
    FlussType.row({"n": FlussType(root=Root.BIGINT, nullable=False), "at": FlussType.array(FlussType(root=Root.TIMESTAMP, precision=6))}): [
        [-1, [(10**12, 5000), None]],
        None,
        [5, []],
    ],
    FlussType.map(FlussType(root=Root.TIME, precision=3), FlussType.array(FlussType(root=Root.DECIMAL, precision=9))): [
        [(5, [-1, None]), (6, None)],
        [],
    ],
}
FIRST = Schema(1, tuple(Column(place, f"c{place}", kind) for place, kind in enumerate(VALUES)))
SECOND = Schema(2, (*FIRST.columns, Column(90, "late", FlussType(root=Root.STRING)), Column(91, "flag", FlussType(root=Root.BOOLEAN))))
VERSIONS = Versions(SECOND, {1: FIRST, 2: SECOND})


def some_row(rng: random.Random) -> tuple[Schema, list[Any]]:
    schema = rng.choice((FIRST, SECOND))
    values = [rng.choice(values) for values in VALUES.values()]
    return schema, values if schema is FIRST else [*values, rng.choice((None, "x" * rng.randrange(40))), rng.choice((None, True))]


def hold_together(batch: pa.RecordBatch) -> None:
    batch.validate(full=True)
    # Whatever a reader does with it has to be possible.
    batch.take(pa.array([0, batch.num_rows - 1]))


def guard_inner(decoder: Any) -> None:
    """All that decodes inside of a value has a pool of its own: arenas of several depths are filled one after the other."""
    parts = decoder._nested if isinstance(decoder, RowDecoder) else [getattr(decoder, name, None) for name in INNER]
    for part in parts:
        if part is not None:
            guard_inner(part)
    if hasattr(decoder, "_pool"):
        decoder._pool = GuardedPool(1 << 18)


INNER = ("_elements", "_keys", "_values", "_inner", "_rows")


class Rows:
    """Compacted rows, one of them spoiled."""

    def __init__(self) -> None:
        self._room = Guarded(1 << 20)
        self._decoders = [RowDecoder(VERSIONS, rows_max=rows) for rows in (1, 7, 100)]
        pool = GuardedPool(8 << 20)
        for decoder in self._decoders:
            guard_inner(decoder)
            decoder._pool = pool

    def run(self, rng: random.Random) -> str:
        rows = [bytearray(stored_row(*some_row(rng))) for _ in range(rng.randrange(1, 12))]
        spoiled = rng.randrange(len(rows) + 1)
        if spoiled < len(rows):
            spoil_bytes(rng, rows[spoiled], bytes(rng.choice(rows)))
        data = self._room.hold(b"".join(rows))
        ends = np.cumsum([len(row) for row in rows])
        starts = ends - np.array([len(row) for row in rows])
        if rng.random() < 0.05:
            ends[-1] += rng.choice((1, -1, 1 << 40))
        decoder = rng.choice(self._decoders)
        decoder._room = [16 if room else 0 for room in decoder._room]
        WatchedArena.made.clear()
        try:
            found = 0
            for batch in decoder.decode(data, starts, ends):
                hold_together(batch)
                found += batch.num_rows
            assert found == len(rows)
            return "rows: read"
        except REFUSALS:
            return "rows: refused"
        finally:
            # Older ones of a pool share their memory with its last, and end where it ends.
            for arena in {arena.memory.ctypes.data + arena.memory.shape[0]: arena for arena in WatchedArena.made}.values():
                arena.look(_SLOP)


class Batches:
    """Batches of the log, spoiled in header, kinds or body, with a checksum that is right or not."""

    def __init__(self) -> None:
        self._decoders = {name: BatchDecoder(VERSIONS, name) for name in ("ARROW", "COMPACTED")}

    def run(self, rng: random.Random) -> str:
        name = rng.choice(("ARROW", "ARROW", "COMPACTED"))
        count = rng.randrange(1, 9)
        base = rng.randrange(5)
        data = bytearray(self._arrow(rng, count, base) if name == "ARROW" else self._compacted(rng, count, base))
        if rng.random() < 0.9:
            keep = rng.choice((0, 29, 52, len(data) - 1))
            tail = bytearray(data[keep:])
            spoil_bytes(rng, tail, bytes(data))
            data[keep:] = tail
        if rng.random() < 0.8 and len(data) >= 29:
            data[8:12] = struct.pack("<i", len(data) - 12)
            data[25:29] = struct.pack("<I", google_crc32c.value(bytes(data[29:])))
        decoder = self._decoders[name]
        try:
            found = 0
            for batch in log_batches(bytes(data), from_offset=0):
                if batch.schema_id not in VERSIONS.by_id:
                    return "batches: of another schema"
                for piece in decoder.decode(batch):
                    hold_together(piece)
                    found += piece.num_rows
            return f"{name}: {'read' if found else 'nothing'}"
        except REFUSALS as error:
            return f"{name}: {'wrong checksum' if 'checksum' in str(error) else 'refused'}"

    def _arrow(self, rng: random.Random, count: int, base: int) -> bytes:
        rows = [[rng.choice(values) for values in VALUES.values()] for _ in range(count)]
        body = arrow_body(wire_batch(FIRST, rows), rng.choice((None, "lz4", "zstd")))
        kinds = None if rng.random() < 0.3 else [rng.randrange(1, 5) for _ in range(count)]
        return log_batch(body, base=base, rows=count, kinds=kinds)

    def _compacted(self, rng: random.Random, count: int, base: int) -> bytes:
        body = b""
        for _ in range(count):
            row = compacted_row(FIRST, [rng.choice(values) for values in VALUES.values()])
            body += struct.pack("<iB", len(row) + 1, rng.randrange(5)) + row
        return log_batch(body, base=base, rows=count, kinds_in_body=True)


def run(seed: int, count: int) -> Counter[str]:
    for module in (compacted, arrays):
        module.Arena, module.Layout = WatchedArena, WatchedLayout  # type: ignore[misc,attr-defined]
    rows, batches = Rows(), Batches()
    counts: Counter[str] = Counter()
    for number in range(count):
        rng = random.Random(f"{seed} {number}")
        try:
            counts[(rows if number % 2 else batches).run(rng)] += 1
        except BaseException:
            print(f"seed {seed}, case {number}", flush=True)
            raise
    return counts


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=10_000)
    options = parser.parse_args()
    print(json.dumps(run(options.seed, options.count)))
