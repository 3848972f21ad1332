"""The documents are in plain English, and narrow."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.prose import ROW_WIDTH_MAX, STOPS, WIDTH_MAX, faults_in, prose_of

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def faults(markdown: str) -> list[str]:
    return list(faults_in(prose_of(markdown)))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_is_narrow_and_in_plain_words(page: Path) -> None:
    assert [f"{page.relative_to(ROOT)}: {fault}" for fault in faults(page.read_text(encoding="utf-8"))] == []


def test_each_stop_is_found_and_named_by_its_line() -> None:
    said = ["behind", "necessary", "whoever", "he", "who reads", "to be had", "is looked for", "are looked at", "may not be", "so many"]
    said += ["of which", "telling of", "come to nothing", "to be rid of", "one would not think", "goes on", "lets go of"]
    assert len(said) == len(STOPS)
    for number, words in enumerate(said, start=1):
        page = "\n\n".join(said[:number])
        assert any(fault.startswith(f"line {2 * number - 1}: {words!r}") for fault in faults(page)), words
        assert faults(words.upper()) != []


def test_a_phrase_that_two_lines_share_is_found_once() -> None:
    assert [fault.partition(";")[0] for fault in faults("All of\nwhich\nis so.")] == ["line 2: 'of which'"]


def test_names_code_and_parts_of_words_are_no_prose() -> None:
    assert faults("`behind` [a](behind.md) behindhand left-behind\n\n```\nwhoever is behind\n```\n") == []


@pytest.mark.parametrize(
    ("line", "right"),
    [
        ("a " * (WIDTH_MAX // 2), True),
        ("a " * (WIDTH_MAX // 2) + "a", False),
        ("x" * (WIDTH_MAX + 1), True),
        ("- " + "x" * WIDTH_MAX, False),
        ("| " + "a " * (ROW_WIDTH_MAX // 2 - 2) + "|", True),
        ("| " + "a " * (ROW_WIDTH_MAX // 2 - 1) + "|", False),
    ],
)
def test_a_line_has_its_width_and_a_name_may_be_longer(line: str, right: bool) -> None:
    assert (faults(line) == []) is right


def test_a_line_in_a_block_of_code_may_be_wide() -> None:
    assert faults("```\n" + "a " * WIDTH_MAX + "\n```\n") == []
