"""The snapshot by which a rewrite takes the place of its inputs, if it may (`maintenance.publishing`).

Laws:
- A try judges the very snapshot that it builds on, and the next one is an exclusive create. So what was judged still holds.
- A snapshot of ours tells by a property which rewrite it is.
- The marker of our newest commit is carried on.
- What is given up is never published: its outputs are deleted. An earlier try on the same snapshot may have no answer yet. So a try is
  given up only for what held then, too.
- The commit user is our own. That of Fluss' tiering would make a round of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, Final

from snowmelt import budgets
from snowmelt.commit.records import Staged
from snowmelt.errors import Unavailable, check, present
from snowmelt.maintenance.files import Rewrite
from snowmelt.maintenance.publishing import PlacedFile, SnapshotNote, fenced, look_back, misplaced
from snowmelt.model.numbers import GenerationNumber
from snowmelt.sinks.contract import SEQUENCE
from snowmelt.sinks.maintenance import GivenUp
from snowmelt.sinks.paimon.folders import TableFolder
from snowmelt.sinks.paimon.maintenance.files import inputs_of, maintainable
from snowmelt.sinks.paimon.markers import carried, marker_of
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


def publish_rewrites(open_table: Any, work: Sequence[Rewrite], staged: Sequence[Staged], generation: GenerationNumber) -> int | GivenUp:
    """`open_table` loads the table anew. `Unavailable`: nothing is published now, and an earlier call may have."""
    check(len({(one.target, one.identity) for one in work}) == 1 and len(work) == len(staged), "rewrites of several tables are one")
    rewrite = _identity(work, staged)
    for _ in budgets.PAIMON_COMMIT.tries():
        table = maintainable(open_table())
        if identity_of(table) != work[0].identity:
            return GivenUp("the table is another one")
        latest = latest_snapshot(table)
        if latest is None:
            return GivenUp("the table has no snapshot any more")
        seen: dict[int, Any] = {}
        past = look_back(_notes(table, latest, seen), since=min(one.snapshot for one in work), rewrite=rewrite)
        done = past.done
        if done is None and not past.whole and not referenced_files(table).isdisjoint(name for part in staged for name in part.files):
            done = int(latest.id)
        if done is not None:
            sync_folders(table, ["snapshot"])
            return done
        entries = live_entries(table, latest, {one.bucket for one in work})
        messages = [_message(table, one, part, entries) for one, part in zip(work, staged, strict=True)]
        why = next((message for message in messages if isinstance(message, str)), "")
        if not why and _is_ours(table):
            why = fenced(past, (entry.file.file_name for entry in entries), generation)
        if why:
            return GivenUp(why)
        if past.hidden and _is_ours(table):
            # An earlier try, whose answer was lost, may still come to this number: it was judged when a commit could be found.
            hint = "let other programs keep the snapshots that our consumer holds; it continues with the next rows of its source"
            fact = "no snapshot of a lake table tells which driver has committed last"
            raise Unavailable(fact, detail=work[0].target, hint=hint)
        folder = TableFolder(store_of(table), work[0].identity)
        marked = carried(seen[past.marker.snapshot].properties) if past.marker is not None else {}
        properties = {**marked, REWRITE: rewrite}
        if publish(table, latest, messages, user=USER, identifier=_IDENTIFIER, properties=properties, kind="COMPACT", folder=folder):
            return int(latest.id) + 1
    raise crowded(work[0].target)


def _identity(work: Sequence[Rewrite], staged: Sequence[Staged]) -> str:
    """Differs for any two rewrites, also of the same files."""
    told = "\n".join(f"{one.partition!r} {one.bucket} {one.inputs!r} {part.files!r}" for one, part in zip(work, staged, strict=True))
    return hashlib.sha256(told.encode()).hexdigest()[:32]


def _notes(table: Any, latest: Any, seen: dict[int, Any]) -> Iterator[tuple[int, SnapshotNote | None]]:
    """From the newest down. `seen` gets what was read."""
    manager = table.snapshot_manager()
    for number in range(latest.id, 0, -1):
        snapshot = latest if number == latest.id else manager.get_snapshot_by_id(number)
        if snapshot is None:
            yield number, None
        else:
            seen[number] = snapshot
            ours = (snapshot.properties or {}).get(REWRITE, "") if snapshot.commit_user == USER else ""
            yield number, SnapshotNote(ours, marker_of(snapshot))


def _is_ours(table: Any) -> bool:
    """A pipeline's table. One of Fluss' tiering has no generations."""
    return any(field.name == SEQUENCE for field in table.fields)


def _message(table: Any, work: Rewrite, staged: Staged, entries: Sequence[Any]) -> Any:
    """What is published of a rewrite, or as a text why it is not."""
    from pypaimon.write.commit_message import CommitMessage

    files = [file for message in messages_of(table, staged.messages) for file in message.new_files]
    check(tuple(file.file_name for file in files) == staged.files, "a rewrite's messages name other files than it", work.target)
    there = [entry.file for entry in entries if (tuple(entry.partition.values), entry.bucket) == (work.partition, work.bucket)]
    if why := misplaced(work, [_placed(work, file) for file in files], [_placed(work, file) for file in there]):
        return why
    for file in files:
        if not table.file_io.exists(file_path(table, work.partition, work.bucket, file.file_name)):
            return "an output is gone"
    inputs = present(inputs_of(entries, work.partition, work.bucket, work.inputs), "an input is gone from a list that had it", work.target)
    return CommitMessage(
        work.partition, work.bucket, files, deleted_files=[entry.file for entry in inputs], total_buckets=inputs[0].total_buckets
    )


def _placed(work: Rewrite, file: Any) -> PlacedFile:
    """Of files of level 0 nothing is asked: they may overlap."""
    least, greatest = (tuple(file.min_key.values), tuple(file.max_key.values)) if work.level and file.level else ((), ())
    return PlacedFile(file.file_name, file.level, least, greatest)
