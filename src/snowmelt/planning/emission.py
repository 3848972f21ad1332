"""What the log tasks of an epoch emit. The rule is stated here once, for one change; tasks apply it to columns."""

from __future__ import annotations

from collections.abc import Callable

from snowmelt.planning.epochs import Adopting, Rule


def emits(
    rule: Rule,
    *,
    offset: int,
    event: int = 0,
    adopted: bool,
    adopting: Adopting | None,
    keyed: bool,
    covered: Callable[[Adopting], bool],
) -> bool:
    """Whether a change at `offset` goes to the lake. `event` is its place among those of its transaction.

    `adopted`: its key lies in a range that the lake has. `adopting`: its key lies in a chunk of this epoch's adoption, and `covered`
    tells whether that read surely contains the change.

    Where rows have keys (`keyed`), whatever lies above the chunk's cut comes, in the read or not. To leave out what is covered would save
    little, and would be wrong as soon as a mark knows less of one change than of a later one: the older would come again, alone, and
    stand above what the read has of the later.
    """
    if adopting is None:
        behind = offset > rule.after or (offset == rule.after and rule.event is not None and event > rule.event)
        return behind and (rule.live or adopted)
    if adopting.replaces:
        # The log lane goes on for a range that is read again, and what the read may lack comes once more: `_seq` makes
        # that harmless.
        return offset > min(adopting.visible, rule.after)
    return offset > adopting.visible and (keyed or not covered(adopting))
