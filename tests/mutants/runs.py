"""Guards of the writer of chunks."""

from __future__ import annotations

from typing import Final

from tests.mutants import Lane, Mutant

_RUNS: Final = "integration/test_paimon_runs.py::"
_FILE: Final = "sinks/paimon/runs.py"

MUTANTS: Final[tuple[Mutant, ...]] = (
    Mutant(
        id="U40",
        seed="004",
        statement="rows of a chunk are taken for sorted because the database sorted them",
        file=_FILE,
        old="            if rises(keys, self._last):\n",
        new="            if rises(keys, None):\n",
        tests=(f"{_RUNS}test_rows_in_order_are_one_file_of_each_bucket_and_the_first_that_is_not_begins_another",),
        lane=Lane.SHELL,
    ),
    Mutant(
        id="U41",
        seed="004",
        statement="of two rows of one key the later counts, whatever their `_seq`",
        file=_FILE,
        old="for name in (*self._layout.keys, SEQUENCE)",
        new="for name in self._layout.keys",
        tests=(f"{_RUNS}test_of_rows_of_one_key_the_newest_counts_wherever_they_stand",),
        lane=Lane.SHELL,
    ),
    Mutant(
        id="U42",
        seed="004",
        statement="a chunk's files do not follow an option of their table that our writer does not know",
        file=_FILE,
        old="        elif name not in _HARMLESS and not name.startswith(_HARMLESS_PREFIXES):\n",
        new="        elif False:\n",
        tests=(f"{_RUNS}test_a_table_with_an_option_that_is_not_followed_here_is_left_to_paimons_own_writer",),
        lane=Lane.SHELL,
    ),
    Mutant(
        id="U43",
        seed="004",
        statement="rows that wait for a file keep all of the memory that their batch is a part of",
        file=_FILE,
        old="self._bucket(0).write(pa.Table.from_batches([_copy(rows)]))",
        new="self._bucket(0).write(pa.Table.from_batches([rows]))",
        tests=(f"{_RUNS}test_memory_of_a_batch_is_let_go_though_one_bucket_gets_hardly_any_rows",),
        lane=Lane.SHELL,
    ),
    Mutant(
        id="U44",
        seed="004",
        statement="a writer that slept makes the folder of a table that was dropped",
        file="sinks/paimon/maintenance/writing.py",
        old="                os.mkdir(os.path.dirname(path))\n",
        new="                os.makedirs(os.path.dirname(path))\n",
        tests=(f"{_RUNS}test_a_writer_does_not_make_the_folder_of_a_table_that_was_dropped",),
        lane=Lane.SHELL,
    ),
    Mutant(
        id="U45",
        seed="004",
        statement="rows that wait to be sorted have no bound",
        file=_FILE,
        old="        if self._held_bytes >= self._held_bytes_max:\n",
        new="        if False:\n",
        tests=(f"{_RUNS}test_memory_is_bounded_by_what_a_writer_may_hold_whatever_order_rows_come_in",),
        lane=Lane.SHELL,
    ),
    Mutant(
        id="U52",
        seed="004",
        statement="rows that come after a file have its number",
        file=_FILE,
        old="            batch = batch.set_column(0, batch.schema.field(0), self._number(batch.num_rows))\n",
        new="",
        tests=(f"{_RUNS}test_a_later_file_has_a_greater_number",),
        lane=Lane.SHELL,
    ),
)
