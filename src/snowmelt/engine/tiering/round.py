"""A round of one table, done: each step that `tiering.rounds` asks for, on the real servers, Spark and the lake.

Laws:
- What a step is and when it comes is the machine's. Here is only how it is done, and what its errors mean for the machine.
- The machine is used by this thread and by the one that hears the coordinator, never by both at once.
- Steps before the lake commit fail the round, whatever their error. From the commit on the lake is asked until it answers. A service that
  is asked to end meanwhile leaves the snapshot to the next round, which finds it.
- Fluss is told of a lake snapshot until `budgets.TIERING_TELL` is spent. Then the round has failed, so that other tables get its slot. The
  next round of the table tells Fluss first.
- A KV snapshot is read under a lease, which is asked for again before anything that was read under it is prepared.
- Splits are read by a `split_job`, which also ends the reading early.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from snowmelt import budgets
from snowmelt.engine.failpoints import FLUSS_TOLD, LAKE_COMMITTED, OFFSETS_PREPARED, SPLITS_STAGED, reach
from snowmelt.engine.tiering.ends import RoundEnd
from snowmelt.engine.tiering.leasing import Leasing, lease_id
from snowmelt.engine.tiering.listing import Buckets, lake_known, lake_shape, list_buckets
from snowmelt.engine.tiering.reading import SplitNews
from snowmelt.engine.tiering.refusals import check_table
from snowmelt.engine.tiering.settings import TieringSettings
from snowmelt.engine.tiering.split_job import PartlyRead, SplitJob
from snowmelt.engine.tiering.tasks import SplitAnswer, SplitTask, run_split
from snowmelt.errors import Fenced, InvalidConfig, InvariantBroken, SnowmeltError, SourceDrift, Unavailable, present
from snowmelt.fluss.answers import HandedOut
from snowmelt.fluss.client import FlussClient, connect_coordinator
from snowmelt.fluss.rpc import GoneFromFluss
from snowmelt.fluss.tables import ReadableTable, describe_table
from snowmelt.model.fluss import Bucket, SnapshotFile
from snowmelt.sinks.registry import open_tiering
from snowmelt.sinks.tiering import TieringSink
from snowmelt.tiering import round_steps, rounds
from snowmelt.tiering.fence import Tiered
from snowmelt.tiering.offsets import Offsets
from snowmelt.tiering.round_steps import Outcome, Step
from snowmelt.tiering.rounds import ENDS, Round, RoundState
from snowmelt.tiering.splits import SnapshotSplit

log = logging.getLogger(__name__)

ROW_BYTES: Final = 100
"""What a row of the log is taken for before it is read; tasks count what it really is."""
REPORT_LOOK_S: Final = 0.2
SAY_S_MAX: Final = 10.0
"""How long a service that is to end waits for a coordinator that says nothing."""


class Stopped(Exception):
    """The service is to end, and what the round still had to say is left to the next one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundHost:
    """What the rounds of one service share."""

    spark: Any
    settings: TieringSettings
    leasing: Leasing
    abandon: threading.Event
    """The service is to end."""
    wake: threading.Event
    """A round sets it when it has something to report."""
    slots: threading.Semaphore
    """As many as the rounds that may work at once."""
    news: SplitNews
    """Reports splits while their job runs."""


class RunningRound:
    """`run` in a thread of its own; `machine` under `lock` from any."""

    def __init__(self, host: RoundHost, handed: HandedOut, coordinator_epoch: int) -> None:
        self.handed = handed
        self.coordinator_epoch = coordinator_epoch
        self.lock = threading.Lock()
        self.machine: Round | None = None
        self.report: round_steps.Report | None = None
        """What the coordinator is to hear with the next heartbeat."""
        self.reported = threading.Event()
        self._lost = False
        self._settings = host.settings
        self._leasing = host.leasing
        self._abandon = host.abandon
        self._wake = host.wake
        self._slots = host.slots
        self.pausing = False
        """It waits, because the table failed just now."""
        self.counted = False
        """The service knows whether it failed."""
        self.refused = False
        """The table asks for what the service does not do, so a next round would end as this one."""
        self._handed_out_ms = _now_ms()
        self._nonce = uuid.uuid4().hex
        self._lease = lease_id(host.settings.name, handed.table, self._nonce)
        self._job = SplitJob(host.spark, host.news, host.leasing, group=self._nonce, lease=self._lease)
        self._opened: TieringSink | None = None
        self._coordinator: FlussClient | None = None
        self._table: ReadableTable | None = None
        self._buckets = Buckets((), {})
        self._files: dict[Bucket, tuple[SnapshotFile, ...]] = {}
        self._offsets: Offsets | None = None
        self._identity = ""
        self._rows = 0
        self._snapshot = 0
        self._commits = 0
        self._untold = 0
        """How often Fluss could not be told of a lake snapshot."""
        self._failed: SnowmeltError | None = None

    # ---- what the coordinator's side calls

    def heard(self, sent_ms: int) -> None:
        with self.lock:
            self._handed_out_ms = max(self._handed_out_ms, sent_ms)
            if self.machine is not None:
                self.machine.heard(sent_ms)

    def lost(self, why: str) -> None:
        """The table is not ours any more. Its job is cancelled, and its lease ended."""
        with self.lock:
            news, self._lost = not self._lost, True
            if self.machine is not None and self.machine.state not in ENDS:
                self.machine.lost()
        self.reported.set()
        if news:
            log.warning("%s is not ours any more: %s", self.handed.path, why)
            self._job.stop(Unavailable("the Fluss table is not ours any more", detail=f"{self.handed.path}, {why}"))

    def look_for_silence(self) -> None:
        """To be called while the coordinator does not answer."""
        with self.lock:
            silent = self.machine is not None and self.machine.silent(_now_ms())
        if silent:
            self.lost("the coordinator has been silent for too long")

    @property
    def owned(self) -> bool:
        return not self._lost

    # ---- the round

    def run(self, pause_s: float = 0.0) -> RoundEnd:
        """`pause_s`: before it begins, for a table that failed just now and is handed out again at once."""
        self.pausing = pause_s > 0
        self._abandon.wait(pause_s)
        # Those that waited come back when they like.
        with self._slots:
            self.pausing = False
            began = time.monotonic()
            state = RoundState.FAILED
            try:
                # A table that waited until the service is to end goes back as it is.
                state = self._give_up() if self._abandon.is_set() else self._run()
            except Stopped:
                pass
            finally:
                self._leasing.end(self._lease)
                if self._coordinator is not None:
                    self._coordinator.connection.close()
        seconds, leased = time.monotonic() - began, len(self._files)
        lease = self._lease if leased else ""
        return RoundEnd(
            path=self.handed.path,
            state=state,
            rows=self._rows,
            seconds=seconds,
            snapshot=self._snapshot,
            error=self._failed,
            lease=lease,
            leased=leased,
        )

    def _run(self) -> RoundState:
        try:
            # A login that does not work at the moment is no trouble of the table.
            self._client()
        except SnowmeltError as error:
            self._failed = error
            return self._give_up()
        try:
            self._begin()
        except SnowmeltError as error:
            self._failed = error
            self.refused = isinstance(error, InvalidConfig)
            return self._give_up()
        machine = self._begun
        while True:
            with self.lock:
                # Together: the table may be lost between a look at the state and the next step.
                if machine.state in ENDS:
                    return machine.state
                step = machine.next_step(_now_ms())
            outcome = self._outcome(step)
            with self.lock:
                try:
                    machine.take(outcome)
                except SnowmeltError as error:
                    self._failed = error
                    machine.take(round_steps.Failed())
                committed, void = frozenset(machine.committed), machine.state is RoundState.VOID
            if committed:
                self._leasing.release(self._lease, committed)
            if void:
                self._leasing.end(self._lease)

    def _begin(self) -> None:
        """Know the table, and have its lake table."""
        self._table = table = describe_table(self._client(), self.handed.path)
        if table.table != self.handed.table:
            raise Unavailable("a Fluss table was dropped and made anew since it was handed out", detail=str(self.handed.path))
        check_table(table)
        self._lake.ensure(self._target, lake_shape(table))
        with self.lock:
            self.machine = Round(
                table.table,
                table.versions.target.id,
                keyed=bool(table.versions.target.primary_key),
                budget=self._settings.budget(ROW_BYTES),
                handed_out_ms=self._handed_out_ms,
            )
            if self._lost:
                self.machine.lost()

    def _give_up(self) -> RoundState:
        """A round that could not begin has nothing to clean."""
        if self.owned:
            self._say(round_steps.Report(finished=False, more=False))
        return RoundState.FAILED if self.owned else RoundState.FENCED

    @property
    def _lake(self) -> TieringSink:
        if self._opened is None:
            self._opened = open_tiering(self._settings.warehouse, remote=self._settings.remote)
        return self._opened

    @property
    def _target(self) -> str:
        return f"{self.handed.path.database}.{self.handed.path.name}"

    @property
    def _readable(self) -> ReadableTable:
        return present(self._table, "a round reads its table before it began")

    @property
    def _begun(self) -> rounds.Round:
        return present(self.machine, "a round takes a step before it began")

    def _client(self) -> FlussClient:
        if self._coordinator is None or not self._coordinator.connection.open:
            self._coordinator = connect_coordinator(self._settings.bootstrap, self._settings.login)
        return self._coordinator

    def _outcome(self, step: Step) -> Outcome:
        """Do a step; its errors as the machine wants to hear them."""
        match step:
            case round_steps.Commit(base, path, messages):
                reach(OFFSETS_PREPARED)
                try:
                    self._snapshot = self._lake.commit(self._target, base, path, messages)
                except Fenced as error:
                    self._failed = error
                    return round_steps.Overtaken()
                except SnowmeltError as error:
                    self._failed = error
                    return round_steps.Unclear()
                reach(LAKE_COMMITTED)
                return round_steps.LakeCommitted(self._snapshot)
            case round_steps.LookBack(base, path):
                return self._look_back(base, path)
            case round_steps.Confirm():
                return round_steps.NewestConfirmed(self._newest())
            case round_steps.Clean(messages):
                try:
                    self._lake.clean(self._target, self._identity, messages)
                except SnowmeltError as error:
                    log.warning("what a round of %s staged could not be deleted: %s", self.handed.path, error)
                return round_steps.Cleaned()
            case round_steps.Report():
                self._say(step)
                return round_steps.RoundReported()
            case round_steps.Tell():
                return self._tell(step)
            case _:
                try:
                    return self._before_the_commit(step)
                except PartlyRead as staged:
                    self._failed = staged.error
                    return round_steps.Failed(staged.messages)
                except SnowmeltError as error:
                    self._failed = error
                    return round_steps.Failed()

    def _before_the_commit(self, step: Step) -> Outcome:
        match step:
            case round_steps.Look():
                return self._look()
            case round_steps.ListBuckets():
                self._buckets = list_buckets(self._client(), self._readable)
                return round_steps.LogsListed(self._buckets.logs)
            case round_steps.LeaseSnapshots(wanted):
                return self._hold(wanted)
            case round_steps.ReadSplits(splits):
                answers = self._read(splits)
                self._rows = sum(answer.rows for answer in answers)
                reach(SPLITS_STAGED)
                return round_steps.SplitsRead([answer.read for answer in answers])
            case round_steps.CheckTable():
                self._check_lease()
                try:
                    info = self._client().table_info(self.handed.path)
                except GoneFromFluss:
                    return round_steps.TableSeen(None, 0)
                return round_steps.TableSeen(info.table, info.schema)
            case round_steps.Prepare(offsets):
                path = self._client().prepare_lake_snapshot(self.handed.table, self.handed.path, offsets.ends)
                written = self._lake.offsets(path)
                self._check_lease()
                return round_steps.CommitPrepared(path, written)
            case _:
                raise InvariantBroken("a round has an unknown step", detail=type(step).__name__)

    # ---- steps

    def _newest(self) -> Tiered | None:
        try:
            newest: Tiered | None = self._until_answered(lambda: self._lake.view(self._target).newest)
        except SourceDrift:
            # The lake table is not there any more.
            return None
        return newest

    def _look(self) -> Outcome:
        known = lake_known(self._client(), self.handed.path)
        view = self._lake.view(self._target)
        self._identity = view.identity
        self._offsets = self._lake.offsets(view.newest.path) if view.newest is not None else None
        return round_steps.Looked(view, self._offsets, known)

    def _tell(self, tell: round_steps.Tell) -> Outcome:
        machine, tiered = self._begun, tell.tiered
        # Where an earlier round left it untold, what Fluss is to cut its log by is in the file.
        ends = tell.ends or (self._offsets.ends if self._offsets is not None else {})
        try:
            self._client().commit_lake_snapshot(
                self.handed.table,
                self.handed.path,
                tiered.snapshot,
                tiered.path,
                ends,
                max_timestamps_ms=machine.timestamps_ms,
                keep_from=tell.keep_from,
            )
        except GoneFromFluss as error:
            # Nothing is left that would want to know.
            log.warning("%s is gone: %s", self.handed.path, error)
        except SnowmeltError as error:
            return self._not_told(error)
        reach(FLUSS_TOLD)
        return round_steps.Told(True)

    def _not_told(self, error: SnowmeltError) -> Outcome:
        self._untold += 1
        if budgets.TIERING_TELL.is_spent(self._untold):
            self._failed = error
            return round_steps.Failed()
        if self._untold == 1:
            log.warning("Fluss could not be told of a lake snapshot of %s: %s; it is told again", self.handed.path, error)
        self._wait(budgets.TIERING_TELL.pause_s(self._untold))
        return round_steps.Told(False)

    def _hold(self, wanted: Mapping[Bucket, Any]) -> Outcome:
        names = {bucket: self._buckets.partition_name(bucket) for bucket in wanted}
        leased = self._leasing.acquire(self._lease, self.handed.path, self.handed.table, names, self._lease_lost)
        self._files = {bucket: one.files.files for bucket, one in leased.items()}
        return round_steps.SnapshotsLeased({bucket: one.snapshot for bucket, one in leased.items()})

    def _lease_lost(self, why: str) -> None:
        self._job.stop(Unavailable("KV snapshots were read whose lease was lost", detail=f"lease {self._lease}, {why}"))

    def _check_lease(self) -> None:
        if self._files:
            self._leasing.check(self._lease)

    def _read(self, splits: Sequence[Any]) -> list[SplitAnswer]:
        tasks = [
            SplitTask(
                split=split,
                table=self._readable,
                target=self._target,
                prefix=self._nonce,
                files=self._files[split.bucket] if isinstance(split, SnapshotSplit) else (),
            )
            for split in splits
        ]
        return self._job.read(tasks, partial(run_split, self._settings), frozenset(self._files))

    def _look_back(self, base: Any, path: str) -> Outcome:
        def look() -> int | None:
            return self._lake.look_back(self._target, base, path)

        try:
            found = self._until_answered(look)
        except (Fenced, SourceDrift):
            # Or the lake table is not there any more, and nothing of ours in it.
            return round_steps.Overtaken()
        if found is not None:
            self._snapshot, self._failed = found, None
            return round_steps.LakeCommitted(found)
        self._commits += 1
        if budgets.TIERING_COMMIT.is_spent(self._commits):
            with self.lock:
                self._begun.take(round_steps.Absent())
            return round_steps.Failed()
        return round_steps.Absent()

    def _say(self, report: round_steps.Report) -> None:
        """With the next heartbeat; back when it was answered, or the table is not ours any more."""
        with self.lock:
            self.report = report
        self._wake.set()
        ending_s = 0.0
        while not self.reported.wait(REPORT_LOOK_S):
            ending_s += REPORT_LOOK_S if self._abandon.is_set() else 0.0
            if ending_s > SAY_S_MAX:
                raise Stopped

    # ---- waiting

    def _until_answered(self, ask: Callable[[], Any]) -> Any:
        failures = 0
        while True:
            try:
                return ask()
            except (Fenced, SourceDrift):
                raise
            except SnowmeltError as error:
                log.warning("%s: %s; asked again", self.handed.path, error)
                failures += 1
                self._wait(budgets.COORDINATOR.pause_s(failures))

    def _wait(self, seconds: float) -> None:
        if self._abandon.wait(seconds):
            raise Stopped


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
