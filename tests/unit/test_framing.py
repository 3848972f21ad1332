"""Streams made by hand: what a server can't be asked for."""

from __future__ import annotations

import itertools
import struct
import zlib

import numpy as np
import pytest

from snowmelt.databases.mysql.gtid import MariaDbGtidSet, MySqlGtidSet
from snowmelt.databases.mysql.log import framing
from snowmelt.databases.mysql.log.framing import Framer
from snowmelt.errors import Corrupt, InvariantBroken
from tests.kit.streams import SOURCE, Log, event, feed, gtid_body, packets, query_body

MIB = 1 << 20


def framer(*, exact: bool = True, segment_bytes: int = 64 * MIB, offset: int = 4, skip_until: int = 0) -> Framer:
    made = Framer(exact=exact, segment_bytes=segment_bytes)
    made.log_name = "binlog.000001"
    made.connect(offset=offset, skip_until=skip_until)
    return made


def sealing_at_each_cut(*, exact: bool = True) -> Framer:
    return framer(exact=exact, segment_bytes=1)


def begun(*, checksummed: bool = True) -> Log:
    log = Log(checksummed=checksummed)
    log.rotate_to("binlog.000001")
    log.describe()
    return log


@pytest.mark.parametrize("checksummed", [True, False])
def test_stored_bytes_are_the_logs_without_what_the_server_made_up(checksummed: bool) -> None:
    log = begun(checksummed=checksummed)
    log.transaction([b"x" * 100], gtid=1)
    log.heartbeat()
    log.transaction([b"y" * 200, b"z" * 300], gtid=2)
    one = framer()
    assert feed(one, packets(log.sent)).stored == b"".join(log.stored)
    assert one["offset"] == log.offset
    assert one["heartbeats"] == 1
    assert one["event_bytes_max"] == max(len(raw) for raw in log.stored)
    assert bool(one["checksummed"]) is checksummed
    if not checksummed:
        assert one["segment_crc"] == zlib.crc32(b"".join(log.stored))


def test_a_cut_point_is_where_no_transaction_is_open() -> None:
    log = begun()
    log.transaction([b"a"])
    log.statement(b"create table t (a int)")
    log.statement(b"XA COMMIT X'31',X'',1")
    log.add(framing.QUERY, query_body(b"XA START X'31',X'',1"))
    log.add(framing.TABLE_MAP, bytes(20))
    log.add(framing.QUERY, query_body(b"XA END X'31',X'',1"))
    log.add(framing.XA_PREPARE, bytes(20), cut=True)
    log.add(framing.QUERY, query_body(b"begin"))
    log.add(framing.QUERY, query_body(b"SAVEPOINT `s`"))
    log.add(framing.QUERY, query_body(b"ROLLBACK TO `s`"))
    log.add(framing.QUERY, query_body(b"CREATE TABLE `t` (a int) START TRANSACTION"))
    log.add(framing.QUERY, query_body(b"Rollback"), cut=True)
    log.add(framing.GTID, gtid_body(7))
    log.add(framing.TRANSACTION_PAYLOAD, bytes(50), cut=True)
    log.add(framing.INTVAR, bytes(9))
    log.add(framing.USER_VAR, bytes(9))
    log.statement(b"insert into t values (@a)")
    log.add(framing.ROTATE, struct.pack("<Q", 4) + b"binlog.000002", cut=True)
    taken = feed(sealing_at_each_cut(), packets(log.sent))
    assert [cut for cut in taken.cuts if cut > 4] == log.cuts


def test_mariadb_groups_end_by_their_flags() -> None:
    def gtid(flags: int) -> bytes:
        return struct.pack("<QIB", 5, 0, flags) + bytes(6)

    log = begun()
    log.add(framing.GTID_MARIADB, gtid(0x01 | 0x08 | 0x20))
    log.statement(b"create table t (a int)")
    log.add(framing.GTID_MARIADB, gtid(0x08 | 0x20))
    log.add(framing.QUERY, query_body(b"CREATE TABLE `t` (a int)"))
    log.add(framing.WRITE_ROWS_V0, bytes(20))
    log.add(framing.QUERY, query_body(b"COMMIT"), cut=True)
    log.add(framing.GTID_MARIADB, gtid(0x01))
    log.add(framing.QUERY_COMPRESSED, bytes(40), cut=True)
    log.add(framing.GTID_MARIADB, gtid(0x0C))
    log.add(framing.QUERY_COMPRESSED, bytes(40))
    log.add(framing.XID, bytes(8), cut=True)
    log.add(framing.GTID_MARIADB, gtid(0x80))
    log.add(framing.QUERY_COMPRESSED, bytes(40), cut=True)
    taken = feed(sealing_at_each_cut(exact=False), packets(log.sent))
    assert [cut for cut in taken.cuts if cut > 4] == log.cuts


def test_the_offset_goes_on_beyond_what_the_header_can_say() -> None:
    log = Log(offset=(1 << 32) - 500)
    log.sent.append(event(framing.ROTATE, struct.pack("<Q", log.offset) + b"binlog.000001", next_position=0, flags=0x20))
    log.describe_again()
    for number in range(40):
        log.transaction([b"x" * 90], gtid=number + 1)
    one = framer(offset=(1 << 32) - 500)
    assert feed(one, packets(log.sent)).stored == b"".join(log.stored)
    assert one["offset"] == log.offset > 1 << 32
    assert one["restart"] == max(cut for cut in log.cuts if cut < 1 << 32)


def test_an_event_that_ends_at_4_gib_exactly_is_no_made_up_one() -> None:
    size = 19 + 100 + 4
    log = Log(offset=(1 << 32) - size)
    log.add(framing.TABLE_MAP, bytes(100))
    log.add(framing.XID, bytes(8), cut=True)
    one = framer(offset=(1 << 32) - size)
    assert feed(one, packets(log.sent)).stored == b"".join(log.stored)
    assert one["offset"] == (1 << 32) + 31


def test_an_offset_wraps_over_an_event_that_was_left_out() -> None:
    log = Log(offset=(1 << 32) - 100)
    log.leave_out(200)
    log.mariadb_transaction(1, told=True)
    one = framer(exact=False, offset=(1 << 32) - 100)
    assert feed(one, packets(log.sent)).stored == b"".join(log.stored)
    assert one["offset"] == log.offset


def test_no_event_of_a_transaction_may_be_left_out() -> None:
    log = Log()
    log.add(framing.GTID_MARIADB, struct.pack("<QIB", 5, 0, 0) + bytes(6))
    log.leave_out(200)
    log.add(framing.TABLE_MAP, bytes(20))
    with pytest.raises(Corrupt, match="not where the log says"):
        feed(framer(exact=False), packets(log.sent))


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("start", [4, (1 << 32) - 300])
@pytest.mark.parametrize("pieces", [[7], [1 << 17]])
def test_places_inside_a_transaction_are_counted_where_they_are_not_told(told: bool, start: int, pieces: list[int]) -> None:
    log = Log(offset=start)
    for number in range(1, 6):
        log.mariadb_transaction(3, number=number, told=told)
    one = framer(exact=False, offset=start, segment_bytes=1)
    taken = feed(one, packets(log.sent), pieces)
    assert taken.stored == b"".join(log.stored), "the texts of statements are not stored"
    assert one["offset"] == log.offset
    assert [cut for cut in taken.cuts if cut > start] == log.cuts
    assert one["restart"] == max([cut for cut in log.cuts if cut < 1 << 32], default=start)


def test_a_stream_goes_on_inside_a_transaction_whose_places_are_not_told() -> None:
    log = Log()
    log.mariadb_transaction(5)
    one = framer(exact=False)
    # GTID, text, map, rows, text: broken off behind the text.
    first = feed(one, packets(log.sent[:5])).stored
    one.connect(offset=one["offset"])
    assert first + feed(one, packets(log.sent[5:])).stored == b"".join(log.stored)
    assert (one["offset"], one.at_cut) == (log.offset, True)


@pytest.mark.parametrize("shift", [-1, 1, 100])
def test_a_commit_that_is_not_where_sizes_say_is_refused(shift: int) -> None:
    log = Log()
    log.mariadb_transaction(2)
    log.sent[-1] = event(framing.XID, bytes(8), next_position=log.offset + shift)
    with pytest.raises(Corrupt, match="not where the log says: event of type 16"):
        feed(framer(exact=False), packets(log.sent))


def test_texts_are_stored_where_a_transaction_leaves_too_much_out() -> None:
    log = Log(offset=4 + framing.LEFT_OUT_BYTES_MAX)
    log.add(framing.ANNOTATE, b"INSERT ...", told=False)
    log.add(framing.TABLE_MAP, bytes(20), told=False)
    one = framer(exact=False, offset=log.offset)
    one.connect(offset=4 + framing.LEFT_OUT_BYTES_MAX)
    # So much of the open transaction came before.
    one.state["cut_offset"] = 4
    assert feed(one, packets(log.sent)).stored == b"".join(log.sent)


def test_a_resume_skips_what_is_stored_already() -> None:
    log = begun()
    for number in range(5):
        log.transaction([b"x" * 90], gtid=number + 1)
    known = log.cuts[2]
    one = framer(skip_until=known)
    taken = feed(one, packets(log.sent))
    assert taken.stored == b"".join(log.stored)[known - 4 :]
    assert one.gtids() == MySqlGtidSet.parse("00010203-0405-0607-0809-0a0b0c0d0e0f:1-5")


def test_a_position_inside_an_event_is_refused() -> None:
    log = begun()
    log.transaction([b"x" * 90])
    with pytest.raises(Corrupt, match="inside an event"):
        feed(framer(skip_until=log.cuts[0] + 5), packets(log.sent))


@pytest.mark.parametrize("checksummed", [True, False])
@pytest.mark.parametrize("size", [framing.PACKET_MAX - 24, framing.PACKET_MAX, 2 * framing.PACKET_MAX - 24, 40_000_000])
def test_an_event_larger_than_all_buffers_is_streamed(size: int, checksummed: bool) -> None:
    log = begun(checksummed=checksummed)
    row = np.random.default_rng(1).integers(0, 256, size, np.uint8).tobytes()
    log.transaction([row], gtid=1)
    log.transaction([b"after"], gtid=2)
    one = framer()
    assert feed(one, packets(log.sent), [100_000]).stored == b"".join(log.stored)
    assert one["offset"] == log.offset
    assert one.at_cut
    if not checksummed:
        assert one["segment_crc"] == zlib.crc32(b"".join(log.stored))


def test_an_event_whose_packets_fill_up_ends_with_an_empty_one() -> None:
    log = begun()
    # The OK byte, header and checksum make the payload a whole number of packets.
    log.transaction([bytes(framing.PACKET_MAX - 1 - 19 - 4)])
    wire = packets(log.sent)
    assert feed(framer(), wire).stored == b"".join(log.stored)


def test_a_flipped_bit_is_found_wherever_it_is() -> None:
    log = begun()
    log.transaction([b"x" * 50], gtid=1)
    wire = packets(log.sent)
    # More follows, so that a packet that seems longer can't just wait.
    tail = packets([event(framing.HEARTBEAT, bytes(framing.STREAMED_MIN), next_position=log.offset)], first=len(log.sent) + 1)
    for at in range(len(wire)):
        for bit in range(at % 3, 8, 3):
            damaged = bytearray(wire)
            damaged[at] ^= 1 << bit
            one = framer()
            try:
                taken = feed(one, bytes(damaged) + tail)
            except Corrupt:
                continue
            # A packet may have become an error of the server; then nothing of it is stored.
            assert taken.reasons[-1] in (framing.SERVER_END, framing.SERVER_ERROR)
            assert b"".join(log.stored).startswith(taken.stored)


def test_a_flipped_bit_of_a_streamed_event_is_found() -> None:
    log = begun()
    log.transaction([bytes(300_000)])
    wire = bytearray(packets(log.sent))
    wire[-200_000] ^= 1
    with pytest.raises(Corrupt, match="checksum"):
        feed(framer(), bytes(wire))


def test_a_missing_packet_is_found_by_its_number() -> None:
    log = begun()
    log.transaction([b"x"])
    wire = packets(log.sent[:3]) + packets(log.sent[4:], first=5)
    with pytest.raises(Corrupt, match="missing or repeated"):
        feed(framer(), wire)


def test_a_missing_event_is_found_by_its_place() -> None:
    log = begun()
    log.transaction([b"x"])
    with pytest.raises(Corrupt, match="not where the log says"):
        feed(framer(), packets(log.sent[:3] + log.sent[4:]))


def test_a_repeated_event_is_found_by_its_place() -> None:
    log = begun()
    log.transaction([b"x"])
    with pytest.raises(Corrupt, match="not where the log says"):
        feed(framer(exact=False), packets(log.sent[:3] + log.sent[2:]))


def test_a_transaction_inside_another_is_refused() -> None:
    log = begun()
    log.add(framing.GTID, gtid_body(1))
    log.add(framing.QUERY, query_body(b"BEGIN"))
    log.add(framing.GTID, gtid_body(2))
    with pytest.raises(Corrupt, match="has no end"):
        feed(framer(), packets(log.sent))


def test_a_statement_whose_parts_exceed_it_is_refused() -> None:
    log = begun()
    log.add(framing.QUERY, struct.pack("<IIBHH", 1, 0, 0, 0, 60_000) + b"BEGIN")
    with pytest.raises(Corrupt, match="header"):
        feed(framer(), packets(log.sent))


def test_a_long_statement_is_streamed_and_still_read() -> None:
    log = begun()
    log.statement(b"create table t (" + b"x" * 500_000 + b")", status=bytes(65_535))
    log.add(framing.QUERY, query_body(b"BEGIN", status=bytes(65_535)))
    log.add(framing.QUERY, query_body(b"insert " + b"x" * 500_000, status=bytes(65_535)))
    log.add(framing.QUERY, query_body(b"COMMIT", status=bytes(65_535)), cut=True)
    taken = feed(sealing_at_each_cut(), packets(log.sent), [777])
    assert [cut for cut in taken.cuts if cut > 4] == log.cuts
    assert taken.stored == b"".join(log.stored)


def test_a_transactions_gtid_counts_when_it_is_whole() -> None:
    log = begun()
    log.transaction([b"x"], gtid=3)
    log.transaction([b"x"], gtid=4)
    log.add(framing.GTID, gtid_body(5))
    one = framer()
    feed(one, packets(log.sent))
    assert one.gtids() == MySqlGtidSet.parse("00010203-0405-0607-0809-0a0b0c0d0e0f:3-4")
    assert one.gtids() is None


def test_many_scattered_gtids_are_handed_over_before_their_list_overflows() -> None:
    log = begun()
    for number in range(1, 5000, 2):
        log.transaction([b"x"], gtid=number)
    one = framer()
    found = MySqlGtidSet()
    wire = packets(log.sent)
    source = np.frombuffer(wire, np.uint8)
    target = np.zeros(len(wire), np.uint8)
    at = 0
    while True:
        reason = one.take(source, at, len(wire), target)
        at = one["at"]
        if reason in (framing.RUNS, framing.MORE):
            found = found.union(one.gtids() or MySqlGtidSet())
        if reason == framing.MORE:
            break
    assert [low for low, _ in found.intervals["00010203-0405-0607-0809-0a0b0c0d0e0f"]] == log.numbers


def test_mariadb_gtids_are_the_last_of_each_domain() -> None:
    log = begun()
    for number, domain, server in [(1, 0, 7), (9, 3, 8), (2, 0, 7), (10, 3, 9)]:
        log.add(framing.GTID_MARIADB, struct.pack("<QIB", number, domain, 0) + bytes(6), server=server)
        log.add(framing.XID, bytes(8), cut=True)
    one = framer(exact=False)
    feed(one, packets(log.sent))
    assert one.gtids() == MariaDbGtidSet.parse("0-7-2,3-9-10")


def test_cut_points_that_are_remembered_lie_a_mebibyte_apart() -> None:
    log = begun()
    for number in range(60):
        log.transaction([bytes(100_000)], gtid=number + 1)
    one = framer()
    feed(one, packets(log.sent))
    cuts = one.cuts()
    places = [0] + [at for at, *_ in cuts]
    assert len(cuts) == 5
    assert all(b - a >= MIB for a, b in itertools.pairwise(places))
    assert all(offset in log.cuts and offset == at + 4 and kind == framing.CUT_COMMIT for at, offset, _, kind in cuts)


def test_a_statement_or_a_phase_of_xa_has_a_cut_at_its_end_and_one_right_before_its_group() -> None:
    log = begun()
    expected: list[tuple[int, int]] = []

    def marked(*groups: list[tuple[int, bytes]], as_kind: int = framing.CUT_STATEMENT) -> None:
        if not expected or expected[-1][0] != log.offset:
            expected.append((log.offset, before))
        for group in groups:
            for kind, body in group:
                log.add(kind, body)
            expected.append((log.offset, as_kind))

    def query(text: bytes) -> tuple[int, bytes]:
        return framing.QUERY, query_body(text)

    rows, xid = (framing.TABLE_MAP, bytes(20)), (framing.XID, bytes(8))
    before = framing.CUT_OTHER
    marked([query(b"CREATE DATABASE d")])
    before = framing.CUT_COMMIT
    log.transaction([b"a"])
    log.transaction([b"b"], gtid=1)
    marked([(framing.GTID, gtid_body(2)), query(b"ALTER TABLE t ADD a INT")], [query(b"drop table t")])
    for text in (b"SAVEPOINT `s`", b"ROLLBACK TO `s`", b"savepoint `create table`"):
        for kind, body in (query(b"BEGIN"), rows, query(text), rows, xid):
            log.add(kind, body)
    prepare, one_phase = (framing.XA_PREPARE, bytes(13) + b"1"), (framing.XA_PREPARE, b"\1" + bytes(12) + b"1")
    started, xa = query(b"XA START X'31',X'',1"), framing.CUT_XA
    marked([(framing.GTID, gtid_body(90)), started, rows, query(b"XA END X'31',X'',1"), prepare], as_kind=xa)
    marked([query(b"XA COMMIT X'31',X'',1")], [query(b"XA ROLLBACK X'31',X'',1")], as_kind=xa)
    for kind, body in (started, rows, one_phase):
        log.add(kind, body)
    # Its rows are text, which matters more than that it is prepared; whoever reads the one finds the other.
    marked([started, query(b"INSERT INTO t VALUES (1)"), prepare])
    marked([query(b"BEGIN"), query(b"CREATE TABLE `t` (a INT) START TRANSACTION"), rows, xid])
    marked([(framing.GTID, gtid_body(3)), query(b"BEGIN"), rows, query(b"DROP TEMPORARY TABLE x"), query(b"COMMIT")])
    log.transaction([b"c"])
    marked([(framing.QUERY_COMPRESSED, bytes(40))], [(framing.BEGIN_LOAD_QUERY, bytes(9)), (framing.EXECUTE_LOAD_QUERY, bytes(40))])
    for number in range(30):
        log.transaction([b"d" * 50_000], gtid=4 + number)
    marked([(framing.INTVAR, bytes(9)), query(b"TRUNCATE t")])
    one = framer()
    feed(one, packets(log.sent))
    found = one.cuts()
    assert all(offset == at + 4 for at, offset, _, _ in found)
    # One cut lies in between for its distance alone.
    alone = [offset for _, offset, _, _ in found if offset not in dict(expected)]
    assert len(alone) == 1
    assert [(offset, kind) for _, offset, _, kind in found if offset not in alone] == expected


def test_a_segment_without_room_for_another_statement_is_to_be_sealed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framing, "STATEMENTS_MAX", 3)
    log = begun()
    for _ in range(10):
        log.transaction([b"a"])
        log.statement(b"TRUNCATE t")
    one = framer(segment_bytes=1 << 19)
    wire = np.frombuffer(packets(log.sent), np.uint8)
    source = np.concatenate([wire, np.zeros(framing.RECEIVE_BYTES_MIN, np.uint8)])
    target = np.zeros(framing.RECEIVE_BYTES_MIN, np.uint8)
    at, found = 0, []
    while (reason := one.take(source, at, len(wire), target)) != framing.MORE:
        at = one["at"]
        if reason == framing.CUT:
            with pytest.raises(InvariantBroken, match="not sealed"):
                one.take(source, at, len(wire), target)
            assert one.at_cut
            found.append([kind for _, _, _, kind in one.cuts()])
            one.next_segment()
            one.state["seal_bytes"] = 1 << 19
    found.append([kind for _, _, _, kind in one.cuts()])
    pair = [framing.CUT_COMMIT, framing.CUT_STATEMENT]
    assert found == [pair * 4, pair * 4, pair * 2]


def test_a_new_connection_goes_on_inside_a_transaction() -> None:
    log = begun()
    log.transaction([b"x" * 1000, b"y" * 150_000, b"z" * 1000], gtid=1)
    wire = packets(log.sent)
    # The connection breaks inside the large event, of which a part has been taken in.
    one = framer()
    first = feed(one, wire[: len(wire) - 20_000])
    whole = one["segment_bytes"]
    assert one["streaming"]
    resumed = Log(offset=one["offset"])
    resumed.rotate_to("binlog.000001", resumed.offset)
    resumed.describe_again()
    rest = b"".join(log.stored)[one["offset"] - 4 :]
    left = [raw for raw in log.stored if rest.find(raw) >= 0][-4:]
    one.connect(offset=one["offset"])
    second = feed(one, packets(resumed.sent + left))
    assert first.stored[:whole] + second.stored == b"".join(log.stored)
    assert one.at_cut
    assert one.gtids() == MySqlGtidSet.parse("00010203-0405-0607-0809-0a0b0c0d0e0f:1")


def test_the_servers_words_are_passed_on() -> None:
    error = b"\xff" + struct.pack("<H", 1236) + b"#HY000gone"
    one = framer()
    wire = len(error).to_bytes(3, "little") + b"\1" + error
    assert feed(one, wire, [1]).reasons[-1] == framing.SERVER_ERROR
    assert wire[one["event_at"] :] == error[1:]
    assert feed(framer(), b"\x05\0\0\1\xfe\0\0\0\0").reasons[-1] == framing.SERVER_END


def test_previous_gtids_are_read_with_and_without_tags() -> None:
    plain = struct.pack("<Q", 1) + SOURCE + struct.pack("<QQQQQ", 2, 1, 4, 6, 7)
    assert str(framing.read_previous_gtids(plain)) == "00010203-0405-0607-0809-0a0b0c0d0e0f:1-3:6"
    tagged = struct.pack("<Q", 1 << 56 | 2 << 8 | 1)
    tagged += SOURCE + b"\0" + struct.pack("<QQQ", 1, 1, 4)
    tagged += SOURCE + bytes([3 << 1]) + b"abc" + struct.pack("<QQQ", 1, 5, 6)
    found = framing.read_previous_gtids(tagged)
    assert found.has("00010203-0405-0607-0809-0a0b0c0d0e0f", 3)
    assert found.has("00010203-0405-0607-0809-0a0b0c0d0e0f:abc", 5)
    for cut in range(len(plain)):
        with pytest.raises(Corrupt):
            framing.read_previous_gtids(plain[:cut])


def test_a_list_of_gtids_larger_than_the_buffer_comes_in_pieces() -> None:
    log = begun()
    body = struct.pack("<Q", 20_000)
    for number in range(20_000):
        body += struct.pack(">QQ", 7, number) + struct.pack("<QQQ", 1, 1, 3)
    log.add(framing.PREVIOUS_GTIDS, body, cut=True)
    one = framer()
    wire = packets(log.sent)
    source = np.zeros(framing.RECEIVE_BYTES_MIN, np.uint8)
    target = np.zeros(framing.RECEIVE_BYTES_MIN, np.uint8)
    gathered = bytearray()
    sent = held = 0
    while sent < len(wire) or held:
        count = min(len(source) - held, len(wire) - sent)
        source[held : held + count] = np.frombuffer(wire, np.uint8, count, sent)
        held, sent, at = held + count, sent + count, 0
        while (reason := one.take(source, at, held, target)) != framing.MORE:
            at = one["at"]
            if reason == framing.ROOM:
                one.state["fill"] = 0
            if reason == framing.PIECE:
                gathered += source[one["piece_at"] :][: one["piece_bytes"]].tobytes()
        source[: held - one["at"]] = source[one["at"] : held].copy()
        held -= one["at"]
    assert bytes(gathered) == log.stored[-1]
