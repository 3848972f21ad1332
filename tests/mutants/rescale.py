"""Guards of the change of a lake table's number of buckets."""

from __future__ import annotations

from typing import Final

from tests.mutants import Lane, Mutant

_UNIT, _LAKE = "unit/test_rescale.py::", "integration/test_paimon_rescale.py::"

MUTANTS: Final[tuple[Mutant, ...]] = (
    Mutant(
        id="U21",
        seed="004",
        statement="the last look at a table that is rescaled is taken while an epoch is under way",
        file="maintenance/rescale.py",
        old="        if self.state is _S.CLOSING and at_rest:\n",
        new="        if self.state is _S.CLOSING:\n",
        tests=(f"{_UNIT}test_a_large_table_is_rewritten_beside_the_epochs_and_what_they_bring_while_they_wait",),
    ),
    Mutant(
        id="U22",
        seed="004",
        statement="rows of files that another program has compacted are offered, and with them some that were deleted",
        file="maintenance/rescale.py",
        old="        if not self._covered <= there or (",
        new="        if (",
        tests=(f"{_UNIT}test_what_was_rewritten_and_is_gone_or_another_tables_is_thrown_away",),
    ),
    Mutant(
        id="U23",
        seed="004",
        statement="a later round of a rescale drops deletes of rows that the first one brings",
        file="maintenance/rescale.py",
        old="            drops_deletes=first,\n",
        new="            drops_deletes=True,\n",
        tests=(f"{_UNIT}test_a_large_table_is_rewritten_beside_the_epochs_and_what_they_bring_while_they_wait",),
    ),
    Mutant(
        id="U24",
        seed="004",
        statement="a table that is copied again while it is rescaled gets rows of before",
        file="maintenance/rescale.py",
        old="        elif incarnation != self._incarnation and",
        new="        elif incarnation is None and",
        tests=(f"{_UNIT}test_a_table_that_is_emptied_or_copied_again_meanwhile_begins_anew",),
    ),
    Mutant(
        id="U25",
        seed="004",
        statement="epochs are planned while a rescale takes its last look",
        file="maintenance/rescale.py",
        old="in (_S.CLOSING, _S.LAST_LOOK, _S.LAST_ROUND, _S.OFFERING, _S.OFFERED)\n\n    @property",
        new="in (_S.CLOSING,)\n\n    @property",
        tests=(f"{_UNIT}test_a_large_table_is_rewritten_beside_the_epochs_and_what_they_bring_while_they_wait",),
    ),
    Mutant(
        id="U26",
        seed="004",
        statement="a rescale takes out rows that came after its last look",
        file="driving/committing.py",
        old=" and entry.base == rescaled.snapshot",
        new="",
        tests=("unit/test_driving.py::TestCommitting::test_a_rescale_of_rows_that_the_table_has_no_more_is_dropped",),
    ),
    Mutant(
        id="U27",
        seed="004",
        statement="a rescale takes out what another program has written since the intent",
        file="sinks/paimon/buckets.py",
        old='        if snapshot is None or snapshot.commit_kind != "COMPACT":\n',
        new="        if False:\n",
        tests=(f"{_LAKE}test_what_another_program_wrote_meanwhile_is_not_taken_out_and_its_compaction_is_no_matter",),
        lane=Lane.SHELL,
    ),
    Mutant(
        id="U28",
        seed="004",
        statement="an intent that has changed the number of buckets can't be rolled forward",
        file="sinks/paimon/buckets.py",
        old="    return entry.buckets if changed else found\n",
        new="    return found\n",
        tests=(f"{_LAKE}test_a_driver_that_dies_between_snapshot_and_schema_leaves_a_table_that_all_read_and_the_next_one_finishes",),
        lane=Lane.SHELL,
    ),
    Mutant(
        id="U29",
        seed="004",
        statement="manifests say of rescaled files that they are of the old number of buckets",
        file="sinks/paimon/maintenance/rescaling.py",
        old="        message.total_buckets = buckets\n",
        new="        message.total_buckets = None\n",
        tests=(f"{_LAKE}test_every_reader_has_the_same_rows_before_and_after_and_later_commits_go_on",),
        lane=Lane.SHELL,
    ),
    Mutant(
        id="U30",
        seed="004",
        statement="rescaled files that overlap are of a level whose files do not",
        file="sinks/paimon/maintenance/rescaling.py",
        old="level=work.level if alone and work.drops_deletes else 0",
        new="level=work.level",
        tests=(f"{_LAKE}test_every_reader_has_the_same_rows_before_and_after_and_later_commits_go_on",),
        lane=Lane.SHELL,
    ),
    Mutant(
        id="U31",
        seed="004",
        statement="a request that was put below those that drivers look at is waited for in vain",
        file="commit/requests.py",
        old="    return newest - number >= KEPT\n",
        new="    return False\n",
        tests=("unit/test_requests.py::test_a_request_that_was_put_below_the_kept_ones_is_missed",),
    ),
    Mutant(
        id="U33",
        seed="004",
        statement="a driver that starts does what was asked for long ago and missed",
        file="commit/requests.py",
        old=" and not is_missed(number, newest))",
        new=")",
        tests=("unit/test_requests.py::test_a_request_that_was_missed_is_never_taken_up_and_goes",),
    ),
)
