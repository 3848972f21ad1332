from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from snowmelt.credentials import Secret
from snowmelt.errors import InvalidConfig


def test_an_environment_variable_is_looked_up_when_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = Secret("${SNOWMELT_TEST_SECRET}")
    monkeypatch.setenv("SNOWMELT_TEST_SECRET", "first")
    assert secret.reveal() == "first"
    monkeypatch.setenv("SNOWMELT_TEST_SECRET", "second")
    assert secret.reveal() == "second"


def test_a_variable_that_is_not_set_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SNOWMELT_TEST_SECRET", raising=False)
    with pytest.raises(InvalidConfig, match="SNOWMELT_TEST_SECRET"):
        Secret("${SNOWMELT_TEST_SECRET}").reveal()


def test_an_empty_variable_is_an_empty_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SNOWMELT_TEST_SECRET", "")
    assert Secret("${SNOWMELT_TEST_SECRET}").reveal() == ""


@pytest.mark.parametrize("content", ["pässword", "pässword\n", "pässword\r\n", "pässword\nsecond line\n", "\ufeffpässword\n"])
def test_a_file_gives_its_first_line_without_the_line_end(tmp_path: Path, content: str) -> None:
    path = tmp_path / "secret"
    path.write_bytes(content.encode())
    assert Secret(f"file:{path}").reveal() == "pässword"


def test_blanks_are_part_of_a_secret(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("  two words \n")
    assert Secret(f"file:{path}").reveal() == "  two words "


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="absent"):
        Secret(f"file:{tmp_path}/absent").reveal()


def test_a_file_that_is_not_text_is_an_error_that_does_not_show_it(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_bytes(b"hunter2\xff\xfe\n")
    with pytest.raises(InvalidConfig) as raised:
        Secret(f"file:{path}").reveal()
    assert "hunter2" not in str(raised.value)


def test_no_reference_is_the_empty_secret() -> None:
    assert Secret().reveal() == ""


@pytest.mark.parametrize("text", ["hunter2", "$DB_PASSWORD", "${DB PASSWORD}", "${}", "x${NAME}x", "${NAME}\n", "env:NAME"])
def test_a_secret_in_the_clear_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(InvalidConfig) as raised:
        Secret(text)
    assert text.strip() not in str(raised.value).replace("${NAME}", "")


def test_what_is_printed_and_pickled_is_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SNOWMELT_TEST_SECRET", "hunter2")
    secret = Secret("${SNOWMELT_TEST_SECRET}")
    secret.reveal()
    assert "hunter2" not in repr(secret) + str(secret)
    assert b"hunter2" not in pickle.dumps(secret)
    assert pickle.loads(pickle.dumps(secret)) == secret


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InvalidConfig, match="no regular file"):
        Secret(f"file:{tmp_path}/pipe").reveal()


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/null", "/"])
def test_what_is_no_regular_file_is_refused(path: str) -> None:
    with pytest.raises(InvalidConfig, match=r"regular file|directory"):
        Secret(f"file:{path}").reveal()


def test_a_file_without_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    with open(path, "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(InvalidConfig, match="larger than 64 KiB"):
        Secret(f"file:{path}").reveal()


def test_an_environment_that_is_not_utf_8_is_told_without_a_byte_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DB_PASSWORD", "hunter\udcff2")
    with pytest.raises(InvalidConfig, match=r"environment variable DB_PASSWORD can't be read: it is not UTF-8$"):
        Secret("${DB_PASSWORD}").reveal()


def test_a_name_that_no_file_has_is_told() -> None:
    with pytest.raises(InvalidConfig, match="no file has such a name"):
        Secret("file:/a\0b").reveal()
