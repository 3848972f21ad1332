"""Charsets without a server: what the tables must say, whatever the flavour, and how batches are laid out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snowmelt.databases.mysql.types.charsets import (
    canonical_charset,
    charset_of_collation,
    charsets,
    is_utf8,
    transcode,
)
from snowmelt.databases.mysql.types.columns import Flavour
from snowmelt.errors import Corrupt, InvariantBroken, SourceDrift

FLAVOURS: tuple[Flavour, ...] = ("mysql", "mariadb")


def utf8(charset: str, *values: bytes, flavour: Flavour = "mysql") -> list[bytes]:
    """Each value by itself, out of one batch."""
    offsets = np.cumsum([0, *map(len, values)], dtype=np.int32)
    ends, data = transcode(charset, offsets, np.frombuffer(b"".join(values), np.uint8), len(values), flavour=flavour)
    assert (str(ends.dtype), str(data.dtype), ends.size, ends[0], ends[-1]) == ("int32", "uint8", len(values) + 1, 0, data.size)
    return [data[ends[n] : ends[n + 1]].tobytes() for n in range(len(values))]


def test_collations_of_both_servers_have_their_charset() -> None:
    known = {8: "latin1", 33: "utf8mb3", 45: "utf8mb4", 63: "binary", 248: "gb18030", 255: "utf8mb4", 323: "utf8mb4"}
    known |= {1032: "latin1", 2048: "utf8mb3", 2304: "utf8mb4", 2560: "ucs2", 2816: "utf16", 3072: "utf32"}
    assert {number: charset_of_collation(number) for number in known} == known


@pytest.mark.parametrize("number", [-1, 0, 4095, 2**31])
def test_an_unknown_collation_is_the_operators_case(number: int) -> None:
    with pytest.raises(SourceDrift, match=r"collation .*hint"):
        charset_of_collation(number)


def test_a_charset_has_one_name() -> None:
    assert [canonical_charset(name) for name in ("utf8", "UTF8MB3", "Latin1")] == ["utf8mb3", "utf8mb3", "latin1"]
    assert {name for name in charsets() if is_utf8(name)} == {"ascii", "utf8mb3", "utf8mb4"}
    with pytest.raises(SourceDrift, match="'klingon'"):
        canonical_charset("klingon")


@pytest.mark.parametrize(
    ("charset", "codec"),
    [
        ("latin1", "cp1252"),
        ("latin2", "iso8859-2"),
        ("cp1251", "cp1251"),
        ("koi8r", "koi8-r"),
        ("gbk", "gbk"),
        ("gb18030", "gb18030"),
        ("big5", "big5"),
        ("euckr", "euc-kr"),
        ("sjis", "shift-jis"),
        ("cp932", "cp932"),
        ("ujis", "euc-jp"),
        ("utf16", "utf-16-be"),
        ("utf16le", "utf-16-le"),
        ("utf32", "utf-32-be"),
        ("utf8mb3", "utf-8"),
    ],
)
@pytest.mark.parametrize("flavour", FLAVOURS)
def test_common_text_comes_out_as_it_was_written(charset: str, codec: str, flavour: Flavour) -> None:
    samples = [
        "",
        "plain",
        "longer than eight bytes, still plain",
        "é",
        "Žluťoučký kůň",
        "Привет, мир",
        "漢字かな交じり",
        "中文",
        "繁體",
        "한국어",
        "€ß𝄞",
    ]
    fitting = [text for text in samples if text.encode(codec, "ignore").decode(codec) == text]
    assert len(fitting) >= 4
    if charset == "utf8mb3":
        fitting = [text for text in fitting if max(text, default="") < "\U00010000"]
    assert utf8(charset, *(text.encode(codec) for text in fitting), flavour=flavour) == [text.encode() for text in fitting]


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]))), st.sampled_from(FLAVOURS))
def test_unicode_survives_every_charset_that_has_all_of_it(texts: list[str], flavour: Flavour) -> None:
    for charset, codec in {"utf16": "utf-16-be", "utf16le": "utf-16-le", "utf32": "utf-32-be", "gb18030": "gb18030"}.items():
        # Some characters have moved between editions of gb18030 (U+E5E5 has no code of its own in the server's).
        kept = (
            texts if charset != "gb18030" else [text for text in texts if not any("\ue000" <= c <= "\uf8ff" or c == "\u1e3f" for c in text)]
        )
        assert utf8(charset, *(text.encode(codec) for text in kept), flavour=flavour) == [text.encode() for text in kept]


@given(st.sampled_from(sorted(charsets() - {"utf8mb3"})), st.lists(st.binary(max_size=40), max_size=8), st.sampled_from(FLAVOURS))
def test_neighbours_in_a_batch_do_not_change_a_string(charset: str, values: list[bytes], flavour: Flavour) -> None:
    assert utf8(charset, *values, flavour=flavour) == [utf8(charset, value, flavour=flavour)[0] for value in values]


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("charset", sorted(charsets() - {"binary", "utf8mb3", "utf8mb4", "ucs2", "utf32"}))
def test_what_comes_out_of_any_bytes_is_utf8(charset: str, flavour: Flavour) -> None:
    random = np.random.default_rng(7)
    for value in utf8(charset, *(random.bytes(length) for length in range(300)), flavour=flavour):
        value.decode()


def test_each_flavour_ends_a_cut_off_string_in_its_way() -> None:
    cut = {"gbk": b"A\xd6", "ujis": b"A\x8f\xb0", "gb18030": b"A\x81\x30\x81", "utf8mb3": b"A\xe4\xb8", "utf16": b"\0A\xd8\0"}
    assert {name: utf8(name, value)[0] for name, value in cut.items()} == dict.fromkeys(cut, b"A")
    assert {name: utf8(name, value, flavour="mariadb")[0] for name, value in cut.items()} == {
        "gbk": b"A?",
        "ujis": b"A??",
        "gb18030": b"A?0?",
        "utf8mb3": b"A??",
        "utf16": b"A??",
    }


def test_a_code_without_a_character_is_a_question_mark() -> None:
    assert utf8("cp1251", b"\x98!") == [b"?!"]
    assert utf8("swe7", b"[\xff]") == ["Ä?Å".encode()]
    assert utf8("gb18030", b"\xfe\x39\xfe\x39!") == [b"?!"]
    assert utf8("ascii", b"A\xff") == [b"A?"]


def test_half_of_a_surrogate_pair_in_utf8mb3_stops_where_versions_of_mysql_differ() -> None:
    with pytest.raises(Corrupt, match="string 1 of a batch of 2"):
        utf8("utf8mb3", b"\xc3\xa9", b"\xed\xa0\x80")
    assert utf8("utf8mb3", b"\xed\xa0\x80", flavour="mariadb") == [b"\xed\xa0\x80"]


@pytest.mark.parametrize("charset", ["latin1", "utf8mb4", "gbk", "ucs2"])
def test_a_slice_of_a_batch_starts_at_zero(charset: str) -> None:
    data = np.frombuffer(b"\0x\0y\0z", np.uint8)
    ends, out = transcode(charset, np.array([2, 4, 4, 6], np.int32), data, 2, flavour="mysql")
    assert (ends.tolist(), out.tobytes()) == (([0, 1, 1], b"y") if charset == "ucs2" else ([0, 2, 2], b"\0y"))


def test_ascii_text_is_not_copied() -> None:
    data = np.frombuffer(b"nothing to do", np.uint8)
    _, out = transcode("latin1", np.array([0, 13], np.int32), data, 1, flavour="mysql")
    assert np.shares_memory(out, data)


@pytest.mark.parametrize("offsets", [[0, 5], [3, 1], [-1, 2], [0], []])
def test_offsets_outside_of_the_bytes_are_our_bug(offsets: list[int]) -> None:
    with pytest.raises(InvariantBroken):
        transcode("latin1", np.array(offsets, np.int32), np.zeros(4, np.uint8), 1, flavour="mysql")
