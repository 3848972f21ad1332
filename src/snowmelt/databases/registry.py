"""Which databases there are, for those that must not name one (list: `pyproject.toml`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from snowmelt.columnar import kernels
from snowmelt.databases.contract.tables import TableShape
from snowmelt.databases.mysql.types.columns import MySqlTable
from snowmelt.errors import Corrupt

SHAPES: Final[dict[str, Callable[[bytes], TableShape]]] = {MySqlTable.kind: MySqlTable.of_record}
"""How the recorded shape of a table is read, by the kind of its database."""


def shape_of(kind: str, raw: bytes) -> TableShape:
    """The shape that `TableShape.record` gave these bytes of."""
    if kind not in SHAPES:
        raise Corrupt("a table's shape is of a database that is not known", detail=kind, hint="was it written by a newer version?")
    return SHAPES[kind](raw)


def warm(tell: kernels.Progress = kernels.silent) -> None:
    """Compile or load what tasks of any database need, in the process that workers are forked from. `tell`: how many of how many
    kernels are ready."""
    from snowmelt.databases.mysql.log.decode import warm as warm_mysql

    warm_mysql(tell)
