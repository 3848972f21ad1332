"""The adoption rule for one change: what the tasks' rule for columns (`engine.tasks.log._emitted`) must say of each row.

The simulated world and the state machines live by this one. `unit/test_engine_filter.py` holds the two together.
"""

from __future__ import annotations

from collections.abc import Callable

from snowmelt.planning.epochs import Adopting, Rule


def emits(rule: Rule, *, offset: int, adopted: bool, adopting: Adopting | None, keyed: bool, covered: Callable[[Adopting], bool]) -> bool:
    """Whether a change at `offset` goes to the lake.

    `adopted`: its key lies in a range that the lake has. `adopting`: its key lies in a chunk of this epoch's adoption, and `covered`
    tells whether that read surely contains the change.

    With keys (`keyed`) every change above the chunk's cut is emitted, whether the read contains it or not. To leave out what is covered
    would save little, and would be wrong if a mark knows less of one change than of a later one: the older change would return alone,
    above what the read has of the later one.
    """
    if adopting is None:
        return offset > rule.after and (rule.emits_all or adopted)
    if adopting.replaces:
        # The log lane goes on for a range that is read again, and what the read may lack comes once more: `_seq` makes
        # that harmless.
        return offset > min(adopting.visible, rule.after)
    return offset > adopting.visible and (keyed or not covered(adopting))
