"""The file of Fluss offsets: what is not understood is an error, never "nothing was tiered"."""

from __future__ import annotations

import json
from typing import Any

import pytest

from snowmelt.errors import Corrupt, InvariantBroken
from snowmelt.model.fluss import Bucket
from snowmelt.tiering import offsets
from snowmelt.tiering.offsets import Offsets, parse_offsets


def parsed(document: Any) -> Offsets:
    return parse_offsets(json.dumps(document).encode(), "a.offsets")


def test_offsets_are_by_place_and_minus_one_is_a_bucket_that_is_not_known() -> None:
    assert parsed({"version": 1, "table_id": 5, "bucket_offsets": [258, -1, 0]}) == Offsets(5, {Bucket(5, 0): 258, Bucket(5, 2): 0})
    assert parsed({"version": 1, "table_id": 5}) == Offsets(5, {})


def test_partitions_have_their_own() -> None:
    found = parsed(
        {
            "version": 1,
            "table_id": 5,
            "partition_offsets": [{"partition_id": 3, "bucket_offsets": [7]}, {"partition_id": 9, "bucket_offsets": [-1, 8]}],
        }
    )
    assert found == Offsets(5, {Bucket(5, 0, 3): 7, Bucket(5, 1, 9): 8})


@pytest.mark.parametrize(
    "document",
    [
        [],
        {"version": 1, "table_id": 5, "more": 1},
        {"table_id": 5},
        {"version": 2, "table_id": 5},
        {"version": True, "table_id": 5},
        {"version": 1},
        {"version": 1, "table_id": "5"},
        {"version": 1, "table_id": -1},
        {"version": 1, "table_id": 2**63},
        {"version": 1, "table_id": 5, "bucket_offsets": {"0": 1}},
        {"version": 1, "table_id": 5, "bucket_offsets": [1.0]},
        {"version": 1, "table_id": 5, "bucket_offsets": [-2]},
        {"version": 1, "table_id": 5, "bucket_offsets": [None]},
        {"version": 1, "table_id": 5, "bucket_offsets": [1], "partition_offsets": []},
        {"version": 1, "table_id": 5, "partition_offsets": {}},
        {"version": 1, "table_id": 5, "partition_offsets": [[1]]},
        {"version": 1, "table_id": 5, "partition_offsets": [{"partition_id": 1}]},
        {"version": 1, "table_id": 5, "partition_offsets": [{"partition_id": 1, "bucket_offsets": [1]}] * 2},
    ],
    ids=str,
)
def test_what_is_not_understood_is_an_error(document: Any) -> None:
    with pytest.raises(Corrupt, match="can't be read"):
        parsed(document)


def test_what_is_no_json_is_an_error() -> None:
    for content in (b"", b"{", b"\xff"):
        with pytest.raises(Corrupt, match="can't be read"):
            parse_offsets(content, "a.offsets")


def test_a_file_can_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offsets, "_BUCKETS_MAX", 3)
    with pytest.raises(Corrupt, match="too long"):
        parsed({"version": 1, "table_id": 5, "bucket_offsets": [1] * 4})
    several = [{"partition_id": number, "bucket_offsets": [1, 1]} for number in range(2)]
    with pytest.raises(Corrupt, match="too many buckets"):
        parsed({"version": 1, "table_id": 5, "partition_offsets": several})


def test_offsets_that_move_keep_all_others_and_never_go_back() -> None:
    before = Offsets(5, {Bucket(5, 0): 7, Bucket(5, 1): 9})
    after = before.moved({Bucket(5, 1): 12, Bucket(5, 2): 0})
    assert after == Offsets(5, {Bucket(5, 0): 7, Bucket(5, 1): 12, Bucket(5, 2): 0})
    with pytest.raises(InvariantBroken, match="would go back"):
        before.moved({Bucket(5, 1): 8})


def test_what_was_written_may_say_more_but_nothing_else() -> None:
    wanted = Offsets(5, {Bucket(5, 0): 7})
    assert Offsets(5, {Bucket(5, 0): 7, Bucket(5, 0, 3): 1}).says(wanted)
    assert not Offsets(5, {Bucket(5, 0): 6}).says(wanted)
    assert not Offsets(5, {}).says(wanted)
    assert not Offsets(6, {Bucket(5, 0): 7}).says(wanted)
