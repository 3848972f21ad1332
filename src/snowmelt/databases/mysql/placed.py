"""The catalogue between two places of the log."""

from __future__ import annotations

import time
from typing import Final

from snowmelt.databases.contract.tables import Catalogue, Wanted
from snowmelt.databases.mysql.answers import number
from snowmelt.databases.mysql.catalog import ignores_case, read_tables
from snowmelt.databases.mysql.connect import MySqlOptions, Session
from snowmelt.databases.mysql.read.reads import Method, log_end, read_method, shown_place

_SHOWN_S_MAX: Final = 5.0
"""How long to wait for a server to show what it has logged. Then the caller asks again."""


def read_catalogue(options: MySqlOptions, wanted: Wanted, *, era: int) -> Catalogue:
    with Session(options) as session:
        ignore_case = ignores_case(session)
        # MySQL 8 logs a statement before its catalogue shows what came of it.
        began = shown_place(session, era, seconds_max=_SHOWN_S_MAX) if read_method(session) is Method.GTID else log_end(session, era=era)
        tables = read_tables(session, wanted(ignore_case))
        time_ms = 1000 * session.row("SELECT UNIX_TIMESTAMP()", columns=(number,))[0]
        return Catalogue(
            tables=tables,
            began=began,
            ended=log_end(session, era=era),
            time_ms=time_ms,
            ahead_ms=clock_ahead_ms(session),
            identity=session.server.identity,
            log=str(session.log_end()[0]),
            ignores_case=ignore_case,
            lower_case_names=session.variable("lower_case_table_names") == "1",
        )


def clock_ahead_ms(session: Session) -> int:
    """How far the server's clock is ahead of this process's, rounded up a little."""
    ours_ms = int(time.time() * 1000)
    server_ms: int = session.row("SELECT CAST(CEIL(UNIX_TIMESTAMP(NOW(6)) * 1000) AS UNSIGNED)", columns=(number,))[0]
    return server_ms - ours_ms
