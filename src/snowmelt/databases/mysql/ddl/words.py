"""The words of a statement.

Laws:

- The session's sql_mode and the server's version decide what a word is: whether "x" is a name, whether a backslash escapes,
  and whether the text of an executable comment counts.
- Reading takes time linear in the text, whatever it holds: the patterns never step back.
- The text is read only as far as it is asked for: most statements are told by their first words.
- What is no word raises `Unreadable`, which never leaves this package.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

from snowmelt.databases.mysql.ddl.rules import Rules, SqlMode


class Unreadable(Exception):
    """The text is not what we can read; the message is the reason."""


Kind = Literal["word", "name", "string", "bytes", "number", "mark", "end"]


class Token(NamedTuple):
    kind: Kind
    text: str
    """Names and strings without quotes and escapes; bytes as latin1."""
    start: int
    end: int


END = Token("end", "", 0, 0)
IDENTIFIER = r"[0-9A-Za-z$_\u0080-\U0010ffff]"


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
            |0x(?P<hex2>[0-9A-Fa-f]++)(?!{IDENTIFIER})|0b(?P<bits2>[01]++)(?!{IDENTIFIER}))
        |(?P<string>[nN]?(?:{strings}))
        |(?P<name>{names})
        |(?P<number>(?:\d++\.\d*+|\.\d++)(?:[eE][+-]?\d++)?|\d++[eE][+-]?\d++(?!{IDENTIFIER})|\d++(?!{IDENTIFIER}))
        |(?P<word>{IDENTIFIER}++)
        |(?P<mark>[^'"`])""",
        re.VERBOSE | re.DOTALL,
    )


_LEXICONS = {(ansi, plain): _lexicon(ansi, plain) for ansi in (False, True) for plain in (False, True)}
_PLAIN_WORD = re.compile(f"{IDENTIFIER}++")
_ESCAPES = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a", "%": "\\%", "_": "\\_"}
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)


def lex(sql: str, rules: Rules) -> Iterator[Token]:
    """The statement's words, lazily: most statements are told by their first ones."""
    plain = rules.mode(SqlMode.NO_BACKSLASH_ESCAPES)
    pattern = _LEXICONS[rules.mode(SqlMode.ANSI_QUOTES), plain]
    at, inside, before = 0, 0, END
    while at < len(sql):
        if inside and sql.startswith("*/", at):
            at, inside = at + 2, inside - 1
            continue
        # After a name, a dot begins a qualified name and never a number; after the dot any word is a name.
        if sql[at] == "." and before.end == at and before.kind in ("word", "name"):
            before = Token("mark", ".", at, at + 1)
            at += 1
            yield before
            continue
        match = pattern.match(sql, at)
        if before.text == "." and before.end == at and (word := _PLAIN_WORD.match(sql, at)):
            before = Token("name", word[0], at, word.end())
            at = word.end()
            yield before
            continue
        if match is None:
            raise Unreadable("a quote is not closed")
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
                raise Unreadable("a comment is not closed")
            at = end + 2
            continue
        before = _token(match, start, at, plain)
        yield before


def _token(match: re.Match[str], start: int, end: int, plain: bool) -> Token:
    text = match[0]
    if match["bytes"]:
        digits = match["hex"] if match["hex"] is not None else match["hex2"]
        if digits is not None:
            return Token("bytes", bytes.fromhex(digits.zfill(len(digits) + len(digits) % 2)).decode("latin1"), start, end)
        bits = match["bits"] if match["bits"] is not None else match["bits2"]
        return Token("bytes", int(bits or "0", 2).to_bytes((len(bits) + 7) // 8, "big").decode("latin1"), start, end)
    if match["string"]:
        text = text.lstrip("nN")
        quote, text = text[0], text[1:-1]
        if plain:
            return Token("string", text.replace(quote * 2, quote), start, end)
        # A doubled quote is one, but not where its first half is escaped: escapes split the text before quotes are joined.
        pieces = _ESCAPE.split(text)
        pieces[0::2] = [piece.replace(quote * 2, quote) for piece in pieces[0::2]]
        pieces[1::2] = [_ESCAPES.get(piece, piece) for piece in pieces[1::2]]
        return Token("string", "".join(pieces), start, end)
    if match["name"]:
        return Token("name", text[1:-1].replace(text[0] * 2, text[0]), start, end)
    if match["number"]:
        return Token("number", text, start, end)
    return Token("word" if match["word"] else "mark", text, start, end)


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
            raise Unreadable("a comment is not closed")
        depth += 1 if match[0] == "/*" else -1
        at = match.end()
    return at


class Words:
    """A statement's tokens with a place in them."""

    def __init__(self, tokens: Iterator[Token]) -> None:
        self._tokens = tokens
        self._seen: list[Token] = []
        self._at = 0

    def peek(self, ahead: int = 0) -> Token:
        while len(self._seen) <= self._at + ahead:
            token = next(self._tokens, END)
            if token is END:
                return END
            self._seen.append(token)
        return self._seen[self._at + ahead]

    def take(self) -> Token:
        token = self.peek()
        if token is not END:
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
            raise Unreadable(f"{word} expected, {self.peek().text[:40]!r} found")

    def name(self) -> str:
        token = self.take()
        if token.kind not in ("word", "name") or not token.text:
            raise Unreadable(f"a name expected, {token.text[:40]!r} found")
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
            raise Unreadable(f"a string expected, {token.text[:40]!r} found")
        text = token.text
        while self.peek().kind == "string":
            text += self.take().text
        return text

    def number(self) -> int:
        token = self.take()
        if token.kind != "number" or not token.text.isdecimal():
            raise Unreadable(f"a number expected, {token.text[:40]!r} found")
        return int(token.text)

    def word(self) -> str:
        """A name, number or string used as an option's value."""
        token = self.take()
        if token.kind not in ("word", "name", "string", "number"):
            raise Unreadable(f"a value expected, {token.text[:40]!r} found")
        return token.text

    def skip_parentheses(self) -> None:
        """Step over a balanced `( … )`."""
        self.expect("(")
        depth = 1
        while depth:
            token = self.take()
            if token is END:
                raise Unreadable("a parenthesis is not closed")
            if token.kind == "mark":
                depth += (token.text == "(") - (token.text == ")")

    def skip_one(self) -> None:
        if self.sees("("):
            self.skip_parentheses()
        else:
            self.take()

    def skip_to_comma(self) -> None:
        """To the next comma or closing parenthesis of this level, or the end."""
        while self.peek() is not END and not self.sees(",") and not self.sees(")"):
            self.skip_one()

    def rest(self) -> Iterator[Token]:
        while (token := self.take()) is not END:
            yield token
