"""A round of one table, done: each step that `tiering.rounds` asks for, on the real servers, Spark and the lake.

Laws:
- What a step is and when it comes is the machine's. Here is only how it is done, and what its errors mean for the machine.
- The machine is used by this thread and by the one that hears the coordinator, never by both at once.
- Steps before the lake commit fail the round, whatever their error. From the commit on nothing fails it: what the lake says is asked
  for, and Fluss is told, until they answer. A service that is asked to end meanwhile leaves it to the next round, which finds it.
- A KV snapshot is read under a lease, which is asked for again before anything that was read under it is prepared.
- A bucket's lease is released as soon as the task that read its KV snapshot has ended well: Spark never runs such a task again, a commit
  that is tried again takes the same files, and the next round leases anew. Where Spark does not tell of single tasks (a client of
  Spark Connect), that is when the lake has the bucket.
- Whoever hears that the round can't commit any more (the table is lost, the lease is lost, a split failed) cancels its Spark job and
  lets go of its lease at once. What ended tasks have staged is deleted; a task that was killed leaves files that no snapshot names.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from snowmelt.engine.failpoints import FLUSS_TOLD, LAKE_COMMITTED, OFFSETS_PREPARED, SPLITS_STAGED, reach
from snowmelt.engine.tasks.jobs import spark_error
from snowmelt.engine.tasks.spark_job import run_on_spark
from snowmelt.engine.tiering.ends import RoundEnd
from snowmelt.engine.tiering.leasing import Leasing, lease_id
from snowmelt.engine.tiering.listing import Buckets, lake_known, lake_shape, list_buckets
from snowmelt.engine.tiering.reading import SplitNews, cancel_group, run_in_group
from snowmelt.engine.tiering.refusals import check_table
from snowmelt.engine.tiering.settings import TieringSettings
from snowmelt.engine.tiering.tasks import SplitAnswer, SplitTask, run_split
from snowmelt.errors import Fenced, InvalidConfig, InvariantBroken, SnowmeltError, SourceDrift, Unavailable, present
from snowmelt.fluss.client import FlussClient, HandedOut, connect_coordinator
from snowmelt.fluss.rpc import GoneFromFluss
from snowmelt.fluss.tables import ReadableTable, describe_table
from snowmelt.model.fluss import Bucket, SnapshotFile
from snowmelt.sinks.registry import open_tiering
from snowmelt.sinks.tiering import TieringSink
from snowmelt.tiering import rounds
from snowmelt.tiering.fence import Tiered
from snowmelt.tiering.offsets import Offsets
from snowmelt.tiering.rounds import ENDS, Outcome, Round, RoundState, Step
from snowmelt.tiering.splits import SnapshotSplit

log = logging.getLogger(__name__)

ROW_BYTES: Final = 100
"""What a row of the log is taken for before it is read; tasks count what it really is."""
COMMITS_MAX: Final = 5
"""Tries of a commit of which the lake knows nothing afterwards."""
CANCEL_S: Final = 0.2
"""Between two tries to cancel: the job may not have been there yet at the first."""
PAUSE_S: Final = 0.2
PAUSE_S_MAX: Final = 10.0
SAY_S_MAX: Final = 10.0
"""How long a service that is to end waits for a coordinator that says nothing."""


class Stopped(Exception):
    """The service is to end, and what the round still had to say is left to the next one."""


class RunningRound:
    """`run` in a thread of its own; `machine` under `lock` from any."""

    def __init__(
        self,
        spark: Any,
        settings: TieringSettings,
        handed: HandedOut,
        coordinator_epoch: int,
        leasing: Leasing,
        abandon: threading.Event,
        wake: threading.Event,
        slots: threading.Semaphore,
        news: SplitNews,
    ) -> None:
        """`abandon`: the service is to end. `wake`: set by this one when it has something to say. `slots`: as many as may be at work.
        `news`: tells of splits while their job runs."""
        self.handed = handed
        self.coordinator_epoch = coordinator_epoch
        self.lock = threading.Lock()
        self.machine: Round | None = None
        self.report: rounds.Report | None = None
        """What the coordinator is to hear with the next heartbeat."""
        self.reported = threading.Event()
        self._lost = False
        self._spark = spark
        self._settings = settings
        self._leasing = leasing
        self._abandon = abandon
        self._wake = wake
        self._slots = slots
        self._news = news
        self._stopped: SnowmeltError | None = None
        """Why nothing more is read."""
        self._reading: threading.Event | None = None
        """Set when the Spark job is over; None: there was none yet."""
        self._ended: dict[Bucket, SplitAnswer] = {}
        """Splits that tasks have read, while their job runs."""
        self.pausing = False
        """It waits, because the table failed just now."""
        self.counted = False
        """The service knows whether it failed."""
        self.refused = False
        """The table asks for what the service does not do, so a next round would end as this one."""
        self._handed_out_ms = _now_ms()
        self._nonce = uuid.uuid4().hex
        self._lease = lease_id(settings.name, handed.table, self._nonce)
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
        self._failed: SnowmeltError | None = None

    # ---- what the coordinator's side calls

    def heard(self, sent_ms: int) -> None:
        with self.lock:
            self._handed_out_ms = max(self._handed_out_ms, sent_ms)
            if self.machine is not None:
                self.machine.heard(sent_ms)

    def lost(self, why: str) -> None:
        """The table is not ours any more. Its job is cancelled, and its lease let go of."""
        with self.lock:
            news, self._lost = not self._lost, True
            if self.machine is not None and self.machine.state not in ENDS:
                self.machine.lost()
        self.reported.set()
        if news:
            log.warning("%s is not ours any more: %s", self.handed.path, why)
            self._stop_reading(Unavailable("the Fluss table is not ours any more", detail=f"{self.handed.path}, {why}"))

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
                    machine.take(rounds.Failed())
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
            self._say(rounds.Report(finished=False, more=False))
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
            case rounds.Commit(base, path, messages):
                reach(OFFSETS_PREPARED)
                try:
                    self._snapshot = self._lake.commit(self._target, base, path, messages)
                except Fenced as error:
                    self._failed = error
                    return rounds.Overtaken()
                except SnowmeltError as error:
                    self._failed = error
                    return rounds.Unclear()
                reach(LAKE_COMMITTED)
                return rounds.LakeCommitted(self._snapshot)
            case rounds.LookBack(base, path):
                return self._look_back(base, path)
            case rounds.Confirm():
                return rounds.NewestConfirmed(self._newest())
            case rounds.Clean(messages):
                try:
                    self._lake.clean(self._target, self._identity, messages)
                except SnowmeltError as error:
                    log.warning("what a round of %s staged could not be deleted: %s", self.handed.path, error)
                return rounds.Cleaned()
            case rounds.Report():
                self._say(step)
                return rounds.RoundReported()
            case rounds.Tell():
                return self._tell(step)
            case _:
                try:
                    return self._before_the_commit(step)
                except _PartlyRead as staged:
                    self._failed = staged.error
                    return rounds.Failed(staged.messages)
                except SnowmeltError as error:
                    self._failed = error
                    return rounds.Failed()

    def _before_the_commit(self, step: Step) -> Outcome:
        match step:
            case rounds.Look():
                return self._look()
            case rounds.ListBuckets():
                self._buckets = list_buckets(self._client(), self._readable)
                return rounds.LogsListed(self._buckets.logs)
            case rounds.LeaseSnapshots(wanted):
                return self._hold(wanted)
            case rounds.ReadSplits(splits):
                answers = self._read(splits)
                self._rows = sum(answer.rows for answer in answers)
                reach(SPLITS_STAGED)
                return rounds.SplitsRead([answer.read for answer in answers])
            case rounds.CheckTable():
                self._check_lease()
                try:
                    info = self._client().table_info(self.handed.path)
                except GoneFromFluss:
                    return rounds.TableSeen(None, 0)
                return rounds.TableSeen(info.table, info.schema)
            case rounds.Prepare(offsets):
                path = self._client().prepare_lake_snapshot(self.handed.table, self.handed.path, offsets.ends)
                written = self._lake.offsets(path)
                self._check_lease()
                return rounds.CommitPrepared(path, written)
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
        return rounds.Looked(view, self._offsets, known)

    def _tell(self, tell: rounds.Tell) -> Outcome:
        machine, tiered = self._begun, tell.tiered
        # Left untold by somebody, what Fluss is to cut its log by is in the file.
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
            # There is nobody any more who would want to know.
            log.warning("%s is gone: %s", self.handed.path, error)
        except SnowmeltError as error:
            self._pause(error)
            return rounds.Told(False)
        reach(FLUSS_TOLD)
        return rounds.Told(True)

    def _hold(self, wanted: Mapping[Bucket, Any]) -> Outcome:
        names = {bucket: self._buckets.partition_name(bucket) for bucket in wanted}
        leased = self._leasing.acquire(self._lease, self.handed.path, self.handed.table, names, self._lease_lost)
        self._files = {bucket: one.files.files for bucket, one in leased.items()}
        return rounds.SnapshotsLeased({bucket: one.snapshot for bucket, one in leased.items()})

    def _lease_lost(self, why: str) -> None:
        self._stop_reading(Unavailable("KV snapshots were read whose lease was lost", detail=f"lease {self._lease}, {why}"))

    def _check_lease(self) -> None:
        if self._files:
            self._leasing.check(self._lease)

    # ---- reading, and an end to it

    def _stop_reading(self, why: SnowmeltError) -> None:
        """Nothing that is read from now on is of use. From any thread; back at once."""
        with self.lock:
            first, self._stopped = self._stopped is None, self._stopped or why
            reading = self._reading
        self._leasing.end(self._lease)
        if first and reading is not None:
            threading.Thread(target=self._cancel, args=(reading,), name="snowmelt-cancel", daemon=True).start()

    def _cancel(self, over: threading.Event) -> None:
        while not over.is_set():
            cancel_group(self._spark, self._nonce)
            over.wait(CANCEL_S)

    def _split_ended(self, answer: SplitAnswer | SnowmeltError) -> None:
        """Told by Spark while other tasks of the job still run, by a thread that must not wait."""
        if isinstance(answer, SnowmeltError):
            self._stop_reading(answer)
            return
        with self.lock:
            self._ended[answer.read.bucket] = answer
        if answer.read.bucket in self._files:
            self._leasing.release(self._lease, frozenset({answer.read.bucket}))

    def _read(self, splits: Sequence[Any]) -> list[SplitAnswer]:
        table = self._readable
        tasks = [
            SplitTask(
                split=split,
                table=table,
                target=self._target,
                prefix=self._nonce,
                files=self._files[split.bucket] if isinstance(split, SnapshotSplit) else (),
            )
            for split in splits
        ]
        with self.lock:
            if self._stopped is not None:
                raise self._stopped
            self._reading = over = threading.Event()
        try:
            with self._news.told(self._nonce, self._split_ended) as report:
                run = partial(report, partial(run_split, self._settings))
                answers = run_in_group(self._spark, self._nonce, lambda: run_on_spark(self._spark, tasks, run))
        except Exception as error:
            why = self._stopped or spark_error(error)
            with self.lock:
                staged = tuple(message for answer in self._ended.values() for message in answer.read.messages)
            raise _PartlyRead(why, staged) from error
        finally:
            over.set()
        errors = [answer for answer in answers if isinstance(answer, SnowmeltError)]
        done = [answer for answer in answers if isinstance(answer, SplitAnswer)]
        if errors or self._stopped is not None:
            why = self._stopped or errors[0]
            raise _PartlyRead(why, tuple(message for answer in done for message in answer.read.messages))
        return done

    def _look_back(self, base: Any, path: str) -> Outcome:
        def look() -> int | None:
            return self._lake.look_back(self._target, base, path)

        try:
            found = self._until_answered(look)
        except (Fenced, SourceDrift):
            # Or the lake table is not there any more, and nothing of ours in it.
            return rounds.Overtaken()
        if found is not None:
            self._snapshot, self._failed = found, None
            return rounds.LakeCommitted(found)
        self._commits += 1
        if self._commits >= COMMITS_MAX:
            with self.lock:
                self._begun.take(rounds.Absent())
            return rounds.Failed()
        return rounds.Absent()

    def _say(self, report: rounds.Report) -> None:
        """With the next heartbeat; back when it was answered, or the table is not ours any more."""
        with self.lock:
            self.report = report
        self._wake.set()
        ending_s = 0.0
        while not self.reported.wait(PAUSE_S):
            ending_s += PAUSE_S if self._abandon.is_set() else 0.0
            if ending_s > SAY_S_MAX:
                raise Stopped

    # ---- waiting

    def _until_answered(self, ask: Callable[[], Any]) -> Any:
        pause_s = PAUSE_S
        while True:
            try:
                return ask()
            except (Fenced, SourceDrift):
                raise
            except SnowmeltError as error:
                log.warning("%s: %s; asked again", self.handed.path, error)
                self._wait(pause_s)
                pause_s = min(2 * pause_s, PAUSE_S_MAX)

    def _pause(self, error: SnowmeltError) -> None:
        log.warning("%s: %s; tried again", self.handed.path, error)
        self._wait(1.0)

    def _wait(self, seconds: float) -> None:
        if self._abandon.wait(seconds):
            raise Stopped


class _PartlyRead(Exception):
    """Some splits were read and some were not."""

    def __init__(self, error: SnowmeltError, messages: tuple[bytes, ...]) -> None:
        super().__init__(str(error))
        self.error = error
        self.messages = messages


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
