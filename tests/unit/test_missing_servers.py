"""A server that is missing fails its lane in CI, and is skipped by name elsewhere."""

from __future__ import annotations

import pytest

from tests.kit.servers import NotRun, give_up


@pytest.mark.parametrize("ci", ["", "0", "false"])
def test_a_missing_server_is_skipped_by_name_where_a_person_runs_the_tests(ci: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", ci)
    with pytest.raises(pytest.skip.Exception, match=r"MySQL 9 not run: no network"):
        give_up(NotRun("MySQL 9 not run: no network"))


def test_a_missing_server_fails_its_lane_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match=r"MySQL 9 not run: no network .*fails its lane"):
        give_up(NotRun("MySQL 9 not run: no network"))


def test_a_server_that_this_kind_of_machine_cant_have_is_skipped_in_ci_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.skip.Exception, match=r"Linux on x86_64 only"):
        give_up(NotRun("MySQL 9 not run: it is published for Linux on x86_64 only", excused=True))
