"""Reads of a table that failed: when it is tried again, and when that is enough.

A read fails if its table was changed since the read was planned; the log shows the change a moment later. It also fails if the database
is away for a while. So a table whose reads fail waits, longer each time, while all others continue. After too many failures it is given up
(`judging`). A table that another session has locked waits without a limit: that is no failure.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from snowmelt import budgets
from snowmelt.engine.driver.judging import Verdict, judge
from snowmelt.errors import Occupied, SnowmeltError, TableStuck
from snowmelt.model.table import TableId

log = logging.getLogger(__name__)


class Retries:
    """Counts failed reads, table by table. The thread that owns the machines uses it."""

    def __init__(self, give_up: Callable[[TableStuck], object]) -> None:
        """`give_up` is called for a table that can't continue."""
        self._give_up = give_up
        self._failed: dict[TableId, int] = {}
        self._not_before: dict[TableId, float] = {}

    def failed(self, table: TableId, error: BaseException) -> None:
        """Count a failed read. Raises the error if it concerns more than this table, or if the database is away for too long."""
        verdict = judge(error, one_table=True)
        if not isinstance(error, SnowmeltError) or verdict is Verdict.PIPELINE:
            raise error
        if isinstance(error, Occupied):
            log.warning("a table is locked by another session and waits", extra={"table": str(table), "why": error.detail})
            self._not_before[table] = time.monotonic() + budgets.READS.longest_s
            return
        count = self._failed.get(table, 0) + 1
        if isinstance(error, TableStuck) or budgets.READS.is_spent(count):
            often = f"; {count} times in a row, {table}" if count > 1 else ""
            stuck = table.stuck(error.fact, detail=f"{error.detail}{often}".removeprefix("; "), hint=error.hint)
            if verdict is Verdict.PASSES:
                raise type(error)(stuck.fact, detail=stuck.detail, hint=stuck.hint)
            self.succeeded(table)
            self._give_up(stuck)
            return
        log.warning("a read of a table failed and is done again", extra={"table": str(table), "why": error.fact, "times": count})
        self._failed[table] = count
        self._not_before[table] = time.monotonic() + budgets.READS.pause_s(count)

    def succeeded(self, table: TableId) -> None:
        self._failed.pop(table, None)
        self._not_before.pop(table, None)

    def let_go(self, known: Callable[[TableId], object | None]) -> None:
        """Forget the failures of tables that `known` does not find."""
        for table in [one for one in self._not_before if known(one) is None]:
            self.succeeded(table)

    def may(self, table: TableId) -> bool:
        return table not in self.waiting

    @property
    def waiting(self) -> set[TableId]:
        """Tables that are not to be read yet."""
        now = time.monotonic()
        return {table for table, due in self._not_before.items() if due > now}
