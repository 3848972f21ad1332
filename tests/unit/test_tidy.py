"""The tidy test finds what exceeds a limit, and what is allowed for now can only shrink."""

from __future__ import annotations

import pytest

from tests.tidy import (
    ARGUMENTS_MAX,
    FILE_LINES_MAX,
    FOLDER_FILES_MAX,
    FUNCTION_LINES_MAX,
    POSITIONAL_FIELDS_MAX,
    Allowed,
    Fault,
    Source,
    faults_of_src,
    imported_tests,
    judge,
)


def found(*sources: Source) -> list[tuple[str, str, int]]:
    return [(fault.rule, fault.subject, fault.number) for fault in faults_of_src(list(sources))]


def constructor(arguments: int) -> str:
    names = ", ".join(f"a{number}: int" for number in range(arguments))
    return f"class Wide:\n    def __init__(self, {names}) -> None:\n        pass\n"


def value(fields: int, decorator: str = "@dataclass(frozen=True)") -> str:
    lines = "".join(f"    f{number}: int\n" for number in range(fields))
    return f"{decorator}\nclass Value:\n{lines}    known: ClassVar[int] = 1\n"


def test_a_long_file_is_found() -> None:
    assert found(Source("room/a.py", "x = 1\n" * FILE_LINES_MAX)) == []
    assert found(Source("room/a.py", "x = 1\n" * (FILE_LINES_MAX + 1))) == [("long file", "room/a.py", FILE_LINES_MAX + 1)]


def test_a_long_function_is_found_wherever_it_is_defined() -> None:
    body = "class Owner:\n    def long(self) -> None:\n" + "        x = 1\n" * FUNCTION_LINES_MAX
    assert found(Source("a.py", body)) == [("long function", "a.py::long", FUNCTION_LINES_MAX + 1)]
    assert found(Source("a.py", body.removesuffix("        x = 1\n"))) == []


def test_a_wide_constructor_is_found_and_self_does_not_count() -> None:
    assert found(Source("a.py", constructor(ARGUMENTS_MAX))) == []
    assert found(Source("a.py", constructor(ARGUMENTS_MAX + 1))) == [("wide constructor", "a.py::Wide", ARGUMENTS_MAX + 1)]


def test_a_value_of_many_fields_is_made_by_keywords() -> None:
    assert found(Source("a.py", value(POSITIONAL_FIELDS_MAX))) == []
    assert found(Source("a.py", value(POSITIONAL_FIELDS_MAX + 1))) == [("positional value", "a.py::Value", POSITIONAL_FIELDS_MAX + 1)]
    assert found(Source("a.py", value(POSITIONAL_FIELDS_MAX + 1, "@dataclass(frozen=True, kw_only=True)"))) == []


def test_a_class_name_in_two_modules_is_found_with_an_underscore_too() -> None:
    one, other = Source("a.py", "class Held:\n    pass\n"), Source("room/b.py", "class _Held:\n    pass\n")
    assert found(one, other) == [("shared name", "Held", 2)]


def test_a_full_folder_is_found() -> None:
    files = [Source(f"room/{number}.py", "") for number in range(FOLDER_FILES_MAX)]
    assert found(*files, Source("room/__init__.py", "")) == []
    assert found(*files, Source("room/more.py", "")) == [("full folder", "room", FOLDER_FILES_MAX + 1)]


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("# a lag is behind\n", True),
        ('def f():\n    """Of\n    which."""\n', True),
        ('raise E(f"nobody: {x}")\n', True),
        ('"""`behind` is a name."""\nbehind = 1\n', False),
        ("# an epoch after another\n", False),
    ],
)
def test_a_word_of_the_stop_list_is_found_in_comments_and_texts_but_not_in_names(text: str, wrong: bool) -> None:
    assert bool(found(Source("a.py", text))) is wrong


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("from tests.unit.test_b import helper", True),
        ("from tests.unit import test_b", True),
        ("import tests.unit.test_b", True),
        ("from tests.kit.waiting import await_that", False),
        ("from tests.unit.test_a import itself", False),
    ],
)
def test_a_test_that_imports_a_test_is_found(line: str, wrong: bool) -> None:
    assert bool(list(imported_tests([Source("tests/unit/test_a.py", line)]))) is wrong


@pytest.mark.parametrize(
    ("allowed", "said"),
    [
        ({}, ["long file: a.py: too long"]),
        ({"long file": {"a.py": Allowed(600, "a kernel")}}, []),
        ({"long file": {"a.py": Allowed(700, "a kernel")}}, []),
        ({"long file": {"a.py": Allowed(599, "a kernel")}}, ["long file: a.py: 600, and 599 is allowed so far; it may only shrink"]),
        (
            {"long file": {"a.py": Allowed(600, "a kernel"), "gone.py": Allowed(600, "a kernel")}},
            ["long file: gone.py: allowed, but it meets the limit now; remove it from tests/tidy/allowed.py"],
        ),
    ],
)
def test_what_is_allowed_may_only_shrink(allowed: dict[str, dict[str, Allowed]], said: list[str]) -> None:
    assert list(judge([Fault("long file", "a.py", 600, "too long")], allowed)) == said
