"""Prepared transactions that lie aside."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from snowmelt.databases.mysql.log.details import details_of
from snowmelt.engine.log.prepared import lying_aside, put_aside, take_back
from snowmelt.errors import Corrupt
from snowmelt.relay.limits import Limits
from snowmelt.relay.prefilter import PreFilter
from snowmelt.relay.retention import Prepared
from snowmelt.segments import Segment
from snowmelt.store.memory import MemoryStore
from tests.kit.made_segments import segment, write

GROUP = Prepared(xid="X'61',X'',1", era=0, begins=100, offset=180, at=96, bytes=80)


def captured(folder: Path, data: bytes) -> Segment:
    folder.mkdir()
    return write(folder, data, segment(folder, 1, 4, data))


def test_a_transaction_that_a_dead_driver_has_put_aside_is_captured_again_in_another_segment(tmp_path: Path) -> None:
    """Its segment had no record. The next one begins there too and ends elsewhere, and its connection sends another
    FORMAT_DESCRIPTION."""
    data = bytes(range(200))
    first = captured(tmp_path / "first", data)
    again = captured(tmp_path / "again", data + bytes(50))
    again = replace(again, own=replace(details_of(again), format_description=b"as sent for another connection").encode())
    assert again.own != first.own
    store = MemoryStore()
    for made in (first, again, first):
        put_aside(store, made, GROUP, 100)
    assert lying_aside(store) == [GROUP.number]
    events = take_back(store, GROUP, PreFilter(4096), Limits())
    assert (events.own, events.begins, events.log.whole(0, GROUP.bytes).tobytes()) == (first.own, 100, data[96:176])


@pytest.mark.parametrize(("data", "position"), [(bytes(200), 100), (bytes(range(200)), 101)])
def test_another_transaction_under_its_place_is_an_error(data: bytes, position: int, tmp_path: Path) -> None:
    store = MemoryStore()
    put_aside(store, captured(tmp_path / "first", bytes(range(200))), GROUP, 100)
    with pytest.raises(Corrupt, match="another transaction is held aside"):
        put_aside(store, captured(tmp_path / "again", data), GROUP, position)
