"""Which sinks there are. Only this module knows them by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from snowmelt.credentials import Secret
from snowmelt.errors import InvalidConfig
from snowmelt.fluss.target import FlussTarget
from snowmelt.sinks.contract import LakeReader, Sink
from snowmelt.sinks.maintenance import Maintenance
from snowmelt.sinks.paimon import shape
from snowmelt.sinks.paimon.sink import PaimonSink
from snowmelt.sinks.paimon.tiering import PaimonTieringSink
from snowmelt.sinks.tiering import TieringSink
from snowmelt.sinks.warehouse import Warehouse
from snowmelt.store.objects import BucketAddress


def open_sink(warehouse: str | Warehouse, fluss: FlussTarget | None, *, user: str, state: Path | BucketAddress) -> Sink:
    if fluss is None:
        return PaimonSink(warehouse, user=user)
    # Fluss is an extra: its libraries are imported where they are used.
    try:
        from snowmelt.sinks.fluss.sink import FlussSink
    except ImportError as error:
        raise InvalidConfig("what Fluss needs is not installed", detail=error.name or "", hint="pip install 'snowmelt[fluss]'") from error
    return FlussSink(fluss, state)


def open_reader(warehouse: str | Warehouse, *, user: str) -> LakeReader:
    return PaimonSink(warehouse, user=user)


def open_tiering(warehouse: str, *, remote: Mapping[str, str | Secret] | None = None) -> TieringSink:
    """`remote`: obstore's options for Fluss' remote storage, where files of offsets are."""
    return PaimonTieringSink(warehouse, remote=remote)


def open_maintenance(warehouse: str | Warehouse) -> Maintenance:
    """Of tables in a lake: those of Fluss have no files of ours."""
    # It loads kernels, which most processes do without.
    from snowmelt.sinks.paimon.maintenance.care import PaimonMaintenance

    return PaimonMaintenance(warehouse)


def warm() -> None:
    """Compile or load what tasks of any sink need, in the process that workers are forked from."""
    from snowmelt.sinks.paimon.maintenance.warming import warm as warm_paimon

    warm_paimon()


def task_kernels() -> Sequence[Any]:
    """The kernels that `warm` calls."""
    from snowmelt.sinks.paimon.maintenance.warming import ENTRIES

    return ENTRIES


def wrong_name(names: Iterable[str]) -> str:
    """What is wrong with the names of a source's columns; empty: nothing."""
    return shape.wrong_name(names)


def preload() -> None:
    """Import what tasks of any sink need, in the process that workers are forked from."""
    import pypaimon.write.commit_message_serializer
    import pypaimon.write.native_commit  # noqa: F401
