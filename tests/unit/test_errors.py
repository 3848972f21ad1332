"""Errors as they cross the border of a process, and what they say."""

from __future__ import annotations

import json
import pickle

import pytest

from snowmelt.cli.output import print_json
from snowmelt.errors import (
    TEXT_MAX,
    Corrupt,
    Fenced,
    InvalidConfig,
    InvariantBroken,
    OutcomeUnknown,
    SnowmeltError,
    SourceDrift,
    Unavailable,
    printable,
)


@pytest.mark.parametrize("kind", [Unavailable, OutcomeUnknown, Fenced, SourceDrift, Corrupt, InvalidConfig, InvariantBroken])
def test_an_error_says_the_same_on_the_other_side_of_a_process(kind: type[SnowmeltError]) -> None:
    error = kind("a fact", detail="where", hint="what to do")
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is kind
    assert str(back) == str(error) == "a fact: where (hint: what to do)"
    assert (back.fact, back.detail, back.hint) == ("a fact", "where", "what to do")


@pytest.mark.parametrize("detail", ["", "12 bytes"])
def test_a_corrupt_place_is_neither_lost_nor_said_twice_on_the_other_side_of_a_process(detail: str) -> None:
    error = Corrupt("an event is cut short", detail=detail, hint="stop", position="0/3:120")
    back = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(error))))
    assert back.position == "0/3:120"
    assert str(back) == str(error)
    assert str(back).count("0/3:120") == 1


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, ünïcode 😀 and `quotes` \\ stay", "plain, ünïcode 😀 and `quotes` \\ stay"),
        ("\x1b[2J\x07\x00\r", r"\u001b[2J\u0007\u0000\u000d"),
        ("one\ntwo\u2028three", r"one\ntwo\u2028three"),
        ("\x9b31m\x7f", r"\u009b31m\u007f"),
        ("\u202eabc\u2066\u200b", r"\u202eabc\u2066\u200b"),
        ("\ud800", r"\ud800"),
    ],
)
def test_what_steers_a_terminal_is_shown_and_not_obeyed(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_the_texts_of_an_error_are_printable_and_cut() -> None:
    error = Corrupt("bad\n", detail="\x1b" + "y" * 1_000_000, hint="\x9b")
    assert (error.fact, error.hint) == (r"bad\n", r"\u009b")
    assert len(error.detail) == TEXT_MAX
    assert error.detail.endswith("yyy … (1,000,001 characters)")
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error)


def test_json_means_the_same_when_it_is_printable() -> None:
    told = {"text": "a\x1b\x9b\u202e\n\\u001b"}
    assert json.loads(printable(json.dumps(told, ensure_ascii=False))) == told


def test_json_that_is_printed_means_the_same_whatever_ends_a_line_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    told = {"tables": ["a\u2028b", "c\u2029d", "e\u0085f", "g\nh", "i\x1bj"]}
    print_json(told)
    assert json.loads(capsys.readouterr().out) == told
