"""A run of pytest that writes down what came of each test: `python -m tests.mutants.session FILE ARGUMENT…`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest


class Recorder:
    def __init__(self) -> None:
        self.ends: list[dict[str, str]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # Setup and teardown count only where they say something of their own.
        if report.when == "call" or report.outcome != "passed":
            self._add(report, report.when or "")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._add(report, "collect")

    def _add(self, report: pytest.TestReport | pytest.CollectReport, when: str) -> None:
        crash = getattr(report.longrepr, "reprcrash", None)
        said = str(report.longrepr) if crash is None else str(crash.message)
        self.ends.append({"test": report.nodeid, "when": when, "outcome": report.outcome, "said": said if report.failed else ""})


def main() -> int:
    recorder = Recorder()
    code = int(pytest.main(sys.argv[2:], plugins=[recorder]))
    Path(sys.argv[1]).write_text(json.dumps({"code": code, "ends": recorder.ends}), encoding="utf-8")
    return code


if __name__ == "__main__":
    sys.exit(main())
