"""Options of a table or database that its shape records; all others have no effect on it."""

from __future__ import annotations

from dataclasses import dataclass

from snowmelt.databases.mysql.ddl.rules import Rules
from snowmelt.databases.mysql.ddl.words import Words


@dataclass(slots=True)
class Options:
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


def read_shape_option(words: Words, options: Options, rules: Rules) -> bool:
    if read_charset_option(words, options, rules):
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


def read_charset_option(words: Words, options: Options, rules: Rules) -> bool:
    if words.sees("DEFAULT") and words.peek(1).text.upper() in ("CHARSET", "CHARACTER", "CHAR", "COLLATE"):
        words.take()
    if words.skip("CHARSET") or words.skip("CHARACTER", "SET") or words.skip("CHAR", "SET"):
        words.skip("=")
        options.charset = rules.charset(words.word())
    elif words.skip("COLLATE"):
        words.skip("=")
        options.collation = words.word()
    else:
        return False
    return True
