"""The order in which a driver begins.

Laws:
- A mistake of the operator is found before any other driver is fenced.
- The state is loaded as the newest driver. What was loaded earlier may be trimmed by now, and its numbers used again.
- The generation is read again after the state was loaded, and before any effect: a driver that was slow to start would undo
  what a newer one relies on.
- The head of the chain is durable before anything is captured after it.
- Each target is compared with the state before the open epoch is committed.
"""

from __future__ import annotations

from dataclasses import dataclass

from snowmelt.commit.coordinator import Coordinator, GenerationRead
from snowmelt.commit.ledger import Ledger
from snowmelt.driving.loading import load, take_over_log
from snowmelt.driving.steps import LOG, Machines, NewestGeneration, Put, Request, Steps
from snowmelt.model.numbers import GenerationNumber
from snowmelt.relay.retention import Relay, SegmentRecord


@dataclass(frozen=True, slots=True)
class Inspect(Request[bool]):
    """Find what is wrong with the settings, the source or Spark. Fences no driver. False: the run ends."""

    before: Ledger


@dataclass(frozen=True, slots=True)
class TakeGeneration(Request[GenerationNumber | None]):
    """Become the newest driver and the owner of the log's folder. None: the run ends."""


@dataclass(frozen=True, slots=True)
class FindStart(Request[None]):
    """Find where capture continues, then load what is captured. Writes nothing."""

    relay: Relay


@dataclass(frozen=True, slots=True)
class MakeHead(Request[SegmentRecord | None]):
    """The head of a chain that has none; None where it has one, or where none is needed."""

    relay: Relay


@dataclass(frozen=True, slots=True)
class CheckTargets(Request[None]):
    """Check that each target has what the state says."""

    ledger: Ledger


def boot() -> Steps[Machines | None]:
    """The machines of the newest driver. None: the run ended before there is one."""
    before = yield from load()
    if not (yield from Inspect(before)):
        return None
    generation = yield from TakeGeneration()
    if generation is None:
        return None
    ledger = yield from load()
    relay = yield from take_over_log(ledger)
    yield from FindStart(relay)
    machine = Coordinator(generation, ledger)
    machine.apply(GenerationRead((yield from NewestGeneration())))
    # Raises `Fenced` if a newer driver was found.
    machine.next_step()
    head = yield from MakeHead(relay)
    if head is not None:
        relay.apply((yield from Put(LOG, head.number, head)))
    yield from CheckTargets(ledger)
    return Machines(machine, relay)
