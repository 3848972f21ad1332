"""What the row kernel does with a column: plain numbers, since compiled code compares them.

`a` and `b` are a column's two parameters.
"""

from __future__ import annotations

INT8 = 0
UINT8 = 1
INT16 = 2
UINT16 = 3
INT24 = 4
UINT24 = 5
INT32 = 6
UINT32 = 7
INT64 = 8
UINT64 = 9
FLOAT = 10
DOUBLE = 11
SHORT_BYTES = 12
"""One byte of length."""
LONG_BYTES = 13
"""Two bytes of length."""
BLOB = 14
"""`a` bytes of length."""
DECIMAL = 15
"""Stored as `images.decimal_layout` says in `a`; becomes decimal128."""
DECIMAL_TEXT = 16
DATE = 17
DATETIME = 18
"""`a` fractional digits, as all that follow."""
TIMESTAMP = 19
TIME = 20
DATE_TEXT = 21
DATETIME_TEXT = 22
TIMESTAMP_TEXT = 23
TIME_TEXT = 24
YEAR = 25
ENUM = 26
"""An index of `a` bytes, at most `b`."""
SET = 27
"""A mask of `a` bytes for `b` labels."""
BOOL = 28
BITS = 29
"""`a` bytes; `b` bits of them are used."""
PADDED = 30
"""BINARY(`a`), whose trailing zero bytes were cut; `b` bytes of length."""
JSON = 31
"""`a` bytes of length; the `b`th JSON column of the table."""
UUID = 32
"""`a` bytes, trailing zero bytes cut; `b` bytes of length. So the next two."""
INET6 = 33
INET4 = 34
OLD_DATETIME = 35
"""The form of servers before MySQL 5.6, as all OLD ones."""
OLD_TIMESTAMP = 36
OLD_TIME = 37
JSON_RAW = 38
"""As JSON, but the bytes as they are, after one that says whether they are a document (0) or differences (1)."""
OLD_DATETIME_TEXT = 39
OLD_TIMESTAMP_TEXT = 40
OLD_TIME_TEXT = 41

AS_TEXT = {
    DATE: DATE_TEXT,
    DATETIME: DATETIME_TEXT,
    TIMESTAMP: TIMESTAMP_TEXT,
    TIME: TIME_TEXT,
    OLD_DATETIME: OLD_DATETIME_TEXT,
    OLD_TIMESTAMP: OLD_TIMESTAMP_TEXT,
    OLD_TIME: OLD_TIME_TEXT,
}
"""Dates and times as text."""
