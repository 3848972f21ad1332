"""`python -m snowmelt` is `snowmelt`."""

from __future__ import annotations

from snowmelt.cli import main

main()
