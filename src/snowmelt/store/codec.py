"""Frozen dataclasses as canonical JSON, and strictly back.

    dataclass               object of its fields, all of them
    A | B of dataclasses    object with "is": the name of the class
    T | None                T or null
    tuple                   array
    Mapping[str | int, V]   array of [key, value], by key
    int, str, bool          as in JSON
    Annotated int, Within   the same, and not outside
    float                   finite, and never written like an int
    bytes                   base64
    Enum                    its name
    Literal of words        the word

Laws:
- Equal values have equal bytes: keys sorted, no blanks, ASCII. Hashes and `numbered.settle` rely on it.
- Bytes that `encode` would not have written are `Corrupt`: unknown and missing fields, a bool for an int, an int for a float,
  keys out of order or twice, blanks. A record's version handles what differs between two versions of it.
- An error names the place in the type, never the value found there.
- A class is read once, into closures. A type for which the codec can't keep these laws is refused then, as a bug of ours.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import enum
import itertools
import json
import math
import threading
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Final, Literal, NamedTuple, NewType, TypeVar, Union, get_args, get_origin, get_type_hints

from snowmelt.errors import Corrupt, InvariantBroken, check
from snowmelt.model.moment import Within

T = TypeVar("T")
INT_BITS_MAX: Final = 128
_TAG: Final = "is"


class _Wrong(Exception):
    """A value is not of its type. The path grows while the error is passed up."""

    def __init__(self, expected: str) -> None:
        super().__init__(expected)
        self.expected = expected
        self.path: list[str] = []

    def __str__(self) -> str:
        return f"at {'.'.join(reversed(self.path)) or 'the top'} {self.expected} was expected"


class _Pair(NamedTuple):
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


_classes: dict[type, _Pair] = {}
_unfinished: dict[type, _Pair] = {}
"""Classes that are being read by the thread that holds the lock. No other thread may see one that lacks fields."""
_reading = threading.RLock()


def encode(value: object) -> bytes:
    """The canonical bytes of a frozen dataclass. A field of another type than declared is a bug of ours."""
    try:
        return _dump(_class(type(value)).encode(value))
    except _Wrong as wrong:
        raise InvariantBroken("a value can't be recorded", detail=f"{type(value).__name__} {wrong}") from None


def decode(kind: type[T], raw: bytes) -> T:
    """The value that these bytes encode. Anything else is `Corrupt`."""
    pair = _class(kind)
    try:
        tree = json.loads(raw)
        # Parsing loses duplicate keys, blanks, the order of keys and the spelling of numbers and strings. NaN can't be dumped.
        if _dump(tree) != raw:
            raise _Wrong("canonical JSON")
        value: T = pair.decode(tree)
        return value
    except _Wrong as wrong:
        raise Corrupt(f"not a {kind.__name__}", detail=str(wrong)) from None
    except (ValueError, RecursionError):
        # The text of these errors may quote the value.
        raise Corrupt(f"not a {kind.__name__}", detail="not JSON as it was written") from None


def _dump(tree: Any) -> bytes:
    return json.dumps(tree, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _exactly(kind: type, expected: str) -> Callable[[Any], Any]:
    def same(value: Any) -> Any:
        # `type`, not isinstance: bool is a subclass of int, and a subclass of ours would lose its additions.
        if type(value) is not kind:
            raise _Wrong(expected)
        return value

    return same


def _integer(value: Any) -> Any:
    if type(value) is not int or value.bit_length() > INT_BITS_MAX:
        raise _Wrong(f"an int of at most {INT_BITS_MAX} bits")
    return value


def _finite(value: Any) -> Any:
    if type(value) is not float or not math.isfinite(value):
        raise _Wrong("a finite float")
    return value


def _encode_float(value: Any) -> Any:
    # Minus zero equals zero, so it has the same bytes.
    return _finite(value) + 0.0


def _decode_float(raw: Any) -> Any:
    if _finite(raw) == 0 and math.copysign(1, raw) < 0:
        raise _Wrong("a zero without sign")
    return raw


def _encode_bytes(value: Any) -> str:
    if type(value) is not bytes:
        raise _Wrong("bytes")
    return base64.b64encode(value).decode()


def _decode_bytes(raw: Any) -> bytes:
    try:
        value = base64.b64decode(raw, validate=True) if type(raw) is str else None
    except (binascii.Error, ValueError):
        value = None
    if value is None or base64.b64encode(value).decode() != raw:
        raise _Wrong("base64")
    return value


_text: Final = _exactly(str, "a str")
_truth: Final = _exactly(bool, "a bool")
_nothing: Final = _exactly(type(None), "null")
_a_tuple: Final = _exactly(tuple, "a tuple")
_an_array: Final = _exactly(list, "an array")
_PLAIN: Final[dict[Any, _Pair]] = {
    int: _Pair(_integer, _integer),
    str: _Pair(_text, _text),
    bool: _Pair(_truth, _truth),
    float: _Pair(_encode_float, _decode_float),
    bytes: _Pair(_encode_bytes, _decode_bytes),
    type(None): _Pair(_nothing, _nothing),
}


def _compile(hint: Any) -> _Pair:
    if isinstance(hint, NewType):
        # The kind of a number is the type checker's business.
        return _compile(hint.__supertype__)
    if hint in _PLAIN:
        return _PLAIN[hint]
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is tuple:
        return _row(arguments[0]) if arguments[1:] == (...,) else _fixed(arguments)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _mapping(*arguments)
    if origin in (Union, types.UnionType):
        return _union(arguments)
    if origin is Literal:
        return _word(arguments)
    if origin is Annotated and arguments[0] is int and isinstance(arguments[1], Within):
        return _bounded(arguments[1])
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return _enum(hint)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _class(hint)
    raise InvariantBroken("a type can't be recorded", detail=str(hint))


def _bounded(within: Within) -> _Pair:
    def one(value: Any) -> Any:
        if not within.low <= _integer(value) <= within.high:
            raise _Wrong(f"an int from {within.low} to {within.high}")
        return value

    return _Pair(one, one)


def _word(words: tuple[Any, ...]) -> _Pair:
    check(all(type(word) is str for word in words), "a type can't be recorded", "of literals only words can")

    def one(value: Any) -> Any:
        if type(value) is not str or value not in words:
            raise _Wrong(f"one of {', '.join(words)}")
        return value

    return _Pair(one, one)


def _each(member: Callable[[Any], Any], values: Iterable[Any]) -> list[Any]:
    done: list[Any] = []
    try:
        for value in values:
            done.append(member(value))
    except _Wrong as wrong:
        wrong.path.append(str(len(done)))
        raise
    return done


def _row(hint: Any) -> _Pair:
    member = _compile(hint)
    return _Pair(lambda value: _each(member.encode, _a_tuple(value)), lambda raw: tuple(_each(member.decode, _an_array(raw))))


def _fixed(hints: tuple[Any, ...]) -> _Pair:
    members = [_compile(hint) for hint in hints]

    def each(ways: list[Callable[[Any], Any]], values: Any) -> list[Any]:
        if len(values) != len(ways):
            raise _Wrong(f"{len(ways)} members")
        return _each(lambda way_and_value: way_and_value[0](way_and_value[1]), zip(ways, values, strict=True))

    encoders, decoders = [member.encode for member in members], [member.decode for member in members]
    return _Pair(lambda value: each(encoders, _a_tuple(value)), lambda raw: tuple(each(decoders, _an_array(raw))))


def _mapping(key_hint: Any, value_hint: Any) -> _Pair:
    check(key_hint in (str, int), "a mapping can't be recorded", f"its keys are {key_hint}")
    # Not as an object: its keys would be strings, and 10 would sort before 9.
    items = _row(tuple[key_hint, value_hint])

    def encode_mapping(value: Any) -> list[Any]:
        if not isinstance(value, Mapping):
            raise _Wrong("a mapping")
        return sorted(items.encode(tuple(value.items())), key=lambda item: item[0])

    def decode_mapping(raw: Any) -> dict[Any, Any]:
        pairs = items.decode(raw)
        if any(not one[0] < other[0] for one, other in itertools.pairwise(pairs)):
            raise _Wrong("a mapping with each key once, in order,")
        return dict(pairs)

    return _Pair(encode_mapping, decode_mapping)


def _enum(kind: type[enum.Enum]) -> _Pair:
    # By name: values may come from auto(), and then depend on the order in the source.
    def decode_name(raw: Any) -> enum.Enum:
        member = kind.__members__.get(raw) if type(raw) is str else None
        if member is None or member.name != raw:
            raise _Wrong(f"a {kind.__name__}")
        return member

    def encode_name(value: Any) -> str:
        if type(value) is not kind or value.name not in kind.__members__:
            raise _Wrong(f"a {kind.__name__}")
        return value.name

    return _Pair(encode_name, decode_name)


def _union(hints: tuple[Any, ...]) -> _Pair:
    optional = type(None) in hints
    rest = [hint for hint in hints if hint is not type(None)]
    tagged = len(rest) > 1
    if tagged:
        check(all(dataclasses.is_dataclass(hint) for hint in rest), "a union can't be recorded", "its members must be dataclasses")
        check(len({hint.__name__ for hint in rest}) == len(rest), "a union can't be recorded", "two members have one name")
    inner = _tagged({hint.__name__: hint for hint in rest}) if tagged else _compile(rest[0])
    if not optional:
        return inner
    return _Pair(
        lambda value: None if value is None else inner.encode(value),
        lambda raw: None if raw is None else inner.decode(raw),
    )


def _tagged(members: Mapping[str, type]) -> _Pair:
    pairs = {name: _class(kind) for name, kind in members.items()}
    names = " or ".join(members)

    def encode_member(value: Any) -> dict[str, Any]:
        name = type(value).__name__
        if members.get(name) is not type(value):
            raise _Wrong(names)
        return {_TAG: name, **pairs[name].encode(value)}

    def decode_member(raw: Any) -> Any:
        fields = dict(raw) if type(raw) is dict else {}
        name = fields.pop(_TAG, None)
        pair = pairs.get(name) if type(name) is str else None
        if pair is None:
            raise _Wrong(names)
        return pair.decode(fields)

    return _Pair(encode_member, decode_member)


def _class(kind: type) -> _Pair:
    known = _classes.get(kind)
    if known is not None:
        return known
    with _reading:
        if kind in _classes or kind in _unfinished:
            return _classes.get(kind) or _unfinished[kind]
        outermost = not _unfinished
        try:
            pair = _read_class(kind)
            if outermost:
                _classes.update(_unfinished)
            return pair
        finally:
            if outermost:
                _unfinished.clear()


def _read_class(kind: type) -> _Pair:
    check(dataclasses.is_dataclass(kind), "only dataclasses are recorded", kind.__name__)
    check(kind.__dataclass_params__.frozen, "only frozen dataclasses are recorded", kind.__name__)  # type: ignore[attr-defined]
    check(all(field.init for field in dataclasses.fields(kind)), "a field without init can't be recorded", kind.__name__)
    names = [field.name for field in dataclasses.fields(kind)]
    name_set = set(names)
    members: list[tuple[str, _Pair]] = []

    def encode_fields(value: Any) -> dict[str, Any]:
        if type(value) is not kind:
            raise _Wrong(f"a {kind.__name__}")
        fields: dict[str, Any] = {}
        name = ""
        try:
            for name, pair in members:
                fields[name] = pair.encode(getattr(value, name))
        except _Wrong as wrong:
            wrong.path.append(name)
            raise
        return fields

    def decode_fields(raw: Any) -> Any:
        if type(raw) is not dict or raw.keys() != name_set:
            raise _Wrong(f"a {kind.__name__} with exactly its fields")
        fields: dict[str, Any] = {}
        name = ""
        try:
            for name, pair in members:
                fields[name] = pair.decode(raw[name])
        except _Wrong as wrong:
            wrong.path.append(name)
            raise
        try:
            return kind(**fields)
        except Exception:
            # The class refuses this combination of values. The text of its error may hold them.
            raise _Wrong(f"a {kind.__name__} whose fields agree") from None

    # A class may contain itself, so its entry exists before its fields are read.
    pair = _unfinished[kind] = _Pair(encode_fields, decode_fields)
    hints = get_type_hints(kind, include_extras=True)
    members.extend((name, _compile(hints[name])) for name in names)
    return pair
