"""Errors as they cross the border of a process, and what they say."""

from __future__ import annotations

import pickle

import pytest

from snowmelt.errors import Corrupt, Fenced, InvalidConfig, InvariantBroken, OutcomeUnknown, SnowmeltError, SourceDrift, Unavailable


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
