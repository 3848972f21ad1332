"""What a run of tests says of a mutant, or of the tests themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

_TIMEOUT: Final = "from pytest-timeout"


class Verdict(Enum):
    KILLED = "killed"
    SURVIVED = "survived"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class End:
    """What came of a test. `when`: collect, setup, call or teardown."""

    test: str
    when: str
    outcome: str
    said: str = ""


@dataclass(frozen=True, slots=True)
class Ran:
    """A run of tests. `ends` is None where the process did not come to its end; then `said` tells what it did."""

    ends: tuple[End, ...] | None
    said: str = ""


def judge(ran: Ran) -> tuple[Verdict, str]:
    """Killed is one answer of a test alone: that it failed by itself, in time."""
    if ran.ends is None:
        return Verdict.BROKEN, ran.said
    for end in ran.ends:
        if end.outcome == "failed":
            if _TIMEOUT in end.said:
                return Verdict.BROKEN, f"{end.test} ran out of time"
            if end.when != "call":
                return Verdict.BROKEN, f"{end.when} of {end.test}: {first_line(end.said)}"
            return Verdict.KILLED, f"{end.test.rpartition('::')[2]}: {first_line(end.said)}"
    if not any(end.outcome == "passed" for end in ran.ends):
        return Verdict.BROKEN, f"no test ran{': ' + ran.said if ran.said else ''}"
    return Verdict.SURVIVED, ""


def not_fit(tests: Sequence[str], ran: Ran) -> str:
    """Why these tests, run on the source as it is, can't say anything of a mutant; empty if they can."""
    if ran.ends is None:
        return ran.said
    for test in tests:
        ends = [end for end in ran.ends if _is_of(end.test, test)]
        failed = [end for end in ends if end.outcome == "failed"]
        if failed:
            return f"without the mutant {failed[0].test} fails too: {first_line(failed[0].said)}"
        if not any(end.outcome == "passed" for end in ends):
            return f"{test} did not run{': ' + ran.said if ran.said else ''}"
    return ""


def _is_of(found: str, test: str) -> bool:
    """Whether a node is the test, one of its parameters, or the file or class that it is in."""
    return found == test or found.startswith((f"{test}[", f"{test}::")) or test.startswith(f"{found}::")


def first_line(said: str) -> str:
    return said.strip().partition("\n")[0][:160]


def judge_seeds(code: int, said: str, errors: str) -> tuple[Verdict, str]:
    """What a run of the simulated world says of the mutant in it."""
    if code == 0:
        return Verdict.SURVIVED, ""
    if code == 1 and (seeds := [line for line in said.splitlines() if line.startswith("seed ")]):
        return Verdict.KILLED, seeds[0]
    last = [line for line in errors.splitlines() if line.strip()][-1:]
    return Verdict.BROKEN, f"the simulated world ended with {code}: {''.join(last)}"
