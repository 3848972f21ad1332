"""The program `snowmelt`, which `python -m snowmelt` is too."""

from __future__ import annotations

import sys


def main() -> None:
    try:
        # Libraries take a second or two, in which the user may press Ctrl-C.
        from snowmelt.cli.main import main as run
    except KeyboardInterrupt:
        print("snowmelt: interrupted", file=sys.stderr)
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
