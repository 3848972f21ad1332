"""Which databases there are. Only this module and `config.registry` know them by name."""

from __future__ import annotations

from snowmelt.columnar import kernels

KINDS = ("mysql",)
"""What `type` in the source's section may say."""


def warm(tell: kernels.Progress = kernels.silent) -> None:
    """Compile or load what tasks of any database need, in the process that workers are forked from. `tell`: how many of how many
    kernels are ready."""
    from snowmelt.databases.mysql.log.decode import warm as warm_mysql

    warm_mysql(tell)
