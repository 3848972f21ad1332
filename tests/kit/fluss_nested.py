"""Fluss' types of any depth with values of theirs, for property tests, and some chosen ones for real servers."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from snowmelt.fluss.formats.types import FlussType, Root

T = FlussType

DEEP = T.array(
    T.row(
        {
            "a": T(Root.INTEGER),
            "m": T.map(T(Root.STRING), T.array(T(Root.DECIMAL, precision=20, scale=3))),
        }
    )
)
LEAVES = T.row(
    {
        "b": T.array(T(Root.BOOLEAN)),
        "t": T.array(T(Root.TINYINT)),
        "s": T.array(T(Root.SMALLINT)),
        "l": T.array(T(Root.BIGINT)),
        "f": T.array(T(Root.FLOAT, nullable=False)),
        "g": T.array(T(Root.DOUBLE)),
        "narrow": T.array(T(Root.DECIMAL, precision=9, scale=2)),
        "bytes": T.array(T(Root.BYTES)),
        "two": T.array(T(Root.BINARY, length=2)),
        "char": T.array(T(Root.CHAR, length=3)),
        "day": T.array(T(Root.DATE)),
        "time": T.array(T(Root.TIME, precision=3)),
        "second": T.array(T(Root.TIMESTAMP, precision=0)),
        "milli": T.array(T(Root.TIMESTAMP, precision=3)),
        "micro": T.array(T(Root.TIMESTAMP_LTZ, precision=6)),
    }
)
CHOSEN: dict[FlussType, list[Any]] = {
    DEEP: [[[7, [("k", [1, None, -(10**19)]), ("longer than a slot", [])]], None, [None, None]], [], None, [[-1, []]]],
    T.array(T(Root.INTEGER, nullable=False)): [list(range(70)), [], None, [-1]],
    T.array(T(Root.STRING)): [["", None, "seven b", "eight by", "ä" * 40], None, [], [None]],
    T.map(T(Root.INTEGER), T.map(T(Root.STRING), T(Root.DOUBLE))): [[(1, [("x", 0.5), ("y", None)]), (2, None)], [], None, [(3, [])]],
    T.row({"n": T(Root.BIGINT, nullable=False), "inner": T.row({"deep": T.array(T.array(T(Root.SMALLINT)))}, nullable=False)}): [
        [5, [[[1, None], None, []]]],
        None,
        [2**63 - 1, [None]],
        [-1, [[]]],
    ],
    LEAVES: [
        [
            [True, None, False],
            [-128, None],
            [32767, None],
            [2**63 - 1, None],
            [1.5, -0.0],
            [None, -1e300],
            [-(10**9) + 1, None],
            [b"", b"\0" * 9, None],
            [b"ab"],
            ["äö", None],
            [-719162, None],
            [86_399_999, None],
            [(-1000, 0), None],
            [(-1, 0), None],
            [(-1, 999_000), None, (253402300799999, 999_000)],
        ],
        None,
        [None] * 15,
        [[]] * 15,
    ],
}
"""Types for columns of a real table, each with as many values."""

COLUMNS = pa.schema(
    [
        ("id", pa.int32()),
        ("tags", pa.list_(pa.string())),
        ("deep", pa.list_(pa.struct([("a", pa.int32()), ("m", pa.map_(pa.string(), pa.list_(pa.decimal128(20, 3))))]))),
    ]
)
"""Of a table that pyfluss makes and writes, and rows of it as Arrow shows them."""
ROWS: list[dict[str, Any]] = [
    {
        "id": 1,
        "tags": ["a", None, "longer than a slot"],
        "deep": [{"a": 5, "m": [("k", [Decimal("1.250"), None]), ("l", None)]}, None, {"a": None, "m": []}],
    },
    {"id": 2, "tags": None, "deep": None},
    {"id": 3, "tags": [], "deep": []},
]


def for_client(row: dict[str, Any]) -> dict[str, Any]:
    """Maps are dicts in pyfluss' rows."""
    return row | {"deep": row["deep"] and [one and {"a": one["a"], "m": dict(one["m"])} for one in row["deep"]]}


_without = [
    Root.BOOLEAN,
    Root.TINYINT,
    Root.SMALLINT,
    Root.INTEGER,
    Root.BIGINT,
    Root.FLOAT,
    Root.DOUBLE,
    Root.STRING,
    Root.BYTES,
    Root.DATE,
]
_precise = [Root.TIME, Root.TIMESTAMP, Root.TIMESTAMP_LTZ]
_plain = st.one_of(
    st.builds(T, st.sampled_from(_without), st.booleans()),
    st.builds(T, st.sampled_from(_precise), st.booleans(), precision=st.sampled_from([0, 3, 6, 9])),
    st.builds(T, st.just(Root.DECIMAL), st.booleans(), precision=st.integers(1, 38)),
    st.builds(T, st.just(Root.BINARY), st.booleans(), length=st.just(2)),
)
kinds = st.recursive(
    _plain,
    lambda inner: st.one_of(
        st.builds(T.array, inner, st.booleans()),
        st.builds(T.map, inner, inner, st.booleans()),
        st.builds(
            lambda parts, nullable: T.row({f"f{n}": part for n, part in enumerate(parts)}, nullable),
            st.lists(inner, min_size=1, max_size=9),
            st.booleans(),
        ),
    ),
    max_leaves=12,
)
"""Any type. NOT NULL may be anywhere."""

_BITS = {Root.TINYINT: 8, Root.SMALLINT: 16, Root.INTEGER: 32, Root.BIGINT: 64}
_MILLIS = {0: 2**40, 3: 2**60, 6: 9 * 10**15, 9: 9 * 10**12}


def values(kind: FlussType) -> st.SearchStrategy[Any]:
    """Values of a type as `fluss_bytes` takes them."""
    found: st.SearchStrategy[Any]
    match kind.root:
        case Root.BOOLEAN:
            found = st.booleans()
        case Root.TINYINT | Root.SMALLINT | Root.INTEGER | Root.BIGINT:
            half = 1 << _BITS[kind.root] - 1
            found = st.integers(-half, half - 1)
        case Root.FLOAT | Root.DOUBLE:
            found = st.floats(allow_nan=False, width=32)
        case Root.DECIMAL:
            found = st.integers(1 - 10**kind.precision, 10**kind.precision - 1)
        case Root.CHAR | Root.STRING:
            found = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
        case Root.BINARY:
            found = st.binary(min_size=kind.length, max_size=kind.length)
        case Root.BYTES:
            found = st.binary(max_size=20)
        case Root.DATE:
            found = st.integers(-719162, 2932896)
        case Root.TIME:
            found = st.integers(0, 86_399_999)
        case Root.TIMESTAMP | Root.TIMESTAMP_LTZ:
            limit = _MILLIS[kind.precision]
            found = st.tuples(st.integers(-limit, limit), st.integers(0, 999_999) if kind.precision > 3 else st.just(0))
        case Root.ARRAY:
            found = st.lists(values(kind.children[0]), max_size=5)
        case Root.MAP:
            found = st.lists(st.tuples(*map(values, kind.children)), max_size=4)
        case Root.ROW:
            found = st.tuples(*map(values, kind.children)).map(list)
    return st.none() | found if kind.nullable else found
