"""Changes that keep stored values as they are.

Laws:

- Metadata-only is a white list: a change that is not known to keep every possible value counts as one that does not.
- The value of an added column in stored rows is given only if simple rules yield it. Otherwise only the server knows it.
"""

from __future__ import annotations

import datetime
import re
import struct
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation

from snowmelt.databases.mysql.ddl.definitions import TEXT_SIZES, Definition
from snowmelt.databases.mysql.ddl.rules import CHARSET_BYTES_MAX, Rules
from snowmelt.databases.mysql.types.columns import BINARY_TYPES, DECIMAL_DIGITS_MAX, INTEGER_BITS, TEXT_TYPES, MySqlColumn


def why_values_change(before: MySqlColumn, after: MySqlColumn, *, in_key: bool, strict: bool) -> str | None:
    """Why stored values can't be read with the new definition; None where they can."""
    name = before.name
    if before.generated != after.generated:
        return f"column {name} is or was generated"
    if before.generated:
        # Its expression may have changed, and neither text is kept.
        return f"the generated column {name} is computed anew"
    if before.nullable and not after.nullable and (not strict or after.base == "timestamp"):
        return f"NULLs of column {name} are converted"
    if before.charset and after.charset and before.charset != after.charset:
        return f"column {name} is converted to another character set"
    if before.collation != after.collation and in_key:
        return f"key column {name} gets another collation"
    if not _widens(before, after):
        return f"values of column {name} are converted to another type"
    return None


def _widens(before: MySqlColumn, after: MySqlColumn) -> bool:
    """Whether every value of the old type is the same value of the new one, whatever the rows hold."""
    old, new = before.base, after.base
    if before.unsigned != after.unsigned or after.fsp < before.fsp:
        return False
    if old in INTEGER_BITS and new in INTEGER_BITS:
        return INTEGER_BITS[old] <= INTEGER_BITS[new]
    for text in ("text", "blob"):
        sizes = [prefix + text for prefix, _ in TEXT_SIZES]
        if new not in sizes:
            continue
        if old in sizes:
            return sizes.index(old) <= sizes.index(new)
        if old == ("varchar" if text == "text" else "varbinary"):
            held = (before.length or 0) * CHARSET_BYTES_MAX.get(before.charset or "", 1)
            return held <= TEXT_SIZES[sizes.index(new)][1]
    if old != new:
        return False
    if old == "decimal":
        digits, more = before.precision or 10, after.precision or 10
        fraction, finer = before.scale or 0, after.scale or 0
        as_text = digits > DECIMAL_DIGITS_MAX
        return finer >= fraction and more - finer >= digits - fraction and as_text == (more > DECIMAL_DIGITS_MAX)
    if old in ("enum", "set"):
        return after.labels[: len(before.labels)] == before.labels
    if old in ("char", "varchar", "varbinary"):
        return (after.length or 0) >= (before.length or 0)
    return before.length == after.length


class NotConstant(Exception):
    """Old rows hold in a new column what only the server knows; the message says why."""


def stored_value(column: MySqlColumn, raw: Definition, rules: Rules) -> str | bytes | None:
    """What rows that are stored already hold in an added column."""
    default = raw.default
    if raw.generated or raw.auto_increment:
        raise NotConstant(f"column {column.name} is computed for each stored row")
    if default is not None and default.kind == "computed":
        raise NotConstant(f"the default of column {column.name} is computed")
    if default is None or default.kind == "null":
        if column.nullable:
            return None
        if column.base == "timestamp" and not rules.explicit_timestamps:
            raise NotConstant(f"column {column.name} may hold the time of the statement")
        return _zero(column)
    if default.kind == "bytes":
        return _converted_bytes(column, default.text.encode("latin1"))
    return _converted(column, default.text)


def _zero(column: MySqlColumn) -> str | bytes | None:
    """The implicit default of a NOT NULL column without one."""
    base = column.base
    if base == "enum":
        return column.labels[0]
    if base == "binary":
        return bytes(column.length or 0)
    if base == "bit":
        return bytes(((column.length or 1) + 7) // 8)
    if base in BINARY_TYPES:
        return b""
    if base in TEXT_TYPES or base == "set":
        return ""
    if base in INTEGER_BITS or base in ("float", "double"):
        return "0"
    if base == "decimal":
        return str(Decimal(0).quantize(Decimal(1).scaleb(-(column.scale or 0))))
    if base == "year":
        return "0000"
    fraction = "." + "0" * column.fsp if column.fsp else ""
    zeros = {"date": "0000-00-00", "datetime": "0000-00-00 00:00:00" + fraction, "time": "00:00:00" + fraction}
    zeros["timestamp"] = zeros["datetime"]
    if base in zeros:
        return zeros[base]
    raise NotConstant(f"column {column.name} has no default that we know")


def _converted_bytes(column: MySqlColumn, value: bytes) -> str | bytes:
    base = column.base
    if base in INTEGER_BITS or base == "decimal":
        return _converted(column, str(int.from_bytes(value, "big")))
    if base == "bit":
        size = ((column.length or 1) + 7) // 8
        value = value.lstrip(b"\0").rjust(size, b"\0")
    elif base == "binary":
        value = value.ljust(column.length or 1, b"\0")
    elif base not in BINARY_TYPES:
        raise NotConstant(f"the default of column {column.name} is written as bytes")
    return value


def _converted(column: MySqlColumn, text: str) -> str | bytes:
    """A literal default as the column's type prints it; what needs more than plain rules is left to the server."""
    base = column.base
    unclear = NotConstant(f"the default of column {column.name} is converted by the server")
    if base == "enum":
        matches = [label for label in column.labels if label == text.rstrip(" ")]
        if not matches:
            raise unclear
        return matches[0]
    if base == "set":
        chosen = text.split(",") if text else []
        if not set(chosen) <= set(column.labels):
            raise unclear
        return ",".join(label for label in column.labels if label in chosen)
    if base in TEXT_TYPES:
        return text.rstrip(" ") if base == "char" else text
    if base in BINARY_TYPES:
        raw = text.encode()
        return raw.ljust(column.length or 1, b"\0") if base == "binary" else raw
    try:
        if base in INTEGER_BITS:
            return str(int(Decimal(text).quantize(Decimal(1), ROUND_HALF_UP)))
        if base == "decimal":
            return f"{Decimal(text).quantize(Decimal(1).scaleb(-(column.scale or 0)), ROUND_HALF_UP):f}"
        if base == "double":
            return repr(float(text))
        if base == "float":
            return repr(struct.unpack("<f", struct.pack("<f", float(text)))[0])
        if base == "bit":
            return int(text).to_bytes(((column.length or 1) + 7) // 8, "big")
        if base == "year" and re.fullmatch(r"\d{4}", text):
            return text
        if base == "date" and re.fullmatch(r"\d{4}-\d\d-\d\d", text):
            return text if text == "0000-00-00" else datetime.date.fromisoformat(text).isoformat()
        if base == "datetime" and column.fsp == 0 and re.fullmatch(r"\d{4}-\d\d-\d\d( \d\d:\d\d:\d\d)?", text):
            text = text if " " in text else f"{text} 00:00:00"
            return text if text.startswith("0000-00-00") else datetime.datetime.fromisoformat(text).isoformat(" ")
        if base == "time" and column.fsp == 0 and re.fullmatch(r"\d\d:\d\d:\d\d", text):
            return text
    except (InvalidOperation, OverflowError, ValueError):
        raise unclear from None
    # A TIMESTAMP's literal is a time of the session's zone.
    raise unclear
