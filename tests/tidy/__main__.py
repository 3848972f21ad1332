"""`python -m tests.tidy`: what exceeds a limit of the house, a line each. Exit code 1 if there is something."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.tidy import faults_of_src, imported_tests, judge, read_sources
from tests.tidy.allowed import ALLOWED

ROOT = Path(__file__).parents[2]


def main() -> int:
    tests = [source for source in read_sources(ROOT) if source.name.startswith("tests/")]
    faults = [*faults_of_src(read_sources(ROOT / "src/snowmelt")), *imported_tests(tests)]
    wrong = list(judge(faults, ALLOWED))
    for line in wrong:
        print(line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
