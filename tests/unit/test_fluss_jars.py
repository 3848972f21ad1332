"""The published Fluss server is fetched whole and checked, or not at all."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from snowmelt.errors import Corrupt, Unavailable
from snowmelt.fluss import jars


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A mirror in a folder, with two small jars."""
    published = {"org/one/first/1.0": b"1" * 10, "org/two/second/2.0": b"2" * 10}
    for place, content in published.items():
        name = "-".join(place.split("/")[-2:])
        (tmp_path / "maven" / place).mkdir(parents=True)
        (tmp_path / "maven" / place / f"{name}.jar").write_bytes(content)
    monkeypatch.setattr(jars, "_JARS", {place: hashlib.sha256(content).hexdigest() for place, content in published.items()})
    monkeypatch.setenv("SNOWMELT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv(jars.REPOSITORY_VARIABLE, (tmp_path / "maven").as_uri())
    return tmp_path / "maven"


def left(repository: Path) -> list[str]:
    return [path.name for path in (repository.parent / "cache" / "servers").iterdir() if path.suffix != ".lock"]


def test_it_is_fetched_once_and_named_by_its_version(repository: Path) -> None:
    folder = jars.fetch_jars()
    assert sorted(path.name for path in folder.iterdir()) == ["first-1.0.jar", "second-2.0.jar"]
    (repository / "org/one/first/1.0/first-1.0.jar").unlink()
    assert jars.fetch_jars() == folder
    assert left(repository) == [f"fluss-{jars.VERSION}"]


def test_a_jar_that_is_not_what_was_published_leaves_nothing(repository: Path) -> None:
    (repository / "org/two/second/2.0/second-2.0.jar").write_bytes(b"3")
    with pytest.raises(Corrupt, match=r"second-2\.0\.jar has another checksum"):
        jars.fetch_jars()
    assert left(repository) == []


def test_a_jar_that_can_not_be_had_leaves_nothing_and_says_where_else_to_look(repository: Path) -> None:
    (repository / "org/two/second/2.0/second-2.0.jar").unlink()
    with pytest.raises(Unavailable, match=jars.REPOSITORY_VARIABLE):
        jars.fetch_jars()
    assert left(repository) == []
