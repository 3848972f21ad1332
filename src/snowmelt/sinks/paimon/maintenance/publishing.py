"""Whether a rewrite may take the place of its inputs, and the snapshot by which it does.

Laws:
- A try judges the very snapshot that it builds on, and the next one is an exclusive create. So what was judged still holds.
- A snapshot of ours tells by a property which rewrite it is. So after a lost answer the same call finds it, also if its files were
  compacted again. Where snapshots are missing, a reference to an output tells.
- The marker of our newest commit is carried on. Without one that can be found nothing is published into a table of a pipeline: a newer
  driver may have been there, and may have deleted the outputs.
- The commit user is our own. That of Fluss' tiering would make a round of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from snowmelt import budgets
from snowmelt.commit.records import Staged, StagedName
from snowmelt.errors import Corrupt, check
from snowmelt.maintenance.files import Rewrite
from snowmelt.model.numbers import GenerationNumber
from snowmelt.sinks.contract import SEQUENCE
from snowmelt.sinks.maintenance import GivenUp
from snowmelt.sinks.paimon.folders import TableFolder
from snowmelt.sinks.paimon.maintenance.files import inputs_of, maintainable
from snowmelt.sinks.paimon.markers import carried, generation_of, marker_of
from snowmelt.sinks.paimon.references import live_entries, referenced_files
from snowmelt.sinks.paimon.table import (
    crowded,
    file_path,
    identity_of,
    latest_snapshot,
    messages_of,
    publish,
    store_of,
    sync_folders,
)

USER: Final = "snowmelt-maintenance"
REWRITE: Final = "snowmelt.rewrite"
_IDENTIFIER: Final = 2**63 - 1
"""As batch jobs of Paimon have it: nothing is told by it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Past:
    """What the snapshots from the newest down tell."""

    done: int | None = None
    """The one that has the rewrite."""
    whole: bool
    """None is missing after the one in which the inputs were seen, so that the rewrite is in none."""
    marked: Any
    """The newest with a marker of ours."""
    hidden: bool
    """One is missing above it, which may have had another."""


def publish_rewrites(open_table: Any, work: Sequence[Rewrite], staged: Sequence[Staged], generation: GenerationNumber) -> int | GivenUp:
    """`open_table` loads the table anew."""
    check(len({(one.target, one.identity) for one in work}) == 1 and len(work) == len(staged), "rewrites of several tables are one")
    rewrite = _identity(work, staged)
    for _ in budgets.PAIMON_COMMIT.tries():
        table = maintainable(open_table())
        if identity_of(table) != work[0].identity:
            return GivenUp("the table is another one")
        latest = latest_snapshot(table)
        if latest is None:
            return GivenUp("the table has no snapshot any more")
        past = _look_back(table, latest, min(one.snapshot for one in work), rewrite)
        done = past.done
        if done is None and not past.whole and not referenced_files(table).isdisjoint(name for part in staged for name in part.files):
            done = int(latest.id)
        if done is not None:
            sync_folders(table, ["snapshot"])
            return done
        entries = live_entries(table, latest, {one.bucket for one in work})
        messages = [_message(table, one, part, entries) for one, part in zip(work, staged, strict=True)]
        why = next((message for message in messages if isinstance(message, str)), "") or _fenced(table, past, entries, generation)
        if why:
            return GivenUp(why)
        folder = TableFolder(store_of(table), work[0].identity)
        properties = {**(carried(past.marked.properties) if past.marked is not None else {}), REWRITE: rewrite}
        if publish(table, latest, messages, user=USER, identifier=_IDENTIFIER, properties=properties, kind="COMPACT", folder=folder):
            return int(latest.id) + 1
    raise crowded(work[0].target)


def _identity(work: Sequence[Rewrite], staged: Sequence[Staged]) -> str:
    """Differs for any two rewrites, also of the same files."""
    told = "\n".join(f"{one.partition!r} {one.bucket} {one.inputs!r} {part.files!r}" for one, part in zip(work, staged, strict=True))
    return hashlib.sha256(told.encode()).hexdigest()[:32]


def _look_back(table: Any, latest: Any, since: int, rewrite: str) -> _Past:
    manager = table.snapshot_manager()
    marked, whole, hidden = None, True, False
    for number in range(latest.id, 0, -1):
        if number <= since and (marked is not None or hidden):
            break
        snapshot = latest if number == latest.id else manager.get_snapshot_by_id(number)
        if snapshot is None:
            whole = whole and number <= since
            hidden = hidden or marked is None
        elif snapshot.commit_user == USER and (snapshot.properties or {}).get(REWRITE) == rewrite:
            return _Past(done=int(snapshot.id), whole=whole, marked=marked, hidden=hidden)
        elif marked is None and marker_of(snapshot) is not None:
            marked = snapshot
    return _Past(whole=whole, marked=marked, hidden=hidden)


def _fenced(table: Any, past: _Past, entries: Iterable[Any], generation: GenerationNumber) -> str:
    """Why no one of this generation may publish; empty: it may."""
    if not any(field.name == SEQUENCE for field in table.fields):
        # Of Fluss' tiering, which has no generations.
        return ""
    if past.hidden:
        return "no snapshot tells which driver has committed to the table last"
    marker = marker_of(past.marked) if past.marked is not None else None
    if marker is not None and generation_of(marker) > generation:
        return "a newer driver has committed to the table"
    for entry in entries:
        try:
            newer = StagedName.parse(entry.file.file_name).generation > generation
        except Corrupt:
            continue
        if newer:
            return "a newer driver's files are in the table"
    return ""


def _message(table: Any, work: Rewrite, staged: Staged, entries: Sequence[Any]) -> Any:
    """What is published of a rewrite, or as a text why it is not."""
    from pypaimon.write.commit_message import CommitMessage

    inputs = inputs_of(entries, work.partition, work.bucket, work.inputs)
    if inputs is None:
        return "an input is not in the table any more"
    files = [file for message in messages_of(table, staged.messages) for file in message.new_files]
    check(tuple(file.file_name for file in files) == staged.files, "a rewrite's messages name other files than it", work.target)
    taken = {entry.file.file_name for entry in inputs}
    others = [
        entry.file
        for entry in entries
        if (tuple(entry.partition.values), entry.bucket, entry.file.level) == (work.partition, work.bucket, work.level)
        and entry.file.file_name not in taken
    ]
    if work.level and any(_overlap(file, other) for file in files for other in others):
        return "the output's level has a file with the same keys"
    for file in files:
        if not table.file_io.exists(file_path(table, work.partition, work.bucket, file.file_name)):
            return "an output is gone"
    return CommitMessage(
        work.partition, work.bucket, files, deleted_files=[entry.file for entry in inputs], total_buckets=inputs[0].total_buckets
    )


def _overlap(one: Any, other: Any) -> bool:
    return bool(tuple(one.min_key.values) <= tuple(other.max_key.values) and tuple(other.min_key.values) <= tuple(one.max_key.values))
