"""Live through many seeds: `./run sim --seeds 10000`. A failure prints the line that shows it again."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import traceback
from collections import Counter

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tests.sim.bugs import BUGS
from tests.sim.lake import Violation
from tests.sim.world import World

_BATCH = 20


def one(seed: int, bug: str | None, tell: bool) -> tuple[str | None, Counter[str]]:
    """What an oracle says of a seed, if anything, and what happened in it."""
    if bug is not None:
        with BUGS[bug].planted() as driver:
            world = World(seed, driver)
            return told(world, tell), world.counts
    world = World(seed)
    return told(world, tell), world.counts


def told(world: World, tell: bool) -> str | None:
    if tell:
        world.told = []
    try:
        world.run()
        said = None
    except Violation as violation:
        said = str(violation)
    except Exception as error:
        # A machine that fails in a way of its own is no better than one that an oracle does not like.
        at = traceback.extract_tb(error.__traceback__)[-1]
        said = f"{type(error).__name__}: {error} ({at.filename.rpartition('/')[2]}:{at.lineno})"
    if world.told is not None:
        print(world.profile, *world.told, f"trace {world.trace:08x}", sep="\n")
    return said


def some(task: tuple[int, int, str | None]) -> tuple[list[tuple[int, str]], Counter[str], int]:
    start, count, bug = task
    found: list[tuple[int, str]] = []
    counts: Counter[str] = Counter()
    for seed in range(start, start + count):
        said, happened = one(seed, bug, tell=False)
        counts.update(happened)
        if said is not None:
            found.append((seed, said))
    return found, counts, count


def main() -> int:
    parser = argparse.ArgumentParser(prog="./run sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many (1000)")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first one (0)")
    parser.add_argument(
        "--bug", choices=sorted(BUGS), metavar="NAME", help="plant this bug first, an oracle should find it; one of: " + "; ".join(BUGS)
    )
    parser.add_argument("--until-one-fails", action="store_true", help="end with the first seed that fails")
    parser.add_argument("--trace", action="store_true", help="tell what happens in the first seed, and no more than that one")
    arguments = parser.parse_args()
    if arguments.trace:
        said, _ = one(arguments.first, arguments.bug, tell=True)
        print(said or "no oracle has anything to say")
        return 1 if said else 0
    end = arguments.first + arguments.seeds
    tasks = [(start, min(_BATCH, end - start), arguments.bug) for start in range(arguments.first, end, _BATCH)]
    counts: Counter[str] = Counter()
    failed = 0
    console = Console(stderr=True)
    columns = (TextColumn("seeds"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with multiprocessing.Pool(os.cpu_count()) as pool, Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task("seeds", total=arguments.seeds)
        for found, happened, count in pool.imap_unordered(some, tasks):
            progress.advance(bar, count)
            counts.update(happened)
            for seed, said in found:
                failed += 1
                again = f"./run sim --seeds 1 --from {seed}" + (f" --bug '{arguments.bug}'" if arguments.bug else "")
                print(f"seed {seed}: {said}\n  again: {again}", flush=True)
            if failed and arguments.until_one_fails:
                return 1
    happened = ", ".join(f"{counts[name]} {name}" for name in sorted(counts))
    print(f"{arguments.seeds} seeds from {arguments.first}: {failed} failed; {happened}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
