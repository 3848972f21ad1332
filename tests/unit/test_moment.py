"""Times in records: a store may hold what no snowmelt wrote."""

from __future__ import annotations

import json
import sys
from dataclasses import make_dataclass
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from snowmelt.cli.main import main
from snowmelt.commit.records import Intent, Watermark
from snowmelt.engine.driver.signs import DriverActivity, Sign
from snowmelt.engine.driver.state import INTENT
from snowmelt.errors import Corrupt, InvariantBroken
from snowmelt.model.moment import TIME_MS_MAX
from snowmelt.model.table import TableId
from snowmelt.planning.facts import Found, Incarnation, SetAside
from snowmelt.relay.retention import Cut
from snowmelt.store.codec import decode, encode
from snowmelt.store.contract import numbered
from snowmelt.store.objects import open_store
from snowmelt.store.records import RecordKind, settle_record

TABLE = Incarnation(TableId("shop", "orders"), 1)
ASIDE = SetAside(TABLE, 0, 5, "why")
INTENT_5 = Intent(
    epoch=1,
    generation=1,
    nonce="n",
    after=0,
    upto=0,
    time_ms=5,
    facts=(Found(TABLE, "ods.orders", True, 1, 0),),
    entries=(),
    sequence_max=0,
    segment=0,
)


@pytest.mark.parametrize("value", [INTENT_5, Watermark("ods.orders", 5), ASIDE, Cut(7, 5)])
@pytest.mark.parametrize("time_ms", [-1, TIME_MS_MAX + 1, 10**30])
def test_a_time_that_no_calendar_has_makes_a_record_corrupt(value: Any, time_ms: int) -> None:
    raw = encode(value)
    assert decode(type(value), raw.replace(b'"time_ms":5', b'"time_ms":%d' % TIME_MS_MAX)).time_ms == TIME_MS_MAX
    with pytest.raises(Corrupt, match="at time_ms an int from 0 to"):
        decode(type(value), raw.replace(b'"time_ms":5', b'"time_ms":%d' % time_ms))


def test_nor_is_it_written() -> None:
    with pytest.raises(InvariantBroken, match="at time_ms an int"):
        encode(Watermark("ods.orders", TIME_MS_MAX + 1))


@pytest.mark.parametrize("name", [b"at_ms", b"error_ms"])
def test_a_sign_of_life_has_times_too(name: bytes) -> None:
    sign = Sign(pipeline="p", generation=1, nonce="n", at_ms=5, every_ms=1, host="h", process="p", doing=DriverActivity.RUNS, error_ms=5)
    with pytest.raises(Corrupt, match=f"at {name.decode()} an int from 0 to"):
        decode(Sign, encode(sign).replace(b'"%s":5' % name, b'"%s":%d' % (name, 10**30)))


def test_status_of_a_forged_intent_is_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    described = {
        "source": {"type": "mysql", "host": "127.0.0.1", "username": "root", "tables": ["shop.*"]},
        "sink": {"type": "paimon", "warehouse": "lake"},
        "pipeline": {"name": "test", "state": "state"},
    }
    file = tmp_path / "pipeline.yaml"
    file.write_text(json.dumps(described))
    # As our own record, but for what its time may be.
    fields = [(name, int | None if name == "time_ms" else hint) for name, hint in get_type_hints(Intent).items()]
    forged = make_dataclass("Forged", fields, frozen=True)
    values = {name: getattr(INTENT_5, name) for name, _ in fields} | {"time_ms": 10**30, "facts": (*INTENT_5.facts, ASIDE)}
    store = open_store(tmp_path / "state")
    settle_record(store, numbered("intent", 1), RecordKind(INTENT.name, INTENT.version, forged), forged(**values))
    monkeypatch.setattr(sys, "argv", ["snowmelt", "status", str(file)])
    with pytest.raises(SystemExit) as ended:
        main()
    told = capfd.readouterr()
    assert (ended.value.code, told.out) == (1, "")
    assert "at time_ms an int from 0 to" in told.err
    assert len(told.err.splitlines()) == 1
