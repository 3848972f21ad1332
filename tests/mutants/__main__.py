"""Take guards away one at a time, and see that tests notice.

Each mutant is a change of one place in the source. A copy of the tree is made in .cache/mutants, the change is made in the copy, and the
tests that the list names for it run there. The tree itself is never touched. First all tests run without any mutant.

  killed     a test failed: the guard is held
  survived   all tests passed: no test holds the guard
  broken     nothing can be said: the list is not in step with the source, a test fails without the mutant too, can't be collected, did
             not run, or ran out of time

Exit codes: 0 all were killed, 1 some survived or are broken, 2 wrong use.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import importlib.util
import json
import os
import queue
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from tests.mutants import Lane, Mutant
from tests.mutants.listed import MUTANTS
from tests.mutants.rows import PAGE, UNPROVEN, seed_rows
from tests.mutants.simulated import SEEDS, simulated
from tests.mutants.verdicts import End, Ran, Verdict, judge, judge_seeds, not_fit

ROOT: Final = Path(__file__).parents[2]
COPIED: Final = ("src", "tests", "scripts", "docs", "CHANGELOG.md", "CONTRIBUTING.md", "README.md", "pyproject.toml", "uv.lock", "run")
AT_ONCE: Final = 2
MINUTES_MAX: Final = {Lane.PURE: 5, Lane.SHELL: 15}
"""For the tests of one mutant. Pytest's own limit is five minutes a test."""
SIM_MINUTES_MAX: Final = 60
"""For the seeds of one mutant."""


def fail(why: str) -> NoReturn:
    print(f"mutants: {why}", file=sys.stderr)
    sys.exit(2)


class Copy:
    """A copy of the tree, where one mutant at a time is."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for name in COPIED:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy2(ROOT / name, folder / name)
        self._check()

    def run(self, mutant: Mutant | None, tests: Sequence[str], lane: Lane, *, minutes_max: float) -> Ran:
        """Run tests, with a mutant until the first that fails, without one all of them."""
        # Pure tests need no fixture of the servers', whose imports take longer than the tests.
        options = ["--noconftest"] if lane is Lane.PURE else []
        if mutant is None:
            return self._pytest(tests, options, self._environment(), minutes_max)
        try:
            with self._made(mutant) as text, tempfile.TemporaryDirectory(prefix="mutant-kernels-") as kernels:
                # Compiled kernels of a mutant must be no other's, and those of the source are good for all that change none.
                more = {"NUMBA_CACHE_DIR": kernels} if "@njit(" in text else {}
                return self._pytest(tests, ["-x", *options], self._environment() | more, minutes_max)
        except ValueError as error:
            return Ran(None, str(error))

    def simulate(self, mutant: Mutant | None, seeds: int, *, minutes_max: float) -> tuple[Verdict, str]:
        """Whether the simulated world notices a mutant, and what it says."""
        command = [sys.executable, "-m", "tests.sim", "--seeds", str(seeds), "--until-one-fails"]
        try:
            with contextlib.nullcontext() if mutant is None else self._made(mutant):
                ran = subprocess.run(
                    command,
                    check=False,
                    cwd=self._folder,
                    env=self._environment(),
                    capture_output=True,
                    text=True,
                    timeout=minutes_max * 60,
                )
        except ValueError as error:
            return Verdict.BROKEN, str(error)
        except subprocess.TimeoutExpired:
            return Verdict.BROKEN, f"its seeds did not end within {minutes_max:g} minutes"
        return judge_seeds(ran.returncode, ran.stdout, ran.stderr)

    @contextlib.contextmanager
    def _made(self, mutant: Mutant) -> Iterator[str]:
        """The copy with a mutant; its file as it was. ValueError: the list is not in step with the source."""
        path = self._folder / "src/snowmelt" / mutant.file
        text = path.read_text(encoding="utf-8")
        mutated = mutant.apply(text)
        try:
            self._write(path, mutated)
            yield text
        finally:
            self._write(path, text)

    def _write(self, path: Path, text: str) -> None:
        path.write_text(text, encoding="utf-8")
        # Python knows a change by size and second alone.
        Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)

    def _environment(self) -> dict[str, str]:
        """Of the tests, and of every process that they start: the copy's source comes before the one that is installed."""
        return os.environ | {"PYTHONPATH": str(self._folder / "src")}

    def _check(self) -> None:
        said = subprocess.run(
            [sys.executable, "-c", "import snowmelt, tests; print(snowmelt.__file__, tests.__file__)"],
            cwd=self._folder,
            env=self._environment(),
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        if said.split() != [str(self._folder / "src/snowmelt/__init__.py"), str(self._folder / "tests/__init__.py")]:
            fail(f"the copy's source is not what its tests would see: {said}")

    def _pytest(self, tests: Sequence[str], options: list[str], environment: dict[str, str], minutes_max: float) -> Ran:
        result = self._folder / "result.json"
        result.unlink(missing_ok=True)
        command = [sys.executable, "-m", "tests.mutants.session", str(result), "-q", "-p", "no:cacheprovider", *options]
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
            process = subprocess.Popen(
                [*command, *(f"tests/{test}" for test in tests)],
                cwd=self._folder,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            try:
                process.wait(minutes_max * 60)
            except subprocess.TimeoutExpired:
                end(process)
                return Ran(None, f"its tests did not end within {minutes_max:g} minutes")
            output.seek(0)
            said = [line for line in output.read().splitlines() if line.strip()]
        if not result.exists():
            return Ran(None, f"the tests' process ended with {process.returncode}: {said[-1] if said else ''}")
        found = json.loads(result.read_text(encoding="utf-8"))
        errors = [line for line in said if line.startswith("ERROR")]
        ends = (End(one["test"].removeprefix("tests/"), one["when"], one["outcome"], one["said"]) for one in found["ends"])
        return Ran(tuple(ends), errors[0] if errors else "")


def end(process: subprocess.Popen[bytes]) -> None:
    """Interrupted, pytest ends the servers that it has started."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@dataclass(frozen=True, slots=True)
class Result:
    mutant: Mutant
    verdict: Verdict
    why: str
    seconds: float


class Copies:
    """Copies of the tree, each used by one at a time."""

    def __init__(self, folder: Path, count: int) -> None:
        self._free: queue.Queue[Copy] = queue.Queue()
        for number in range(count):
            self._free.put(Copy(folder / str(number)))

    def run(self, mutant: Mutant | None, tests: Sequence[str], lane: Lane, *, minutes_max: float) -> Ran:
        copy = self._free.get()
        try:
            return copy.run(mutant, tests, lane, minutes_max=minutes_max)
        finally:
            self._free.put(copy)


def run_as_they_are(copies: Copies, pool: ThreadPoolExecutor, mutants: Sequence[Mutant], count: int) -> Ran:
    """All tests without any mutant: the files of each lane shared out over `count` runs."""
    runs: list[Future[Ran]] = []
    for lane in Lane:
        files: dict[str, list[str]] = {}
        for test in sorted({test for mutant in mutants if mutant.lane is lane for test in mutant.tests}):
            files.setdefault(test.partition("::")[0], []).append(test)
        shares = [[test for tests in list(files.values())[number::count] for test in tests] for number in range(count)]
        minutes_max = MINUTES_MAX[lane] * sum(len(tests) for tests in files.values())
        runs += [pool.submit(copies.run, None, share, lane, minutes_max=minutes_max) for share in shares if share]
    ends: list[End] = []
    said = ""
    for run in runs:
        ran = run.result()
        if ran.ends is None:
            return ran
        ends += ran.ends
        said = said or ran.said
    return Ran(tuple(ends), said)


def run_one(copies: Copies, mutant: Mutant) -> Result:
    began = time.monotonic()
    verdict, why = judge(copies.run(mutant, mutant.tests, mutant.lane, minutes_max=MINUTES_MAX[mutant.lane]))
    return Result(mutant, verdict, why, time.monotonic() - began)


def chosen(lane: str | None, only: str | None) -> list[Mutant]:
    mutants = [mutant for mutant in MUTANTS if lane is None or mutant.lane.value == lane]
    if only is None:
        return mutants
    names = only.split(",")
    unknown = sorted(set(names) - {mutant.id for mutant in mutants})
    if unknown:
        fail(f"there is no mutant {', '.join(unknown)}; ./run mutants --list shows them")
    return [mutant for mutant in mutants if mutant.id in names]


def sampled(mutants: Sequence[Mutant], count: int) -> list[Mutant]:
    """Some mutants, in the order of the list. The source decides which: another source has another sample, the same one the same."""
    paths = sorted(path for path in (ROOT / "src/snowmelt").rglob("*.py") if "__pycache__" not in path.parts)
    seed = zlib.crc32(b"".join(path.read_bytes() for path in paths))
    places = random.Random(seed).sample(range(len(mutants)), min(count, len(mutants)))
    return [mutants[place] for place in sorted(places)]


def show(mutants: Sequence[Mutant]) -> None:
    for mutant in mutants:
        print(f"{mutant.id:5} {mutant.seed:6}{mutant.lane.value:6} {mutant.statement}")
        print(f"                   {mutant.file}: {', '.join(mutant.tests)}")


def show_rows() -> None:
    for row in seed_rows(PAGE.read_text(encoding="utf-8")):
        proven = " ".join(mutant.id for mutant in row.proven_by(MUTANTS))
        print(f"{row.statement}\n      {proven or 'none: ' + UNPROVEN.get(row.statement, 'missing')}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="./run mutants", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lane", choices=[lane.value for lane in Lane], help="pure: needs neither server nor Spark; shell: the rest")
    parser.add_argument("--only", metavar="ID[,ID]", help="these mutants alone")
    parser.add_argument("--sample", type=int, metavar="N", help="so many of them, which the source decides; ./run test does this with 20")
    parser.add_argument("--list", action="store_true", help="show the mutants and their tests, and run nothing")
    parser.add_argument(
        "--rows", action="store_true", help="show what the seeds say, row by row of the map, with the mutants that prove it"
    )
    parser.add_argument("--sim", action="store_true", help="let the simulated world find the mutants that it should, instead of the tests")
    parser.add_argument("--seeds", type=int, default=SEEDS, metavar="N", help=f"with --sim: how many each lives through at most ({SEEDS})")
    parser.add_argument("--at-once", type=int, default=AT_ONCE, metavar="N", help=f"how many run at the same time ({AT_ONCE})")
    arguments = parser.parse_args()
    mutants = chosen(arguments.lane, arguments.only)
    if arguments.sample is not None:
        if arguments.sample < 1:
            parser.error("--sample is at least 1")
        mutants = sampled(mutants, arguments.sample)
    if arguments.rows:
        show_rows()
        return 0
    if arguments.list:
        show(mutants)
        return 0
    if arguments.at_once < 1:
        parser.error("--at-once is at least 1")
    folder = ROOT / ".cache/mutants"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fail("another run uses .cache/mutants; wait for its end")
        if arguments.sim:
            return simulate_all(folder, mutants if arguments.only or arguments.sample else simulated(mutants), arguments.seeds)
        return run_all(folder, mutants, arguments.at_once)


def run_all(folder: Path, mutants: Sequence[Mutant], at_once: int) -> int:
    began = time.monotonic()
    count = max(1, min(at_once, len(mutants)))
    copies = Copies(folder, count)
    counts: Counter[Verdict] = Counter()

    def tell(result: Result) -> None:
        counts[result.verdict] += 1
        told = result.why or result.mutant.statement
        print(f"{result.mutant.id:5} {result.verdict.value:9}{result.seconds:6.1f} s  {told}", flush=True)

    with ThreadPoolExecutor(count) as pool:
        print(f"the tests of {len(mutants)} mutants, without any", flush=True)
        as_they_are = run_as_they_are(copies, pool, mutants, count)
        fit = []
        for mutant in mutants:
            if why := not_fit(mutant.tests, as_they_are):
                tell(Result(mutant, Verdict.BROKEN, why, 0.0))
            else:
                fit.append(mutant)
        runs: list[Future[Result]] = [pool.submit(run_one, copies, mutant) for mutant in fit]
        try:
            for run in as_completed(runs):
                tell(run.result())
        except KeyboardInterrupt:
            for run in runs:
                run.cancel()
            raise
    return summed_up(counts, len(mutants), began)


def simulate_all(folder: Path, mutants: Sequence[Mutant], seeds: int) -> int:
    """One mutant after the other: the simulated world has as many processes as there are cores."""
    began = time.monotonic()
    copy = Copy(folder / "sim")
    verdict, why = copy.simulate(None, 100, minutes_max=SIM_MINUTES_MAX)
    if verdict is not Verdict.SURVIVED:
        fail(f"seeds fail without a mutant: {why}")
    counts: Counter[Verdict] = Counter()
    for mutant in mutants:
        at = time.monotonic()
        verdict, why = copy.simulate(mutant, seeds, minutes_max=SIM_MINUTES_MAX)
        counts[verdict] += 1
        print(f"{mutant.id:5} {verdict.value:9}{time.monotonic() - at:6.1f} s  {why or mutant.statement}", flush=True)
    return summed_up(counts, len(mutants), began)


def summed_up(counts: Counter[Verdict], count: int, began: float) -> int:
    minutes = (time.monotonic() - began) / 60
    print(
        f"{count} mutants, {counts[Verdict.KILLED]} killed, {counts[Verdict.SURVIVED]} survived, "
        f"{counts[Verdict.BROKEN]} broken, {minutes:.1f} minutes"
    )
    return 0 if counts[Verdict.KILLED] == count else 1


if __name__ == "__main__":
    sys.exit(main())
