"""Names of transactions of two phases may come from any database."""

from __future__ import annotations

import pytest

from snowmelt.relay.names import branch_of, ended_by


@pytest.mark.parametrize("name", ["a", "", "7", ",", ",7", "a,", "a,b", "a,-1", "a,b,c", "a,²", "a, 7"])
def test_a_name_without_a_number_behind_its_last_comma_is_a_branch_alone(name: str) -> None:
    assert branch_of(name) == name
    assert ended_by(name, ["b,1", name]) == name
    assert ended_by(name, ["b,1"]) is None


def test_a_number_behind_the_last_comma_is_the_format() -> None:
    assert branch_of("a,b,7") == "a,b"
    assert ended_by("a,7", ["a,8", "a,7"]) == "a,7"
    assert ended_by("a,7", ["a,8"]) is None
    assert ended_by("a,7", [f"a,{(1 << 32) + 7}"]) == f"a,{(1 << 32) + 7}"
