"""`python -m tests.tidy.names`: what the tests call or name that is not there, a line each. Exit code 1 if there is something.

A test that needs a server fails only where that server runs, after minutes. mypy finds a stale name in seconds. Tests are not held to more
of mypy: doubles and values that are wrong on purpose are their business.
"""

from __future__ import annotations

import re
import sys
from typing import Final

from mypy import api

OPTIONS: Final = (
    "--config-file=",
    "--ignore-missing-imports",
    "--check-untyped-defs",
    "--explicit-package-bases",
    "--cache-dir=.mypy_cache/tests",
    "--no-error-summary",
    "--show-error-codes",
)
STALE: Final = re.compile(r": error: .*\[(attr-defined|call-arg|import-not-found|name-defined)\]$")


def main() -> int:
    printed, broken, _ = api.run([*OPTIONS, "tests"])
    stale = [line for line in printed.splitlines() if STALE.search(line)]
    if broken:
        print(broken)
    for line in stale:
        print(line)
    return 1 if stale or broken else 0


if __name__ == "__main__":
    sys.exit(main())
