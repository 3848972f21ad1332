"""Streams of any shape, cut anywhere, give the same bytes; a CRC-32 is zlib's."""

from __future__ import annotations

import zlib

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from snowmelt.columnar.crc32 import crc32, crc32_by_tables
from snowmelt.databases.mysql.gtid import MySqlGtidSet
from snowmelt.databases.mysql.log import framing
from snowmelt.databases.mysql.log.framing import Framer
from snowmelt.errors import Corrupt
from tests.kit.streams import Log, feed, gtid_body, packets, query_body

SIZES = st.one_of(st.integers(0, 3000), st.integers(90_000, 300_000))
ROWS = st.lists(SIZES.map(lambda size: bytes(range(256)) * (size // 256 + 1)), max_size=3)


@settings(max_examples=60, deadline=None)
@given(
    transactions=st.lists(ROWS, min_size=1, max_size=6),
    pieces=st.lists(st.one_of(st.integers(1, 40), st.integers(1, 200_000)), min_size=1, max_size=20),
    checksummed=st.booleans(),
    start=st.sampled_from([4, (1 << 32) - 50_000, (5 << 32) - 300]),
    heartbeats=st.booleans(),
)
def test_a_stream_cut_anywhere_gives_the_logs_bytes_and_cut_points(
    transactions: list[list[bytes]], pieces: list[int], checksummed: bool, start: int, heartbeats: bool
) -> None:
    log = Log(checksummed=checksummed, offset=start)
    log.rotate_to("binlog.000001", start)
    log.describe_again() if start > 4 else log.describe()
    for number, rows in enumerate(transactions):
        log.transaction(rows, gtid=number + 1)
        if heartbeats:
            log.heartbeat()
    framer = Framer(exact=True, segment_bytes=1)
    framer.connect(offset=start)
    # A large piece now and then, because a megabyte in single bytes takes long.
    taken = feed(framer, packets(log.sent), [*pieces, 90_000])
    assert taken.stored == b"".join(log.stored)
    assert [cut for cut in taken.cuts if cut > start] == log.cuts
    assert framer["offset"] == log.offset
    assert framer["transactions"] == len(transactions)
    assert framer["event_bytes_max"] == max(map(len, log.stored))
    assert framer.gtids() == MySqlGtidSet.parse(f"00010203-0405-0607-0809-0a0b0c0d0e0f:1-{len(transactions)}")
    if not checksummed:
        assert framer["segment_crc"] == zlib.crc32(taken.stored)


GROUPS: dict[str, list[bytes | int]] = {
    "rows": [framing.TABLE_MAP],
    "savepoint": [framing.TABLE_MAP, b"SAVEPOINT `s`", framing.TABLE_MAP, b"ROLLBACK TO `s`"],
    "created from rows": [b"CREATE TABLE t (a INT)", framing.TABLE_MAP],
    "behind rows": [framing.TABLE_MAP, b"DROP TEMPORARY TABLE t"],
}
"""What lies between BEGIN and the end of a group."""


@settings(max_examples=60, deadline=None)
@given(
    groups=st.lists(st.sampled_from([*GROUPS, "alone", "XA COMMIT", "XA PREPARE"]), min_size=1, max_size=12),
    pieces=st.lists(st.integers(1, 200), min_size=1, max_size=20),
    gtids=st.booleans(),
    lost_at=st.none() | st.integers(0, 3000),
)
def test_the_groups_that_hold_statements_or_are_of_xa_are_marked_and_no_others(
    groups: list[str], pieces: list[int], gtids: bool, lost_at: int | None
) -> None:
    log = Log()
    log.rotate_to("binlog.000001")
    log.describe()
    expected: list[int] = []
    for number, name in enumerate(groups):
        begins = log.offset
        if gtids:
            log.add(framing.GTID, gtid_body(number + 1))
        if name == "alone":
            log.statement(b"TRUNCATE t")
        elif name == "XA COMMIT":
            log.statement(b"XA COMMIT X'31',X'',1")
        elif name == "XA PREPARE":
            log.add(framing.QUERY, query_body(b"XA START X'31',X'',1"))
            log.add(framing.TABLE_MAP, bytes(20))
            log.add(framing.XA_PREPARE, bytes(13) + b"1", cut=True)
        else:
            log.add(framing.QUERY, query_body(b"BEGIN"))
            for what in GROUPS[name]:
                log.add(framing.QUERY, query_body(what)) if isinstance(what, bytes) else log.add(what, bytes(20))
            log.add(framing.XID, bytes(8), cut=True)
        if name in ("alone", "XA COMMIT", "XA PREPARE", "created from rows", "behind rows"):
            expected += [begins, log.offset] if begins not in expected[-1:] else [log.offset]
    framer = Framer(exact=True, segment_bytes=64 << 20)
    framer.connect(offset=4)
    wire = packets(log.sent)
    if lost_at is not None:
        # The connection is lost anywhere, and the next one goes on with the event that was not whole.
        feed(framer, wire[:lost_at], pieces)
        begin, at, rest = framer["offset"], 4, []
        for raw in log.stored:
            rest += [raw] if at >= begin else []
            at += len(raw)
        framer.connect(offset=begin)
        again = Log()
        again.rotate_to("binlog.000001", begin)
        again.describe_again()
        wire = packets(again.sent + rest)
    feed(framer, wire, pieces)
    assert [offset for _, offset, _, _ in framer.cuts()] == expected


@settings(max_examples=200, deadline=None)
@given(noise=st.binary(max_size=3000), cut=st.integers(0, 2000), pieces=st.lists(st.integers(1, 500), min_size=1, max_size=5))
def test_noise_after_a_good_beginning_is_refused_or_waited_for(noise: bytes, cut: int, pieces: list[int]) -> None:
    log = Log()
    log.rotate_to("binlog.000001")
    log.describe()
    log.transaction([b"x" * 500], gtid=1)
    wire = packets(log.sent)[:cut] + noise
    framer = Framer(exact=True, segment_bytes=1)
    framer.connect(offset=4)
    try:
        taken = feed(framer, wire, pieces)
    except Corrupt:
        return
    assert b"".join(log.stored).startswith(taken.stored)


@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_crc32_is_zlibs(data: st.DataObject) -> None:
    seed = data.draw(st.integers(0, 2**32 - 1))
    start = data.draw(st.integers(0, 70))
    raw = np.random.default_rng(seed).integers(0, 256, 700, np.uint8)
    for length in range(601):
        expected = zlib.crc32(raw[start : start + length].tobytes(), seed)
        assert int(crc32(raw, start, start + length, np.uint32(seed))) == expected
        assert int(crc32_by_tables(raw, start, start + length, np.uint32(seed))) == expected


@settings(max_examples=50, deadline=None)
@given(size=st.integers(0, 300_000), cut=st.integers(0, 300_000), seed=st.integers(0, 2**32 - 1))
def test_crc32_of_parts_is_that_of_the_whole(size: int, cut: int, seed: int) -> None:
    raw = np.random.default_rng(seed).integers(0, 256, size, np.uint8)
    cut = min(cut, size)
    parts = crc32(raw, cut, size, np.uint32(crc32(raw, 0, cut, np.uint32(0))))
    assert int(parts) == zlib.crc32(raw.tobytes())


def test_a_cut_point_is_never_inside_a_packet() -> None:
    framer = Framer(exact=True, segment_bytes=1)
    framer.connect(offset=4)
    assert framer.at_cut
    log = Log()
    log.rotate_to("binlog.000001")
    log.describe()
    log.add(framing.TABLE_MAP, bytes(500_000))
    feed(framer, packets(log.sent)[:200_000])
    assert not framer.at_cut
