"""Statements of the log, read into changes of tables.

Laws:

- A statement that names no captured table never fails, whatever its syntax: the kind and the target are read first, and the
  rest only where it matters.
- The shape that a statement leaves is, field for field, what the server's catalogue says after it. Where that can't be told
  from the text (unique keys that no shape records, LIKE of an unknown table), the shape is None, never a guess.
- Metadata-only is a white list. An ALTER whose effect on stored rows the log does not carry is `Rewrites`, and an action
  that we don't know is one.
- Names are compared without case for columns, as spelled for tables (lower-cased first where the server does so).

The words come from a lexer of ours, because what decides their meaning is the session's sql_mode and the server's version:
whether "x" is a name, whether a backslash escapes, and whether the text of an executable comment counts. The grammar is
read by recursive descent: only what changes columns is understood, all else is stepped over with its parentheses balanced.
"""

from __future__ import annotations

import datetime
import itertools
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from enum import IntFlag
from typing import Literal, NamedTuple

from snowmelt.databases.mysql.columns import BINARY_TYPES, DECIMAL_DIGITS_MAX, INTEGER_BITS, TEXT_TYPES, MySqlColumn, MySqlTable
from snowmelt.databases.mysql.connect import Flavour
from snowmelt.model.table import TableId

# ------------------------------------------------------------------------------------------------ what a statement does


@dataclass(frozen=True, slots=True)
class CreateTable:
    """A new, empty table."""

    table: MySqlTable
    cascades: bool = False
    """Whether a foreign key of it changes its rows without row events (ON DELETE or ON UPDATE other than RESTRICT)."""


@dataclass(frozen=True, slots=True)
class AlterColumns:
    """Metadata only: stored rows keep their values and are read with `after` from here on."""

    table: TableId
    before: MySqlTable
    after: MySqlTable
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Old column names to new ones."""
    filled: Mapping[str, str | bytes | None] = field(default_factory=dict)
    """What stored rows hold in each added column, as SELECT prints it; bytes for binary types and BIT."""
    cascades: bool = False
    """Whether a foreign key that the statement adds changes rows without row events."""


@dataclass(frozen=True, slots=True)
class DropTable:
    table: TableId


@dataclass(frozen=True, slots=True)
class RenameTable:
    """The table goes by a new name. Either name may be one that is not captured."""

    old: TableId
    new: TableId
    after: MySqlTable | None
    """The shape under the new name; None where the old name's was not known."""


@dataclass(frozen=True, slots=True)
class Truncate:
    table: TableId


@dataclass(frozen=True, slots=True)
class Rewrites:
    """Stored rows change, and the log does not say how: the table is read again, or the pipeline stops."""

    table: TableId
    after: MySqlTable | None
    """The shape from here on; None where only the catalogue can tell."""
    reason: str
    statement: str


@dataclass(frozen=True, slots=True)
class DropDatabase:
    name: str


@dataclass(frozen=True, slots=True)
class DatabaseDefaults:
    """CREATE or ALTER DATABASE: what tables created later inherit."""

    name: str
    collation: str | None
    """None: the server's own."""


@dataclass(frozen=True, slots=True)
class Ignored:
    """No effect on captured tables."""

    reason: str


@dataclass(frozen=True, slots=True)
class NotUnderstood:
    """May touch captured tables, and can't be read. The caller names the position."""

    tables: tuple[TableId, ...]
    statement: str
    reason: str


SchemaChange = (
    CreateTable
    | AlterColumns
    | DropTable
    | RenameTable
    | Truncate
    | Rewrites
    | DropDatabase
    | DatabaseDefaults
    | Ignored
    | NotUnderstood
)


class SqlMode(IntFlag):
    """The bits of sql_mode, as the log's status variable holds them, that change what a statement means."""

    REAL_AS_FLOAT = 1 << 0
    ANSI_QUOTES = 1 << 2
    ORACLE = 1 << 9
    MAXDB = 1 << 12
    NO_BACKSLASH_ESCAPES = 1 << 20
    STRICT_TRANS_TABLES = 1 << 21
    STRICT_ALL_TABLES = 1 << 22


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What decides how words are read: the server, and the session by the event's status variables."""

    flavour: Flavour
    version: tuple[int, int, int]
    sql_mode: int = 0
    explicit_timestamps: bool = True
    """explicit_defaults_for_timestamp: off makes TIMESTAMP columns NOT NULL unless they are declared NULL."""
    lower_case_names: bool = False
    """lower_case_table_names=1: names of databases and tables are stored in lower case."""
    collations: Mapping[str, str] = field(default_factory=dict)
    """The session's own default collations by character set (default_collation_for_utf8mb4, character_set_collations)."""

    @property
    def mariadb(self) -> bool:
        return self.flavour == "mariadb"

    def mode(self, flag: SqlMode) -> bool:
        return bool(self.sql_mode & flag)

    def charset(self, name: str) -> str:
        """A character set as this server's catalogue names it."""
        name = name.lower()
        if name in ("utf8", "utf8mb3"):
            return "utf8mb3" if self.version >= ((10, 6, 0) if self.mariadb else (8, 0, 24)) else "utf8"
        return name

    def collation(self, name: str, charset: str | None = None) -> str:
        """A collation as this server's catalogue names it; `charset` completes MariaDB's names without one."""
        name = name.lower()
        if name.startswith("uca1400_") and charset:
            return f"{charset}_{name}"
        prefix, _, rest = name.partition("_")
        if prefix in ("utf8", "utf8mb3"):
            return f"{'utf8mb3' if self.version >= ((10, 6, 0) if self.mariadb else (8, 0, 30)) else 'utf8'}_{rest}"
        return name

    def charset_of(self, collation: str) -> str:
        return self.charset(collation.partition("_")[0])

    def default_collation(self, charset: str) -> str:
        charset = self.charset(charset)
        if charset in self.collations:
            return self.collations[charset]
        unicode = charset in ("utf8mb4", "utf8mb3", "ucs2", "utf16", "utf32")
        if self.mariadb and unicode and self.version >= (11, 6, 0):
            return f"{charset}_uca1400_ai_ci"
        if charset == "utf8mb4" and not self.mariadb and self.version >= (8, 0, 0):
            return "utf8mb4_0900_ai_ci"
        return "binary" if charset == "binary" else self.collation(f"{charset}_{_DEFAULT_COLLATIONS.get(charset, 'general_ci')}")


_DEFAULT_COLLATIONS = {
    "big5": "chinese_ci", "dec8": "swedish_ci", "hp8": "english_ci", "latin1": "swedish_ci", "latin5": "turkish_ci",
    "swe7": "swedish_ci", "ujis": "japanese_ci", "sjis": "japanese_ci", "tis620": "thai_ci", "euckr": "korean_ci",
    "gb2312": "chinese_ci", "gbk": "chinese_ci", "cp932": "japanese_ci", "eucjpms": "japanese_ci", "gb18030": "chinese_ci",
}  # fmt: skip
"""Where the default collation is not `general_ci`."""

_CHARSET_BYTES_MAX = {
    "utf8mb4": 4, "utf8mb3": 3, "utf8": 3, "ucs2": 2, "utf16": 4, "utf16le": 4, "utf32": 4, "big5": 2, "ujis": 3, "sjis": 2,
    "euckr": 2, "gb2312": 2, "gbk": 2, "cp932": 2, "eucjpms": 3, "gb18030": 4,
}  # fmt: skip
"""Bytes of a character, where they can be more than one."""

Shapes = Callable[[TableId], MySqlTable | None]


def read_statement(
    sql: str,
    *,
    database: str,
    schemas: Shapes,
    captured: Callable[[TableId], bool],
    defaults: Callable[[str], str],
    rules: Rules,
) -> tuple[SchemaChange, ...]:
    """What a QUERY event does to captured tables, in order. `database` is the session's; `defaults` gives a database's
    default collation. Never raises for what the text holds."""
    statement = _Statement(sql, database, schemas, captured, defaults, rules)
    try:
        return statement.read()
    except _Unreadable as why:
        return statement.not_understood(str(why))


# ------------------------------------------------------------------------------------------------------------- the words


class _Unreadable(Exception):
    """The text is not what we can read; the message is the reason."""


Kind = Literal["word", "name", "string", "bytes", "number", "mark", "end"]


class _Token(NamedTuple):
    kind: Kind
    text: str
    """Names and strings without quotes and escapes; bytes as latin1."""
    start: int
    end: int


_END = _Token("end", "", 0, 0)
_IDENTIFIER = r"[0-9A-Za-z$_\u0080-\U0010ffff]"


def _lexicon(ansi_quotes: bool, no_escapes: bool) -> re.Pattern[str]:
    def quoted(mark: str) -> str:
        inside = rf"[^{mark}]++|{mark}{mark}" if no_escapes else rf"[^{mark}\\]++|\\.|{mark}{mark}"
        return rf"{mark}(?:{inside})*+{mark}"

    strings = quoted("'") if ansi_quotes else f"{quoted(chr(39))}|{quoted(chr(34))}"
    names = r"`(?:[^`]++|``)*+`" + (r'|"(?:[^"]++|"")*+"' if ansi_quotes else "")
    return re.compile(
        rf"""(?P<blank>[\s\0]++|\#[^\n]*+|--(?=[\s\x00-\x1f]|$)[^\n]*+)
        |(?P<executable>/\*M?!(?P<version>\d{{5,6}})?)
        |(?P<comment>/\*)
        |(?P<bytes>[xX]'(?P<hex>[0-9A-Fa-f]*+)'|[bB]'(?P<bits>[01]*+)'
            |0x(?P<hex2>[0-9A-Fa-f]++)(?!{_IDENTIFIER})|0b(?P<bits2>[01]++)(?!{_IDENTIFIER}))
        |(?P<string>[nN]?(?:{strings}))
        |(?P<name>{names})
        |(?P<number>(?:\d++\.\d*+|\.\d++)(?:[eE][+-]?\d++)?|\d++[eE][+-]?\d++(?!{_IDENTIFIER})|\d++(?!{_IDENTIFIER}))
        |(?P<word>{_IDENTIFIER}++)
        |(?P<mark>[^'"`])""",
        re.VERBOSE | re.DOTALL,
    )


_LEXICONS = {(ansi, plain): _lexicon(ansi, plain) for ansi in (False, True) for plain in (False, True)}
_PLAIN_WORD = re.compile(f"{_IDENTIFIER}++")
_ESCAPES = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a", "%": "\\%", "_": "\\_"}
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)


def _lex(sql: str, rules: Rules) -> Iterator[_Token]:
    """The statement's words, lazily: most statements are told by their first ones."""
    plain = rules.mode(SqlMode.NO_BACKSLASH_ESCAPES)
    pattern = _LEXICONS[rules.mode(SqlMode.ANSI_QUOTES), plain]
    at, inside, before = 0, 0, _END
    while at < len(sql):
        if inside and sql.startswith("*/", at):
            at, inside = at + 2, inside - 1
            continue
        # After a name, a dot begins a qualified name and never a number; after the dot any word is a name.
        if sql[at] == "." and before.end == at and before.kind in ("word", "name"):
            before = _Token("mark", ".", at, at + 1)
            at += 1
            yield before
            continue
        match = pattern.match(sql, at)
        if before.text == "." and before.end == at and (word := _PLAIN_WORD.match(sql, at)):
            before = _Token("name", word[0], at, word.end())
            at = word.end()
            yield before
            continue
        if match is None:
            raise _Unreadable("a quote is not closed")
        start, at = at, match.end()
        if match["blank"]:
            continue
        if match["executable"]:
            if _executes(match["executable"], match["version"], rules):
                inside += 1
            else:
                at = _comment_end(sql, start)
            continue
        if match["comment"]:
            end = sql.find("*/", start + 2)
            if end < 0:
                raise _Unreadable("a comment is not closed")
            at = end + 2
            continue
        before = _token(match, start, at, plain)
        yield before


def _token(match: re.Match[str], start: int, end: int, plain: bool) -> _Token:
    text = match[0]
    if match["bytes"]:
        digits = match["hex"] if match["hex"] is not None else match["hex2"]
        if digits is not None:
            return _Token("bytes", bytes.fromhex(digits.zfill(len(digits) + len(digits) % 2)).decode("latin1"), start, end)
        bits = match["bits"] if match["bits"] is not None else match["bits2"]
        return _Token("bytes", int(bits or "0", 2).to_bytes((len(bits) + 7) // 8, "big").decode("latin1"), start, end)
    if match["string"]:
        text = text.lstrip("nN")
        quote, text = text[0], text[1:-1]
        if plain:
            return _Token("string", text.replace(quote * 2, quote), start, end)
        # A doubled quote is one, but not where its first half is escaped: escapes split the text before quotes are joined.
        pieces = _ESCAPE.split(text)
        pieces[0::2] = [piece.replace(quote * 2, quote) for piece in pieces[0::2]]
        pieces[1::2] = [_ESCAPES.get(piece, piece) for piece in pieces[1::2]]
        return _Token("string", "".join(pieces), start, end)
    if match["name"]:
        return _Token("name", text[1:-1].replace(text[0] * 2, text[0]), start, end)
    if match["number"]:
        return _Token("number", text, start, end)
    return _Token("word" if match["word"] else "mark", text, start, end)


def _executes(opening: str, version: str | None, rules: Rules) -> bool:
    """Whether the server ran the text of `/*!50100 … */` or `/*M!100100 … */`."""
    own = opening.startswith("/*M")
    if own and not rules.mariadb:
        return False
    if version is None:
        return True
    number = int(version)
    major, minor, patch = rules.version
    if rules.mariadb and not own and 50700 <= number <= 99999:
        return False
    return number <= major * 10000 + minor * 100 + patch


def _comment_end(sql: str, start: int) -> int:
    """Past a comment that may hold comments."""
    depth, at = 1, start + 2
    while depth:
        match = re.compile(r"/\*|\*/").search(sql, at)
        if match is None:
            raise _Unreadable("a comment is not closed")
        depth += 1 if match[0] == "/*" else -1
        at = match.end()
    return at


class _Words:
    """A statement's tokens with a place in them."""

    def __init__(self, tokens: Iterator[_Token]) -> None:
        self._tokens = tokens
        self._seen: list[_Token] = []
        self._at = 0

    def peek(self, ahead: int = 0) -> _Token:
        while len(self._seen) <= self._at + ahead:
            token = next(self._tokens, _END)
            if token is _END:
                return _END
            self._seen.append(token)
        return self._seen[self._at + ahead]

    def take(self) -> _Token:
        token = self.peek()
        if token is not _END:
            self._at += 1
        return token

    def sees(self, *words: str) -> bool:
        """Whether the next tokens are these words or marks, unquoted."""
        for ahead, word in enumerate(words):
            token = self.peek(ahead)
            if token.kind not in ("word", "mark") or token.text.upper() != word:
                return False
        return True

    def sees_any(self, words: frozenset[str]) -> bool:
        token = self.peek()
        return token.kind in ("word", "mark") and token.text.upper() in words

    def skip(self, *words: str) -> bool:
        if not self.sees(*words):
            return False
        for _ in words:
            self.take()
        return True

    def skip_any(self, *words: str) -> bool:
        return any(self.skip(word) for word in words)

    def expect(self, word: str) -> None:
        if not self.skip(word):
            raise _Unreadable(f"{word} expected, {self.peek().text[:40]!r} found")

    def name(self) -> str:
        token = self.take()
        if token.kind not in ("word", "name") or not token.text:
            raise _Unreadable(f"a name expected, {token.text[:40]!r} found")
        return token.text

    def column_name(self) -> str:
        """A column's name, which may be qualified by its table's."""
        self.skip(".")
        name = self.name()
        while self.skip("."):
            name = self.name()
        return name

    def string(self) -> str:
        token = self.take()
        if token.kind != "string":
            raise _Unreadable(f"a string expected, {token.text[:40]!r} found")
        text = token.text
        while self.peek().kind == "string":
            text += self.take().text
        return text

    def number(self) -> int:
        token = self.take()
        if token.kind != "number" or not token.text.isdecimal():
            raise _Unreadable(f"a number expected, {token.text[:40]!r} found")
        return int(token.text)

    def word(self) -> str:
        """A name, number or string used as an option's value."""
        token = self.take()
        if token.kind not in ("word", "name", "string", "number"):
            raise _Unreadable(f"a value expected, {token.text[:40]!r} found")
        return token.text

    def skip_parentheses(self) -> None:
        """Step over a balanced `( … )`."""
        self.expect("(")
        depth = 1
        while depth:
            token = self.take()
            if token is _END:
                raise _Unreadable("a parenthesis is not closed")
            if token.kind == "mark":
                depth += (token.text == "(") - (token.text == ")")

    def skip_one(self) -> None:
        if self.sees("("):
            self.skip_parentheses()
        else:
            self.take()

    def skip_to_comma(self) -> None:
        """To the next comma or closing parenthesis of this level, or the end."""
        while self.peek() is not _END and not self.sees(",") and not self.sees(")"):
            self.skip_one()

    def rest(self) -> Iterator[_Token]:
        while (token := self.take()) is not _END:
            yield token


# --------------------------------------------------------------------------------------------------------------- columns


@dataclass(slots=True)
class _Default:
    """A DEFAULT clause: a literal, NULL, or something computed."""

    kind: Literal["literal", "bytes", "null", "computed"]
    text: str = ""


@dataclass(slots=True)
class _Definition:
    """A column definition as written, before the table's defaults complete it."""

    name: str
    base: str = ""
    unsigned: bool = False
    length: int | None = None
    precision: int | None = None
    scale: int | None = None
    fsp: int = 0
    labels: list[_Token] = field(default_factory=list)
    charset: str | None = None
    collation: str | None = None
    binary: bool = False
    nullable: bool | None = None
    generated: Literal["virtual", "stored"] | None = None
    invisible: bool = False
    default: _Default | None = None
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
_BINARY_TWIN = {
    "char": "binary", "varchar": "varbinary",
    "tinytext": "tinyblob", "text": "blob", "mediumtext": "mediumblob", "longtext": "longblob",
}  # fmt: skip
_TEXT_SIZES = (("tiny", 0xFF), ("", 0xFFFF), ("medium", 0xFFFFFF), ("long", 0xFFFFFFFF))


def _read_definition(words: _Words, name: str, rules: Rules) -> _Definition:
    column = _Definition(name)
    _read_type(words, column, rules)
    _read_attributes(words, column, rules)
    return column


def _read_type(words: _Words, column: _Definition, rules: Rules) -> None:
    token = words.take()
    word = token.text.upper()
    if token.kind != "word":
        raise _Unreadable(f"a type expected for column {column.name}, {token.text[:40]!r} found")
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
        raise _Unreadable(f"the type {word[:40]} of column {column.name} is not known")
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


def _read_size(words: _Words, column: _Definition, rules: Rules) -> None:
    base = column.base
    if base in ("enum", "set"):
        words.expect("(")
        while True:
            token = words.take()
            if token.kind not in ("string", "bytes"):
                raise _Unreadable(f"a label expected for column {column.name}")
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
    elif base == "float" and len(numbers) == 1:
        column.base = "double" if numbers[0] > 24 else "float"
    elif base in ("datetime", "timestamp", "time"):
        column.fsp = first or 0
    elif base == "bit":
        column.length = first or 1
    elif base in ("char", "binary"):
        column.length = 1 if first is None else first
    elif base in ("varchar", "varbinary"):
        if first is None:
            raise _Unreadable(f"the {base} column {column.name} has no length")
        column.length = first
    elif base in ("text", "blob") and first is not None and (first or (not rules.mariadb and rules.version >= (8, 0, 0))):
        # Kept until the character set is known: the size in bytes picks the type.
        column.length = first


def _read_attributes(words: _Words, column: _Definition, rules: Rules) -> None:
    """What follows a type, in the server's own way: later words win over earlier ones."""
    while words.peek() is not _END and not words.sees_any(_DEFINITION_ENDS):
        if words.skip("NOT", "NULL"):
            column.nullable = False
        elif words.skip("NULL"):
            column.nullable = True
        elif words.skip("UNSIGNED") or words.skip("ZEROFILL"):
            column.unsigned = True
        elif words.skip("DEFAULT"):
            column.default = _read_default(words)
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
        elif words.skip("CHARACTER", "SET") or words.skip("CHAR", "SET") or words.skip("CHARSET"):
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
        elif words.skip("ON", "UPDATE"):
            words.take()
            if words.sees("("):
                words.skip_parentheses()
        elif words.skip("GENERATED"):
            if not words.skip("ALWAYS"):
                raise _Unreadable(f"ALWAYS expected for column {column.name}")
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
            column.cascades = _read_references(words) and (rules.mariadb or rules.version >= (9, 0, 0))
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
            raise _Unreadable(f"{words.peek().text[:40]!r} is not known after the type of column {column.name}")


_DEFINITION_ENDS = frozenset({",", ")", ";", "FIRST", "AFTER", "PARTITION", "REMOVE"})


def _read_default(words: _Words) -> _Default:
    if words.sees("("):
        # Parentheses around a mere literal make a constant still; around anything else an expression.
        words.take()
        inner = _read_literal(words)
        if inner is not None and words.skip(")"):
            return inner
        depth = 1
        while depth:
            token = words.take()
            if token is _END:
                raise _Unreadable("a parenthesis is not closed")
            depth += (token.kind == "mark") * ((token.text == "(") - (token.text == ")"))
        return _Default("computed")
    literal = _read_literal(words)
    if literal is not None:
        return literal
    if words.skip("NEXT", "VALUE", "FOR"):
        words.name()
        if words.skip("."):
            words.name()
        return _Default("computed")
    if words.skip("CASE"):
        depth = 1
        while depth:
            token = words.take()
            if token is _END:
                raise _Unreadable("CASE is not closed")
            depth += (token.kind == "word") * ((token.text.upper() == "CASE") - (token.text.upper() == "END"))
        return _Default("computed")
    words.name()
    while words.skip("."):
        words.name()
    if words.sees("("):
        words.skip_parentheses()
    return _Default("computed")


def _read_literal(words: _Words) -> _Default | None:
    token = words.peek()
    upper = token.text.upper()
    if token.kind == "word" and upper.startswith("_") and words.peek(1).kind in ("string", "bytes"):
        # The introducer tells how the bytes are meant; text that reached us as text needs it no more.
        words.take()
        return _read_literal(words)
    if token.kind == "word" and upper in ("DATE", "TIME", "TIMESTAMP") and words.peek(1).kind == "string":
        words.take()
        return _Default("literal", words.string())
    if token.kind == "string":
        return _Default("literal", words.string())
    if token.kind == "bytes":
        words.take()
        return _Default("bytes", token.text)
    if token.kind == "number":
        words.take()
        return _Default("literal", token.text)
    if token.text in ("-", "+") and words.peek(1).kind == "number":
        words.take()
        return _Default("literal", ("-" if token.text == "-" else "") + words.take().text)
    for word, value in (("NULL", _Default("null")), ("TRUE", _Default("literal", "1")), ("FALSE", _Default("literal", "0"))):
        if words.skip(word):
            return value
    return None


def _read_references(words: _Words) -> bool:
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
            raise _Unreadable("a foreign key's action is not known")
    return cascades


def _complete(raw: _Definition, table_collation: str, rules: Rules) -> MySqlColumn:
    """The column that the server makes of a definition in a table with this default collation."""
    base, length = raw.base, raw.length
    charset = collation = None
    if base in TEXT_TYPES or base in ("enum", "set"):
        charset, collation = _charset_and_collation(raw, table_collation, rules)
        if charset == "binary" and base in _BINARY_TWIN:
            base, charset, collation = _BINARY_TWIN[base], None, None
    width = _CHARSET_BYTES_MAX.get(charset or "", 1)
    if base in ("text", "blob") and length is not None:
        base, length = _sized(base, length * width), None
    # Beyond a row's size a VARCHAR becomes a TEXT, unless the mode is strict and the statement fails.
    if base in ("varchar", "varbinary") and length is not None and length * width > (65532 if rules.mariadb else 65535):
        base, length = _sized("text" if base == "varchar" else "blob", length * width), None
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
        default=raw.default.text if raw.default is not None and raw.default.kind == "literal" else None,
        comment=raw.comment,
    )


def _charset_and_collation(raw: _Definition, table_collation: str, rules: Rules) -> tuple[str, str]:
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


def _sized(base: str, size: int) -> str:
    for prefix, most in _TEXT_SIZES:
        if size <= most:
            return prefix + base
    raise _Unreadable("a text column is larger than 4 GiB")


def _label(token: _Token, column: str, charset: str | None) -> str:
    text = token.text
    if token.kind == "bytes":
        codec = {"utf8mb4": "utf-8", "utf8mb3": "utf-8", "utf8": "utf-8", "latin1": "cp1252"}.get(charset or "", "ascii")
        try:
            text = text.encode("latin1").decode(codec)
        except UnicodeDecodeError:
            raise _Unreadable(f"a label of column {column} is no {charset} text") from None
    return text if charset == "binary" else text.rstrip(" ")


# ------------------------------------------------------------------------------------------------------- the white list


def _why_values_change(before: MySqlColumn, after: MySqlColumn, *, in_key: bool, strict: bool) -> str | None:
    """Why stored values can't be read with the new definition; None where they can."""
    name = before.name
    if before.generated != after.generated:
        return f"column {name} is or was generated"
    if before.generated:
        # Its expression may have changed, and neither text is kept.
        return f"the generated column {name} is computed anew"
    if before.nullable and not after.nullable and (not strict or after.base == "timestamp"):
        return f"NULLs of column {name} are converted"
    if before.charset != after.charset:
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
        sizes = [prefix + text for prefix, _ in _TEXT_SIZES]
        if new not in sizes:
            continue
        if old in sizes:
            return sizes.index(old) <= sizes.index(new)
        if old == ("varchar" if text == "text" else "varbinary"):
            held = (before.length or 0) * _CHARSET_BYTES_MAX.get(before.charset or "", 1)
            return held <= _TEXT_SIZES[sizes.index(new)][1]
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


class _NotConstant(Exception):
    """Old rows hold in a new column what only the server knows; the message says why."""


def _filled(column: MySqlColumn, raw: _Definition, rules: Rules) -> str | bytes | None:
    """What rows that are stored already hold in an added column."""
    default = raw.default
    if raw.generated or raw.auto_increment:
        raise _NotConstant(f"column {column.name} is computed for each stored row")
    if default is not None and default.kind == "computed":
        raise _NotConstant(f"the default of column {column.name} is computed")
    if default is None or default.kind == "null":
        if column.nullable:
            return None
        if column.base == "timestamp" and not rules.explicit_timestamps:
            raise _NotConstant(f"column {column.name} may hold the time of the statement")
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
    raise _NotConstant(f"column {column.name} has no default that we know")


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
        raise _NotConstant(f"the default of column {column.name} is written as bytes")
    return value


def _converted(column: MySqlColumn, text: str) -> str | bytes:
    """A literal default as the column's type prints it; what needs more than plain rules is left to the server."""
    base = column.base
    unclear = _NotConstant(f"the default of column {column.name} is converted by the server")
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


# ------------------------------------------------------------------------------------------------------------ statements


@dataclass(slots=True)
class _Placed:
    """A definition of ALTER: a new column, or an old one changed."""

    raw: _Definition
    old: str | None
    place: str | None = None
    first: bool = False


@dataclass(slots=True)
class _Keys:
    """What a statement says about keys. A key that can't identify rows (a prefix, an expression) has no columns here."""

    primary: tuple[str, ...] | None = None
    unique: list[tuple[str, ...]] = field(default_factory=list)
    drops_primary: bool = False
    drops_index: bool = False


@dataclass(slots=True)
class _Options:
    """Options of a table that its shape records."""

    charset: str | None = None
    collation: str | None = None
    engine: str | None = None
    comment: str | None = None
    versioned: bool = False

    def resolved(self, inherited: str, rules: Rules) -> str:
        """The default collation; `inherited` is that of the database or of the table so far."""
        charset = None if self.charset in (None, "default") else self.charset
        if self.collation is not None and self.collation.lower() != "default":
            return rules.collation(self.collation, charset or rules.charset_of(inherited))
        return rules.default_collation(charset) if charset else inherited


@dataclass(slots=True)
class _Alteration:
    """All that the actions of one ALTER TABLE ask for."""

    placed: list[_Placed] = field(default_factory=list)
    dropped: set[str] = field(default_factory=set)
    renamed: dict[str, str] = field(default_factory=dict)
    altered: dict[str, Callable[[MySqlColumn], MySqlColumn]] = field(default_factory=dict)
    keys: _Keys = field(default_factory=_Keys)
    options: _Options = field(default_factory=_Options)
    convert: _Options | None = None
    new_name: TableId | None = None
    exchanged: list[TableId] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    opaque: bool = False
    """Whether the shape afterwards can't be told."""
    ignore: bool = False
    cascades: bool = False


_FREE = frozenset(
    {
        "BEGIN", "START", "COMMIT", "ROLLBACK", "SAVEPOINT", "RELEASE", "XA", "SET", "USE", "GRANT", "REVOKE", "FLUSH",
        "ANALYZE", "OPTIMIZE", "CHECK", "CHECKSUM", "REPAIR", "CACHE", "INSTALL", "UNINSTALL", "KILL", "RESET", "PURGE",
        "CHANGE", "STOP", "LOCK", "UNLOCK", "HANDLER", "HELP", "SHOW", "DESCRIBE", "DESC", "EXPLAIN", "PREPARE", "EXECUTE",
        "DEALLOCATE", "SIGNAL", "BINLOG", "SHUTDOWN", "RESTART", "CLONE", "BACKUP", "DO", "SELECT", "CALL", "VALUES",
    }
)  # fmt: skip
"""Statements that change no rows of tables and no shapes."""
_ROWS = frozenset({"INSERT", "REPLACE", "UPDATE", "DELETE", "LOAD", "WITH", "MERGE", "IMPORT"})
"""Statements that change rows; in the log as text only where the session's binlog_format is not ROW."""
_OPTION_NAMES = frozenset(
    {
        "AUTO_INCREMENT", "AUTOEXTEND_SIZE", "AVG_ROW_LENGTH", "CHECKSUM", "TABLE_CHECKSUM", "COMPRESSION", "CONNECTION",
        "DELAY_KEY_WRITE", "ENCRYPTION", "ENCRYPTED", "ENCRYPTION_KEY_ID", "ENGINE_ATTRIBUTE", "SECONDARY_ENGINE_ATTRIBUTE",
        "INSERT_METHOD", "KEY_BLOCK_SIZE", "MAX_ROWS", "MIN_ROWS", "PACK_KEYS", "PAGE_CHECKSUM", "PAGE_COMPRESSED",
        "PAGE_COMPRESSION_LEVEL", "PASSWORD", "ROW_FORMAT", "STATS_AUTO_RECALC", "STATS_PERSISTENT", "STATS_SAMPLE_PAGES",
        "TABLESPACE", "TRANSACTIONAL", "STORAGE", "NODEGROUP", "ALGORITHM", "LOCK", "SECONDARY_ENGINE", "WAIT",
    }
)  # fmt: skip
_KEEPING_ENGINES = frozenset({"innodb", "myisam", "aria", "rocksdb", "tokudb", "ndb", "ndbcluster", "xtradb"})
_ELEMENT_KEYS = frozenset({"CONSTRAINT", "PRIMARY", "UNIQUE", "KEY", "INDEX", "FULLTEXT", "SPATIAL", "FOREIGN", "CHECK"})
_DATABASE_OPTIONS = frozenset({"DEFAULT", "CHARSET", "CHARACTER", "COLLATE", "UPGRADE", "READ", "ENCRYPTION", "COMMENT"})
_KEEPING_PARTITION_VERBS = frozenset({"REORGANIZE", "COALESCE", "REBUILD", "ANALYZE", "CHECK", "OPTIMIZE"})
_VERBS = frozenset({"ADD", "ALTER", "CHANGE", "CONVERT", "DROP", "MODIFY", "RENAME", "ORDER", "FORCE"})


class _Statement:
    """One statement in its session."""

    def __init__(
        self,
        sql: str,
        database: str,
        schemas: Shapes,
        captured: Callable[[TableId], bool],
        defaults: Callable[[str], str],
        rules: Rules,
    ) -> None:
        self.sql = sql
        self.database = database
        self.captured = captured
        self.defaults = defaults
        self.rules = rules
        self.words = _Words(_lex(sql, rules))
        self._schemas = schemas
        # Shapes that earlier parts of this very statement left, as a RENAME of several tables does.
        self._shapes: dict[TableId, MySqlTable | None] = {}
        self._target: TableId | None = None

    def shape(self, table: TableId) -> MySqlTable | None:
        return self._shapes[table] if table in self._shapes else self._schemas(table)

    def read(self) -> tuple[SchemaChange, ...]:
        words = self.words
        while words.skip(";") or words.skip("("):
            pass
        first = words.take()
        verb = first.text.upper() if first.kind == "word" else ""
        match verb:
            case "" if first is _END:
                return (Ignored("an empty statement"),)
            case "CREATE":
                return self._create()
            case "ALTER":
                return self._alter()
            case "DROP":
                return self._drop()
            case "RENAME":
                return self._rename()
            case "TRUNCATE":
                words.skip("TABLE")
                return self._for_captured([self._table()], Truncate)
            case _ if verb in _FREE:
                return (Ignored(verb),)
            case _ if verb in _ROWS:
                return self._rows(verb)
        return self.not_understood("the statement's kind is not known")

    # The tables that a statement names

    def _table(self) -> TableId:
        words = self.words
        words.skip(".")
        name = words.name()
        if words.skip("."):
            return self._id(name, words.name())
        return self._id(self.database, name)

    def _id(self, database: str, name: str) -> TableId:
        return TableId(database.lower(), name.lower()) if self.rules.lower_case_names else TableId(database, name)

    def _for_captured(self, tables: list[TableId], change: Callable[[TableId], SchemaChange]) -> tuple[SchemaChange, ...]:
        return tuple(change(table) for table in tables if self.captured(table)) or (Ignored("not a captured table"),)

    def _mentioned(self) -> tuple[TableId, ...]:
        """Captured tables that the text may name, found without any grammar. A pattern captures any word, so it must exist."""
        words = [first or second or third for first, second, third in _LOOSE.findall(self.sql)]
        pairs = {self._id(self.database, word) for word in words}
        pairs |= {self._id(one, two) for one, two in itertools.pairwise(words)}
        return tuple(sorted(table for table in pairs if self.captured(table) and self.shape(table) is not None))

    def not_understood(self, reason: str) -> tuple[SchemaChange, ...]:
        tables = (self._target,) if self._target is not None else self._mentioned()
        return (NotUnderstood(tables, self.sql, reason),) if tables else (Ignored(f"no captured table is named; {reason}"),)

    def _rows(self, verb: str) -> tuple[SchemaChange, ...]:
        """Rows changed by text. The text itself holds values and is not kept."""
        words = self.words
        if verb == "DELETE" and words.sees("FROM"):
            words.take()
            table = self._table()
            words.skip(";")
            if words.peek() is _END:
                # A server that starts anew logs this for each MEMORY table.
                return self._for_captured([table], Truncate)
        reason = f"{verb} was logged as a statement, not as rows"
        return tuple(Rewrites(table, self.shape(table), reason, verb) for table in self._mentioned()) or (Ignored(verb),)

    # DROP, RENAME

    def _drop(self) -> tuple[SchemaChange, ...]:
        words = self.words
        if words.skip("DATABASE") or words.skip("SCHEMA"):
            words.skip("IF", "EXISTS")
            name = words.name()
            return (DropDatabase(name.lower() if self.rules.lower_case_names else name),)
        if words.sees("TABLE") or words.sees("TABLES"):
            words.take()
            words.skip("IF", "EXISTS")
            tables = [self._table()]
            while words.skip(","):
                tables.append(self._table())
            return self._for_captured(tables, DropTable)
        words.skip_any("ONLINE", "OFFLINE")
        if words.skip("INDEX"):
            words.skip("IF", "EXISTS")
            index = words.name()
            words.expect("ON")
            table = self._table()
            keys = _Keys(drops_primary=index.upper() == "PRIMARY", drops_index=index.upper() != "PRIMARY")
            return self._altered(table, _Alteration(keys=keys))
        return (Ignored("DROP of something that is no table"),)

    def _rename(self) -> tuple[SchemaChange, ...]:
        words = self.words
        if not words.skip_any("TABLE", "TABLES"):
            return (Ignored("RENAME of something that is no table"),)
        words.skip("IF", "EXISTS")
        changes: list[SchemaChange] = []
        while True:
            old = self._table()
            self._skip_wait()
            words.expect("TO")
            changes += self._renamed(old, self._table())
            if not words.skip(","):
                return tuple(changes) or (Ignored("not a captured table"),)

    def _renamed(self, old: TableId, new: TableId) -> list[SchemaChange]:
        if not self.captured(old) and not self.captured(new):
            return []
        shape = self.shape(old)
        after = replace(shape, id=new) if shape is not None else None
        self._shapes[old], self._shapes[new] = None, after
        return [RenameTable(old, new, after)]

    def _skip_wait(self) -> None:
        if self.words.skip("WAIT"):
            self.words.number()
        self.words.skip("NOWAIT")

    # CREATE

    def _create(self) -> tuple[SchemaChange, ...]:
        words = self.words
        replaces = words.skip("OR", "REPLACE")
        if words.skip("DATABASE") or words.skip("SCHEMA"):
            return self._database(created=True)
        if words.skip("TABLE"):
            return self._create_table(replaces)
        words.skip_any("ONLINE", "OFFLINE")
        unique = words.skip("UNIQUE")
        if not unique:
            words.skip_any("FULLTEXT", "SPATIAL", "VECTOR")
        if not words.skip("INDEX"):
            return (Ignored("CREATE of something that is no table"),)
        words.skip("IF", "NOT", "EXISTS")
        words.name()
        if words.skip_any("USING", "TYPE"):
            words.take()
        words.expect("ON")
        table = self._table()
        if not self.captured(table):
            return (Ignored("not a captured table"),)
        self._target = table
        columns = self._key_parts()
        return self._altered(table, _Alteration(keys=_Keys(unique=[columns] if unique and columns else [], drops_index=replaces)))

    def _database(self, *, created: bool) -> tuple[SchemaChange, ...]:
        words = self.words
        words.skip("IF", "NOT", "EXISTS")
        name = self.database
        if not words.sees_any(_DATABASE_OPTIONS):
            name = words.name()
        options = _Options()
        while words.peek() is not _END:
            if not self._charset_option(options):
                words.take()
        name = name.lower() if self.rules.lower_case_names else name
        if options.charset is None and options.collation is None:
            return (DatabaseDefaults(name, None),) if created else (Ignored("ALTER DATABASE"),)
        inherited = "utf8mb4_general_ci"
        return (DatabaseDefaults(name, options.resolved(inherited, self.rules)),)

    def _create_table(self, replaces: bool) -> tuple[SchemaChange, ...]:
        words, rules = self.words, self.rules
        known_to_stay = words.skip("IF", "NOT", "EXISTS")
        table = self._table()
        if not self.captured(table):
            return (Ignored("not a captured table"),)
        self._target = table
        if known_to_stay and self.shape(table) is not None:
            return (Ignored("the table existed already"),)
        gone: tuple[SchemaChange, ...] = (DropTable(table),) if replaces and self.shape(table) is not None else ()
        if words.skip("LIKE") or words.skip("(", "LIKE"):
            model = self.shape(self._table())
            if model is None:
                raise _Unreadable("it is made like a table whose shape is not known")
            return *gone, CreateTable(replace(model, id=table))
        words.expect("(")
        definitions: list[_Definition] = []
        keys = _Keys()
        cascades = False
        while True:
            if self._at_key():
                cascades |= self._read_key(keys)
            elif words.sees("PERIOD", "FOR"):
                words.skip_to_comma()
            else:
                raw = _read_definition(words, words.column_name(), rules)
                definitions.append(raw)
                cascades |= raw.cascades
                _note_keys(raw, keys)
            if not words.skip(","):
                break
        words.expect(")")
        options = self._create_options()
        collation = options.resolved(self.defaults(table.database), rules)
        columns = _with_key_not_null([_complete(raw, collation, rules) for raw in definitions], keys.primary or ())
        key, is_primary = _first_key(columns, keys)
        if options.versioned:
            ends = [raw.name for raw in definitions if raw.period == "END"]
            if not ends:
                columns += _IMPLICIT_PERIOD
                ends = ["row_end"]
            # Versions of a row share its key, so the server adds the row's end to it.
            key = (*key, *ends) if key else ()
        shape = MySqlTable(
            id=table,
            columns=tuple(columns),
            key=key,
            key_is_primary=is_primary,
            engine=options.engine or "InnoDB",
            charset=rules.charset_of(collation),
            collation=collation,
            comment=options.comment or "",
        )
        return *gone, CreateTable(shape, cascades)

    def _create_options(self) -> _Options:
        """What follows the columns of CREATE TABLE. What we don't know has no effect on the shape."""
        words, options = self.words, _Options()
        while words.peek() is not _END:
            if words.sees_any(frozenset({"SELECT", "AS", "VALUES", "TABLE"})) or words.sees("(", "SELECT"):
                # Only statement-based logs hold this: row-based ones give the columns, then rows.
                raise _Unreadable("it is created by a query")
            if not self._shape_option(options):
                words.skip_one()
        return options

    def _shape_option(self, options: _Options) -> bool:
        words = self.words
        if self._charset_option(options):
            return True
        if words.sees("ENGINE") or words.sees("TYPE"):
            words.take()
            words.skip("=")
            options.engine = words.word()
        elif words.skip("COMMENT"):
            words.skip("=")
            options.comment = words.string()
        elif words.skip("WITH", "SYSTEM", "VERSIONING"):
            options.versioned = True
        else:
            return False
        return True

    def _charset_option(self, options: _Options) -> bool:
        words = self.words
        if words.sees("DEFAULT") and words.peek(1).text.upper() in ("CHARSET", "CHARACTER", "CHAR", "COLLATE"):
            words.take()
        if words.skip("CHARSET") or words.skip("CHARACTER", "SET") or words.skip("CHAR", "SET"):
            words.skip("=")
            options.charset = self.rules.charset(words.word())
        elif words.skip("COLLATE"):
            words.skip("=")
            options.collation = words.word()
        else:
            return False
        return True

    # Keys

    def _at_key(self) -> bool:
        words = self.words
        return words.sees_any(_ELEMENT_KEYS) or words.sees("VECTOR", "INDEX") or words.sees("VECTOR", "KEY")

    def _read_key(self, keys: _Keys) -> bool:
        """An index or constraint; True where it is a foreign key that writes to this table."""
        words = self.words
        if words.skip("CONSTRAINT"):
            words.skip("IF", "NOT", "EXISTS")
            if not words.sees_any(frozenset({"PRIMARY", "UNIQUE", "FOREIGN", "CHECK"})):
                words.name()
        cascades = False
        if words.skip("PRIMARY"):
            words.expect("KEY")
            words.skip("IF", "NOT", "EXISTS")
            self._key_name()
            keys.primary = self._key_parts(prefixes=True)
        elif words.skip("UNIQUE"):
            words.skip_any("INDEX", "KEY")
            self._key_name()
            if columns := self._key_parts():
                keys.unique.append(columns)
        elif words.skip("FOREIGN"):
            words.expect("KEY")
            words.skip("IF", "NOT", "EXISTS")
            if not words.sees("("):
                words.name()
            words.skip_parentheses()
            words.expect("REFERENCES")
            cascades = _read_references(words)
        elif words.skip("CHECK"):
            words.skip_parentheses()
        # An index's own options, and indexes that identify nothing.
        words.skip_to_comma()
        return cascades

    def _key_name(self) -> None:
        words = self.words
        words.skip("IF", "NOT", "EXISTS")
        if not words.sees("(") and not words.sees("USING") and not words.sees("TYPE"):
            words.name()
        if words.skip_any("USING", "TYPE"):
            words.take()

    def _key_parts(self, *, prefixes: bool = False) -> tuple[str, ...]:
        """The columns of a key; none where it has an expression or, unless asked for, a prefix of a column."""
        words = self.words
        words.expect("(")
        columns: list[str] = []
        whole = True
        while True:
            if words.sees("("):
                words.skip_parentheses()
                whole = False
            else:
                columns.append(words.name())
                if words.sees("("):
                    words.skip_parentheses()
                    whole &= prefixes
                if words.skip("WITHOUT"):
                    # WITHOUT OVERLAPS: unique by period only.
                    whole = False
            words.skip_to_comma()
            if not words.skip(","):
                break
        words.expect(")")
        return tuple(columns) if whole else ()

    # ALTER

    def _alter(self) -> tuple[SchemaChange, ...]:
        words = self.words
        ignore = False
        while words.sees_any(frozenset({"ONLINE", "OFFLINE", "IGNORE"})):
            ignore |= words.take().text.upper() == "IGNORE"
        if words.skip("DATABASE") or words.skip("SCHEMA"):
            return self._database(created=False)
        if not words.skip("TABLE"):
            return (Ignored("ALTER of something that is no table"),)
        words.skip("IF", "EXISTS")
        table = self._table()
        self._skip_wait()
        if not self.captured(table):
            return self._alter_of_another(table)
        self._target = table
        return self._altered(table, self._actions(table, ignore))

    def _alter_of_another(self, table: TableId) -> tuple[SchemaChange, ...]:
        """ALTER of a table that is not captured, which may yet take a captured one's name or exchange rows with it."""
        words = self.words
        found: list[SchemaChange] = []
        try:
            while words.peek() is not _END:
                other = self._other_table()
                if other is None:
                    words.skip_one()
                elif other[0] == "RENAME":
                    found += self._renamed(table, other[1])
                elif self.captured(other[1]):
                    found.append(Rewrites(other[1], None, f"it exchanges rows with a partition of {table}", self.sql))
        except _Unreadable:
            # What can't be read to its end is another table's business.
            pass
        return tuple(found) or (Ignored("not a captured table"),)

    def _other_table(self) -> tuple[str, TableId] | None:
        words = self.words
        if words.skip("EXCHANGE", "PARTITION"):
            words.name()
            words.expect("WITH")
            words.expect("TABLE")
            return "EXCHANGE", self._table()
        if words.skip("CONVERT", "PARTITION"):
            words.name()
            words.expect("TO")
            words.expect("TABLE")
            return "CONVERT", self._table()
        if words.skip("CONVERT", "TABLE"):
            return "CONVERT", self._table()
        if words.sees("RENAME") and words.peek(1).text.upper() not in ("COLUMN", "INDEX", "KEY"):
            words.take()
            words.skip_any("TO", "AS", "=")
            return "RENAME", self._table()
        return None

    def _actions(self, table: TableId, ignore: bool) -> _Alteration:
        words, alteration = self.words, _Alteration(ignore=ignore)
        while words.peek() is not _END:
            if words.skip(",") or words.skip(";"):
                continue
            if not self._action(table, alteration):
                alteration.reasons.append(f"the action {words.peek().text.upper()[:40]} is not known")
                alteration.opaque = True
                words.take()
                words.skip_to_comma()
        return alteration

    def _action(self, table: TableId, alteration: _Alteration) -> bool:
        words = self.words
        if (other := self._other_table()) is not None:
            if other[0] == "RENAME":
                alteration.new_name = other[1]
            else:
                alteration.exchanged.append(other[1])
                alteration.reasons.append("a partition's rows move between tables")
            words.skip_to_comma()
            return True
        for verb, read in (
            ("ADD", self._add),
            ("DROP", self._drop_action),
            ("ALTER", self._alter_action),
            ("CHANGE", self._change),
            ("MODIFY", self._modify),
            ("RENAME", self._rename_action),
        ):
            if words.skip(verb):
                read(table, alteration)
                return True
        if words.skip("CONVERT", "TO"):
            alteration.convert = _Options()
            while self._charset_option(alteration.convert):
                pass
            return True
        return self._table_action(alteration)

    def _known(self, table: TableId, column: str) -> bool:
        shape = self.shape(table)
        return shape is not None and any(c.name.casefold() == column.casefold() for c in shape.columns)

    def _add(self, table: TableId, alteration: _Alteration) -> None:
        words = self.words
        if words.skip("PARTITION"):
            self._skip_partitions()
            return
        if words.sees("SYSTEM", "VERSIONING") or words.sees("PERIOD", "FOR"):
            words.skip_to_comma()
            alteration.reasons.append("system versioning or a period is added")
            alteration.opaque = True
            return
        if self._at_key():
            alteration.cascades |= self._read_key(alteration.keys)
            return
        words.skip("COLUMN")
        absent_only = words.skip("IF", "NOT", "EXISTS")
        if words.skip("("):
            while True:
                if self._at_key():
                    alteration.cascades |= self._read_key(alteration.keys)
                else:
                    self._add_column(table, alteration, absent_only)
                if not words.skip(","):
                    break
            words.expect(")")
        else:
            self._add_column(table, alteration, absent_only)

    def _add_column(self, table: TableId, alteration: _Alteration, absent_only: bool) -> None:
        placed = self._placed(self.words.column_name(), None)
        if absent_only and self._known(table, placed.raw.name):
            return
        alteration.placed.append(placed)
        alteration.cascades |= placed.raw.cascades

    def _placed(self, name: str, old: str | None) -> _Placed:
        words = self.words
        placed = _Placed(_read_definition(words, name, self.rules), old)
        if words.skip("FIRST"):
            placed.first = True
        elif words.skip("AFTER"):
            placed.place = words.column_name()
        return placed

    def _change(self, table: TableId, alteration: _Alteration) -> None:
        words = self.words
        words.skip("COLUMN")
        present_only = words.skip("IF", "EXISTS")
        old = words.column_name()
        placed = self._placed(words.column_name(), old)
        if not present_only or self._known(table, old):
            alteration.placed.append(placed)
            alteration.cascades |= placed.raw.cascades

    def _modify(self, table: TableId, alteration: _Alteration) -> None:
        words = self.words
        words.skip("COLUMN")
        present_only = words.skip("IF", "EXISTS")
        name = words.column_name()
        placed = self._placed(name, name)
        if not present_only or self._known(table, name):
            alteration.placed.append(placed)
            alteration.cascades |= placed.raw.cascades

    def _rename_action(self, table: TableId, alteration: _Alteration) -> None:
        words = self.words
        index = not words.skip("COLUMN")
        if index:
            words.take()
        present_only = words.skip("IF", "EXISTS")
        old = words.column_name()
        words.expect("TO")
        new = words.column_name()
        if not index and (not present_only or self._known(table, old)):
            alteration.renamed[old.casefold()] = new

    def _drop_action(self, table: TableId, alteration: _Alteration) -> None:
        words = self.words
        if words.skip("PRIMARY", "KEY"):
            alteration.keys.drops_primary = True
        elif words.skip("PARTITION"):
            alteration.reasons.append("a partition's rows are dropped")
            self._skip_partitions()
        elif words.sees("SYSTEM", "VERSIONING") or words.sees("PERIOD", "FOR"):
            alteration.reasons.append("system versioning or a period is dropped")
            alteration.opaque = True
            words.skip_to_comma()
        elif words.sees_any(frozenset({"INDEX", "KEY", "CONSTRAINT"})):
            words.take()
            words.skip("IF", "EXISTS")
            primary = words.name().upper() == "PRIMARY"
            alteration.keys.drops_primary |= primary
            alteration.keys.drops_index |= not primary
        elif words.skip("FOREIGN", "KEY") or words.skip("CHECK"):
            words.skip("IF", "EXISTS")
            words.name()
        else:
            words.skip("COLUMN")
            present_only = words.skip("IF", "EXISTS")
            name = words.column_name()
            words.skip_any("RESTRICT", "CASCADE")
            if not present_only or self._known(table, name):
                alteration.dropped.add(name.casefold())

    def _alter_action(self, table: TableId, alteration: _Alteration) -> None:
        words = self.words
        if words.sees_any(frozenset({"INDEX", "KEY", "CHECK", "CONSTRAINT"})):
            words.skip_to_comma()
            return
        words.skip("COLUMN")
        words.skip("IF", "EXISTS")
        name = words.column_name().casefold()
        if words.skip("SET", "DEFAULT"):
            default = _read_default(words)
            text = default.text if default.kind == "literal" else None
            alteration.altered[name] = lambda column: replace(column, default=text)
        elif words.skip("DROP", "DEFAULT"):
            alteration.altered[name] = lambda column: replace(column, default=None)
        elif words.sees("SET", "VISIBLE") or words.sees("SET", "INVISIBLE"):
            invisible = words.peek(1).text.upper() == "INVISIBLE"
            words.skip_to_comma()
            alteration.altered[name] = lambda column: replace(column, invisible=invisible)
        else:
            raise _Unreadable(f"a change of column {name} is not known")

    def _table_action(self, alteration: _Alteration) -> bool:
        """Actions on the table as a whole, and its options."""
        words = self.words
        if words.skip("PARTITION", "BY"):
            # The rest of the statement tells partitions: rows stay, or the server refuses.
            while words.peek() is not _END:
                words.skip_one()
        elif words.skip("REMOVE", "PARTITIONING") or words.skip("FORCE") or words.skip("NOWAIT"):
            pass
        elif words.skip_any("ENABLE", "DISABLE"):
            words.expect("KEYS")
        elif words.skip_any("WITH", "WITHOUT"):
            words.expect("VALIDATION")
        elif words.sees_any(frozenset({"DISCARD", "IMPORT"})):
            words.skip_to_comma()
            alteration.reasons.append("its file is replaced")
        elif words.sees("TRUNCATE", "PARTITION"):
            words.take()
            words.take()
            self._skip_partitions()
            alteration.reasons.append("a partition's rows are dropped")
        elif words.sees_any(_KEEPING_PARTITION_VERBS) and words.peek(1).text.upper() == "PARTITION":
            words.take()
            words.take()
            self._skip_partitions()
        elif words.skip("ORDER", "BY"):
            words.skip_to_comma()
            while words.sees(",") and words.peek(1).text.upper() not in _VERBS:
                words.take()
                words.skip_to_comma()
        elif words.skip("DATA", "DIRECTORY") or words.skip("INDEX", "DIRECTORY"):
            words.skip("=")
            words.take()
        elif self._shape_option(alteration.options):
            engine = alteration.options.engine
            if engine is not None and engine.lower() not in _KEEPING_ENGINES:
                alteration.reasons.append(f"the engine {engine} may not keep rows")
            if alteration.options.versioned:
                alteration.reasons.append("system versioning is added")
                alteration.opaque = True
        elif words.sees_any(_OPTION_NAMES) or (words.peek(1).text == "=" and not words.sees("UNION")):
            words.take()
            words.skip("=")
            words.skip_one()
        else:
            return False
        return True

    def _skip_partitions(self) -> None:
        """Names of partitions are a list with commas of its own; nothing but partition clauses may follow it."""
        while self.words.peek() is not _END:
            self.words.skip_one()

    def _altered(self, table: TableId, alteration: _Alteration) -> tuple[SchemaChange, ...]:
        """The changes that an alteration of a table makes, its rename last."""
        if not self.captured(table):
            return (Ignored("not a captured table"),)
        before = self.shape(table)
        changes: list[SchemaChange] = []
        if before is None:
            changes.append(Rewrites(table, None, "its shape is not known", self.sql))
        else:
            change = _apply(before, alteration, self.rules, self.sql)
            if change is not None:
                changes.append(change)
                self._shapes[table] = change.after
        changes += [
            Rewrites(other, None, f"it exchanges rows with a partition of {table}", self.sql)
            for other in alteration.exchanged
            if self.captured(other)
        ]
        if alteration.new_name is not None and alteration.new_name != table:
            changes += self._renamed(table, alteration.new_name)
        return tuple(changes) or (Ignored("ALTER TABLE that changes no columns"),)


_LOOSE = re.compile(rf'`((?:[^`]|``)*)`|"([^"]*)"|({_IDENTIFIER}+)')


def _note_keys(raw: _Definition, keys: _Keys) -> None:
    if raw.primary:
        keys.primary = (raw.name,)
    if raw.unique:
        keys.unique.append((raw.name,))


def _spelled(names: tuple[str, ...], columns: list[MySqlColumn]) -> tuple[str, ...]:
    """Column names as their definitions spell them."""
    by_name = {column.name.casefold(): column.name for column in columns}
    for name in names:
        if name.casefold() not in by_name:
            raise _Unreadable(f"a key names the column {name}, which the table has not")
    return tuple(by_name[name.casefold()] for name in names)


def _with_key_not_null(columns: list[MySqlColumn], primary: tuple[str, ...]) -> list[MySqlColumn]:
    names = {name.casefold() for name in primary}
    return [replace(column, nullable=False) if column.name.casefold() in names else column for column in columns]


def _first_key(columns: list[MySqlColumn], keys: _Keys) -> tuple[tuple[str, ...], bool]:
    """The primary key, else the first unique key that is never NULL; the server keeps such keys in the order of definition."""
    if keys.primary is not None:
        return _spelled(keys.primary, columns), True
    nullable = {column.name for column in columns if column.nullable}
    for unique in keys.unique:
        names = _spelled(unique, columns)
        if not nullable & set(names):
            return names, False
    return (), False


_IMPLICIT_PERIOD = tuple(
    MySqlColumn(name=name, base="timestamp", fsp=6, nullable=False, generated="stored", invisible=True)
    for name in ("row_start", "row_end")
)
"""What MariaDB appends to a system-versioned table that declares no period: in the log's rows, hidden by the catalogue."""


def _apply(before: MySqlTable, alteration: _Alteration, rules: Rules, sql: str) -> AlterColumns | Rewrites | None:
    """The table after an ALTER, and whether stored rows survive it; None where the shape stays as it is."""
    reasons = list(alteration.reasons)
    inherited = before.collation or "utf8mb4_general_ci"
    collation = (alteration.convert or alteration.options).resolved(inherited, rules)
    columns = list(before.columns)
    opaque = alteration.opaque
    definitions = [(placed, _complete(placed.raw, collation, rules)) for placed in alteration.placed]
    if alteration.convert is not None:
        if alteration.convert.charset in (None, "default") and alteration.convert.collation is None:
            return Rewrites(before.id, None, "it is converted to the database's character set", sql)
        # What becomes of text that is defined in the same statement differs by server, down to a shorter type; so does the
        # default that wins where the statement sets it too.
        opaque |= any(column.charset is not None for _, column in definitions)
        opaque |= alteration.options.charset is not None or alteration.options.collation is not None
        columns = [_converted_to(column, collation, rules) for column in columns]
        if columns == list(before.columns) and not opaque:
            if not rules.mariadb and rules.version < (5, 7, 0) and alteration == _Alteration(convert=alteration.convert):
                # Old servers take it for no change at all, the default included.
                return None
        else:
            reasons.append("it is converted to another character set or collation")
    after, renamed, more = _rearranged(columns, before, alteration, definitions, rules)
    reasons += more
    filled: dict[str, str | bytes | None] = {}
    for placed, column in definitions:
        if placed.old is None:
            try:
                filled[column.name] = _filled(column, placed.raw, rules)
            except _NotConstant as why:
                reasons.append(str(why))

    keys = alteration.keys
    for placed, _ in definitions:
        _note_keys(placed.raw, keys)
    after = _with_key_not_null(after, keys.primary or ())
    key, known = _key_after(before, after, renamed, alteration, rules)
    # A primary key's column is NOT NULL even where its new definition does not say so.
    is_primary = bool(key) and (keys.primary is not None or (bool(before.key) and before.key_is_primary))
    if is_primary:
        after = _with_key_not_null(after, key)
    expected = tuple(renamed.get(name, name) for name in before.key)
    if not known or key != expected or (before.key and is_primary != before.key_is_primary):
        reasons.append("the key that identifies rows changes")
    shape = replace(
        before,
        columns=tuple(after),
        key=key,
        key_is_primary=is_primary,
        engine=alteration.options.engine or before.engine,
        charset=rules.charset_of(collation),
        collation=collation,
        comment=before.comment if alteration.options.comment is None else alteration.options.comment,
    )
    if reasons:
        # A reason may come twice, by the column and by its key.
        text = "; ".join(dict.fromkeys(reasons))
        return Rewrites(before.id, None if opaque or not known else shape, text, sql)
    if shape == before and not renamed and not alteration.cascades:
        return None
    return AlterColumns(before.id, before, shape, renamed, filled, alteration.cascades)


def _rearranged(
    columns: list[MySqlColumn],
    before: MySqlTable,
    alteration: _Alteration,
    definitions: list[tuple[_Placed, MySqlColumn]],
    rules: Rules,
) -> tuple[list[MySqlColumn], dict[str, str], list[str]]:
    """The columns in their new order, who was renamed, and why values change.

    The server walks the old columns first: dropped ones go, the others stay where they are, changed or not. Then what has a
    place is moved there, in the order of the statement, beside names of the new table.
    """
    strict = bool(rules.sql_mode & (SqlMode.STRICT_TRANS_TABLES | SqlMode.STRICT_ALL_TABLES)) and not alteration.ignore
    in_key = {name.casefold() for name in before.key}
    changed = {placed.old.casefold(): (placed, column) for placed, column in definitions if placed.old is not None}
    have = {column.name.casefold() for column in columns}
    for name in (*alteration.dropped, *changed, *alteration.renamed, *alteration.altered):
        if name not in have:
            raise _Unreadable(f"the table as we know it has no column {name}")
    result: list[MySqlColumn] = []
    renamed: dict[str, str] = {}
    reasons: list[str] = []
    hidden = columns[-2:] if tuple(columns[-2:]) == _IMPLICIT_PERIOD else []
    for column in columns[: len(columns) - len(hidden)]:
        name = column.name.casefold()
        if name in alteration.dropped:
            continue
        if name in changed:
            placed, new = changed[name]
            if why := _why_values_change(column, new, in_key=name in in_key, strict=strict):
                reasons.append(why)
            if placed.raw.auto_increment and column.nullable:
                reasons.append(f"NULLs of column {column.name} are numbered")
            if new.name != column.name:
                renamed[column.name] = new.name
            result.append(new)
            continue
        kept = alteration.altered[name](column) if name in alteration.altered else column
        if name in alteration.renamed:
            kept = replace(kept, name=alteration.renamed[name])
            renamed[column.name] = kept.name
        result.append(kept)
    for placed, column in definitions:
        moved = placed.first or placed.place is not None
        if moved and placed.old is not None:
            result.remove(column)
        if placed.first:
            result.insert(0, column)
        elif placed.place is not None:
            result.insert(_place(result, placed.place, renamed) + 1, column)
        elif placed.old is None:
            result.append(column)
    return result + hidden, renamed, reasons


def _place(columns: list[MySqlColumn], name: str, renamed: Mapping[str, str]) -> int:
    for wanted in (name, next((new for old, new in renamed.items() if old.casefold() == name.casefold()), name)):
        for index, column in enumerate(columns):
            if column.name.casefold() == wanted.casefold():
                return index
    raise _Unreadable(f"the table as we know it has no column {name}")


def _key_after(
    before: MySqlTable, after: list[MySqlColumn], renamed: Mapping[str, str], alteration: _Alteration, rules: Rules
) -> tuple[tuple[str, ...], bool]:
    """The key afterwards, and whether it can be told: a shape records one key, so others that may take its place are unknown."""
    keys = alteration.keys
    if keys.primary is not None:
        return _spelled((*keys.primary, *_row_end(before)), after), True
    now = {column.name: column for column in after}
    kept = tuple(renamed.get(name, name) for name in before.key if name.casefold() not in alteration.dropped)
    if before.key and before.key_is_primary:
        # A primary key loses the columns that are dropped.
        return (kept, True) if kept and not keys.drops_primary else ((), False)
    pairs = [(column, now.get(renamed.get(column.name, column.name), column)) for column in before.columns]
    relaxed = {old.name for old, new in pairs if new.nullable and not old.nullable}
    tightened = any(old.nullable and not new.nullable for old, new in pairs)
    if before.key:
        unsure = keys.drops_index or keys.unique or tightened or len(kept) < len(before.key)
        return kept, not unsure and not relaxed & set(before.key)
    added, _ = _first_key(after, keys)
    # MySQL takes a dropped column out of its keys, and what remains may be unique and never NULL.
    narrowed = not rules.mariadb and any(old.nullable and old.name.casefold() in alteration.dropped for old in before.columns)
    return added, not tightened and not narrowed


def _row_end(table: MySqlTable) -> tuple[str, ...]:
    """The column that versioning adds to a key, if this key has one."""
    last = table.column(table.key[-1]) if table.key else None
    return (last.name,) if last is not None and last.base == "timestamp" and last.generated == "stored" else ()


def _converted_to(column: MySqlColumn, collation: str, rules: Rules) -> MySqlColumn:
    """A column after CONVERT TO CHARACTER SET."""
    charset = rules.charset_of(collation)
    if column.charset is None or column.charset == "binary":
        return column
    if charset == "binary":
        base = _BINARY_TWIN.get(column.base, column.base)
        return replace(column, base=base, charset=None, collation=None)
    base = column.base
    for prefix, most in _TEXT_SIZES:
        if base == f"{prefix}text" and prefix != "long":
            characters = most // _CHARSET_BYTES_MAX.get(column.charset, 1)
            grown = _sized("text", characters * _CHARSET_BYTES_MAX.get(charset, 1))
            base = max(base, grown, key=[f"{p}text" for p, _ in _TEXT_SIZES].index)
            break
    return replace(column, base=base, charset=charset, collation=collation)
