"""The chunk lane: which chunks are read now, and what becomes of their answers.

States. A chunk is launched at a cut that was proven visible. Its answer waits until capture has reached the place where the read ends. Then
it is a report, which some plan adopts. Reads under way belong to this driver and die with it.

Must never happen. A launch before the server was asked what it shows. A report whose end the captured log has not reached.

Memory. Per chunk under way one record and, once it is read, its staged files' messages.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Final

from snowmelt.commit.ledger import Ledger
from snowmelt.commit.records import Staged
from snowmelt.databases.contract.tables import KeyRange, ReadMark, Shown
from snowmelt.engine.driver.cleaning import Cleaner
from snowmelt.engine.driver.retries import Retries
from snowmelt.engine.log.recorder import LogRecorder
from snowmelt.engine.tasks.chunk import ChunkAnswer, ChunkTask, run_chunk
from snowmelt.engine.tasks.context import TaskContext
from snowmelt.engine.tasks.jobs import Jobs, Lane
from snowmelt.engine.tasks.rows import Sourced
from snowmelt.errors import InvariantBroken, SnowmeltError
from snowmelt.model.numbers import LogOffset
from snowmelt.model.position import Position
from snowmelt.model.table import TableId
from snowmelt.planning.epochs import Rule, decide_launches, lower, visible_cut
from snowmelt.planning.facts import OUTSIDE, Launched, Reported

log = logging.getLogger(__name__)

_HIDDEN_TOLD: Final = 100
"""Answers before a warning, at about ten a second: a server normally shows a commit a moment after it logged it."""


class Chunks:
    """The chunk lane of one driver. The thread that owns the machines uses it."""

    def __init__(
        self,
        ledger: Ledger,
        recorder: LogRecorder,
        jobs: Jobs,
        place: TaskContext,
        retries: Retries,
        *,
        at_once: int,
        began: Position,
        sourced: Callable[[TableId], Sourced],
        cleaner: Cleaner,
    ) -> None:
        """`began`: the end of the server's log when this driver started. `sourced` gives a table's shape and target as of the ledger.
        `cleaner` hears which files reads have left."""
        self._ledger = ledger
        self._recorder = recorder
        self._jobs = jobs
        self._place = place
        self._at_once = at_once
        self._began = began
        self._sourced = sourced
        self._cleaner = cleaner
        self._answers: dict[str, ChunkAnswer] = {}
        """The answers of reported reads, by nonce."""
        self._waiting: list[ChunkAnswer] = []
        self._asking = ThreadPoolExecutor(1, thread_name_prefix="snowmelt-visible")
        self._asked: tuple[TableId, Future[Shown]] | None = None
        self._unknown: frozenset[str] | None = None
        """Prepared transactions that the server listed at the first answer and still lists, and that our log does not know."""
        self._hidden = 0
        """The number of answers in a row that left no cut to read at."""
        self._retries = retries
        self.newest_job = 0

    # ---- reading

    def launch(self) -> None:
        """Start as many reads as there is room for. The server is asked in the background what it shows, because that may take a lock."""
        tables, relay = self._ledger.tables, self._recorder.relay
        running = sum(1 for _ in tables.readings())
        free = self._at_once - sum(1 for reading in tables.readings() if reading.report is None)
        # Until capture has reached the server's place at the start, unknown statements may lie ahead.
        if free <= 0 or relay.newest is None or relay.offset_of(self._began) is None:
            return
        if self._asked is None:
            # Ask only if a chunk could be launched at the end of the captured log.
            wanted = decide_launches(tables, relay, visible=relay.end, job=0, running_max=running + 1, waiting=self._not_now())
            if wanted:
                table = self._sourced(wanted[0].incarnation.table).table
                self._asked = table.id, self._asking.submit(partial(self._place.source.newest_visible, table, era=relay.era))
            return
        name, answer = self._asked
        if not answer.done():
            return
        self._asked = None
        error = answer.exception()
        if error is not None:
            self._retries.failed(name, error)
            return
        shown = answer.result()
        visible = self._visible(shown)
        if visible is not None:
            visible = self._without_hidden(visible, shown.hidden)
        if visible is None:
            return
        waiting = self._not_now()
        if shown.alone:
            waiting |= {table.incarnation.table for table in tables if table.incarnation.table != name}
        for launch in decide_launches(tables, relay, visible=visible, job=self.newest_job + 1, running_max=running + free, waiting=waiting):
            self.newest_job = launch.job
            tables.apply(launch)
            self._start(launch, shown.place)

    def _not_now(self) -> set[TableId]:
        """Tables that wait, because a read of them failed or because a statement about them lies ahead. With a statement ahead the database
        and the ledger differ about the table, and no plan would adopt a read of now."""
        relay = self._recorder.relay
        return self._retries.waiting | {statement.table for statement in relay.statements(self._ledger.upto, relay.end)}

    def _visible(self, shown: Shown) -> LogOffset | None:
        relay, located = self._recorder.relay, self._recorder.located
        if (place := shown.place) is not None:
            # A place before capture began proves nothing: of a transaction between the two the server may not show the rows yet, and
            # no epoch brings them.
            begins = relay.segments[0].begins
            return visible_cut(relay, place) if begins.era < place.era or place >= begins else None
        for record in reversed(relay.segments):
            if shown.shows(record.ends):
                return record.last
        # Without writes no segment is sealed, but capture knows the transactions before the place where it began.
        return relay.offset_of(located) if located is not None and shown.shows(located) else None

    def _without_hidden(self, visible: LogOffset, prepared: frozenset[str]) -> LogOffset | None:
        """The newest cut, up to this one, below which the server shows the COMMITs of all prepared transactions.

        The log of such a COMMIT may have been released by an earlier driver. So no chunk is read until every transaction that the server
        listed at first is known to our log, or no longer listed.
        """
        relay = self._recorder.relay
        listed = prepared if self._unknown is None else prepared & self._unknown
        self._unknown = frozenset(xid for xid in listed if not relay.knows(xid))
        cut = None if self._unknown else relay.shown(visible, prepared)
        self._hidden = self._hidden + 1 if cut is None or cut < relay.floor else 0
        if self._hidden == _HIDDEN_TOLD:
            log.warning(
                "no chunk is read: the server lists XA transactions as prepared that it may have logged as committed",
                extra={"xids": sorted(self._unknown or prepared)[:20]},
            )
        return cut

    def _start(self, launch: Launched, shown: Position | None) -> None:
        source = self._sourced(launch.incarnation.table)
        copy = self._ledger.tables.copy_of(launch.incarnation)
        keys = KeyRange()
        if launch.ordinal != OUTSIDE and copy.extent is not None:
            above = lower(copy, launch.ordinal)
            keys = KeyRange(copy.extent.least if above is None else above, copy.bounds.upper(launch.ordinal), first=above is None)
        task = ChunkTask(
            launch=launch,
            source=source,
            schema=self._ledger.tables.known(launch.incarnation).schema,
            keys=keys,
            whole=not self._place.source.chunked(source.table),
            visible=shown,
        )

        def read(answers: list[ChunkAnswer]) -> None:
            for answer in answers:
                self._cleaner.reported(source.target, answer.staged)
            self._waiting.extend(answers)

        self._jobs.submit(Lane.CHUNKS, self._place, [task], run_chunk, read, lambda error: self._failed(launch, error))

    def _failed(self, launch: Launched, error: SnowmeltError) -> None:
        self._cleaner.job_failed()
        for fact in self._ledger.tables.decide_give_back(launch.incarnation, launch.ordinal, launch.job, str(error)):
            self._ledger.tables.apply(fact)
            self._retries.failed(launch.incarnation.table, error)

    # ---- reports

    def hear(self) -> None:
        """Report the reads whose ends the relay has reached."""
        tables, relay, waiting = self._ledger.tables, self._recorder.relay, []
        for answer in self._waiting:
            offset = relay.offset_of(answer.mark.high)
            if offset is None:
                waiting.append(answer)
                continue
            launch = answer.launch
            settled = answer.mark.exact(two_phase=bool(relay.committed(max(relay.floor, launch.visible), offset)))
            report = Reported(
                incarnation=launch.incarnation,
                ordinal=launch.ordinal,
                job=launch.job,
                nonce=answer.nonce,
                high=offset,
                exact=settled,
                schema=answer.schema,
                files=answer.staged.files,
                extent=answer.extent,
            )
            for fact in tables.decide_report(report):
                tables.apply(fact)
                self._answers[answer.nonce] = answer
                self._retries.succeeded(launch.incarnation.table)
        self._waiting[:] = waiting

    @property
    def waits_for(self) -> Position | None:
        """The place that the log must reach before all answers are reports."""
        return max((answer.mark.high for answer in self._waiting), default=None, key=lambda high: (high.file, high.offset))

    def give_back_waiting(self) -> None:
        """Give back the reads that wait for the log: there is no room for the log that they hold. They are read again later."""
        for answer in self._waiting:
            launch = answer.launch
            log.warning("a read is given back: too much of the log would be held for it", extra={"table": str(launch.incarnation.table)})
            for fact in self._ledger.tables.decide_give_back(launch.incarnation, launch.ordinal, launch.job, "the relay is full"):
                self._ledger.tables.apply(fact)
        self._waiting.clear()

    @property
    def ready(self) -> bool:
        """Whether some read waits for a plan."""
        return any(reading.report is not None for reading in self._ledger.tables.readings())

    @property
    def reading(self) -> bool:
        """Whether some read is not over."""
        return bool(self._waiting) or any(reading.report is None for reading in self._ledger.tables.readings())

    def marks(self, rules: Iterable[Rule]) -> dict[str, ReadMark]:
        """The marks of the reads that these rules adopt, by nonce."""
        return {one.reading.nonce: self._answer(one.reading.nonce).mark for rule in rules for one in rule.adopting}

    def staged(self, nonce: str) -> Staged:
        return self._answer(nonce).staged

    def _answer(self, nonce: str) -> ChunkAnswer:
        if nonce not in self._answers:
            raise InvariantBroken("a read is adopted without a report")
        return self._answers[nonce]

    def let_go(self) -> None:
        """Drop the answers whose reads are over."""
        under_way = {reading.report.nonce for reading in self._ledger.tables.readings() if reading.report is not None}
        self._answers = {nonce: answer for nonce, answer in self._answers.items() if nonce in under_way}

    def close(self) -> None:
        self._asking.shutdown(wait=False, cancel_futures=True)
