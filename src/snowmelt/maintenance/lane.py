"""What maintenance does next, to which table: the lane beside the stream. It decides steps; a shell does them and reports their outcomes.

States. A table passes through `LANE`, one round after the other, and comes back to IDLE. What it needs next follows from a few numbers:
how many runs each bucket has, as the last look and the commits since then tell, and when its snapshots and its folders are due.

Laws. A table has one round at a time, so a bucket has at most one commit of maintenance under way. A rewrite is published only
after all its files are staged, and its files are deleted only after its publish was given up. While a publish has no answer, it is asked
again and nothing is deleted. Nothing is begun or published for a table while an open epoch empties it or changes its columns, and what was
being rewritten then is dropped.

The stream goes first. Rewrites and searches for orphans have a budget of slots. While the pipeline catches up, only buckets with
`URGENT` times the runs that start a merge are rewritten: reads and commits of such a table cost more than the rewrite.

Failures. What fails concerns its table: that one waits, longer each time, and the others continue.

Memory. For each table a few numbers, and one for each bucket with more than one run; for a round its plan and its files; a number for
each publish that never got an answer. An epoch costs what it touches, and a turn costs what is due.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, assert_never

from snowmelt import budgets
from snowmelt.commit.cleaning import RewritesUnderWay
from snowmelt.commit.records import Intent, Staged
from snowmelt.errors import InvariantBroken, check
from snowmelt.maintenance.compaction import PlannedRewrite, shares_of
from snowmelt.maintenance.lane_steps import (
    DeleteOrphans,
    DiscardFiles,
    ExpireSnapshots,
    FilesDiscarded,
    FilesRewritten,
    FilesSeen,
    LaneOutcome,
    LaneStep,
    LaneStepFailed,
    LookAtFiles,
    OrphansDeleted,
    PublishRewrites,
    RewriteFiles,
    RewritesGivenUp,
    RewritesPublished,
    SnapshotsExpired,
)
from snowmelt.maintenance.rules import MaintenanceRules
from snowmelt.model.moment import TimeMs

URGENT: Final = 4
EXPIRE_EVERY: Final = 50
"""Commits after which an expiry of a table is due. Of a table that rests it is due when its snapshots are old enough."""
EXPIRY_PAUSE_MS: Final = 10_000
"""Between two looks at the snapshots of a table that gets few commits, at least."""
FIRST_SEARCH_MS: Final = 3_600_000
"""How long after a driver's start a table is searched for orphans at the earliest: a driver that starts often must not search often."""


class LaneState(Enum):
    """Of a table's maintenance, known to one driver alone."""

    IDLE = "idle"
    LOOKING = "looking"
    REWRITING = "rewriting"
    PUBLISHING = "publishing"
    """The lake may have it, even if this driver never learns of it."""
    DISCARDING = "discarding"
    EXPIRING = "expiring"
    SEARCHING = "searching"


class LaneTrigger(Enum):
    RUNS_DUE = "a bucket may have too many runs"
    EXPIRY_DUE = "snapshots may be too old"
    SEARCH_DUE = "orphans may be there"
    ENOUGH = "nothing is worth a rewrite"
    CHOSEN = "rewrites are chosen"
    STAGED = "every rewrite is staged"
    VOIDED = "an epoch emptied or reshaped the table"
    PUBLISHED = "the lake has them"
    GIVEN_UP = "they are not published and never will be"
    DONE = "done"
    FAILED = "it failed"


LANE: Final[dict[tuple[LaneState, LaneTrigger], LaneState]] = {
    (LaneState.IDLE, LaneTrigger.RUNS_DUE): LaneState.LOOKING,
    (LaneState.IDLE, LaneTrigger.EXPIRY_DUE): LaneState.EXPIRING,
    (LaneState.IDLE, LaneTrigger.SEARCH_DUE): LaneState.SEARCHING,
    (LaneState.LOOKING, LaneTrigger.ENOUGH): LaneState.IDLE,
    (LaneState.LOOKING, LaneTrigger.CHOSEN): LaneState.REWRITING,
    (LaneState.LOOKING, LaneTrigger.FAILED): LaneState.IDLE,
    (LaneState.REWRITING, LaneTrigger.STAGED): LaneState.PUBLISHING,
    (LaneState.REWRITING, LaneTrigger.VOIDED): LaneState.DISCARDING,
    # A sweep finds what its tasks have left.
    (LaneState.REWRITING, LaneTrigger.FAILED): LaneState.IDLE,
    (LaneState.PUBLISHING, LaneTrigger.PUBLISHED): LaneState.IDLE,
    (LaneState.PUBLISHING, LaneTrigger.GIVEN_UP): LaneState.DISCARDING,
    # It may have happened, whatever the error says. The same call tells.
    (LaneState.PUBLISHING, LaneTrigger.FAILED): LaneState.PUBLISHING,
    (LaneState.DISCARDING, LaneTrigger.DONE): LaneState.IDLE,
    (LaneState.DISCARDING, LaneTrigger.FAILED): LaneState.IDLE,
    (LaneState.EXPIRING, LaneTrigger.DONE): LaneState.IDLE,
    (LaneState.EXPIRING, LaneTrigger.FAILED): LaneState.IDLE,
    (LaneState.SEARCHING, LaneTrigger.DONE): LaneState.IDLE,
    (LaneState.SEARCHING, LaneTrigger.FAILED): LaneState.IDLE,
}


@dataclass(slots=True, kw_only=True)
class Figures:
    """Of one table, for people. None: not known to this driver."""

    files: int | None = None
    """With the bytes and the runs, as of the last look."""
    size_bytes: int | None = None
    runs: int | None = None
    """Of the bucket that has the most."""
    compacted_ms: TimeMs | None = None
    expired_ms: TimeMs | None = None


@dataclass(slots=True, kw_only=True)
class TableUpkeep:
    """One table's maintenance."""

    target: str
    rules: MaintenanceRules
    search_due_ms: TimeMs
    expiry_due_ms: TimeMs | None
    """None: only commits make it due."""
    state: LaneState = LaneState.IDLE
    runs: dict[str, int] | None = None
    """By bucket; a bucket that is not in it has at most one run. None: not known, so the next step looks."""
    meanwhile: dict[str, int] | None = None
    """The files that commits brought since a look began, which may not have seen them; None: not known."""
    commits: int = 0
    """Since the last expiry."""
    asked: bool = False
    """The shell was given a step and has not reported its outcome."""
    disturbed: bool = False
    """An open epoch empties the table, or changes its columns."""
    voided: bool = False
    """The same, since the round began."""
    gone: bool = False
    failures: int = 0
    """In a row."""
    not_before_ms: TimeMs = 0
    job: int = 0
    works: tuple[PlannedRewrite, ...] = ()
    staged: tuple[Staged, ...] = ()
    figures: Figures = field(default_factory=Figures)

    @property
    def fullest(self) -> int:
        """The number of runs of the bucket that has the most; 0: not known."""
        return 0 if self.runs is None else max(self.runs.values(), default=1)


class MaintenanceLane:
    """The maintenance of one driver's tables."""

    def __init__(self, *, slots: int) -> None:
        """`slots`: how many tasks it may have at once."""
        check(slots > 0, "a lane of maintenance has no slot")
        self._slots = slots
        self._tables: dict[str, TableUpkeep] = {}
        self._ready: dict[str, None] = {}
        """Tables that may have something to do now, in the order of their turns."""
        self._wakes: dict[str, TimeMs] = {}
        self._next_wake_ms: TimeMs | None = None
        """No table wakes before. None: none ever does."""
        self._active: set[str] = set()
        """Tables in a round."""
        self._newest_job = 0
        self._unanswered: set[int] = set()
        """Jobs of tables that were forgotten while a publish had no answer."""
        self._paused = False
        """Whether the pipeline catches up or copies."""

    # ---- asking

    def __iter__(self) -> Iterator[TableUpkeep]:
        return iter(self._tables.values())

    def __contains__(self, target: str) -> bool:
        return target in self._tables

    def __getitem__(self, target: str) -> TableUpkeep:
        return self._tables[target]

    @property
    def under_way(self) -> RewritesUnderWay:
        """Rewrites whose files may still be published."""
        rewriting = (LaneState.REWRITING, LaneState.PUBLISHING, LaneState.DISCARDING)
        known = {table.job for table in self._known(self._active) if table.state in rewriting}
        return RewritesUnderWay(self._newest_job, frozenset(known | self._unanswered))

    @property
    def slots_in_use(self) -> int:
        return sum(_slots(table) for table in self._known(self._active))

    # ---- what happens to tables

    def add(self, target: str, rules: MaintenanceRules, *, now_ms: TimeMs) -> None:
        """A table is to be maintained. Nothing is known of it."""
        search = now_ms + min(rules.orphan_age_ms, FIRST_SEARCH_MS)
        self._tables[target] = TableUpkeep(target=target, rules=rules, search_due_ms=search, expiry_due_ms=now_ms)
        self._ready[target] = None

    def keep(self, targets: Container[str]) -> None:
        """The others are no longer the pipeline's. A round that is under way ends first."""
        for table in [table for table in self._tables.values() if table.target not in targets]:
            table.gone = True
            self._forget_if_over(table)

    def pause(self, paused: bool) -> None:
        if self._paused and not paused:
            self._ready.update(dict.fromkeys(self._tables))
        self._paused = paused

    def opened(self, targets: Iterable[str]) -> None:
        """An epoch is decided that empties these tables or changes their columns."""
        for table in self._known(targets):
            table.disturbed = table.voided = True
            if table.state is LaneState.REWRITING and not table.asked:
                self._move(table, LaneTrigger.VOIDED)

    def done(self, touched: Mapping[str, Mapping[str, int] | None], *, now_ms: TimeMs) -> None:
        """An epoch is in these tables: how many files each bucket got; None: not known, or the table was emptied."""
        for table in self._known(touched):
            added = touched[table.target]
            table.disturbed = False
            self._committed(table, now_ms)
            table.runs, table.meanwhile = _with(table.runs, added), _with(table.meanwhile, added)
            self._ready[table.target] = None

    @staticmethod
    def _committed(table: TableUpkeep, now_ms: TimeMs) -> None:
        """It has one more snapshot."""
        table.commits += 1
        if table.commits >= EXPIRE_EVERY:
            table.expiry_due_ms = now_ms
        elif table.expiry_due_ms is None:
            table.expiry_due_ms = now_ms + max(EXPIRY_PAUSE_MS, table.rules.expiry.age_ms)

    def _known(self, targets: Iterable[str]) -> list[TableUpkeep]:
        return [self._tables[target] for target in targets if target in self._tables]

    # ---- deciding

    def next_steps(self, now_ms: TimeMs, *, threads: int) -> list[LaneStep]:
        """What is to be done now, each once. `threads`: how many steps besides tasks may begin now."""
        self._wake(now_ms)
        free, steps = self._slots - self.slots_in_use, list[LaneStep]()
        for target in list(self._ready):
            table = self._tables[target]
            if table.asked:
                continue
            trigger = self._due(table, now_ms)
            nothing = trigger is None and table.state is LaneState.IDLE
            if nothing or table.disturbed or now_ms < table.not_before_ms:
                del self._ready[target]
                self._sleep(table)
                continue
            needs_slot = trigger in (LaneTrigger.RUNS_DUE, LaneTrigger.SEARCH_DUE)
            needs_thread = trigger is not LaneTrigger.SEARCH_DUE and table.state is not LaneState.REWRITING
            if (needs_slot and free < 1) or (needs_thread and threads < 1):
                continue
            if trigger is not None:
                self._move(table, trigger)
                table.voided, table.meanwhile = False, {}
            free, threads = free - needs_slot, threads - needs_thread
            table.asked = True
            steps.append(_STEPS[table.state](table))
        return steps

    def _due(self, table: TableUpkeep, now_ms: TimeMs) -> LaneTrigger | None:
        """What an idle table needs. Expiry and searches are rare, so they go first."""
        if table.state is not LaneState.IDLE:
            return None
        if table.expiry_due_ms is not None and now_ms >= table.expiry_due_ms:
            return LaneTrigger.EXPIRY_DUE
        if now_ms >= table.search_due_ms and not self._paused:
            return LaneTrigger.SEARCH_DUE
        return LaneTrigger.RUNS_DUE if table.runs is None or self._worth(table) else None

    def _worth(self, table: TableUpkeep) -> bool:
        return table.fullest >= table.rules.compaction.runs_max * (URGENT if self._paused else 1)

    # ---- applying

    def apply(self, outcome: LaneOutcome, *, now_ms: TimeMs) -> None:
        table = self._tables.get(outcome.target)
        if table is None or not table.asked:
            raise InvariantBroken("an outcome of maintenance has no step", detail=f"{outcome.target}: {type(outcome).__name__}")
        table.asked = False
        match outcome:
            case FilesSeen():
                self._saw(table, outcome)
            case FilesRewritten(_, staged):
                check(len(staged) == len(table.works), "a rewrite has another number of answers than of works", table.target)
                table.staged = staged
                self._move(table, LaneTrigger.VOIDED if table.voided else LaneTrigger.STAGED)
            case RewritesPublished():
                self._move(table, LaneTrigger.PUBLISHED)
                table.figures.compacted_ms = now_ms
                self._committed(table, now_ms)
                self._published(table)
            case RewritesGivenUp():
                self._move(table, LaneTrigger.GIVEN_UP)
                table.runs = None
                self._back_off(table, now_ms)
            case FilesDiscarded():
                self._move(table, LaneTrigger.DONE)
                table.works, table.staged, table.runs = (), (), None
            case SnapshotsExpired():
                self._move(table, LaneTrigger.DONE)
                self._expired(table, outcome, now_ms)
            case OrphansDeleted():
                self._move(table, LaneTrigger.DONE)
                table.failures, table.search_due_ms = 0, now_ms + table.rules.orphan_age_ms
            case LaneStepFailed():
                self._failed(table, now_ms)
            case _ as never:
                assert_never(never)
        self._ready.pop(table.target, None)
        self._ready[table.target] = None
        self._forget_if_over(table)

    def _saw(self, table: TableUpkeep, seen: FilesSeen) -> None:
        table.runs = _with({place: runs for place, runs in seen.runs.items() if runs > 1}, table.meanwhile)
        table.figures.files, table.figures.size_bytes = seen.files, seen.size_bytes
        table.figures.runs = max(seen.runs.values(), default=0)
        # One slot is its own since it began to look.
        free = self._slots - self.slots_in_use + 1
        if table.voided or not seen.works or not self._worth(table):
            self._move(table, LaneTrigger.ENOUGH)
            table.failures = 0
            return
        self._newest_job += 1
        table.job = self._newest_job
        table.works = tuple(work for share in shares_of(seen.works)[:free] for work in share)
        self._move(table, LaneTrigger.CHOSEN)

    def _published(self, table: TableUpkeep) -> None:
        """Commits that came meanwhile count on top of what is left."""
        fewer = {work.place: -work.fewer for work in table.works}
        table.runs = _with(table.runs, fewer)
        table.works, table.staged, table.failures = (), (), 0

    def _expired(self, table: TableUpkeep, outcome: SnapshotsExpired, now_ms: TimeMs) -> None:
        table.failures = table.commits = 0
        table.figures.expired_ms = now_ms if outcome.removed else table.figures.expired_ms
        rules = table.rules.expiry
        if outcome.limited:
            table.expiry_due_ms = now_ms
        else:
            table.expiry_due_ms = now_ms + max(EXPIRY_PAUSE_MS, rules.age_ms) if outcome.left > rules.count_min else None

    def _failed(self, table: TableUpkeep, now_ms: TimeMs) -> None:
        discarding = table.state is LaneState.DISCARDING
        self._move(table, LaneTrigger.FAILED)
        if table.state is LaneState.IDLE:
            table.works, table.staged, table.runs = (), (), None
        # A sweep deletes what could not be deleted, and the give-up before has counted.
        if not discarding:
            self._back_off(table, now_ms)

    def _back_off(self, table: TableUpkeep, now_ms: TimeMs) -> None:
        table.failures += 1
        table.not_before_ms = now_ms + round(budgets.MAINTENANCE.pause_s(table.failures) * 1000)

    def _move(self, table: TableUpkeep, trigger: LaneTrigger) -> None:
        state = LANE.get((table.state, trigger))
        if state is None:
            raise InvariantBroken("invalid transition of maintenance", detail=f"{table.target} is {table.state.value}: {trigger.value}")
        table.state = state
        if state is LaneState.IDLE:
            self._active.discard(table.target)
        else:
            self._active.add(table.target)

    # ---- memory

    def _forget_if_over(self, table: TableUpkeep) -> None:
        """A table that is gone is forgotten at the end of its round, or when a step fails. What a publish without an answer may still bring
        stays for this driver's sweeps: the table may only rest, or come back."""
        if table.gone and not table.asked and (table.state is LaneState.IDLE or table.failures):
            self._unanswered.update([table.job] if table.state is LaneState.PUBLISHING else ())
            del self._tables[table.target]
            self._active.discard(table.target)
            self._ready.pop(table.target, None)
            self._wakes.pop(table.target, None)

    def _sleep(self, table: TableUpkeep) -> None:
        """Until it may have something to do. The end of an epoch wakes it, too, and that of a pause."""
        dues = [table.not_before_ms] if table.state is not LaneState.IDLE or table.runs is None or self._worth(table) else []
        dues += [] if self._paused else [table.search_due_ms]
        dues += [] if table.expiry_due_ms is None else [table.expiry_due_ms]
        if table.disturbed or not dues:
            return
        wake = max(table.not_before_ms, min(dues))
        self._wakes[table.target] = wake
        self._next_wake_ms = wake if self._next_wake_ms is None else min(wake, self._next_wake_ms)

    def _wake(self, now_ms: TimeMs) -> None:
        if self._next_wake_ms is None or now_ms < self._next_wake_ms:
            return
        for target in [target for target, due in self._wakes.items() if due <= now_ms]:
            del self._wakes[target]
            self._ready[target] = None
        self._next_wake_ms = min(self._wakes.values(), default=None)


def disturbed_by(intent: Intent) -> list[str]:
    """The tables that an epoch empties, or whose columns it changes."""
    return [entry.target for entry in intent.entries if entry.empties or entry.new_schema is not None]


def touched_by(intent: Intent, spread: Mapping[str, Mapping[str, int]] | None) -> dict[str, Mapping[str, int] | None]:
    """How many files of an epoch are in each bucket, by lake table; None: not known, or the table was emptied. `spread`: as far as this
    driver's tasks said it; None: another driver planned the epoch."""
    return {entry.target: None if spread is None or entry.empties else spread.get(entry.target, {}) for entry in intent.entries}


def _with(runs: Mapping[str, int] | None, added: Mapping[str, int] | None) -> dict[str, int] | None:
    """Both together. None: not known."""
    if runs is None or added is None:
        return None
    return {**runs, **{place: runs.get(place, 1) + files for place, files in added.items()}}


def _slots(table: TableUpkeep) -> int:
    """Tasks that it has, or has reserved."""
    if table.state is LaneState.REWRITING:
        return len(shares_of(table.works))
    return 1 if table.state in (LaneState.LOOKING, LaneState.SEARCHING) else 0


_STEPS: Final[Mapping[LaneState, Callable[[TableUpkeep], LaneStep]]] = {
    LaneState.LOOKING: lambda table: LookAtFiles(table.target),
    LaneState.REWRITING: lambda table: RewriteFiles(table.target, table.job, table.works),
    LaneState.PUBLISHING: lambda table: PublishRewrites(table.target, table.works, table.staged),
    LaneState.DISCARDING: lambda table: DiscardFiles(table.target, table.staged),
    LaneState.EXPIRING: lambda table: ExpireSnapshots(table.target),
    LaneState.SEARCHING: lambda table: DeleteOrphans(table.target),
}
