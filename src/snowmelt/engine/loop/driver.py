"""One driver at work: the loop's turn.

One thread owns the machines. Around it: the capture's thread, and threads that wait for Spark's answers. In each turn it takes up
what came in, does the commit's next step, plans the next epoch if it may, launches chunks, and lets maintenance begin what is due.
Nothing counts before an intent is won, so whatever fails before is dropped and planned again. What fails because of one table sets that
table aside (`judging`), and the rest is planned again without it.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field

from snowmelt.driving.steps import Machines
from snowmelt.engine.driver.chunks import Chunks
from snowmelt.engine.driver.discovery import Discovery
from snowmelt.engine.log.recorder import LogRecorder
from snowmelt.engine.loop.committing import Committing
from snowmelt.engine.loop.knowledge import Knowledge
from snowmelt.engine.loop.letting_go import LettingGo
from snowmelt.engine.loop.log_lane import LogLane
from snowmelt.engine.loop.planner import Planner
from snowmelt.engine.loop.proposals import Proposals
from snowmelt.engine.loop.resources import TURN_S, Resources
from snowmelt.engine.maintenance.rescales import Rescales
from snowmelt.engine.tasks.jobs import is_gone, raise_gone
from snowmelt.errors import Fenced, Unavailable
from snowmelt.model.numbers import BEGINNING, NO_EPOCH, EpochNumber, LogOffset
from snowmelt.planning.tables import TablePhase
from snowmelt.store.generations import newest_generation


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What a watcher may want to know."""

    epoch: EpochNumber = NO_EPOCH
    """The last that is done."""
    upto: LogOffset = BEGINNING
    done_upto: LogOffset = BEGINNING
    captured: int = 0
    held_bytes: int = 0
    """Of the log, on disk."""
    paused: bool = False
    """Whether capture waits for the lake, because the limit of held log is reached."""
    time_ms: int | None = None
    """When the last transaction that the lake has was committed in the database."""
    rows: int = 0
    """Brought into the lake by this driver."""
    phases: dict[str, str] = field(default_factory=dict)
    targets: dict[str, str] = field(default_factory=dict)
    chunks: dict[str, tuple[int, int | None]] = field(default_factory=dict)
    """Of tables that are being copied: how many the lake has, and of how many, once that is known."""
    aside: dict[str, str] = field(default_factory=dict)
    """Why tables are set aside."""


@dataclass(slots=True, kw_only=True)
class DriverLoop:
    """Complete: `boot` makes one, with all that it needs at work."""

    resources: Resources
    known: Knowledge
    machines: Machines
    recorder: LogRecorder
    discovery: Discovery
    proposals: Proposals
    chunks: Chunks
    lane: LogLane
    planner: Planner
    committing: Committing
    letting_go: LettingGo
    rescales: Rescales
    era: int
    """Of the server that is captured."""
    _fence_due: float = 0.0

    def turn(self, *, stopping: bool) -> None:
        """One turn of the loop. `stopping`: what is under way is finished, and nothing is begun."""
        self.resources.awake.clear()
        self._look_for_a_newer_driver()
        self.resources.signs.beat(self.discovery.left_out, self.letting_go.upkeep.maintained)
        busy = self.recorder.take()
        busy |= self.resources.jobs.take()
        self.chunks.hear()
        self._tell_capture()
        if self.committing.step():
            busy = True
        elif (job := self.lane.take_staged()) is not None:
            self.committing.offer(job)
            busy = True
        if not stopping:
            self.discovery.look()
            self.rescales.turn(at_rest=self.at_rest)
            if not self.rescales.closed:
                self.planner.plan_if_due()
            # While an epoch changes columns, no read begins: the lake may not have the columns of its rows yet. Nor while capture is
            # paused: the read would end far after the captured log, and keep all log in between from being released.
            if self.machines.commit.may_plan and not self.recorder.gauge.paused:
                self.chunks.launch()
            self.letting_go.upkeep.turn(self.letting_go.view, paused=self._catches_up)
        if not busy:
            self.resources.awake.wait(TURN_S)

    @property
    def at_rest(self) -> bool:
        """Whether no epoch is planned, staged or being committed."""
        return self.lane.idle and self.machines.commit.next_step() is None

    @property
    def _catches_up(self) -> bool:
        """Whether tables are being copied, or more of the log waits than one epoch brings."""
        ledger = self.known.ledger
        lags = self.known.relay.end - ledger.done_upto > self.resources.settings.pace.epoch_bytes
        return lags or self.recorder.gauge.paused or next(iter(ledger.tables.readings()), None) is not None

    def _tell_capture(self) -> None:
        """What has to be captured before anything can be released (`relay.flow`)."""
        gauge, ledger = self.recorder.gauge, self.known.ledger
        if gauge.overfull:
            self.chunks.give_back_waiting()
        drained = ledger.done_upto >= self.known.relay.end and self.at_rest and next(iter(ledger.tables.readings()), None) is None
        if drained or gauge.paused:
            self.letting_go.of_log()
        self.recorder.needs(drained=drained, upto=self.chunks.waits_for)

    def _look_for_a_newer_driver(self) -> None:
        """Look now and then, for a driver that has nothing to do: each step that has an effect looks by itself. Also raises if Spark has
        ended."""
        if time.monotonic() < self._fence_due:
            return
        if is_gone(self.resources.spark):
            raise_gone()
        generation = self.known.generation
        with contextlib.suppress(Unavailable):
            newest = newest_generation(self.resources.state.store, generation)
            if newest > generation:
                raise Fenced("a newer driver runs this pipeline", detail=f"it is generation {newest}, this is {generation}")
        self._fence_due = time.monotonic() + min(5.0, max(1.0, self.resources.settings.pace.interval_s))

    def current(self) -> bool:
        """Whether every table is live and the lake has what the database had when this was asked."""
        if not self.caught_up():
            return False
        # Of a database that is away capture knows best whether that is worth an end.
        with contextlib.suppress(Unavailable):
            return self.known.has(self.resources.settings.source.log_end(era=self.era))
        return False

    def caught_up(self) -> bool:
        """Whether every table is live, or set aside, and the lake has what the database had when this driver started."""
        ledger = self.known.ledger
        live = all(table.phase in (TablePhase.RELEASED, TablePhase.SET_ASIDE) for table in ledger.tables)
        return live and self.proposals.settled and ledger.open is None and self.known.has(self.known.began)

    @property
    def progress(self) -> Progress:
        ledger, relay = self.known.ledger, self.known.relay
        return Progress(
            epoch=ledger.done_epoch,
            upto=ledger.upto,
            done_upto=ledger.done_upto,
            captured=relay.end,
            held_bytes=self.recorder.gauge.held_bytes,
            paused=self.recorder.gauge.paused,
            time_ms=relay.time_at(ledger.done_upto),
            rows=self.committing.rows,
            phases={str(table.incarnation.table): table.phase.value for table in ledger.tables},
            targets={str(table.incarnation.table): table.target for table in ledger.tables},
            chunks={str(table.incarnation.table): table.copy.progress for table in ledger.tables if table.copy is not None},
            aside={str(table.incarnation.table): table.aside.why for table in ledger.tables if table.aside is not None},
        )
