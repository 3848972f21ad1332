"""`snowmelt demo` as a user meets it, in a short form; and that its proof of a change table sees what it is there to see."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from snowmelt.demo import run_demo
from snowmelt.demo.history import PLACE, behind_the_copy, compare, misfits
from snowmelt.errors import InvalidConfig
from tests.kit.processes import Command
from tests.kit.waiting import until

RUN_S_MAX = 600


@pytest.fixture
def scratch() -> Iterator[Path]:
    """Where a demo makes its folder. Not pytest's own: a socket's path has to be short."""
    folder = Path(tempfile.mkdtemp(prefix="demo-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def start(scratch: Path) -> Iterator[Callable[..., Command]]:
    """`start(…)`; a demo that a test leaves running is ended."""
    started: list[Command] = []

    def begin(*arguments: str) -> Command:
        environment = os.environ | {"TMPDIR": str(scratch)}
        started.append(Command("demo", *arguments, folder=scratch, cwd=Path.cwd(), environment=environment, seconds_max=RUN_S_MAX))
        return started[-1]

    yield begin
    for demo in started:
        demo.kill()


def processes_of(scratch: Path) -> list[str]:
    """Whoever has the folder in its environment or among its arguments, but for this process."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            what = (entry / "cmdline").read_bytes()
            known = (entry / "environ").read_bytes() + what
        except OSError:
            continue
        if str(scratch).encode() in known and entry.name != str(os.getpid()):
            found.append(what.replace(b"\0", b" ").decode(errors="replace")[:200])
    return found


def folders_in(scratch: Path) -> list[str]:
    return [entry.name for entry in scratch.iterdir() if not entry.name.startswith("said-")]


@pytest.mark.timeout(RUN_S_MAX + 60)
def test_a_short_demo_ends_with_verified_and_leaves_nothing_behind(scratch: Path, start: Callable[..., Command]) -> None:
    code, said = start("--seconds", "4", "--rows", "10000").end()
    assert code == 0, said
    assert said.splitlines()[-1] == "verified"
    for words in (
        "mode: changelog",
        "kill -9 of the run",
        "ADD COLUMN",
        "TRUNCATE TABLE",
        "exit code 0",
        "exactly once",
        "Where the time went",
    ):
        assert words in said
    assert said.count("│ verified │") == 6
    assert "Traceback" not in said
    assert processes_of(scratch) == []
    assert folders_in(scratch) == []


@pytest.mark.timeout(RUN_S_MAX)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_demo_that_is_interrupted_takes_everything_with_it(scratch: Path, start: Callable[..., Command], number: int) -> None:
    demo = start("--rows", "10000", "--keep" if number == signal.SIGTERM else "--seconds=30")
    until(
        lambda: demo.process.poll() is not None or any("pyspark" in one or "java" in one for one in processes_of(scratch)),
        seconds_max=RUN_S_MAX,
    )
    # Again, as people do who don't trust the first.
    demo.process.send_signal(number)
    demo.process.send_signal(number)
    code, said = demo.end()
    assert code == 130, said
    assert "Traceback" not in said
    assert processes_of(scratch) == []
    assert len(folders_in(scratch)) == (1 if number == signal.SIGTERM else 0)


def test_without_mariadb_the_demo_says_how_to_get_it(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    with pytest.raises(InvalidConfig, match=r"mariadbd is not installed .*\./run setup"):
        run_demo()
    assert folders_in(scratch) == []


# ---- the proof of a change table


def changes(*rows: tuple[int, str, str | None]) -> pa.Table:
    """Of (id, kind, content), in the order of the changes."""
    columns = list(zip(*rows, strict=True))
    return pa.table(
        {"id": columns[0], "_op": columns[1], "v": pa.array(columns[2], pa.string()), "_position": [str(at) for at in range(len(rows))]}
    )


RIGHT = [
    (1, "read", "a"), (1, "update_before", "a"), (1, "update_after", None), (1, "delete", None), (1, "insert", "c"),
    (2, "insert", "x"), (2, "delete", "x"),
]  # fmt: skip


def test_a_history_that_fits_is_right() -> None:
    assert misfits(changes(*RIGHT), ["id", "v"]) == []
    assert compare(changes(*RIGHT), changes(*RIGHT)) == []


@pytest.mark.parametrize(
    ("lost", "added", "wrong"),
    [
        (0, None, "rows that went without having come: 1"),
        (3, None, "rows that came while they were there: 1"),
        (5, None, "rows that went without having come: 1"),
        (None, (1, "insert", "c"), "rows that came while they were there: 1"),
        (None, (2, "delete", "x"), "rows that went without having come: 1"),
        (4, (1, "insert", "other"), None),
        (6, (2, "delete", "y"), "rows went with another content than they came with"),
    ],
)
def test_a_change_that_is_lost_or_came_twice_or_is_another_is_seen(
    lost: int | None, added: tuple[int, str, str] | None, wrong: str | None
) -> None:
    rows = [row for at, row in enumerate(RIGHT) if at != lost] + ([added] if added else [])
    rows.sort(key=lambda row: row[0])
    found = changes(*rows)
    assert misfits(found, ["id", "v"]) == ([] if wrong is None else [wrong])
    # What a table can't know of itself, the log knows.
    assert compare(found, changes(*RIGHT)) != []


def test_only_what_a_read_covers_is_taken_for_copied() -> None:
    read = pa.table(
        {"id": [1, 5, 7, 90], "_position": ["binlog.000002:100", "binlog.000002:100", "binlog.000002:300", "binlog.000002:300"]}
    )
    file = 2 << 40
    # Of keys up to 5, of keys up to 90, and above: before and behind both reads' places.
    log = pa.table({"id": [0, 5, 5, 6, 90, 90, 91], PLACE: [file + at for at in (100, 100, 101, 300, 300, 301, 50)]})
    assert behind_the_copy(log, read).column("id").to_pylist() == [5, 90, 91]
    assert len(behind_the_copy(log, read.slice(0, 0))) == len(log)


def test_a_row_that_came_and_went_and_is_missing_as_a_whole_is_seen_by_the_log() -> None:
    without = changes(*RIGHT[:5])
    assert misfits(without, ["id", "v"]) == []
    assert compare(without, changes(*RIGHT)) == ["the log has 7 changes after the copy, the change table 5"]
