"""The truth of a pipeline: a fold of its intents and done records.

States. The newest intent is open, or done. Everything that a driver must know after a restart follows from the records.

Must never happen. An intent that does not follow: by number, by log range, or while the one before is not done. A done record of
another intent than the newest. No generation is compared here: an intent is true whichever driver wrote it.

Memory. What the tables need (see `planning.tables`), and per lake table a snapshot number and a watermark. A summary holds the
same, so a restart reads the summary and the few records after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from snowmelt.commit.listeners import Reached
from snowmelt.commit.records import Committed, Done, Intent
from snowmelt.commit.watermarks import advance
from snowmelt.errors import check
from snowmelt.model.numbers import EpochNumber, GenerationNumber, LogOffset, SequenceNumber
from snowmelt.planning.facts import Covered, Incarnation
from snowmelt.planning.tables import TablePhase, Tables


class Ledger:
    """Only `apply_intent` and `apply_done` change anything durable."""

    def __init__(self) -> None:
        self.epoch = EpochNumber(0)
        self.identity = ""
        """The identity of the newest intent."""
        self.generation = GenerationNumber(0)
        """The generation that wrote it."""
        self.upto = self.done_upto = LogOffset(0)
        self.open: Intent | None = None
        self.sequence_max = SequenceNumber(0)
        self.segment = self.done_segment = 0
        self.listeners = ""
        self.tables = Tables()
        self.snapshots: dict[str, int] = {}
        self.last_commits: dict[str, str] = {}
        """Per lake table the intent of our last commit there."""
        self.watermarks: dict[str, int] = {}

    @property
    def done_epoch(self) -> EpochNumber:
        """The last epoch that is done."""
        return EpochNumber(self.epoch - (self.open is not None))

    def apply_intent(self, intent: Intent) -> None:
        """Some driver has won this intent."""
        check(intent.epoch == self.epoch + 1, "an intent does not follow by its number", f"{intent.epoch} after {self.epoch}")
        check(self.open is None, "an intent follows one that is not done", f"{intent.epoch}")
        check(intent.after == self.upto, "an intent leaves a gap in the log", f"{intent.epoch} begins at {intent.after}, not {self.upto}")
        check(intent.upto >= intent.after, "an intent goes back in the log", f"{intent.epoch}: ({intent.after}, {intent.upto}]")
        for fact in intent.facts:
            self.tables.apply(fact, intent.epoch)
        self.epoch, self.identity, self.generation = intent.epoch, intent.identity, intent.generation
        self.upto, self.open = intent.upto, intent
        self.sequence_max, self.segment = max(self.sequence_max, intent.sequence_max), intent.segment

    def decide_done(self, snapshots: Iterable[Committed], listeners: str) -> Done:
        """The record that closes the open epoch, once every lake table has it."""
        check(self.open is not None, "no epoch is open", f"{self.epoch}")
        return Done(self.epoch, self.identity, tuple(snapshots), listeners)

    def apply_done(self, done: Done) -> list[Incarnation]:
        """Close the open epoch. Returns the tables whose metadata is released by it."""
        check(self.open is not None, "an epoch is done that is not open", f"{done.epoch}")
        check(done.epoch == self.epoch, "another epoch is done than the open one", f"{done.epoch}, not {self.epoch}")
        check(done.identity == self.identity, "another intent is done than the one that was won", f"{done.identity}, not {self.identity}")
        watermarks = self.decide_watermarks()
        self.open, self.done_upto, self.done_segment, self.listeners = None, self.upto, self.segment, done.listeners
        self.snapshots.update((committed.target, committed.snapshot) for committed in done.snapshots)
        self.last_commits.update((committed.target, done.identity) for committed in done.snapshots)
        self.watermarks = watermarks
        self.tables.apply(Covered(done.epoch, self.upto))
        released = self.tables.releasable()
        for fact in released:
            self.tables.apply(fact)
        self._forget_targets([fact.incarnation for fact in released])
        return [fact.incarnation for fact in released]

    def _forget_targets(self, released: list[Incarnation]) -> None:
        """Drop the snapshot of each lake table whose source is gone.

        The identity of its last commit stays: the lake keeps the rows, and a table that is created again under the same name commits after
        that one.
        """
        if any(self.tables.current(incarnation) is None for incarnation in released):
            fed = {table.target for table in self.tables}
            self.snapshots = {target: snapshot for target, snapshot in self.snapshots.items() if target in fed}

    def decide_watermarks(self) -> dict[str, int]:
        """The watermarks with the open epoch; a lake table without an entry has none. They follow from known facts, so a record need not
        name tables to which nothing happened."""
        time_ms = self.open.time_ms if self.open is not None else None
        sources: dict[str, list[int | None]] = {}
        for table in self.tables:
            if table.phase is not TablePhase.GONE:
                before = self.watermarks.get(table.target)
                # A table that is set aside does not change in the lake, so its watermark stays.
                moves = time_ms is not None and table.phase is not TablePhase.SET_ASIDE
                known = time_ms if moves else before
                sources.setdefault(table.target, []).append(known if table.complete else None)
        moved = {target: advance(self.watermarks.get(target), times_ms) for target, times_ms in sources.items()}
        return {target: now for target, now in moved.items() if now is not None}

    def decide_reached(self, committed: Mapping[str, int]) -> dict[str, Reached]:
        """How far each lake table with a source is with the open epoch, which these snapshots hold. A table without a snapshot is left
        out."""
        now, snapshots = self.decide_watermarks(), {**self.snapshots, **committed}
        return {
            target: Reached(
                snapshots[target],
                self.identity if target in committed else self.last_commits[target],
                self.watermarks.get(target),
                now.get(target),
            )
            for target in {table.target for table in self.tables if table.phase is not TablePhase.GONE}
            if target in snapshots
        }
