"""Reads of a table that failed: when it is tried again, and when that is enough.

A table that is not what it was when a read was planned is told of by the log as well, in a moment; a database may be away for a while.
So a table whose reads fail waits, longer each time, while all others go on. One that never comes right is given up (`judging`). One that
another session has locked is waited for, however long that takes: it is nobody's failure, and it passes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from snowmelt.engine.driver.judging import Verdict, judge
from snowmelt.errors import Occupied, SnowmeltError, TableStuck
from snowmelt.model.table import TableId

log = logging.getLogger(__name__)

FAILED_MAX: Final = 15
_PAUSE_S: Final = 0.2
_PAUSE_S_MAX: Final = 5.0


class Retries:
    """Of one driver; used by the thread that owns the machines."""

    def __init__(self, give_up: Callable[[TableStuck], object]) -> None:
        """`give_up` is told of a table that can't go on."""
        self._give_up = give_up
        self._failed: dict[TableId, int] = {}
        self._not_before: dict[TableId, float] = {}

    def failed(self, table: TableId, error: BaseException) -> None:
        """Raises the error if it is not of this table alone, or if a database is away for too long."""
        verdict = judge(error, one_table=True)
        if not isinstance(error, SnowmeltError) or verdict is Verdict.PIPELINE:
            raise error
        if isinstance(error, Occupied):
            log.warning("a table is locked by another session and waits", extra={"table": str(table), "why": error.detail})
            self._not_before[table] = time.monotonic() + _PAUSE_S_MAX
            return
        count = self._failed.get(table, 0) + 1
        if isinstance(error, TableStuck) or count >= FAILED_MAX:
            often = f"; {count} times in a row, {table}" if count > 1 else ""
            stuck = table.stuck(error.fact, detail=f"{error.detail}{often}".removeprefix("; "), hint=error.hint)
            if verdict is Verdict.PASSES:
                raise type(error)(stuck.fact, detail=stuck.detail, hint=stuck.hint)
            self.succeeded(table)
            self._give_up(stuck)
            return
        log.warning("a read of a table failed and is done again", extra={"table": str(table), "why": error.fact, "times": count})
        self._failed[table] = count
        self._not_before[table] = time.monotonic() + min(_PAUSE_S_MAX, _PAUSE_S * 2 ** (count - 1))

    def succeeded(self, table: TableId) -> None:
        self._failed.pop(table, None)
        self._not_before.pop(table, None)

    def let_go(self, known: Callable[[TableId], object | None]) -> None:
        """Drop what is counted for tables that `known` does not find."""
        for table in [one for one in self._not_before if known(one) is None]:
            self.succeeded(table)

    def may(self, table: TableId) -> bool:
        return table not in self.waiting

    @property
    def waiting(self) -> set[TableId]:
        """Tables whose time has not come yet."""
        now = time.monotonic()
        return {table for table, due in self._not_before.items() if due > now}
