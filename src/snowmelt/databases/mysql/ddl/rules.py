"""What decides how the words of a statement are read: the server, its version, and the session's modes.

Laws:

- Nothing is asked of a server: all comes from the event's status variables and from what was told at the start.
- Character sets and collations are named as this server's catalogue names them, so that shapes compare equal.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntFlag

from snowmelt.databases.mysql.types.columns import Flavour


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

    @staticmethod
    def of_event(
        *,
        flavour: Flavour,
        version: tuple[int, int, int],
        sql_mode: int,
        explicit_timestamps: bool | None,
        collations: Mapping[str, str],
        lower_case_names: bool,
    ) -> Rules:
        """As a logged statement's event tells them. Where it does not tell `explicit_timestamps`, the server's own default holds."""
        if explicit_timestamps is None:
            explicit_timestamps = version >= ((10, 10, 0) if flavour == "mariadb" else (8, 0, 2))
        return Rules(
            flavour=flavour,
            version=version,
            sql_mode=sql_mode,
            explicit_timestamps=explicit_timestamps,
            lower_case_names=lower_case_names,
            collations=collations,
        )

    @property
    def mariadb(self) -> bool:
        return self.flavour == "mariadb"

    def stored_name(self, name: str) -> str:
        """The name of a database or a table as this server's catalogue has it."""
        return "".join(map(_lower, name)) if self.lower_case_names else name

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


_LATER = frozenset("\u0220\u03d8\u03f4\u048a\u04c5\u04c9\u04cd\u0500\u0502\u0504\u0506\u0508\u050a\u050c\u050e")
"""Capitals that Unicode got between 3.0, which servers know, and 3.2, which Python can be asked about."""


def _lower(letter: str) -> str:
    """A letter by itself, so that no sigma is a final one, and as the servers' tables of Unicode 3.0 have it."""
    lower = "i" if letter == "\u0130" else letter.lower()
    known = letter not in _LATER and all(unicodedata.ucd_3_2_0.category(one) != "Cn" for one in letter + lower)
    return lower if known else letter


_DEFAULT_COLLATIONS = {
    "big5": "chinese_ci", "dec8": "swedish_ci", "hp8": "english_ci", "latin1": "swedish_ci", "latin5": "turkish_ci",
    "swe7": "swedish_ci", "ujis": "japanese_ci", "sjis": "japanese_ci", "tis620": "thai_ci", "euckr": "korean_ci",
    "gb2312": "chinese_ci", "gbk": "chinese_ci", "cp932": "japanese_ci", "eucjpms": "japanese_ci", "gb18030": "chinese_ci",
}  # fmt: skip
"""Where the default collation is not `general_ci`."""

CHARSET_BYTES_MAX = {
    "utf8mb4": 4, "utf8mb3": 3, "utf8": 3, "ucs2": 2, "utf16": 4, "utf16le": 4, "utf32": 4, "big5": 2, "ujis": 3, "sjis": 2,
    "euckr": 2, "gb2312": 2, "gbk": 2, "cp932": 2, "eucjpms": 3, "gb18030": 4,
}  # fmt: skip
"""Bytes of a character, where they can be more than one."""
