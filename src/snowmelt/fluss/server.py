"""A private Fluss server in a folder: ZooKeeper, coordinator and one tablet server, on loopback, for trying out and for tests.

server = FlussServer.make(folder, FlussSettings(kv_snapshot_interval_s=2))
server.start()                        # returns when tables can be made
server.kill(ServerProcess.COORDINATOR)
server.start()                        # starts what does not run; same data, same ports
server.stop()

Laws. The folder holds everything except the jars: settings and ports, data, logs, and the id of each process. A process is ended by
its id, and only if its command line names this folder. A start is over when the server answers, a stop when the process has ended:
the next process never uses a port or a folder that the last one may still have.

There is neither authentication nor encryption, so it listens on loopback only.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from snowmelt.errors import InvalidConfig, SnowmeltError, Unavailable
from snowmelt.fluss.client import FlussClient
from snowmelt.fluss.jars import fetch_jars
from snowmelt.fluss.rpc import FlussConnection

HOST: Final = "127.0.0.1"
START_S_MAX: Final = 120.0
STOP_S_MAX: Final = 30.0
_PAUSE_S: Final = 0.05
_LOG_CHARS: Final = 1500
_DESCRIPTION: Final = "fluss.json"


class ServerProcess(Enum):
    """The processes, in the order of their start."""

    ZOOKEEPER = "zookeeper"
    COORDINATOR = "coordinator"
    TABLET = "tablet"


_MAIN: Final = {
    ServerProcess.ZOOKEEPER: "org.apache.fluss.shaded.zookeeper3.org.apache.zookeeper.server.quorum.QuorumPeerMain",
    ServerProcess.COORDINATOR: "org.apache.fluss.server.coordinator.CoordinatorServer",
    ServerProcess.TABLET: "org.apache.fluss.server.tablet.TabletServer",
}
_HEAP_MB: Final = {ServerProcess.ZOOKEEPER: 128, ServerProcess.COORDINATOR: 256, ServerProcess.TABLET: 512}


@dataclass(frozen=True, slots=True, kw_only=True)
class FlussSettings:
    """Settings that differ from Fluss' own defaults, or may need to."""

    kv_snapshot_interval_s: float = 60.0
    kv_snapshots_retained: int = 2
    lease_check_interval_s: float = 60.0
    """How often the coordinator searches for expired leases."""
    buckets: int = 1
    """For a table that sets no number itself."""
    lake: bool = True
    """The coordinator makes a Paimon table for each table with `table.datalake.enabled`, in `lake` below the folder."""
    session_timeout_s: float = 30.0
    """How long a killed coordinator counts as alive, and keeps the next one from starting."""
    more: tuple[tuple[str, str], ...] = ()
    """Other settings of Fluss, by its own names."""


class FlussServer:
    """One folder's server. Several processes may read it; only one at a time starts and stops it."""

    def __init__(self, folder: Path, settings: FlussSettings, ports: dict[ServerProcess, int], *, before: Sequence[str] = ()) -> None:
        """Use `make` or `open`. `before` is put in front of each command line."""
        self.folder = folder
        self.settings = settings
        self._ports = ports
        self._before = before
        self._children: dict[ServerProcess, subprocess.Popen[bytes]] = {}

    @classmethod
    def make(cls, folder: Path, settings: FlussSettings | None = None, *, before: Sequence[str] = ()) -> FlussServer:
        """A new one, in a folder that is empty or missing. Nothing is started yet."""
        folder = folder.absolute()
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise InvalidConfig("the folder for a Fluss server is not empty, and none of Fluss'", detail=str(folder))
        settings = settings or FlussSettings()
        ports = dict(zip(ServerProcess, _free_ports(len(ServerProcess)), strict=True))
        for name in ("conf", "log", "data"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        written = {"settings": asdict(settings), "ports": {part.value: port for part, port in ports.items()}}
        (folder / _DESCRIPTION).write_text(json.dumps(written, indent=2))
        server = cls(folder, settings, ports, before=before)
        server._write_settings()
        return server

    @classmethod
    def open(cls, folder: Path) -> FlussServer:
        """The existing server of a folder."""
        folder = folder.absolute()
        try:
            said = json.loads((folder / _DESCRIPTION).read_text())
            more = tuple((name, value) for name, value in said["settings"].pop("more"))
            settings = FlussSettings(**said["settings"], more=more)
            return cls(folder, settings, {ServerProcess(name): int(port) for name, port in said["ports"].items()})
        except FileNotFoundError:
            hint = "`snowmelt fluss up` makes one"
            raise InvalidConfig("there is no Fluss server in the folder", detail=str(folder), hint=hint) from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InvalidConfig("the description of the Fluss server can't be read", detail=str(folder / _DESCRIPTION)) from error

    @property
    def bootstrap(self) -> str:
        """The address for clients: the coordinator."""
        return f"{HOST}:{self._ports[ServerProcess.COORDINATOR]}"

    @property
    def warehouse(self) -> Path:
        """Of the Paimon tables that the coordinator makes."""
        return self.folder / "lake"

    @property
    def remote(self) -> Path:
        """Fluss' remote storage: KV snapshots, leases, old segments of logs."""
        return self.folder / "data" / "remote"

    def port(self, part: ServerProcess) -> int:
        return self._ports[part]

    def log(self, part: ServerProcess) -> Path:
        return self.folder / "log" / f"{part.value}.log"

    def connect(self, part: ServerProcess = ServerProcess.COORDINATOR, *, timeout_s: float = 10.0) -> FlussConnection:
        return FlussConnection(HOST, self._ports[part], timeout_s=timeout_s)

    def pid(self, part: ServerProcess) -> int | None:
        """The process of this part of this server, if it runs."""
        child = self._children.get(part)
        if child is not None:
            return child.pid if child.poll() is None else None
        try:
            pid = int(self._pid_file(part).read_text())
        except (FileNotFoundError, ValueError):
            return None
        return pid if self._mark(part) in _command_line(pid) else None

    def start(self) -> None:
        """Start what does not run, and return when all of it answers. `Unavailable`, with the end of a log, if it does not come up."""
        jars = fetch_jars()
        started = []
        try:
            for part in ServerProcess:
                if self.pid(part) is None:
                    self._launch(part, jars)
                    started.append(part)
                # The other two find ZooKeeper at once, or only after seconds.
                if part is ServerProcess.ZOOKEEPER:
                    self._await(part, self._zookeeper_answers)
            self._await(ServerProcess.COORDINATOR, self._coordinator_answers)
            self._await(ServerProcess.TABLET, self._tablet_answers)
        except BaseException:
            for part in reversed(started):
                self.kill(part)
            raise

    def stop(self, *parts: ServerProcess) -> None:
        """Stop these parts, or all, in order. A part that does not run is skipped."""
        for part in reversed(ServerProcess):
            if not parts or part in parts:
                self._end(part, signal.SIGTERM)

    def kill(self, *parts: ServerProcess) -> None:
        """The same by SIGKILL."""
        for part in reversed(ServerProcess):
            if not parts or part in parts:
                self._end(part, signal.SIGKILL)

    # ---- processes

    def _launch(self, part: ServerProcess, jars: Path) -> None:
        command = [
            *self._before,
            _java(),
            self._mark(part),
            f"-Xmx{_HEAP_MB[part]}m",
            "-XX:+UseSerialGC",
            "--add-opens=java.base/java.nio=ALL-UNNAMED",
            "-Dorg.slf4j.simpleLogger.showDateTime=true",
            "-Dzookeeper.forceSync=no",
            "-cp",
            f"{jars}/*",
            _MAIN[part],
        ]
        data = self.folder / "data" / part.value
        match part:
            case ServerProcess.ZOOKEEPER:
                command.append(str(self.folder / "conf" / "zoo.properties"))
            case ServerProcess.COORDINATOR | ServerProcess.TABLET:
                listeners = self._listeners(part)
                command += ["--configDir", str(self.folder / "conf"), "-D", f"bind.listeners={listeners}", "-D", f"data.dir={data}"]
                if part is ServerProcess.TABLET:
                    command += ["-D", "tablet-server.id=0"]
        with open(self.log(part), "ab") as log:
            child = subprocess.Popen(command, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        self._children[part] = child
        self._pid_file(part).write_text(str(child.pid))

    def _listeners(self, part: ServerProcess) -> str:
        return f"FLUSS://{HOST}:{self._ports[part]}"

    def _await(self, part: ServerProcess, answers: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_S_MAX
        while True:
            refused = ""
            try:
                if answers():
                    return
            except (SnowmeltError, OSError) as error:
                refused = str(error)
            if self.pid(part) is None:
                raise Unavailable(f"Fluss' {part.value} ended", detail=self._log_end(part))
            if time.monotonic() > deadline:
                raise Unavailable(f"Fluss' {part.value} does not answer", detail=f"{refused}\n{self._log_end(part)}")
            time.sleep(_PAUSE_S)

    def _zookeeper_answers(self) -> bool:
        with socket.create_connection((HOST, self._ports[ServerProcess.ZOOKEEPER]), 5) as asked:
            asked.sendall(b"ruok")
            return asked.recv(4) == b"imok"

    def _coordinator_answers(self) -> bool:
        with self.connect() as connection:
            found = FlussClient(connection).cluster().coordinator
        return found is not None and found.port == self._ports[ServerProcess.COORDINATOR]

    def _tablet_answers(self) -> bool:
        with self.connect() as connection:
            found = FlussClient(connection).cluster().tablets
        if not any(node.port == self._ports[ServerProcess.TABLET] for node in found.values()):
            return False
        self.connect(ServerProcess.TABLET).close()
        return True

    def _end(self, part: ServerProcess, how: signal.Signals) -> None:
        pid = self.pid(part)
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, how)
            deadline = time.monotonic() + STOP_S_MAX
            while self.pid(part) is not None:
                if time.monotonic() > deadline:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                time.sleep(_PAUSE_S)
        self._children.pop(part, None)
        self._pid_file(part).unlink(missing_ok=True)

    def _mark(self, part: ServerProcess) -> str:
        """The text by which a process of this folder is recognised."""
        return f"-Dsnowmelt.fluss={part.value}:{str(self.folder).replace(' ', '%20')}"

    def _pid_file(self, part: ServerProcess) -> Path:
        return self.folder / f"{part.value}.pid"

    def _log_end(self, part: ServerProcess) -> str:
        with contextlib.suppress(OSError):
            return self.log(part).read_text(errors="replace")[-_LOG_CHARS:]
        return ""

    # ---- settings

    def _write_settings(self) -> None:
        ours = self.settings
        zookeeper = {
            "dataDir": str(self.folder / "data" / ServerProcess.ZOOKEEPER.value),
            "clientPort": str(self._ports[ServerProcess.ZOOKEEPER]),
            "clientPortAddress": HOST,
            "maxClientCnxns": "0",
            "admin.enableServer": "false",
            "tickTime": "500",
            "4lw.commands.whitelist": "ruok",
        }
        fluss = {
            "zookeeper.address": f"{HOST}:{self._ports[ServerProcess.ZOOKEEPER]}",
            "zookeeper.client.session-timeout": _duration(ours.session_timeout_s),
            "default.bucket.number": str(ours.buckets),
            "default.replication.factor": "1",
            "remote.data.dir": str(self.remote),
            "kv.snapshot.interval": _duration(ours.kv_snapshot_interval_s),
            "kv.snapshot.num-retained": str(ours.kv_snapshots_retained),
            "kv.snapshot.lease.expiration-check-interval": _duration(ours.lease_check_interval_s),
        }
        if ours.lake:
            fluss |= {
                "datalake.format": "paimon",
                "datalake.paimon.metastore": "filesystem",
                "datalake.paimon.warehouse": str(self.warehouse),
            }
        fluss |= dict(ours.more)
        (self.folder / "conf" / "zoo.properties").write_text("".join(f"{name}={value}\n" for name, value in zookeeper.items()))
        (self.folder / "conf" / "server.yaml").write_text("".join(f"{name}: {value}\n" for name, value in fluss.items()))


def _command_line(pid: int) -> list[str]:
    """Of a process, if there is one."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
    except OSError:
        if Path("/proc/self").exists():
            return []
        shown = subprocess.run(["ps", "-ww", "-o", "command=", "-p", str(pid)], capture_output=True, text=True, check=False)
        return shown.stdout.split()


def _duration(seconds: float) -> str:
    return f"{round(seconds * 1000)}ms"


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=f"{home}/bin") if home else None
    found = found or shutil.which("java")
    if found is None:
        raise InvalidConfig("Java is not installed", hint="Fluss needs Java 11 or newer; on Debian: apt-get install default-jre-headless")
    return found


def _free_ports(count: int) -> list[int]:
    """Below the ports that the kernel gives to outgoing connections, so that no connection takes one while its process is down."""
    with contextlib.ExitStack() as held:
        ports: list[int] = []
        while len(ports) < count:
            probe = held.enter_context(socket.socket())
            port = random.randint(15_000, 32_000)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            ports.append(port)
        return ports
