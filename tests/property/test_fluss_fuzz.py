"""Bad bytes of Fluss give an error of ours or rows that hold together: no crash, nothing read or written outside.

The fuzzer is `tests/fuzz/fluss.py`.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest


@pytest.mark.timeout(300)
def test_spoiled_rows_and_batches_are_refused_or_hold_together() -> None:
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-m", "tests.fuzz.fluss", "--seed", "20261115", "--count", "6000"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    counts = json.loads(done.stdout.splitlines()[-1])
    assert sum(counts.values()) == 6000
    # A fuzzer whose bytes are all refused at the door proves little.
    for reached in ("rows: read", "rows: refused", "ARROW: read", "ARROW: refused", "COMPACTED: read", "COMPACTED: refused"):
        assert counts[reached] > 100, reached
