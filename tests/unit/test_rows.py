"""The pieces of the row kernel against Python's own arithmetic, calendar and addresses, and the kernel under tight limits."""

from __future__ import annotations

import calendar
import datetime
import ipaddress
import struct
import uuid
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from snowmelt.databases.mysql.log.decode import ChangeBatch, LogReader, LogServer
from snowmelt.databases.mysql.log.events import Event
from snowmelt.databases.mysql.log.images import (
    decimal_layout,
    put_decimal128,
    put_decimal_text,
    put_inet4,
    put_inet6,
    put_uuid,
)
from snowmelt.databases.mysql.types.columns import MySqlColumn, MySqlTable
from snowmelt.databases.mysql.types.dates import days_of, month_days, put_clock, put_date
from snowmelt.databases.mysql.types.sets import set_lists
from snowmelt.errors import Corrupt, SourceDrift
from snowmelt.model.position import Position
from snowmelt.model.table import SchemaHistory, TableId
from snowmelt.relay.limits import Limits
from tests.integration.logs import table_map_body
from tests.kit import streams

COMPILED = settings(deadline=None)
"""The first call may compile."""
DIGIT_BYTES = [0, 1, 1, 2, 2, 3, 3, 4, 4, 4]


def stored_decimal(unscaled: int, precision: int, scale: int) -> bytes:
    """As servers store it: groups of nine digits from the point outwards, all bits turned over for a negative number, and the
    first bit turned over so that bytes compare as numbers do."""
    digits = str(abs(unscaled)).zfill(precision)
    whole, fraction = digits[: precision - scale], digits[precision - scale :]
    head = len(whole) % 9
    groups = ([whole[:head]] if head else []) + [whole[at : at + 9] for at in range(head, len(whole), 9)]
    groups += [fraction[at : at + 9] for at in range(0, len(fraction), 9)]
    raw = bytearray(b"".join(int(group).to_bytes(DIGIT_BYTES[len(group)], "big") for group in groups))
    if unscaled < 0:
        raw = bytearray(byte ^ 0xFF for byte in raw)
    raw[0] ^= 0x80
    return bytes(raw)


@st.composite
def decimals(draw: st.DrawFn, digits_max: int) -> tuple[int, int, int]:
    precision = draw(st.integers(1, digits_max))
    scale = draw(st.integers(0, min(precision, 38)))
    most = 10**precision - 1
    return draw(st.integers(-most, most) | st.sampled_from([0, most, -most])), precision, scale


def padded(raw: bytes) -> np.ndarray:
    return np.frombuffer(raw + bytes(16), np.uint8)


class TestDecimals:
    @COMPILED
    @given(decimals(38))
    def test_a_decimal_keeps_its_digits(self, number: tuple[int, int, int]) -> None:
        unscaled, precision, scale = number
        memory = np.zeros(16, np.uint8)
        layout = decimal_layout(precision, scale)
        raw = stored_decimal(unscaled, precision, scale)
        assert layout & 0xFF == len(raw)
        assert put_decimal128(padded(raw), 0, layout, memory, 0)
        assert int.from_bytes(memory.tobytes(), "little", signed=True) == unscaled

    @COMPILED
    @given(decimals(65))
    def test_a_decimal_prints_as_it_is_written(self, number: tuple[int, int, int]) -> None:
        unscaled, precision, scale = number
        memory = np.zeros(100, np.uint8)
        end = put_decimal_text(padded(stored_decimal(unscaled, precision, scale)), 0, decimal_layout(precision, scale), memory, 3)
        text = memory[3:end].tobytes().decode()
        expected = Decimal(unscaled).scaleb(-scale, context=None) if precision < 28 else None
        digits = str(abs(unscaled)).zfill(scale + 1)
        written = ("-" if unscaled < 0 else "") + digits[: len(digits) - scale] + ("." + digits[len(digits) - scale :] if scale else "")
        assert text == written
        assert expected is None or Decimal(text) == expected

    @pytest.mark.parametrize(("precision", "scale"), [(9, 0), (10, 2), (18, 9), (38, 10), (65, 30), (1, 1)])
    def test_bytes_that_are_no_decimal_are_refused(self, precision: int, scale: int) -> None:
        layout = decimal_layout(precision, scale)
        raw = padded(b"\xff" * (layout & 0xFF))
        memory = np.zeros(100, np.uint8)
        assert put_decimal_text(raw, 0, layout, memory, 0) == -1
        if precision <= 38:
            assert not put_decimal128(raw, 0, layout, memory, 0)


class TestDates:
    @COMPILED
    @given(st.dates())
    def test_days_are_counted_as_the_calendar_does(self, date: datetime.date) -> None:
        assert days_of(date.year, date.month, date.day) == date.toordinal() - datetime.date(1970, 1, 1).toordinal()

    @COMPILED
    @given(st.integers(1, 9999), st.integers(1, 12))
    def test_months_are_as_long_as_the_calendar_says(self, year: int, month: int) -> None:
        assert month_days(year, month) == calendar.monthrange(year, month)[1]

    @pytest.mark.parametrize(("year", "month"), [(0, 0), (0, 1), (2020, 0), (2020, 13)])
    def test_what_the_calendar_has_not_has_no_days(self, year: int, month: int) -> None:
        assert month_days(year, month) == 0

    @COMPILED
    @given(st.datetimes(), st.integers(0, 6))
    def test_dates_and_times_print_as_iso_says(self, moment: datetime.datetime, fsp: int) -> None:
        memory = np.zeros(80, np.uint8)
        end = put_date(memory, 0, moment.year, moment.month, moment.day)
        assert memory[:end].tobytes().decode() == moment.date().isoformat()
        end = put_clock(memory, 0, moment.hour, moment.minute, moment.second, moment.microsecond, fsp)
        whole = f"{moment.time().replace(microsecond=0).isoformat()}.{moment.microsecond:06}"
        assert memory[:end].tobytes().decode() == (whole[: 9 + fsp] if fsp else whole[:8])


class TestAddresses:
    @COMPILED
    @given(st.uuids())
    def test_a_uuid_prints_whichever_way_it_is_kept(self, value: uuid.UUID) -> None:
        raw = value.bytes
        # The server itself reads these the other way round than it wrote them.
        assume(not (raw[6] & 0x80 and 0 < raw[8] < 0x60))
        # MariaDB turns versions 1 to 5 of the usual variant around.
        if raw[8] & 0x80 and 0 < raw[6] < 0x60:
            raw = raw[10:] + raw[8:10] + raw[6:8] + raw[4:6] + raw[:4]
        memory = np.zeros(80, np.uint8)
        end = put_uuid(padded(raw), memory, 0)
        assert memory[:end].tobytes().decode() == str(value)

    @COMPILED
    @given(st.lists(st.sampled_from([0, 0, 0, 1, 0xFFFF, 0xABC, 0x12]) | st.integers(0, 0xFFFF), min_size=8, max_size=8))
    def test_an_address_can_be_read_back(self, words: list[int]) -> None:
        raw = struct.pack(">8H", *words)
        memory = np.zeros(80, np.uint8)
        end = put_inet6(padded(raw), memory, 0)
        text = memory[:end].tobytes().decode()
        assert ipaddress.IPv6Address(text).packed == raw
        assert text == text.lower()

    @pytest.mark.parametrize(
        "text",
        ["::", "::1", "1::", "::ffff:1.2.3.4", "::1.2.3.4", "2001:db8::1", "1:2:3:4:5:6:7:8", "fe80::1:0:0:1", "::1:0:0:0"],
    )
    def test_an_address_prints_as_the_server_does(self, text: str) -> None:
        memory = np.zeros(80, np.uint8)
        end = put_inet6(padded(ipaddress.IPv6Address(text).packed), memory, 0)
        assert memory[:end].tobytes().decode() == text

    @COMPILED
    @given(st.integers(0, 2**32 - 1))
    def test_a_short_address_prints_as_everybody_does(self, value: int) -> None:
        memory = np.zeros(80, np.uint8)
        address = ipaddress.IPv4Address(value)
        end = put_inet4(padded(address.packed), 0, memory, 0)
        assert memory[:end].tobytes().decode() == str(address)


class TestSets:
    @COMPILED
    @given(st.lists(st.none() | st.integers(0, 2**64 - 1), min_size=1, max_size=20))
    def test_a_mask_is_the_list_of_its_labels(self, masks: list[int | None]) -> None:
        labels = tuple(f"l{number}" for number in range(64))
        valid = np.packbits([mask is not None for mask in masks], bitorder="little")
        buffers = [pa.py_buffer(valid), pa.py_buffer(np.array([mask or 0 for mask in masks], np.uint64))]
        found = set_lists(pa.Array.from_buffers(pa.uint64(), len(masks), buffers), labels)
        found.validate(full=True)
        expected = [None if mask is None else [labels[bit] for bit in range(64) if mask >> bit & 1] for mask in masks]
        assert found.to_pylist() == expected

    def test_the_empty_label_alone_is_no_label_as_in_its_text(self) -> None:
        found = set_lists(pa.array([0, 1, 2, 3], pa.uint64()), ("a", ""))
        assert found.to_pylist() == [[], ["a"], [], ["a", ""]]


TABLE = MySqlTable(
    id=TableId("d", "t"),
    columns=(
        MySqlColumn(name="id", base="int"),
        MySqlColumn(name="v", base="varchar", length=300, charset="utf8mb4"),
        MySqlColumn(name="b", base="blob"),
    ),
)
Row = tuple[int | None, str | None, bytes | None]


def image(row: Row) -> bytes:
    number, text, blob = row
    nulls = sum(1 << index for index, value in enumerate(row) if value is None)
    raw = bytes([nulls])
    if number is not None:
        raw += number.to_bytes(4, "little", signed=True)
    if text is not None:
        raw += len(text.encode()).to_bytes(2, "little") + text.encode()
    if blob is not None:
        raw += len(blob).to_bytes(2, "little") + blob
    return raw


def log_of(groups: list[list[Row]], kind: int) -> streams.Log:
    log = streams.Log()
    for rows in groups:
        log.add(Event.GTID, streams.gtid_body(1))
        log.add(Event.QUERY, streams.query_body(b"BEGIN"))
        log.add(Event.TABLE_MAP, table_map_body(9, types=bytes([3, 15, 252]), meta=b"\xb0\x04\x02"))
        bitmaps = b"\xff\xff" if kind == Event.UPDATE_ROWS_V1 else b"\xff"
        log.add(kind, (9).to_bytes(6, "little") + b"\1\0\3" + bitmaps + b"".join(image(row) for row in rows))
        log.add(Event.XID, bytes(8))
    return log


def read(log: streams.Log, limits: Limits) -> list[ChangeBatch]:
    schemas: SchemaHistory[MySqlTable] = SchemaHistory()
    schemas.put(TABLE.id, Position(0, 0), TABLE)
    reader = LogReader(server=LogServer("mysql", (8, 0, 33)), schemas=schemas, limits=limits)
    found = list(reader.read(np.frombuffer(b"".join(log.stored), np.uint8), file=1, start=4, checksum_bytes=4))
    return [item for item in found if isinstance(item, ChangeBatch)]


def values(batches: list[ChangeBatch]) -> list[Row]:
    return [tuple(row[name] for name in ("id", "v", "b")) for batch in batches for row in batch.rows.to_pylist()]


ROWS = st.tuples(
    st.none() | st.integers(-(2**31), 2**31 - 1),
    st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
    st.none() | st.binary(max_size=40),
)


class TestLimits:
    """Limits make more batches and change nothing else."""

    @COMPILED
    @given(st.lists(st.lists(ROWS, min_size=1, max_size=6), min_size=1, max_size=4), st.integers(1, 5), st.integers(1, 60))
    def test_inserts_are_the_same_under_tight_limits(self, groups: list[list[Row]], rows_max: int, heap: int) -> None:
        found = read(log_of(groups, Event.WRITE_ROWS_V1), Limits(rows_per_batch=rows_max, heap_bytes=heap))
        assert values(found) == [row for rows in groups for row in rows]
        for batch in found:
            batch.rows.validate(full=True)

    @COMPILED
    @given(
        st.lists(st.lists(st.tuples(ROWS, ROWS), min_size=1, max_size=4), min_size=1, max_size=3),
        st.integers(1, 5),
        st.integers(1, 60),
    )
    def test_the_halves_of_an_update_stay_together(self, groups: list[list[tuple[Row, Row]]], rows_max: int, heap: int) -> None:
        flat = [[half for pair in pairs for half in pair] for pairs in groups]
        found = read(log_of(flat, Event.UPDATE_ROWS_V1), Limits(rows_per_batch=rows_max, heap_bytes=heap))
        assert values(found) == [row for rows in flat for row in rows]
        for batch in found:
            assert batch.rows.column("_op").to_pylist() == [1, 2] * (batch.rows.num_rows // 2)

    def test_a_batch_keeps_its_memory_as_long_as_it_lives(self) -> None:
        groups = [[(number, f"text {number}", bytes([number]) * 30)] for number in range(100)]
        found = read(log_of(groups, Event.WRITE_ROWS_V1), Limits(rows_per_batch=2))
        assert len(found) >= 50
        assert values(found) == [row for rows in groups for row in rows]

    def test_a_value_beyond_the_limit_is_named(self) -> None:
        log = log_of([[(1, "x", b"y" * 5000)]], Event.WRITE_ROWS_V1)
        with pytest.raises(SourceDrift, match=r"d\.t is larger than the limit.*column b"):
            read(log, Limits(row_bytes_max=1000, heap_bytes=10))


class TestDamage:
    @pytest.mark.parametrize("cut", range(1, 20))
    def test_a_row_that_ends_too_early_is_refused(self, cut: int) -> None:
        log = streams.Log()
        log.add(Event.GTID, streams.gtid_body(1))
        log.add(Event.QUERY, streams.query_body(b"BEGIN"))
        log.add(Event.TABLE_MAP, table_map_body(9, types=bytes([3, 15, 252]), meta=b"\xb0\x04\x02"))
        log.add(Event.WRITE_ROWS_V1, ((9).to_bytes(6, "little") + b"\1\0\3\xff" + image((7, "four", b"bytes")))[:-cut])
        log.add(Event.XID, bytes(8))
        if cut == len(image((7, "four", b"bytes"))):
            assert read(log, Limits()) == []
        else:
            with pytest.raises(Corrupt):
                read(log, Limits())

    def test_text_that_is_not_utf8_is_refused(self) -> None:
        log = log_of([[(1, "abcd", b"")]], Event.WRITE_ROWS_V1)
        body = log.stored[3][19:-4].replace(b"abcd", b"ab\xff\xfe")
        log.stored[3] = streams.event(Event.WRITE_ROWS_V1, body, next_position=int.from_bytes(log.stored[3][13:17], "little"))
        with pytest.raises(Corrupt, match=r"column v of d\.t holds text that is not in its charset"):
            read(log, Limits())
