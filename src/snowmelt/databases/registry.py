"""What tasks of any database need, for those that must not name one (list: `pyproject.toml`)."""

from __future__ import annotations

from snowmelt.columnar import kernels


def warm(tell: kernels.Progress = kernels.silent) -> None:
    """Compile or load what tasks of any database need, in the process that workers are forked from. `tell`: how many of how many
    kernels are ready."""
    from snowmelt.databases.mysql.log.decode import warm as warm_mysql

    warm_mysql(tell)
