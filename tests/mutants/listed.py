"""All mutants, by seed."""

from __future__ import annotations

from typing import Final

from tests.mutants import (
    Mutant,
    commit,
    ground,
    heart,
    leases,
    maintenance,
    notices,
    partitions,
    recovery,
    release,
    rescale,
    runs,
    truth,
    upkeep,
)

MUTANTS: Final[tuple[Mutant, ...]] = (
    *release.MUTANTS,
    *commit.MUTANTS,
    *maintenance.MUTANTS,
    *notices.MUTANTS,
    *recovery.MUTANTS,
    *leases.MUTANTS,
    *heart.MUTANTS,
    *truth.MUTANTS,
    *ground.MUTANTS,
    *upkeep.MUTANTS,
    *runs.MUTANTS,
    *rescale.MUTANTS,
    *partitions.MUTANTS,
)
