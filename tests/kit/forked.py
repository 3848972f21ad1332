"""Processes of ours that are to be killed, forked from one that has read its libraries: to read them is most of a start.

They are forked from a server of Python's, which has no threads and nothing of the test in it. Each is in a session of its own.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

forkserver = multiprocessing.get_context("forkserver")
# One list of all that any of them needs: a process of tests has one such server, and the last list that it was given counts.
forkserver.set_forkserver_preload(
    [
        "pypaimon.catalog.catalog_factory",
        "pypaimon.catalog.filesystem_catalog",
        "pypaimon.manifest.manifest_list_manager",
        "pypaimon.table.file_store_table",
        "pypaimon.write.commit_message_serializer",
        "pypaimon.write.file_store_commit",
        "pypaimon.write.native_commit",
        "pypaimon_rust.datafusion",
        "snowmelt.sinks.paimon.tiering",
        "tests.integration.pipeline_process",
        "tests.integration.tiered_tables",
        "tests.integration.tiering_process",
    ]
)


def _run(module: str, arguments: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
    os.setsid()
    with open(log, "ab") as said:
        for output in (1, 2):
            os.dup2(said.fileno(), output)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [module, *arguments]
    importlib.import_module(module).main()


class Forked:
    """`main` of a module, as `python -m` would run it."""

    def __init__(self, module: str, arguments: Sequence[str], *, environment: Mapping[str, str], log: Path) -> None:
        self._process = forkserver.Process(target=_run, args=(module, arguments, dict(environment), log), daemon=True)
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, seconds_max: float) -> int | None:
        self._process.join(seconds_max)
        return self._process.exitcode

    def kill(self) -> None:
        """With all that it has started."""
        # It may be so young that it has no session yet.
        for end in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError):
                end(self.pid, signal.SIGKILL)
        self._process.join()
