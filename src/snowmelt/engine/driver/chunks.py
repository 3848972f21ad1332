"""The chunk lane: which chunks are read now, and what came of it.

States. A chunk is launched at a cut that was proven visible; its answer waits until capture has come to where the read ends; then
it is a report, which some plan adopts. What is under way belongs to this driver and dies with it.

Forbidden orders. A launch before the server was asked what it shows. A report with an end that the log has not come to.

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
from snowmelt.model.position import Position
from snowmelt.model.table import TableId
from snowmelt.planning.epochs import Rule, decide_launches, lower, visible_cut
from snowmelt.planning.facts import OUTSIDE, Launched, Reported

log = logging.getLogger(__name__)

_HIDDEN_TOLD: Final = 100
"""Answers, some ten a second: a commit is shown a moment after it is logged, and that is not worth a word."""


class Chunks:
    """Of one driver; used by the thread that owns the machines. `sourced` gives a table's shape and target as of the ledger."""

    def __init__(
        self,
        ledger: Ledger,
        keeper: LogRecorder,
        jobs: Jobs,
        place: TaskContext,
        retries: Retries,
        *,
        at_once: int,
        began: Position,
        sourced: Callable[[TableId], Sourced],
        cleaner: Cleaner,
    ) -> None:
        """`began`: the end of the server's log when this driver started. `cleaner` is told what reads leave behind."""
        self._ledger = ledger
        self._keeper = keeper
        self._jobs = jobs
        self._place = place
        self._at_once = at_once
        self._began = began
        self._sourced = sourced
        self._cleaner = cleaner
        self._answers: dict[str, ChunkAnswer] = {}
        """Of reports, by nonce."""
        self._waiting: list[ChunkAnswer] = []
        self._asking = ThreadPoolExecutor(1, thread_name_prefix="snowmelt-visible")
        self._asked: tuple[TableId, Future[Shown]] | None = None
        self._unknown: frozenset[str] | None = None
        """Of what the server listed as prepared when it was asked first, that which it still lists and our log says nothing of."""
        self._hidden = 0
        """So many answers in a row left no cut to read at."""
        self._retries = retries
        self.newest_job = 0

    # ---- reading

    def launch(self) -> None:
        """Start as many reads as there is room for. What the server shows is asked in the background: it may take a lock."""
        tables, relay = self._ledger.tables, self._keeper.relay
        running = sum(1 for _ in tables.readings())
        free = self._at_once - sum(1 for reading in tables.readings() if reading.report is None)
        # Before capture has come to where the server is, statements may lie ahead that nobody knows of.
        if free <= 0 or relay.newest is None or relay.offset_of(self._began) is None:
            return
        if self._asked is None:
            # Whether anything could be launched if all that is captured were visible.
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
        """Tables that wait: because reads of them failed, or because a statement lies ahead, so that database and lake have them in shapes
        of their own and no read of today would ever be adopted."""
        relay = self._keeper.relay
        return self._retries.waiting | {statement.table for statement in relay.statements(self._ledger.upto, relay.end)}

    def _visible(self, shown: Shown) -> int | None:
        relay, located = self._keeper.relay, self._keeper.located
        if (place := shown.place) is not None:
            # What a server does not show yet and has logged before capture began no epoch will ever bring.
            begins = relay.segments[0].begins
            return visible_cut(relay, place) if begins.era < place.era or place >= begins else None
        for sealed in reversed(relay.segments):
            if shown.shows(sealed.ends):
                return sealed.last
        # A server that nobody writes to seals nothing, but capture knows what lies before the place where it began.
        return relay.offset_of(located) if located is not None and shown.shows(located) else None

    def _without_hidden(self, visible: int, prepared: frozenset[str]) -> int | None:
        """The newest cut up to this one with no COMMIT of a prepared transaction below it that the server has logged and does not show.

        A driver before us may have let go of such a commit. So of what is listed first nothing may be left that our log does not know.
        """
        relay = self._keeper.relay
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
        """Reports count once the relay has come to where their reads end."""
        tables, relay, waiting = self._ledger.tables, self._keeper.relay, []
        for answer in self._waiting:
            offset = relay.offset_of(answer.mark.high)
            if offset is None:
                waiting.append(answer)
                continue
            launch = answer.launch
            settled = answer.mark.exact(two_phase=bool(relay.committed(max(relay.floor, launch.visible), offset)))
            read = (answer.nonce, offset, settled, answer.schema, answer.staged.files, answer.extent)
            report = Reported(launch.incarnation, launch.ordinal, launch.job, *read)
            for fact in tables.decide_report(report):
                tables.apply(fact)
                self._answers[answer.nonce] = answer
                self._retries.succeeded(launch.incarnation.table)
        self._waiting[:] = waiting

    @property
    def waits_for(self) -> Position | None:
        """Where the log has to come to before all that was read counts."""
        return max((answer.mark.high for answer in self._waiting), default=None, key=lambda high: (high.file, high.offset))

    def give_back_waiting(self) -> None:
        """Those that wait for the log hold back more of it than there is room for; they are read again later."""
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
        """Of the reads that these rules adopt, by nonce."""
        return {one.reading.nonce: self._answer(one.reading.nonce).mark for rule in rules for one in rule.adopting}

    def staged(self, nonce: str) -> Staged:
        return self._answer(nonce).staged

    def _answer(self, nonce: str) -> ChunkAnswer:
        if nonce not in self._answers:
            raise InvariantBroken("a read is adopted without a report")
        return self._answers[nonce]

    def let_go(self) -> None:
        """Of answers whose reads are over."""
        under_way = {reading.report.nonce for reading in self._ledger.tables.readings() if reading.report is not None}
        self._answers = {nonce: answer for nonce, answer in self._answers.items() if nonce in under_way}

    def close(self) -> None:
        self._asking.shutdown(wait=False, cancel_futures=True)
