"""Binary JSON: any value, encoded as the server does, prints as the server's rules say; any bytes are printed or refused."""

from __future__ import annotations

import json
import struct
from contextlib import suppress
from decimal import Decimal
from typing import Any

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from snowmelt.databases.mysql.types.binary_json import CORRUPT, ROOM_TOO_SMALL, apply_diffs, json_text, text_of, text_room
from snowmelt.errors import Corrupt

texts = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from('"\\/\b\f\n\r\t\x00\x1f\x7f'), max_size=40)
integers = st.integers(-(2**63), 2**64 - 1) | st.sampled_from(
    [sign * 2**bits + near for sign in (1, -1) for bits in (15, 16, 31, 32) for near in (-1, 0, 1)]
)
doubles = st.floats(allow_nan=False, allow_infinity=False) | st.decimals(-(10**18), 10**18, places=4).map(float)
scalars = st.none() | st.booleans() | integers | doubles | texts
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=6) | st.dictionaries(texts, inner, max_size=6), max_leaves=30)


def ordered(value: dict[str, Any]) -> list[tuple[bytes, Any]]:
    return sorted(((key.encode(), item) for key, item in value.items()), key=lambda pair: (len(pair[0]), pair[0]))


def encoded(value: Any, wide: int) -> tuple[int, bytes]:
    """(type, value) of a value; containers with offsets of 2 or 4 bytes."""
    match value:
        case None | True | False:
            return 4, bytes([{None: 0, True: 1, False: 2}[value]])
        case int():
            for kind, format_ in ((5, "<h"), (6, "<H"), (7, "<i"), (8, "<I"), (9, "<q"), (10, "<Q")):
                try:
                    return kind, struct.pack(format_, value)
                except struct.error:
                    continue
            raise ValueError(value)
        case float():
            return 11, struct.pack("<d", value)
        case str():
            data = value.encode()
            length, groups = len(data), b""
            while length > 127:
                groups, length = groups + bytes([length & 127 | 128]), length >> 7
            return 12, groups + bytes([length]) + data
    keys = [key for key, _ in ordered(value)] if isinstance(value, dict) else []
    items = [item for _, item in ordered(value)] if isinstance(value, dict) else value
    number = {2: "<H", 4: "<I"}[wide]
    at = 2 * wide + len(keys) * (wide + 2) + len(items) * (wide + 1)
    key_entries = value_entries = tail = b""
    for key in keys:
        key_entries += struct.pack(number, at + len(tail)) + struct.pack("<H", len(key))
        tail += key
    for item in items:
        kind, data = encoded(item, wide)
        if 4 <= kind <= (8 if wide == 4 else 6):
            value_entries += bytes([kind]) + data.ljust(wide, b"\0")
        else:
            value_entries += bytes([kind]) + struct.pack(number, at + len(tail))
            tail += data
    body = key_entries + value_entries + tail
    kind = (0 if isinstance(value, dict) else 2) + (wide == 4)
    return kind, struct.pack(number, len(items)) + struct.pack(number, 2 * wide + len(body)) + body


def document(value: Any, wide: int) -> bytes:
    kind, data = encoded(value, wide)
    return bytes([kind]) + data


def double_text(value: float) -> str:
    """The server's form, from Python's shortest digits."""
    if value == 0:
        return "-0.0" if str(value)[0] == "-" else "0.0"
    sign, numbers, exponent = Decimal(repr(value)).normalize().as_tuple()
    assert isinstance(exponent, int)
    digits = "".join(map(str, numbers))
    point = len(digits) + exponent
    if -15 < point <= 0:
        text = "0." + "0" * -point + digits
    elif 0 < point < len(digits):
        text = digits[:point] + "." + digits[point:]
    elif 0 < point <= 15:
        text = digits.ljust(point, "0") + ".0"
    else:
        text = digits[0] + ("." + digits[1:] if len(digits) > 1 else "") + f"e{point - 1}"
    return "-" * sign + text


def text(value: Any) -> str:
    match value:
        case float():
            return double_text(value)
        case str():
            return json.dumps(value, ensure_ascii=False)
        case dict():
            return "{" + ", ".join(f"{text(key.decode())}: {text(item)}" for key, item in ordered(value)) + "}"
        case list():
            return "[" + ", ".join(map(text, value)) + "]"
        case _:
            return json.dumps(value)


@given(values, st.sampled_from([2, 4]))
def test_any_value_prints_as_the_servers_rules_say(value: Any, wide: int) -> None:
    data = document(value, wide)
    printed = text_of(data)
    assert printed.decode() == text(value)
    assert len(printed) <= text_room(len(data))


@given(values, st.sampled_from([2, 4]), st.data())
def test_a_room_is_never_overrun_and_suffices_when_it_fits(value: Any, wide: int, data: st.DataObject) -> None:
    source = np.frombuffer(bytearray(document(value, wide)), np.uint8)
    length = len(text(value).encode())
    room = data.draw(st.integers(0, length + 3))
    target = np.full(length + 16, 255, np.uint8)
    written = json_text(source, 0, len(source), target, 4, room)
    assert written == (length if room >= length else ROOM_TOO_SMALL)
    assert (target[:4] == 255).all()
    assert (target[4 + room :] == 255).all()


@given(st.floats(allow_nan=False, allow_infinity=False))
@example(9007199254740993.0)
@example(2.0**-1022)
@example(1.2345678901234567e15)
@example(1e23)
def test_a_double_prints_in_the_shortest_form_that_reads_back_alike(value: float) -> None:
    printed = text_of(b"\x0b" + struct.pack("<d", value)).decode()
    assert struct.pack("<d", float(printed)) == struct.pack("<d", value)
    assert printed == double_text(value)


def check_printed_or_refused(data: bytes) -> None:
    room = text_room(len(data))
    target = np.full(room + 8, 255, np.uint8)
    source = np.frombuffer(bytearray(data) + b"\xee" * 64, np.uint8)
    written = json_text(source, 0, len(data), target, 0, room)
    assert written == CORRUPT or 0 < written <= room
    assert (target[room:] == 255).all()
    if written >= 0:
        # It is JSON, and the bytes behind the document do not show.
        json.loads(target[:written].tobytes())
        assert text_of(data) == target[:written].tobytes()


@given(st.binary(max_size=200))
def test_any_bytes_are_printed_or_refused(data: bytes) -> None:
    check_printed_or_refused(data)


@given(
    values,
    st.sampled_from([2, 4]),
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=4),
    st.integers(0, 10_000),
)
def test_a_damaged_document_is_printed_or_refused(value: Any, wide: int, damage: list[tuple[int, int]], cut: int) -> None:
    data = bytearray(document(value, wide))
    for place, byte in damage:
        data[place % len(data)] = byte
    check_printed_or_refused(bytes(data))
    check_printed_or_refused(bytes(data[: cut % len(data)]))


@given(values, st.binary(max_size=100))
def test_any_differences_are_applied_or_refused(value: Any, diffs: bytes) -> None:
    with suppress(Corrupt):
        json.loads(apply_diffs(document(value, 2), diffs))


@given(st.dictionaries(texts, values, min_size=1, max_size=5), values, st.data())
def test_a_member_replaced_by_its_path_shows_the_new_value(value: dict[str, Any], new: Any, data: st.DataObject) -> None:
    key = data.draw(st.sampled_from(sorted(value)))
    path = f"$.{json.dumps(key, ensure_ascii=False)}".encode()
    diffs = b"".join(b"\xfd" + len(part).to_bytes(3, "little") + part for part in (path, document(new, 4)))
    assert apply_diffs(document(value, 4), b"\0" + diffs).decode() == text(value | {key: new})
