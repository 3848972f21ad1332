"""Partitions of lake tables, and the marks of those that are done (seed 004)."""

from __future__ import annotations

from typing import Final

from tests.mutants import Mutant

_ROWS = "unit/test_partitions.py::"
_DONE = "unit/test_done_partitions.py::"

MUTANTS: Final[tuple[Mutant, ...]] = (
    Mutant(
        id="D1",
        seed="004",
        statement="a row that moves to another partition stays in the old one, too",
        file="engine/tasks/rows.py",
        old="*([] if parts is None else [parts])",
        new="",
        tests=(f"{_ROWS}test_a_row_that_moves_is_deleted_where_it_was",),
    ),
    Mutant(
        id="D2",
        seed="004",
        statement="a kept row is written to the partition of another row",
        file="engine/tasks/rows.py",
        old="parts if parts is None else parts.filter(pa.array(kept))",
        new="parts if parts is None else parts.slice(0, int(kept.sum()))",
        tests=(f"{_ROWS}test_a_partition_is_of_the_row_that_is_kept",),
    ),
    Mutant(
        id="D3",
        seed="004",
        statement="a value without a folder is an error of the lake, which is tried again for ever",
        file="engine/tasks/rows.py",
        old="    if source.partition.too_long(values):\n",
        new="    if False:\n",
        tests=(f"{_ROWS}test_a_value_without_a_folder_stops_its_table_and_is_not_told",),
    ),
    Mutant(
        id="D13",
        seed="004",
        statement="a row whose files no commit finds stops its pipeline for ever",
        file="sinks/partitions.py",
        old="        return bool(pc.any(pc.and_(pc.utf8_is_space(one), pc.match_substring_regex(one, _ODD_SPACE))).as_py())\n",
        new="        return False\n",
        tests=(f"{_ROWS}test_a_value_that_readers_look_for_in_different_folders_stops_its_table",),
    ),
    Mutant(
        id="D4",
        seed="004",
        statement="a key of the lake may be NULL",
        file="sinks/partitions.py",
        old="        if field.nullable:\n",
        new="        if False:\n",
        tests=(f"{_ROWS}test_a_column_that_may_be_null_is_no_part_of_a_key",),
    ),
    Mutant(
        id="D5",
        seed="004",
        statement="rows without a value get a partition that is NULL",
        file="sinks/partitions.py",
        old='pc.fill_null(pc.equal(pc.utf8_trim_whitespace(text), ""), True)',
        new='pc.equal(pc.utf8_trim_whitespace(text), "")',
        tests=(f"{_ROWS}test_values_that_are_null_or_blank_have_the_name_of_their_folder",),
    ),
    Mutant(
        id="D6",
        seed="004",
        statement="a partition is marked as done before its delay is over",
        file="commit/done_partitions.py",
        old="max(table.watermark_ms - delay_ms, 0)",
        new="table.watermark_ms",
        tests=(f"{_DONE}TestOwed::test_the_delay_comes_after_the_end",),
    ),
    Mutant(
        id="D7",
        seed="004",
        statement="a mark that failed is forgotten",
        file="commit/done_partitions.py",
        old="{target: end for target, end in ends.items() if end != common[units[target]]}",
        new="{}",
        tests=(f"{_DONE}TestState::test_a_mark_that_failed_is_owed_with_each_epoch_until_it_is_made",),
    ),
    Mutant(
        id="D8",
        seed="004",
        statement="partitions that were over before their table was whole are never marked",
        file="commit/done_partitions.py",
        old="    if table.before_ms is None:\n        return NONE_YET\n",
        new="",
        tests=(f"{_DONE}TestOwed::test_a_table_that_is_copied_is_owed_nothing_and_then_all",),
    ),
    Mutant(
        id="D9",
        seed="004",
        statement="partitions of a table that is being copied are marked",
        file="commit/done_partitions.py",
        old="        if table is None or table.watermark_ms is None:\n            continue\n        last, end",
        new="        if table is None:\n            continue\n        last, end",
        tests=(f"{_DONE}TestOwed::test_a_table_that_is_copied_is_owed_nothing_and_then_all",),
    ),
)
