"""Column definitions, as written and as the server completes them.

Laws:

- A definition that is read becomes, field for field, the column that the server's catalogue shows.
- A type or an attribute that we don't know is `Unreadable`: a column is never half understood.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from snowmelt.databases.mysql.ddl.rules import CHARSET_BYTES_MAX, Rules, SqlMode
from snowmelt.databases.mysql.ddl.words import END, Token, Unreadable, Words
from snowmelt.databases.mysql.types.columns import INTEGER_BITS, TEXT_TYPES, MySqlColumn


@dataclass(slots=True)
class Default:
    """A DEFAULT clause: a literal, NULL, or something computed."""

    kind: Literal["literal", "bytes", "null", "computed"]
    text: str = ""


@dataclass(slots=True, kw_only=True)
class Definition:
    """A column definition as written, before the table's defaults complete it."""

    name: str
    base: str = ""
    unsigned: bool = False
    length: int | None = None
    precision: int | None = None
    scale: int | None = None
    rounds: bool = False
    """A type of floating point with a number of decimals, to which the server rounds what it copies."""
    fsp: int = 0
    labels: list[Token] = field(default_factory=list)
    charset: str | None = None
    collation: str | None = None
    binary: bool = False
    nullable: bool | None = None
    generated: Literal["virtual", "stored"] | None = None
    invisible: bool = False
    default: Default | None = None
    comment: str = ""
    auto_increment: bool = False
    primary: bool = False
    unique: bool = False
    cascades: bool = False
    period: Literal["START", "END"] | None = None
    """Which end of a MariaDB row's time it holds, where the table declares it."""


_SYNONYMS = {
    "TINYINT": "tinyint", "INT1": "tinyint", "SMALLINT": "smallint", "INT2": "smallint", "MEDIUMINT": "mediumint",
    "INT3": "mediumint", "MIDDLEINT": "mediumint", "INT": "int", "INTEGER": "int", "INT4": "int",
    "BIGINT": "bigint", "INT8": "bigint",
    "DECIMAL": "decimal", "DEC": "decimal", "NUMERIC": "decimal", "FIXED": "decimal",
    "FLOAT": "float", "FLOAT4": "float", "DOUBLE": "double", "FLOAT8": "double",
    "DATE": "date", "YEAR": "year", "BIT": "bit", "JSON": "json", "ENUM": "enum", "SET": "set",
    "DATETIME": "datetime", "TIMESTAMP": "timestamp", "TIME": "time",
    "CHAR": "char", "CHARACTER": "char", "VARCHAR": "varchar", "VARCHARACTER": "varchar",
    "TINYTEXT": "tinytext", "TEXT": "text", "MEDIUMTEXT": "mediumtext", "LONGTEXT": "longtext",
    "BINARY": "binary", "VARBINARY": "varbinary",
    "TINYBLOB": "tinyblob", "BLOB": "blob", "MEDIUMBLOB": "mediumblob", "LONGBLOB": "longblob",
    "GEOMETRY": "geometry", "POINT": "point", "LINESTRING": "linestring", "POLYGON": "polygon", "MULTIPOINT": "multipoint",
    "MULTILINESTRING": "multilinestring", "MULTIPOLYGON": "multipolygon",
    "GEOMETRYCOLLECTION": "geometrycollection",
    "GEOMCOLLECTION": "geometrycollection", "UUID": "uuid", "INET4": "inet4", "INET6": "inet6", "VECTOR": "vector",
}  # fmt: skip
BINARY_TWIN = {
    "char": "binary", "varchar": "varbinary",
    "tinytext": "tinyblob", "text": "blob", "mediumtext": "mediumblob", "longtext": "longblob",
}  # fmt: skip
TEXT_SIZES = (("tiny", 0xFF), ("", 0xFFFF), ("medium", 0xFFFFFF), ("long", 0xFFFFFFFF))


def read_definition(words: Words, name: str, rules: Rules) -> Definition:
    column = Definition(name=name)
    _read_type(words, column, rules)
    _read_attributes(words, column, rules)
    return column


def _read_type(words: Words, column: Definition, rules: Rules) -> None:
    token = words.take()
    word = token.text.upper()
    if token.kind != "word":
        raise Unreadable(f"a type expected for column {column.name}, {token.text[:40]!r} found")
    national = word in ("NATIONAL", "NCHAR", "NVARCHAR")
    if word == "NATIONAL":
        word = words.take().text.upper()
    if word == "NCHAR" or (national and word in ("CHAR", "CHARACTER")):
        column.base = "varchar" if words.skip_any("VARYING", "VARCHAR", "VARCHARACTER") else "char"
    elif word == "NVARCHAR" or (word in ("CHAR", "CHARACTER") and words.skip("VARYING")):
        column.base = "varchar"
    elif word == "LONG":
        binary = words.skip("VARBINARY")
        if not binary and words.skip_any("CHAR", "CHARACTER"):
            words.expect("VARYING")
        elif not binary:
            words.skip_any("VARCHAR", "VARCHARACTER")
        column.base = "mediumblob" if binary else "mediumtext"
    elif word in ("BOOL", "BOOLEAN"):
        column.base = "tinyint"
    elif word == "SERIAL":
        column.base, column.unsigned, column.nullable, column.auto_increment, column.unique = "bigint", True, False, True, True
    elif word == "REAL":
        column.base = "float" if rules.mode(SqlMode.REAL_AS_FLOAT) else "double"
    elif rules.mariadb and rules.mode(SqlMode.ORACLE) and (word, words.sees("(")) in _ORACLE_TYPES:
        column.base = _ORACLE_TYPES[word, words.sees("(")]
    elif word in _SYNONYMS:
        column.base = _SYNONYMS[word]
    else:
        raise Unreadable(f"the type {word[:40]} of column {column.name} is not known")
    if national:
        column.charset = rules.charset("utf8")
    words.skip("PRECISION")
    if column.base == "timestamp" and rules.mode(SqlMode.MAXDB) and (rules.mariadb or rules.version < (8, 0, 0)):
        column.base = "datetime"
    if column.base == "geometrycollection" and not rules.mariadb and rules.version >= (8, 0, 0):
        column.base = "geomcollection"
    if column.base == "json" and rules.mariadb:
        column.base, column.charset, column.collation = "longtext", "utf8mb4", "utf8mb4_bin"
    _read_size(words, column, rules)


_ORACLE_TYPES = {
    ("DATE", False): "datetime", ("NUMBER", False): "double", ("NUMBER", True): "decimal", ("VARCHAR2", True): "varchar",
    ("CLOB", False): "longtext", ("CLOB", True): "longtext", ("RAW", True): "varbinary", ("BLOB", False): "longblob",
}  # fmt: skip
"""What MariaDB makes of types in Oracle's mode, by whether a size follows."""


def _read_size(words: Words, column: Definition, rules: Rules) -> None:
    base = column.base
    if base in ("enum", "set"):
        words.expect("(")
        while True:
            token = words.take()
            if token.kind not in ("string", "bytes"):
                raise Unreadable(f"a label expected for column {column.name}")
            column.labels.append(token)
            if not words.skip(","):
                break
        words.expect(")")
        return
    numbers: list[int] = []
    if words.skip("("):
        numbers.append(words.number())
        if words.skip(","):
            numbers.append(words.number())
        words.skip_any("CHAR", "BYTE")
        words.expect(")")
    first = numbers[0] if numbers else None
    if base == "decimal":
        column.precision = first or 10
        column.scale = numbers[1] if len(numbers) > 1 else 0
    elif base in ("float", "double") and len(numbers) == 2:
        column.rounds = True
    elif base == "float" and len(numbers) == 1:
        column.base = "double" if numbers[0] > 24 else "float"
    elif base in ("datetime", "timestamp", "time"):
        column.fsp = first or 0
    elif base == "bit":
        column.length = first or 1
    elif base == "vector":
        column.length = 2048 if first is None else first
    elif base in ("char", "binary"):
        column.length = 1 if first is None else first
    elif base in ("varchar", "varbinary"):
        if first is None:
            raise Unreadable(f"the {base} column {column.name} has no length")
        column.length = first
    elif base in ("text", "blob") and first is not None and (first or (not rules.mariadb and rules.version >= (8, 0, 0))):
        # Kept until the character set is known: the size in bytes picks the type.
        column.length = first


def _read_attributes(words: Words, column: Definition, rules: Rules) -> None:
    """What follows a type, in the server's own way: later words win over earlier ones."""
    while words.peek() is not END and not words.sees_any(_DEFINITION_ENDS):
        read = (
            _read_value_attribute(words, column) or _read_charset_attribute(words, column, rules) or _read_attribute(words, column, rules)
        )
        if not read:
            raise Unreadable(f"{words.peek().text[:40]!r} is not known after the type of column {column.name}")


def _read_value_attribute(words: Words, column: Definition) -> bool:
    """One of those that say which values a column may have, if it comes next."""
    if words.skip("NOT", "NULL"):
        column.nullable = False
    elif words.skip("NULL"):
        column.nullable = True
    elif words.skip("UNSIGNED") or words.skip("ZEROFILL"):
        column.unsigned = True
    elif words.skip("DEFAULT"):
        column.default = read_default(words)
    elif words.skip("SERIAL", "DEFAULT", "VALUE"):
        column.nullable, column.auto_increment, column.unique = False, True, True
    elif words.skip("AUTO_INCREMENT"):
        column.nullable, column.auto_increment = False, True
    elif words.skip("UNIQUE"):
        words.skip("KEY")
        column.unique = True
    elif words.skip("PRIMARY", "KEY") or words.skip("PRIMARY") or words.skip("KEY"):
        column.primary = True
    elif words.skip("COMMENT"):
        column.comment = words.string()
    else:
        return False
    return True


def _read_charset_attribute(words: Words, column: Definition, rules: Rules) -> bool:
    """One of those that say how text is written, if it comes next."""
    if words.skip("CHARACTER", "SET") or words.skip("CHAR", "SET") or words.skip("CHARSET"):
        words.skip("=")
        column.charset = rules.charset(words.word())
    elif words.skip("COLLATE"):
        words.skip("=")
        column.collation = words.word()
    elif words.skip("BINARY"):
        column.binary = True
    elif words.skip("ASCII"):
        column.charset = "latin1"
    elif words.skip("UNICODE"):
        column.charset = "ucs2"
    elif words.skip("BYTE"):
        column.charset = "binary"
    else:
        return False
    return True


def _read_attribute(words: Words, column: Definition, rules: Rules) -> bool:
    """Any other attribute, if it comes next."""
    if words.skip("ON", "UPDATE"):
        words.take()
        if words.sees("("):
            words.skip_parentheses()
    elif words.skip("GENERATED"):
        if not words.skip("ALWAYS"):
            raise Unreadable(f"ALWAYS expected for column {column.name}")
    elif words.skip("AS"):
        column.generated = "virtual"
        if words.skip("ROW"):
            column.generated, column.nullable = "stored", False
            column.period = "START" if words.skip("START") else "END"
            words.skip("END")
        else:
            words.skip_parentheses()
    elif words.skip_any("STORED", "PERSISTENT"):
        column.generated = "stored"
    elif words.skip("INVISIBLE"):
        column.invisible = True
    elif words.skip("CONSTRAINT"):
        if not words.sees("CHECK"):
            words.name()
    elif words.skip("CHECK"):
        words.skip_parentheses()
        if words.skip("NOT"):
            words.expect("ENFORCED")
    elif words.skip("REFERENCES"):
        # MySQL reads this and makes no key of it until 9.0.
        column.cascades = read_references(words) and (rules.mariadb or rules.version >= (9, 0, 0))
    elif words.skip_any("COLUMN_FORMAT", "STORAGE", "SRID", "ENGINE_ATTRIBUTE", "SECONDARY_ENGINE_ATTRIBUTE"):
        words.skip("=")
        words.take()
    elif words.skip_any("WITH", "WITHOUT"):
        words.expect("SYSTEM")
        words.expect("VERSIONING")
    elif words.skip("COMPRESSED"):
        if words.skip("="):
            words.take()
    elif words.skip_any("SIGNED", "VIRTUAL", "VISIBLE", "ENFORCED"):
        pass
    elif rules.mariadb and words.peek().kind in ("word", "name") and words.peek(1).text == "=":
        # An option of a storage engine.
        words.take()
        words.take()
        words.take()
    else:
        return False
    return True


_DEFINITION_ENDS = frozenset({",", ")", ";", "FIRST", "AFTER", "PARTITION", "REMOVE"})


def read_default(words: Words) -> Default:
    if words.sees("("):
        # Parentheses around a mere literal make a constant still; around anything else an expression.
        words.take()
        inner = _read_literal(words)
        if inner is not None and words.skip(")"):
            return inner
        depth = 1
        while depth:
            token = words.take()
            if token is END:
                raise Unreadable("a parenthesis is not closed")
            depth += (token.kind == "mark") * ((token.text == "(") - (token.text == ")"))
        return Default("computed")
    literal = _read_literal(words)
    if literal is not None:
        return literal
    if words.skip("NEXT", "VALUE", "FOR"):
        words.name()
        if words.skip("."):
            words.name()
        return Default("computed")
    if words.skip("CASE"):
        depth = 1
        while depth:
            token = words.take()
            if token is END:
                raise Unreadable("CASE is not closed")
            depth += (token.kind == "word") * ((token.text.upper() == "CASE") - (token.text.upper() == "END"))
        return Default("computed")
    words.name()
    while words.skip("."):
        words.name()
    if words.sees("("):
        words.skip_parentheses()
    return Default("computed")


def _read_literal(words: Words) -> Default | None:
    token = words.peek()
    upper = token.text.upper()
    if token.kind == "word" and upper.startswith("_") and words.peek(1).kind in ("string", "bytes"):
        # The introducer tells how the bytes are meant; text that reached us as text needs it no more.
        words.take()
        return _read_literal(words)
    if token.kind == "word" and upper in ("DATE", "TIME", "TIMESTAMP") and words.peek(1).kind == "string":
        words.take()
        return Default("literal", words.string())
    if token.kind == "string":
        return Default("literal", words.string())
    if token.kind == "bytes":
        words.take()
        return Default("bytes", token.text)
    if token.kind == "number":
        words.take()
        return Default("literal", token.text)
    if token.text in ("-", "+") and words.peek(1).kind == "number":
        words.take()
        return Default("literal", ("-" if token.text == "-" else "") + words.take().text)
    for word, value in (("NULL", Default("null")), ("TRUE", Default("literal", "1")), ("FALSE", Default("literal", "0"))):
        if words.skip(word):
            return value
    return None


def read_references(words: Words) -> bool:
    """Step over `t (…) ON DELETE …`; True where the parent's changes write to the child."""
    words.name()
    while words.skip("."):
        words.name()
    if words.sees("("):
        words.skip_parentheses()
    if words.skip("MATCH"):
        words.take()
    cascades = False
    while words.sees("ON", "DELETE") or words.sees("ON", "UPDATE"):
        words.take()
        words.take()
        if words.skip("CASCADE"):
            cascades = True
        elif words.skip("SET"):
            words.take()
            cascades = True
        elif not (words.skip("NO", "ACTION") or words.skip("RESTRICT")):
            raise Unreadable("a foreign key's action is not known")
    return cascades


def complete(raw: Definition, table_collation: str, rules: Rules) -> MySqlColumn:
    """The column that the server makes of a definition in a table with this default collation."""
    base, length = raw.base, raw.length
    charset = collation = None
    if base in TEXT_TYPES or base in ("enum", "set"):
        charset, collation = _charset_and_collation(raw, table_collation, rules)
        if charset == "binary" and base in BINARY_TWIN:
            base, charset, collation = BINARY_TWIN[base], None, None
    width = CHARSET_BYTES_MAX.get(charset or "", 1)
    if base in ("text", "blob") and length is not None:
        base, length = sized(base, length * width), None
    # Beyond a row's size a VARCHAR becomes a TEXT, unless the mode is strict and the statement fails.
    if base in ("varchar", "varbinary") and length is not None and length * width > (65532 if rules.mariadb else 65535):
        base, length = sized("text" if base == "varchar" else "blob", length * width), None
    labels = tuple(_label(token, raw.name, charset) for token in raw.labels)
    if charset == "binary" and not rules.mariadb and rules.version >= (8, 0, 0):
        # The catalogue of MySQL 8 names no character set for an ENUM or SET of bytes.
        charset = collation = None
    nullable = raw.nullable
    if nullable is None:
        nullable = raw.generated is not None or rules.explicit_timestamps or base != "timestamp"
    return MySqlColumn(
        name=raw.name,
        base=base,
        unsigned=raw.unsigned and (base in INTEGER_BITS or base in ("decimal", "float", "double")),
        length=length,
        precision=raw.precision,
        scale=raw.scale,
        fsp=raw.fsp,
        charset=charset,
        collation=collation,
        labels=labels,
        nullable=nullable and not raw.primary,
        generated=raw.generated,
        invisible=raw.invisible,
        auto_increment=raw.auto_increment,
        default=raw.default.text if raw.default is not None and raw.default.kind == "literal" else None,
        comment=raw.comment,
    )


def _charset_and_collation(raw: Definition, table_collation: str, rules: Rules) -> tuple[str, str]:
    charset = None if raw.charset == "default" else raw.charset
    if raw.collation is not None and raw.collation.lower() == "default":
        charset = charset or rules.charset_of(table_collation)
    elif raw.collation is not None:
        collation = rules.collation(raw.collation, charset or rules.charset_of(table_collation))
        return rules.charset_of(collation), collation
    if charset is None and not raw.binary:
        return rules.charset_of(table_collation), table_collation
    charset = charset or rules.charset_of(table_collation)
    if raw.binary and charset != "binary":
        return charset, rules.collation(f"{charset}_bin")
    return charset, rules.default_collation(charset)


def sized(base: str, size: int) -> str:
    for prefix, most in TEXT_SIZES:
        if size <= most:
            return prefix + base
    raise Unreadable("a text column is larger than 4 GiB")


def _label(token: Token, column: str, charset: str | None) -> str:
    text = token.text
    if token.kind == "bytes":
        codec = {"utf8mb4": "utf-8", "utf8mb3": "utf-8", "utf8": "utf-8", "latin1": "cp1252"}.get(charset or "", "ascii")
        try:
            text = text.encode("latin1").decode(codec)
        except UnicodeDecodeError:
            raise Unreadable(f"a label of column {column} is no {charset} text") from None
    return text if charset == "binary" else text.rstrip(" ")
