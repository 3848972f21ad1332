"""An intent of very many files: put, read back by another driver, and committed, in memory that is a small multiple of its record."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FILES, ENTRIES = 100_000, 10
TIMES_MAX = 8
"""A name is some 70 bytes in the record, as text twice, and its message some 550."""

PROGRAM = """
import gc, resource, sys
from dataclasses import replace
from pathlib import Path
sys.path.insert(0, {root!r})
from snowmelt.commit.cleaning import CleaningView, Leftovers
from snowmelt.commit.coordinator import CommitTables, Coordinator, GenerationRead, IntentPut, TableCommitted
from snowmelt.commit.ledger import Ledger
from snowmelt.commit.records import Entry, Intent, Staged, StagedFor, StagedName
from snowmelt.engine.driver.state import State
from snowmelt.store.local import LocalStore

FILES, ENTRIES = {files}, {entries}


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def intent():
    each = FILES // ENTRIES
    entries = tuple(
        Entry(
            target=f"ods.t{{number}}", uuid="u", buckets=1, schema=1, new_schema=None, base=0, empties=(),
            files=tuple(str(StagedName(1, StagedFor.EPOCH, 1, "a1", f"{{number}}-{{file:030}}.parquet")) for file in range(each)),
            messages=tuple(b"%0550d" % file for file in range(each)),
        )
        for number in range(ENTRIES)
    )
    return Intent(
        epoch=1, generation=1, nonce="n1", after=0, upto=10, time_ms=1, facts=(), entries=entries, sequence_max=9, segment=1
    )


state = State(LocalStore(Path(sys.argv[1]) / "state"))
role = sys.argv[2]
before = peak()
if role == "put":
    assert state.put_intent(intent())
else:
    found = state.intent(1)
    ledger = Ledger()
    ledger.apply_intent(found)
    machine = Coordinator(1, ledger)
    machine.apply(GenerationRead(1))
    assert sum(len(entry.files) for entry in found.entries) == FILES
    while isinstance(step := machine.next_step(), CommitTables):
        assert len(machine.named) == FILES
        entry = step.entries[0]
        machine.apply(TableCommitted(1, entry.target, 7))
print(peak() - before)
"""


@pytest.mark.timeout(300)
def test_an_intent_of_a_hundred_thousand_files_takes_a_small_multiple_of_its_record(tmp_path: Path) -> None:
    program = PROGRAM.format(root=str(Path(__file__).parents[2]), files=FILES, entries=ENTRIES)
    took = {}
    for role in ("put", "commit"):
        ran = subprocess.run([sys.executable, "-c", program, str(tmp_path), role], capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr[-3000:]
        took[role] = int(ran.stdout)
    record = sum(path.stat().st_size for path in (tmp_path / "state" / "intent").rglob("*") if path.is_file())
    times = {role: round(found / record, 1) for role, found in took.items()}
    print(f"record {record >> 20} MiB", times)
    assert max(times.values()) < TIMES_MAX, (record, took)
