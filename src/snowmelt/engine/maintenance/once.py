"""One round of maintenance without a run, also beside one: `snowmelt maintain`.

Laws:
- It takes no generation. What it rewrites is published as of the newest driver's, so a driver that starts meanwhile and commits fences it,
  and that driver's sweeps find what it leaves. Its jobs are numbered by the time in ms, above what any driver counts for its rewrites. So
  a driver that runs never takes its files for leftovers.
- Beside a running driver the publish decides: what loses is given up and deleted.
- What fails concerns one table. The others are maintained.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, Final

from snowmelt.commit.cleaning import CleaningView
from snowmelt.commit.ledger import Ledger
from snowmelt.driving.letting_go import of_table
from snowmelt.engine.driver.routes import route_taken
from snowmelt.engine.driver.settings import Settings
from snowmelt.engine.driver.state import State
from snowmelt.engine.maintenance.caretaker import Caretaker
from snowmelt.engine.maintenance.tasks import OrphanTask, RewriteTask, run_rewrites, run_search
from snowmelt.engine.tasks.context import TaskContext
from snowmelt.engine.tasks.jobs import spark_error
from snowmelt.engine.tasks.spark_job import run_on_spark
from snowmelt.engine.tasks.workers import packages
from snowmelt.errors import InvalidConfig, SnowmeltError, Unavailable, instance, present
from snowmelt.maintenance.compaction import shares_of
from snowmelt.maintenance.expiry import plan_expiry
from snowmelt.maintenance.lane_steps import (
    DiscardFiles,
    ExpireSnapshots,
    FilesSeen,
    LookAtFiles,
    PublishRewrites,
    RewritesPublished,
    SnapshotsExpired,
)
from snowmelt.maintenance.rules import MaintenanceRules
from snowmelt.model.numbers import GenerationNumber
from snowmelt.model.patterns import match_tables
from snowmelt.model.table import TableId
from snowmelt.planning.tables import TablePhase
from snowmelt.sinks.warehouse import mark
from snowmelt.store.contract import numbered
from snowmelt.store.generations import GENERATION, PREFIX, Generation
from snowmelt.store.numbered import newest
from snowmelt.store.objects import open_store
from snowmelt.store.records import get_record

_LOOKS_MAX: Final = 20
"""Of one table: a pipeline under load brings files all the while."""
_GIVEN_UP_MAX: Final = 3
_AT_ONCE_MAX: Final = 64
"""Buckets of one job: what is staged and not yet published is bounded."""


@dataclass(slots=True, kw_only=True)
class Maintained:
    """What was done for one lake table, or would be."""

    target: str
    files: int = 0
    """At the beginning."""
    size_bytes: int = 0
    rewrites: int = 0
    """Merges of one bucket each."""
    rewritten: int = 0
    """The files that they took."""
    files_after: int = 0
    size_bytes_after: int = 0
    snapshots: int = 0
    """That expired."""
    orphans: int = 0
    """That were deleted."""
    error: str = ""
    """Why it was not finished; empty if it was."""


class MaintenanceRound:
    def __init__(self, settings: Settings) -> None:
        """Reads the pipeline's state."""
        if settings.sink.fluss is not None:
            hint = "compact the lake tables that tiering fills by a job of Paimon's"
            raise InvalidConfig("tables of Fluss have no files of ours to maintain", hint=hint)
        state = State(open_store(settings.state))
        self._ledger = state.load()
        if not self._ledger.epoch:
            raise InvalidConfig("this pipeline has done nothing yet", detail=str(settings.state), hint="start it with `snowmelt run`")
        self._place = _place(settings, state)
        self._tables = {
            table.target: (table.incarnation.table, _rules(settings, table.incarnation.table, table.target))
            for table in self._ledger.tables
            if table.phase not in (TablePhase.SET_ASIDE, TablePhase.GONE) and table.target in self._ledger.last_commits
        }

    def targets(self, wanted: Sequence[str]) -> list[str]:
        """The lake tables whose name or whose source's name matches, or all."""
        if not wanted:
            return sorted(self._tables)
        matches = match_tables(wanted)
        found = [target for target, (source, _) in self._tables.items() if matches(source) or matches(TableId(*target.split(".", 1)))]
        if not found:
            raise InvalidConfig("no table of this pipeline matches", detail=", ".join(wanted), hint="`snowmelt status` lists its tables")
        return sorted(found)

    def plan(self, target: str, *, full: bool) -> Maintained:
        """What would be done. Changes nothing; orphans are not searched for."""
        done = Maintained(target=target)
        with _told(done):
            caretaker = self._caretaker(full=full)
            seen = self._look(caretaker, done)
            done.rewrites, done.rewritten = len(seen.works), sum(len(work.rewrite.inputs) for work in seen.works)
            history = caretaker.care.history(target)
            done.snapshots = len(plan_expiry(history, self._tables[target][1].expiry, now_ms=_now_ms()))
        return done

    def maintain(self, spark: Any, target: str, *, full: bool, watch: Callable[[str], None]) -> Maintained:
        """One table. `watch` is told what is done now."""
        done = Maintained(target=target)
        with _told(done):
            caretaker = self._caretaker(full=full)
            watch("looking at its files")
            self._compact(spark, caretaker, self._look(caretaker, done), done, watch)
            watch("expiring snapshots")
            limited = True
            while limited:
                expired = instance(caretaker.act(ExpireSnapshots(target)), SnapshotsExpired, "an expiry has another outcome")
                done.snapshots, limited = done.snapshots + expired.removed, expired.limited
            watch("searching for orphans")
            before_ms = max(0, _now_ms() - self._tables[target][1].orphan_age_ms)
            done.orphans = sum(self._run(spark, [OrphanTask(target, before_ms, self._view(target))], run_search))
            after = instance(caretaker.act(LookAtFiles(target)), FilesSeen, "a look has another outcome")
            done.files_after, done.size_bytes_after = after.files, after.size_bytes
        return done

    def _look(self, caretaker: Caretaker, done: Maintained) -> FilesSeen:
        seen = instance(caretaker.act(LookAtFiles(done.target)), FilesSeen, "a look has another outcome")
        done.files = done.files_after = seen.files
        done.size_bytes = done.size_bytes_after = seen.size_bytes
        return seen

    def _compact(self, spark: Any, caretaker: Caretaker, seen: FilesSeen, done: Maintained, watch: Callable[[str], None]) -> None:
        given_up = 0
        for _ in range(_LOOKS_MAX):
            works = seen.works[:_AT_ONCE_MAX]
            if not works:
                return
            watch(f"compacting {len(works)} of {len(seen.runs)} buckets")
            # The job's number is the time in ms: drivers count their rewrites from 1 and never get there.
            tasks = [RewriteTask(tuple(work.rewrite for work in share), _now_ms()) for share in shares_of(works)]
            staged = tuple(chain.from_iterable(self._run(spark, tasks, run_rewrites)))
            outcome = caretaker.act(PublishRewrites(done.target, works, staged))
            if isinstance(outcome, RewritesPublished):
                done.rewrites, done.rewritten = done.rewrites + len(works), done.rewritten + sum(len(work.rewrite.inputs) for work in works)
            else:
                caretaker.act(DiscardFiles(done.target, staged))
                given_up += 1
                if given_up == _GIVEN_UP_MAX:
                    hint = "another program compacts it; is it the running pipeline?"
                    raise Unavailable("a lake table changes while it is compacted", detail=done.target, hint=hint)
            seen = instance(caretaker.act(LookAtFiles(done.target)), FilesSeen, "a look has another outcome")

    def _run(self, spark: Any, tasks: Sequence[Any], run: Callable[[TaskContext, Any], Any]) -> list[Any]:
        try:
            answers = run_on_spark(spark, tasks, partial(run, self._place))
        except Exception as error:
            raise spark_error(error) from error
        for answer in answers:
            if isinstance(answer, SnowmeltError):
                raise answer
        return answers

    def _caretaker(self, *, full: bool) -> Caretaker:
        place = self._place
        return Caretaker(place.maintenance, place.lake, lambda target: self._tables[target][1], place.generation, full=full)

    def _view(self, target: str) -> CleaningView:
        return of_table(cleaning_view(self._ledger, self._place.generation), self._ledger, target)


def cleaning_view(ledger: Ledger, generation: GenerationNumber) -> CleaningView:
    """What decides about staged files, for a process that is no driver: of the newest driver's own jobs it knows nothing."""
    named = {name for entry in (ledger.open.entries if ledger.open is not None else ()) for name in entry.files}
    return CleaningView(
        generation=generation,
        epoch=ledger.epoch,
        intent_generation=ledger.generation,
        jobs=0,
        under_way=frozenset(),
        named=named,
    )


def _rules(settings: Settings, source: TableId, target: str) -> MaintenanceRules:
    route = route_taken(settings.routes, source, target)
    return settings.maintenance.rules if route is None or route.maintenance is None else route.maintenance


def _place(settings: Settings, state: State) -> TaskContext:
    """Where tasks work: as those of the newest driver."""
    number = present(newest(state.store, PREFIX, since=1), "a pipeline with epochs has no driver")
    driver: Generation = present(get_record(state.store, numbered(PREFIX, number), GENERATION), "the newest driver's record is gone")
    return TaskContext(
        generation=driver.number,
        nonce=driver.nonce,
        state=settings.state,
        warehouse=settings.sink.warehouse,
        user=f"snowmelt-{settings.name}",
        source=settings.source,
        identity="",
        log="",
        packages=packages(),
        mark="" if "://" in str(settings.sink.warehouse) else mark(settings.sink.warehouse),
    )


@contextlib.contextmanager
def _told(done: Maintained) -> Iterator[None]:
    """An error inside becomes the table's `error`, so that the other tables are maintained."""
    try:
        yield
    except SnowmeltError as error:
        done.error = str(error)


def _now_ms() -> int:
    return round(time.time() * 1000)
