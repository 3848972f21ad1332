"""Draw the state machines into `docs/architecture.md`, from the tables that the code runs by.

    python scripts/draw_machines.py            write the drawings
    python scripts/draw_machines.py --check    exit 1 if the page is out of step

A drawing stands between `<!-- drawn by scripts/draw_machines.py: NAME -->` and `<!-- end -->`. A machine begins in the first state of its
enum; a state without a way out is an end. A turn that leads to one state from more than `ARROWS_MAX` others is told in a note instead
of an arrow from each.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from snowmelt.commit.coordinator import STAGES, Stage
from snowmelt.maintenance import lane, rescale
from snowmelt.planning.tables import CHUNK_LIFE, TABLE_LIFE, ChunkState, TablePhase
from snowmelt.tiering import leases, rounds

PAGE = Path(__file__).parents[1] / "docs/architecture.md"
ARROWS_MAX = 4
_DRAWING = re.compile(r"(<!-- drawn by scripts/draw_machines\.py: (\w+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


@dataclass(frozen=True)
class Machine:
    """A table of transitions: (state, turn) to state."""

    states: type[Enum]
    table: Mapping[tuple[Enum, Enum], Enum]


MACHINES: Mapping[str, Machine] = {
    "TABLE_LIFE": Machine(TablePhase, TABLE_LIFE),
    "CHUNK_LIFE": Machine(ChunkState, CHUNK_LIFE),
    "STAGES": Machine(Stage, STAGES),
    "ROUND": Machine(rounds.RoundState, rounds.ROUND),
    "LANE": Machine(lane.LaneState, lane.LANE),
    "RESCALE": Machine(rescale.RescaleState, rescale.RESCALE),
    "LEASE_LIFE": Machine(leases.LeasePhase, leases.LEASE_LIFE),
}


def draw(machine: Machine) -> str:
    """The machine as a mermaid diagram, in the order of its enum and its table."""
    states = list(machine.states)
    ways: dict[tuple[Enum, Enum], list[Enum]] = {}
    for (state, turn), to in machine.table.items():
        ways.setdefault((turn, to), []).append(state)
    arrows: dict[Enum, list[str]] = {state: [] for state in states}
    notes = []
    for (turn, to), sources in ways.items():
        if len(sources) > ARROWS_MAX:
            # Mermaid takes a second colon for the end of the text.
            others = [state.name for state in states if state not in sources]
            # Named by whichever are fewer.
            if len(others) >= len(sources):
                where = " and ".join(state.name for state in sources)
            else:
                where = " but ".join(filter(None, ["any state", " and ".join(others)]))
            notes.append(f"    note right of {to.name}: {turn.value}, from {where}")
        else:
            for state in sources:
                arrows[state].append(f"    {state.name} --> {to.name}: {turn.value}")
    with_way_out = {state for state, _ in machine.table}
    lines = ["```mermaid", "stateDiagram-v2", *(f"    {state.name}" for state in states), f"    [*] --> {states[0].name}"]
    for state in states:
        lines += arrows[state] if state in with_way_out else [f"    {state.name} --> [*]"]
    return "\n".join([*lines, *notes, "```", ""])


def redrawn(page: str) -> str:
    """The page with every drawing as the code has it."""
    names = [name for _, name, _, _ in _DRAWING.findall(page)]
    if sorted(names) != sorted(MACHINES):
        sys.exit(f"{PAGE.name} draws {names}, and the machines are {list(MACHINES)}")
    return _DRAWING.sub(lambda found: found[1] + draw(MACHINES[found[2]]) + found[4], page)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the page is out of step")
    arguments = parser.parse_args()
    page = PAGE.read_text(encoding="utf-8")
    drawn = redrawn(page)
    if drawn == page:
        return 0
    if arguments.check:
        print(f"{PAGE.name} is out of step with the code; run: python scripts/draw_machines.py")
        return 1
    PAGE.write_text(drawn, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
