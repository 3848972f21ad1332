"""README, as a new user follows it: the wheel with `[spark,paimon]` alone, in an empty environment outside of the clone, and every block of
code in its order, against a real MariaDB. Placeholders (a host, a password, folders) become what is there."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.kit import jvm
from tests.kit.environments import ROOT, locked, make_environment, run_uv
from tests.kit.servers import Fresh, NotRun, Server, give_up

PASSWORD = "it's secret"
STEP_S_MAX = 600


@dataclass(frozen=True)
class Block:
    language: str
    text: str


def blocks() -> list[Block]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [Block(language, text) for language, text in found]


class User:
    """Follows the README in a folder of their own. Nothing of the development environment is on the way."""

    def __init__(self, folder: Path, python: Path, server: Server) -> None:
        self._folder = folder
        self._server = server
        self._bin = python.parent
        inherited = {name: value for name, value in os.environ.items() if name in ("PATH", "LANG", "JAVA_HOME", "TMPDIR")}
        self._environment = inherited | {
            "HOME": str(folder),
            "PATH": f"{self._bin}:{inherited['PATH']}",
            "JDK_JAVA_OPTIONS": jvm.OPTIONS,
            # Any session of a user's, on this machine alone.
            "SPARK_LOCAL_IP": "127.0.0.1",
            "NO_COLOR": "1",
            "COLUMNS": "200",
        }

    def placed(self, text: str) -> str:
        """With this machine's addresses and folders in place of README's."""
        port = self._server.port
        for placeholder, real in (
            ("--host db.example.com", f"--host 127.0.0.1 --port {port}"),
            ("host: db.example.com", f"host: 127.0.0.1\n  port: {port}"),
            ("fluss.example.com:9123", "127.0.0.1:1"),
            ("/data/", f"{self._folder}/data/"),
        ):
            text = text.replace(placeholder, real)
        assert "example.com" not in text, f"a placeholder is not known: {text}"
        return text

    def query(self, text: str) -> None:
        with self._server.connect() as connection, connection.cursor() as cursor:
            for statement in filter(str.strip, text.replace("…", PASSWORD.replace("'", "''")).split(";")):
                cursor.execute(statement)

    def shell(self, line: str) -> str:
        """One line, in a shell that keeps what was exported."""
        line = self.placed(line)
        if exported := re.fullmatch(r"export (\w+)=…", line):
            self._environment[exported[1]] = PASSWORD
            return ""
        if line.startswith("snowmelt run pipeline.yaml"):
            return self._run_and_interrupt(line)
        return self._finish(["sh", "-c", line])

    def _finish(self, command: list[str], code: int = 0) -> str:
        said = self._folder / "said"
        with self._started(command, said) as running:
            assert running.wait(STEP_S_MAX) == code, f"{command[-1]}\n{said.read_text()[-6000:]}"
        return said.read_text()

    @contextmanager
    def _started(self, command: list[str], said: Path) -> Iterator[subprocess.Popen[bytes]]:
        """A command under way, in a group of its own that ends with the block."""
        with open(said, "wb") as out:
            running = subprocess.Popen(
                command, cwd=self._folder, env=self._environment, stdout=out, stderr=out, stdin=subprocess.DEVNULL, start_new_session=True
            )
            try:
                yield running
            finally:
                if running.poll() is None:
                    os.killpg(running.pid, signal.SIGKILL)
                    running.wait()

    def _run_and_interrupt(self, line: str) -> str:
        said = self._folder / "said-by-run"
        with self._started(["sh", "-c", f"exec {line}"], said) as running:
            deadline = time.monotonic() + STEP_S_MAX
            while "live" not in said.read_text():
                assert running.poll() is None, said.read_text()
                assert time.monotonic() < deadline, said.read_text()
                time.sleep(0.1)
            assert "runs on" in self._finish([str(self._bin / "snowmelt"), "status", "pipeline.yaml"])
            running.send_signal(signal.SIGINT)
            assert running.wait(STEP_S_MAX) == 0, said.read_text()
        return said.read_text()

    def python(self, text: str, code: int = 0) -> str:
        return self._finish([str(self._bin / "python"), "-c", self.placed(text)], code)

    def write(self, text: str) -> None:
        name = text.partition("\n")[0].removeprefix("# ")
        (self._folder / name).write_text(self.placed(text))


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment that has what README's install line gives, and DuckDB, which the README tells to install."""
    folder = tmp_path_factory.mktemp("installed")
    (line,) = (line for block in blocks() if block.language == "sh" for line in block.text.splitlines() if line.startswith("pip install"))
    extras = re.fullmatch(r"pip install '\.(\[[\w,]+\])'", line)
    assert extras is not None, line
    try:
        run_uv("build", "--quiet", "--wheel", "--out-dir", str(folder), ".")
        (wheel,) = folder.glob("*.whl")
        return make_environment(folder / "environment", [f"{wheel}{extras[1]}", "duckdb"], locked())
    except NotRun as reason:
        give_up(reason)


@pytest.mark.timeout(1200)
def test_every_block_of_the_readme_does_what_it_says(installed: Path, fresh_mariadb: Fresh, tmp_path: Path) -> None:
    server = fresh_mariadb()
    user = User(tmp_path, installed, server)
    user.query("CREATE DATABASE shop; CREATE TABLE shop.orders (id INT NOT NULL PRIMARY KEY, total DECIMAL(10,2))")
    user.query("INSERT INTO shop.orders SELECT seq, seq / 4 FROM shop.seq_1_to_1000")
    said: dict[str, str] = {}
    for block in blocks():
        match block.language:
            case "sql":
                user.query(block.text)
            case "yaml":
                user.write(block.text)
            case "sh":
                for line in block.text.splitlines():
                    if line.startswith("./run "):
                        command = line.split()[1]
                        assert re.search(rf"^  {command}\b", subprocess.check_output([ROOT / "run", "help"], text=True), re.MULTILINE), line
                    elif not line.startswith("pip install"):
                        said[line.partition("  #")[0].strip()] = user.shell(line)
            case "python" if "union_read" in block.text:
                # Fluss is an extra that this environment has not.
                assert "pip install 'snowmelt[fluss]'" in user.python(block.text, code=1)
            case "python":
                said[block.text] = user.python(block.text)
            case "":
                assert "$" not in block.text, "commands are in blocks that say so"
            case other:
                pytest.fail(f"nobody runs blocks of {other}")
    assert "ready to be captured" in said["snowmelt check --host db.example.com --user repl --tables 'shop.*'"]
    # The very first start compiles, and says so; the next one does not.
    first = said["snowmelt run --until-current pipeline.yaml"]
    assert re.search(r"compiling (\d+) kernels.*kernels: \1 of \1 compiled", first, re.DOTALL)
    assert "kernels" not in said["snowmelt run pipeline.yaml"]
    assert list((tmp_path / ".cache/snowmelt/kernels").rglob("*.nbi"))
    assert not list(installed.parents[1].rglob("*.nbi"))
    assert "it ended as asked" in said["snowmelt status pipeline.yaml"]
    assert said["snowmelt verify pipeline.yaml"].splitlines()[-1] == "verified"
    (duckdb,) = (text for block, text in said.items() if "duckdb" in block)
    assert re.search(r"\b1000\b", duckdb)
    (frame,) = (text for block, text in said.items() if "snowmelt.read" in block)
    assert "only showing top 20 rows" in frame
    assert PASSWORD not in "".join(said.values())


@pytest.mark.timeout(300)
def test_commands_of_fluss_name_the_extra_that_is_missing(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "tiering.yaml").write_text(
        'fluss: {bootstrap: "127.0.0.1:1"}\nlake: {type: paimon, warehouse: lake}\ntiering: {name: test}\n'
    )
    (tmp_path / "pipeline.yaml").write_text(
        "source: {type: mysql, host: 127.0.0.1, username: repl, tables: shop.*}\n"
        'sink: {type: fluss, bootstrap: "127.0.0.1:1"}\npipeline: {name: test, state: state}\n'
    )
    for command in (["tier", "tiering.yaml"], ["run", "pipeline.yaml"], ["check", "pipeline.yaml"]):
        ran = subprocess.run(
            [installed.parent / "snowmelt", *command], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=STEP_S_MAX
        )
        assert ran.returncode == 2, ran.stderr
        assert "pip install 'snowmelt[fluss]'" in ran.stderr
        assert "Traceback" not in ran.stderr
    loaded = "import snowmelt, sys; snowmelt.Pipeline, snowmelt.read, snowmelt.union_read; print('google.protobuf' in sys.modules)"
    assert subprocess.check_output([installed, "-c", loaded], text=True).strip() == "False"


def test_a_placeholder_that_is_not_known_is_an_error(tmp_path: Path) -> None:
    server = Server.__new__(Server)
    server.port = 4711
    user = User(tmp_path, Path(sys.executable), server)
    assert "--port 4711" in user.placed("snowmelt check --host db.example.com")
    with pytest.raises(AssertionError, match="a placeholder is not known"):
        user.placed("snowmelt check other.example.com")
