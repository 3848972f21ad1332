from __future__ import annotations

import enum
import json
import math
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, make_dataclass, replace
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from snowmelt.errors import Corrupt, InvariantBroken
from snowmelt.model.position import Position
from snowmelt.store import codec
from snowmelt.store.codec import decode, encode
from tests.kit.values import Book, Circle, Colour, Empty, Everything, Picky, Square

integers = st.integers(-(2**127), 2**127)
colours = st.sampled_from(Colour)
texts = st.text(st.characters(codec=None))  # lone surrogates too: MySQL's are not ours to judge
shapes = st.builds(Circle, integers, colours) | st.builds(Square, integers, colours) | st.just(Empty())
flat = st.builds(
    Everything,
    number=integers,
    ratio=st.floats(allow_nan=False, allow_infinity=False),
    text=texts,
    raw=st.binary(),
    flag=st.booleans(),
    colour=colours,
    shape=shapes,
    maybe_shape=st.none() | shapes,
    maybe=st.none() | integers,
    row=st.lists(shapes, max_size=3).map(tuple),
    pair=st.tuples(integers, texts),
    nothing=st.just(()),
    by_name=st.dictionaries(texts, st.lists(integers, max_size=2).map(tuple), max_size=3),
    by_number=st.dictionaries(integers, colours, max_size=3),
    position=st.builds(Position, st.integers(0, 2**63), st.integers(0, 2**63), st.integers(0, 9), st.none() | texts),
    nested=st.lists(st.lists(st.tuples(st.binary(max_size=3), st.booleans()), max_size=2).map(tuple), max_size=2).map(tuple),
    itself=st.none(),
)
values = flat | st.builds(lambda one, other: replace(one, itself=other), flat, flat)
SOME = Everything(
    7, 0.5, "ä", b"\0\xff", True, Colour.RED, Empty(), None, None, (Circle(1, Colour.RED), Square(1, Colour.BLUE)), (1, "x"), (),
    {"b": (), "a": (1,)}, {10: Colour.RED, 9: Colour.BLUE}, Position(1, 2), (((b"x", True),),),
)  # fmt: skip


class Shade(enum.StrEnum):
    DARK = "dark"


class Row(NamedTuple):
    one: int
    other: int


slow = settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)


def reversed_mappings(value: Everything) -> Everything:
    def turn(mapping: Mapping[Any, Any]) -> Any:
        return dict(reversed(list(mapping.items())))

    return replace(value, by_name=turn(value.by_name), by_number=turn(value.by_number))


@slow
@given(values)
def test_a_value_survives_its_bytes_and_equal_values_have_equal_ones(value: Everything) -> None:
    raw = encode(value)
    again = decode(Everything, raw)
    assert again == value
    assert hash(again.position) == hash(value.position)
    assert encode(again) == encode(reversed_mappings(value)) == raw
    assert raw.isascii()


@slow
@given(values, values)
def test_different_values_have_different_bytes(one: Everything, other: Everything) -> None:
    assert (one == other) == (encode(one) == encode(other))


@slow
@given(values, st.data())
def test_damaged_bytes_are_corrupt_or_what_they_would_be_written_as(value: Everything, data: st.DataObject) -> None:
    raw = bytearray(encode(value))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at] ^= 1 << data.draw(st.integers(0, 7))
    try:
        found = decode(Everything, bytes(raw))
    except Corrupt:
        return
    assert encode(found) == raw


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
)


@slow
@given(st.sampled_from(sorted(json.loads(encode(SOME)))), json_values)
def test_a_field_of_another_type_is_corrupt_and_named_without_its_value(name: str, wrong: Any) -> None:
    tree = json.loads(encode(SOME)) | {name: wrong}
    raw = json.dumps(tree, sort_keys=True, separators=(",", ":")).encode()
    said = ""
    try:
        assert encode(decode(Everything, raw)) == raw
    except Corrupt as error:
        said = str(error)
    assert not said or f"at {name}" in said or "not JSON" in said


GOOD = json.loads(encode(SOME))


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"number": True}, "at number an int"),
        ({"number": 1.0}, "at number an int"),
        ({"number": "1"}, "at number an int"),
        ({"number": None}, "at number an int"),
        ({"number": 2**128}, "at number an int"),
        ({"ratio": 1}, "at ratio a finite float"),
        ({"ratio": -0.0}, "at ratio a zero"),
        ({"flag": 1}, "at flag a bool"),
        ({"raw": "AA"}, "at raw base64"),
        ({"raw": "AB=="}, "at raw base64"),
        ({"raw": "A A="}, "at raw base64"),
        ({"raw": "ä"}, "at raw base64"),
        ({"colour": "AZURE"}, "at colour a Colour"),
        ({"colour": 1}, "at colour a Colour"),
        ({"shape": {}}, "at shape Circle or Square or Empty"),
        ({"shape": {"is": "Book"}}, "at shape Circle or Square or Empty"),
        ({"shape": {"is": ["Empty"]}}, "at shape Circle or Square or Empty"),
        ({"shape": None}, "at shape Circle or Square or Empty"),
        ({"shape": {"is": "Empty", "x": 1}}, "at shape a Empty with exactly"),
        ({"row": [{"is": "Empty"}, {"is": "Circle", "radius": 1, "colour": "red"}]}, "at row.1.colour a Colour"),
        ({"row": {}}, "at row an array"),
        ({"pair": [1]}, "at pair 2 members"),
        ({"pair": [1, 2]}, "at pair.1 a str"),
        ({"nothing": [1]}, "at nothing 0 members"),
        ({"by_number": [[10, "RED"], [9, "RED"]]}, "at by_number a mapping"),
        ({"by_number": [[9, "RED"], [9, "RED"]]}, "at by_number a mapping"),
        ({"by_number": [["9", "RED"]]}, "at by_number.0.0 an int"),
        ({"by_name": {"a": [1]}}, "at by_name an array"),
        ({"position": {"file": 1}}, "at position a Position with exactly"),
        ({"unknown": "hunter2"}, "at the top a Everything with exactly"),
    ],
)
def test_strictness_by_example(change: dict[str, Any], where: str) -> None:
    raw = json.dumps(GOOD | change, sort_keys=True, separators=(",", ":")).encode()
    with pytest.raises(Corrupt, match="not a Everything: " + where) as raised:
        decode(Everything, raw)
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"null", b"[]", b"1", b'"x"', b"{}", b'{"pages":[],"title":"a"} ', b' {"pages":[],"title":"a"}', b'{"title":"a","pages":[]}',
        b'{"pages":[],"pages":[],"title":"a"}', b'{"pages":[],"title":"a","title":"a"}', b'{"pages": [],"title":"a"}',
        b'{"pages":[],"title":"\\u0061"}', '{"pages":[],"title":"ä"}'.encode(), b'{"pages":[],"title":"a"', b'{"pages":[],"title":NaN}',
        b"[" * 100_000, b"1" * 10_000, b'{"pages":[],"title":1e999}', b"\xff\xfe",
        '{"pages":[],"title":"a"}'.encode("utf-16"), b"\xef\xbb\xbf{}",
    ],
)  # fmt: skip
def test_what_was_not_written_by_us_is_corrupt(raw: bytes) -> None:
    with pytest.raises(Corrupt, match="not a Book"):
        decode(Book, raw)


def test_a_class_that_refuses_its_fields_makes_the_record_corrupt_and_is_not_quoted() -> None:
    assert decode(Picky, encode(Picky(1, 2))) == Picky(1, 2)
    with pytest.raises(Corrupt, match="a Picky whose fields agree") as raised:
        decode(Picky, b'{"high":1,"low":2}')
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    "change",
    [
        {"number": True}, {"number": 2**128}, {"ratio": math.inf}, {"ratio": 1}, {"raw": bytearray()}, {"row": []}, {"shape": Colour.RED},
        {"pair": (1,)}, {"by_name": {1: ()}}, {"by_number": [(1, Colour.RED)]}, {"text": None}, {"itself": Empty()},
        {"text": Shade.DARK}, {"row": Row(1, 2)},
    ],
)  # fmt: skip
def test_a_value_of_another_type_than_declared_is_never_written(change: dict[str, Any]) -> None:
    with pytest.raises(InvariantBroken, match=f"can't be recorded: Everything at {next(iter(change))}"):
        encode(replace(SOME, **change))


def test_minus_zero_is_zero() -> None:
    assert encode(replace(SOME, ratio=-0.0)) == encode(replace(SOME, ratio=0.0))


@dataclass
class Thawed:
    x: int


@pytest.mark.parametrize("hint", [Any, object, list[int], dict[str, int | str], int | str, complex, Thawed, Mapping[bytes, int], set[int]])
def test_a_type_that_can_not_be_kept_is_refused_when_it_is_first_used(hint: Any) -> None:
    kind = make_dataclass("Odd", [("book", Book), ("x", hint)], frozen=True)
    for _ in range(2):
        with pytest.raises(InvariantBroken, match="recorded"):
            decode(kind, b"{}")


def test_plain_values_and_hidden_fields_are_refused() -> None:
    with pytest.raises(InvariantBroken, match="only dataclasses"):
        encode({"x": 1})
    with pytest.raises(InvariantBroken, match="without init"):
        encode(make_dataclass("Hidden", [("x", int, field(default=1, init=False))], frozen=True)())


def test_threads_that_meet_a_class_for_the_first_time_all_see_it_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = encode(SOME)
    real = codec.get_type_hints

    def slowly(kind: type, **how: bool) -> dict[str, Any]:
        time.sleep(0.01)
        return real(kind, **how)

    monkeypatch.setattr(codec, "get_type_hints", slowly)
    monkeypatch.setattr(codec, "_classes", {})
    found: list[bytes] = []
    together = threading.Barrier(8)

    def work() -> None:
        together.wait()
        found.append(encode(SOME))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 8
