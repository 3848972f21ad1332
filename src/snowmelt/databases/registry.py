"""What tasks of any database need, for those that must not name one (list: `pyproject.toml`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def warm() -> None:
    """Compile or load what tasks of any database need, in the process that workers are forked from."""
    from snowmelt.databases.mysql.log.decode import warm as warm_mysql

    warm_mysql()


def task_kernels() -> Sequence[Any]:
    """The kernels that `warm` calls."""
    from snowmelt.databases.mysql.log.decode import ENTRIES

    return ENTRIES
