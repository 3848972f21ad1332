"""What the simulation believes of Spark's jobs, on Spark: a job answers for each of its tasks once or not at all, a task that is
repeated is another run, and one lane does not wait for the other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from snowmelt.engine.tasks.context import TaskContext
from snowmelt.engine.tasks.jobs import Jobs, Lane
from snowmelt.errors import Corrupt, InvalidConfig, SnowmeltError, Unavailable
from snowmelt.store.generations import take_generation
from snowmelt.store.objects import open_store

WAIT_S_MAX = 120
PLACE: Any = None
"""Where tasks of no pipeline work."""


class Outcome:
    """What came of a job, as the thread that owns the machines hears it."""

    def __init__(self, jobs: Jobs, lane: Lane, tasks: list[Any], run: Any, place: Any = PLACE) -> None:
        self._jobs = jobs
        self.answers: list[Any] | None = None
        self.error: SnowmeltError | None = None
        jobs.submit(lane, place, tasks, run, self._done, self._failed)

    def _done(self, answers: list[Any]) -> None:
        self.answers = answers

    def _failed(self, error: SnowmeltError) -> None:
        self.error = error

    @property
    def ended(self) -> bool:
        self._jobs.take()
        return self.answers is not None or self.error is not None

    def wait(self) -> Outcome:
        deadline = time.monotonic() + WAIT_S_MAX
        while not self.ended:
            assert time.monotonic() < deadline, "the job does not end"
            time.sleep(0.01)
        return self


@pytest.fixture
def jobs(spark: Any) -> Any:
    made = Jobs(spark, at_once=3, wake=lambda: None)
    yield made
    made.close()


def test_every_task_is_answered_once(jobs: Jobs) -> None:
    outcome = Outcome(jobs, Lane.LOG, list(range(20)), lambda _, task: (task, os.getpid())).wait()
    assert outcome.answers is not None
    assert Counter(task for task, _ in outcome.answers) == Counter(range(20))


def test_a_job_whose_worker_dies_gives_no_answer_at_all(jobs: Jobs) -> None:
    def die_once_all_others_are_done(_: Any, task: int) -> int:
        if task == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return task

    outcome = Outcome(jobs, Lane.LOG, [0, 1, 2], die_once_all_others_are_done).wait()
    assert outcome.answers is None
    assert isinstance(outcome.error, Unavailable)
    assert Outcome(jobs, Lane.LOG, [0, 1], lambda _, task: task).wait().answers == [0, 1]


def test_the_error_that_nothing_heals_is_told_and_no_answer_beside_it(jobs: Jobs) -> None:
    def fail(_: Any, task: int) -> int:
        if task == 0:
            raise Unavailable("passes")
        if task == 1:
            raise Corrupt("stays", detail="where", hint="what to do")
        return task

    outcome = Outcome(jobs, Lane.LOG, [0, 1, 2], fail).wait()
    assert outcome.answers is None
    assert isinstance(outcome.error, Corrupt)
    assert (outcome.error.fact, outcome.error.detail, outcome.error.hint) == ("stays", "where", "what to do")


def test_the_log_does_not_wait_for_chunks_that_are_being_read(jobs: Jobs, tmp_path: Path) -> None:
    go_on = tmp_path / "go-on"

    def read_on(_: Any, task: int) -> int:
        deadline = time.monotonic() + WAIT_S_MAX
        while not go_on.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        return task

    chunks = [Outcome(jobs, Lane.CHUNKS, [number], read_on) for number in range(2)]
    try:
        assert Outcome(jobs, Lane.LOG, [7], lambda _, task: task).wait().answers == [7]
        assert not any(one.ended for one in chunks)
    finally:
        go_on.touch()
    assert [one.wait().answers for one in chunks] == [[0], [1]]


@pytest.mark.parametrize("lane", [Lane.LOG, Lane.MAINTENANCE])
def test_a_job_that_makes_no_progress_is_cancelled_and_the_next_one_runs(
    spark: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, lane: Lane
) -> None:
    """Whatever its worker hangs in: a mount that does not answer, for one."""
    go_on = tmp_path / "go-on"

    def hang(_: Any, task: int) -> int:
        deadline = time.monotonic() + WAIT_S_MAX
        while task and not go_on.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        return task

    jobs, others = Jobs(spark, at_once=3, wake=lambda: None, still_s_max=2.0), Jobs(spark, at_once=1, wake=lambda: None)
    try:
        outcome = Outcome(jobs, lane, [0, 1], hang).wait()
        assert outcome.answers is None
        assert isinstance(outcome.error, Unavailable)
        assert "makes no progress and is cancelled" in caplog.text
        # Where the machine is busy, a job of a moment may take longer than the limit of this test.
        assert Outcome(others, lane, [7], lambda _, task: task).wait().answers == [7]
    finally:
        go_on.touch()
        jobs.close()
        others.close()


def test_a_task_that_does_not_see_the_drivers_store_says_so_before_it_does_anything(jobs: Jobs, tmp_path: Path) -> None:
    """L16: a path that is another folder on the worker's machine looks like an empty store."""
    driver = take_generation(open_store(str(tmp_path / "state")), "nonce")

    def place(state: str) -> TaskContext:
        nothing: Any = None
        return TaskContext(
            generation=driver.number,
            nonce=driver.nonce,
            state=tmp_path / state,
            warehouse="",
            user="",
            source=nothing,
            identity=nothing,
            log=nothing,
        )

    def look(where: TaskContext, task: int) -> int:
        where.check()
        return task

    assert Outcome(jobs, Lane.LOG, [0], look, place("state")).wait().answers == [0]
    outcome = Outcome(jobs, Lane.LOG, [0], look, place("elsewhere")).wait()
    assert outcome.answers is None
    assert isinstance(outcome.error, InvalidConfig)
    assert "not shared" in outcome.error.fact


def repeat(folder: Path) -> None:
    """In a process of its own, because it needs a Spark that repeats tasks."""
    from snowmelt.supervise.session import spark_session

    def run_twice(_: Any, task: int) -> tuple[int, str]:
        nonce = uuid.uuid4().hex
        first = not list(folder.glob(f"{task}-*"))
        (folder / f"{task}-{nonce}").touch()
        if task == 1 and first:
            os.kill(os.getpid(), signal.SIGKILL)
        return task, nonce

    with spark_session("repeats", master="local[2,3]", ui=False, debug=False) as spark:
        outcome = Outcome(Jobs(spark, at_once=1, wake=lambda: None), Lane.LOG, [0, 1, 2, 3], run_twice).wait()
        assert outcome.error is None, outcome.error
        (folder / "answers").write_text("\n".join(f"{task}-{nonce}" for task, nonce in outcome.answers or []))
        os._exit(0)


def test_a_task_that_is_repeated_is_another_run_and_only_one_of_the_two_answers(tmp_path: Path) -> None:
    """C7: what the first one left behind has another name, so nobody takes it for the second's."""
    script = f"from pathlib import Path; from tests.integration.test_spark_jobs import repeat; repeat(Path({str(tmp_path)!r}))"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=WAIT_S_MAX * 2, check=False)
    assert ran.returncode == 0, ran.stderr[-4000:]
    answers = (tmp_path / "answers").read_text().split()
    runs = [path.name for path in tmp_path.glob("[0-9]-*")]
    assert sorted(answer[0] for answer in answers) == ["0", "1", "2", "3"]
    assert set(answers) < set(runs)
    assert len([run for run in runs if run.startswith("1-")]) >= 2


_SERVE = """
from pathlib import Path
from snowmelt.supervise.session import spark_session

with spark_session("ui", master="local[1]", ui=True, debug=False) as spark:
    port = int(spark.sparkContext.uiWebUrl.rpartition(":")[2])
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            place, state = line.split()[1], line.split()[3]
            if state == "0A" and int(place.rpartition(":")[2], 16) == port:
                print(place.rpartition(":")[0])
"""


@pytest.mark.timeout(120)
def test_what_spark_serves_is_seen_by_this_machine_alone() -> None:
    told = subprocess.run([sys.executable, "-c", _SERVE], capture_output=True, text=True, check=True).stdout.split()
    assert told, "nobody listens"
    assert set(told) <= {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}


def test_workers_and_the_jvm_are_started_with_bounds_on_what_their_allocators_keep(spark: Any) -> None:
    def environment(_: Any, name: str) -> str | None:
        return os.environ.get(name)

    jobs = Jobs(spark, at_once=1, wake=lambda: None)
    names = ["MALLOC_ARENA_MAX", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"]
    assert jobs._collect(Lane.LOG, PLACE, names, environment) == ["2", str(4 << 20), str(4 << 20)]
    jobs.close()
    given = spark.sparkContext._jvm.java.lang.management.ManagementFactory.getRuntimeMXBean().getInputArguments()
    assert "-XX:MaxHeapFreeRatio=40" in list(given)
    assert {spark.conf.get(f"spark.{kind}") for kind in ("ui.retainedJobs", "ui.retainedStages", "sql.ui.retainedExecutions")} == {"100"}
