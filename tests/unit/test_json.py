"""Binary JSON by hand-made documents; tests/integration compares with a server."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from snowmelt.databases.mysql.types.binary_json import CORRUPT, DEPTH_MAX, ROOM_TOO_SMALL, apply_diffs, json_text, text_of, text_room
from snowmelt.errors import Corrupt

OBJECT = bytes.fromhex("00 0200 2c00 1200 0100 1300 0200 05 0100 02 1500 61 6262 0300 1700 05 0100 0b 0d00 0c 1500 0000000000000440 0178")
"""{"a": 1, "bb": [1, 2.5, "x"]}, as a server wrote it."""


def array(*items: bytes) -> bytes:
    """A small array whose items, each a document, all stand behind its header."""
    header, values = b"", b""
    for item in items:
        header += item[:1] + struct.pack("<H", 4 + 3 * len(items) + len(values))
        values += item[1:]
    return b"\x02" + struct.pack("<HH", len(items), 4 + len(header) + len(values)) + header + values


def string(text: bytes) -> bytes:
    assert len(text) < 128
    return b"\x0c" + bytes([len(text)]) + text


def diff(operation: int, path: bytes, value: bytes | None = None) -> bytes:
    return bytes([operation, len(path)]) + path + (b"" if value is None else bytes([len(value)]) + value)


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ("", "null"),
        ("04 00", "null"),
        ("04 01", "true"),
        ("04 02", "false"),
        ("05 ffff", "-1"),
        ("05 0080", "-32768"),
        ("06 ffff", "65535"),
        ("07 00000080", "-2147483648"),
        ("08 ffffffff", "4294967295"),
        ("09 0000000000000080", "-9223372036854775808"),
        ("0a ffffffffffffffff", "18446744073709551615"),
        ("0b 000000000000f03f", "1.0"),
        ("0b 0000000000000080", "-0.0"),
        ("0b 0100000000000000", "5e-324"),
        ("0c 00", '""'),
        ("0c 05 2f220a0141", r'"/\"\n\u0001A"'),
        ("0c 04 f09f9880", '"\N{GRINNING FACE}"'),
        ("00 0000 0400", "{}"),
        ("02 0000 0400", "[]"),
        ("01 00000000 08000000", "{}"),
        ("03 01000000 0d000000 08 ffffffff", "[4294967295]"),
        ("0f f6 04 0302 8132", "1.50"),
        ("0f f6 04 0302 7ecd", "-1.50"),
        ("0f f6 03 0100 80", "0"),
        ("0f 0a 08 0000000000 42a519", '"2020-01-01"'),
        ("0f 0b 08 00000000 10000000", '"01:00:00.000000"'),
        ("0f 0b 08 ffffffffffffffff", '"-00:00:00.000001"'),
        ("0f fc 01 00", '"base64:type252:AA=="'),
        ("0f 10 00", '"base64:type16:"'),
        (OBJECT.hex(), '{"a": 1, "bb": [1, 2.5, "x"]}'),
    ],
)
def test_a_document_prints_as_the_server_prints_it(document: str, text: str) -> None:
    assert text_of(bytes.fromhex(document)).decode() == text


def test_base64_breaks_its_lines_after_76_characters() -> None:
    assert text_of(b"\x0f\x0f\x39" + b"\0" * 57) == b'"base64:type15:' + b"A" * 76 + b'"'
    assert text_of(b"\x0f\x0f\x3a" + b"\0" * 58) == b'"base64:type15:' + b"A" * 76 + b'\\nAA=="'


def test_a_document_in_the_middle_of_a_buffer_is_read_and_written_there_only() -> None:
    source = np.frombuffer(bytearray(b"\xff" * 7 + OBJECT + b"\xff" * 7), np.uint8)
    target = np.full(64, 255, np.uint8)
    written = json_text(source, 7, len(OBJECT), target, 5, 40)
    assert target[5 : 5 + written].tobytes() == b'{"a": 1, "bb": [1, 2.5, "x"]}'
    assert (target[:5] == 255).all()
    assert (target[45:] == 255).all()


def test_a_room_too_small_by_any_number_of_bytes_is_reported_and_not_overrun() -> None:
    source = np.frombuffer(bytearray(OBJECT), np.uint8)
    for room in range(29):
        target = np.full(40, 255, np.uint8)
        assert json_text(source, 0, len(source), target, 0, room) == ROOM_TOO_SMALL
        assert (target[room:] == 255).all()


@pytest.mark.parametrize(
    "document",
    [
        "04",
        "04 03",
        "05 ff",
        "0b 000000000000f07f",
        "0b 000000000000f8ff",
        "0c",
        "0c 02 41",
        "0c 80",
        "0c ffffffffff 41",
        "0c 01 80",
        "0c 02 c080",
        "0c 03 eda080",
        "0c 04 f4908080",
        "0d 00",
        "0e 00",
        "10 00",
        "0f",
        "0f f6",
        "0f f6 03 5200 80",
        "0f f6 03 0102 80",
        "0f f6 03 0100 ff",
        "0f f6 04 0100 8000",
        "0f 0a 07 00000000000000",
        "0f 0c 08 ffffffffffffff7f",
        "0f 0b 08 0000000000000080",
        "00",
        "00 0100 0400",
        "02 0100 0700 02 0000",
        "02 0100 0700 02 0700",
        "02 ffff ffff",
        "03 ffffffff ffffffff",
    ],
)
def test_bytes_that_are_no_document_are_refused(document: str) -> None:
    with pytest.raises(Corrupt):
        text_of(bytes.fromhex(document))


@pytest.mark.parametrize("length", range(len(OBJECT) - 1, 0, -1))
def test_a_document_cut_short_is_refused(length: int) -> None:
    with pytest.raises(Corrupt):
        text_of(OBJECT[:length])


def test_documents_are_at_most_100_containers_deep() -> None:
    document = array()
    for _ in range(DEPTH_MAX - 1):
        document = array(document)
    assert text_of(document) == b"[" * DEPTH_MAX + b"]" * DEPTH_MAX
    with pytest.raises(Corrupt):
        text_of(array(document))


def test_containers_that_share_their_items_are_refused_before_they_cost_more_than_their_length() -> None:
    # Thirty arrays of two items, each twice the next array: a billion values if one followed the offsets.
    levels = 30
    document = b"\x02"
    for level in range(levels):
        left = 10 * (levels - level)
        document += struct.pack("<HHBHBH", 2 if level < levels - 1 else 0, left, 2, 10, 2, 10)
    source, target = np.frombuffer(bytearray(document), np.uint8), np.empty(1 << 20, np.uint8)
    assert json_text(source, 0, len(source), target, 0, len(target)) == CORRUPT


def test_a_document_with_holes_prints_what_its_offsets_name() -> None:
    # The server replaces values in place and leaves the rest of the old one behind.
    assert text_of(bytes.fromhex("02 0200 1300 0c 0e00 0c 1000 ffffffff 0178 0179 ff")) == b'["x", "y"]'


def test_no_text_is_longer_than_its_room() -> None:
    worst = [b"\x0c\x7f" + b"\x01" * 127, b"\x0f\xff\x00", array(*[b"\x0f\xff\x00"] * 100), array(*[string(b"\x01")] * 100), b""]
    for document in worst:
        assert len(text_of(document)) <= text_room(len(document))


def test_differences_replace_insert_and_remove_members_and_cells() -> None:
    diffs = (
        diff(0, b"$.a", string(b"one"))
        + diff(1, b'$."c \\"d"', b"\x04\x01")
        + diff(2, b"$.bb[last-1]")
        + diff(1, b"$.bb[0]", b"\x05\x00\x00")
    )
    assert apply_diffs(OBJECT, diffs) == rb'{"a": "one", "bb": [0, 1, "x"], "c \"d": true}'


def test_members_stand_in_the_order_of_their_keys_length_and_bytes() -> None:
    diffs = b"".join(diff(1, b"$." + key, b"\x04\x00") for key in (b"zz", b"c", b"B", b"aaa", b"\xc3\xa9"))
    assert apply_diffs(b"\x00\x00\x00\x04\x00", diffs) == '{"B": null, "c": null, "zz": null, "é": null, "aaa": null}'.encode()


def test_cells_past_the_ends_of_an_array_become_its_first_or_last() -> None:
    diffs = diff(1, b"$[9]", b"\x04\x01") + diff(1, b"$[last-7]", b"\x04\x02")
    assert apply_diffs(array(string(b"x")), diffs) == b'[false, "x", true]'


def test_the_whole_document_can_be_replaced_and_no_differences_change_nothing() -> None:
    assert apply_diffs(OBJECT, diff(0, b"$", b"\x05\x01\x00")) == b"1"
    assert apply_diffs(OBJECT, b"") == text_of(OBJECT)


@pytest.mark.parametrize(
    "diffs",
    [
        b"\x00",
        b"\x00\xfb",
        b"\x00\xff",
        b"\x00\x05$.a",
        b"\x00\xfc\x05",
        b"\x00\x03$.a",
        diff(3, b"$.a"),
        diff(2, b"$"),
        diff(2, b"$.x"),
        diff(2, b"$.bb[3]"),
        diff(2, b"$.a[0]"),
        diff(2, b"$.bb.x"),
        diff(0, b"$.x", b"\x04\x00"),
        diff(0, b"$.a", b"\x04\x07"),
        diff(1, b"$", b"\x04\x00"),
        diff(1, b"$.a", b"\x04\x00"),
        diff(1, b"$.a.b", b"\x04\x00"),
        diff(1, b"$[0]", b"\x04\x00"),
        diff(0, b"", b"\x04\x00"),
        diff(0, b"a", b"\x04\x00"),
        diff(0, b"$.", b"\x04\x00"),
        diff(0, b"$[*]", b"\x04\x00"),
        diff(0, b'$."\\q"', b"\x04\x00"),
        diff(0, b'$."\\ud800"', b"\x04\x00"),
        diff(0, b'$."\xff"', b"\x04\x00"),
    ],
)
def test_differences_that_fit_no_place_are_refused(diffs: bytes) -> None:
    with pytest.raises(Corrupt):
        apply_diffs(OBJECT, diffs)


def test_differences_that_grow_a_document_too_deep_are_refused() -> None:
    nested = b"".join(diff(1, b"$" + b"[0]" * depth, array()) for depth in range(1, 80))
    value = array()
    for _ in range(19):
        value = array(value)
    grown = apply_diffs(array(), nested + diff(1, b"$" + b"[0]" * 80, value))
    assert grown == b"[" * DEPTH_MAX + b"]" * DEPTH_MAX
    with pytest.raises(Corrupt):
        apply_diffs(array(), nested + diff(1, b"$" + b"[0]" * 80, array(value)))
