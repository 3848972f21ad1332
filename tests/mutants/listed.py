"""All mutants, by seed."""

from __future__ import annotations

from typing import Final

from tests.mutants import Mutant, commit, ground, heart, leases, recovery, release

MUTANTS: Final[tuple[Mutant, ...]] = (
    *release.MUTANTS,
    *commit.MUTANTS,
    *recovery.MUTANTS,
    *leases.MUTANTS,
    *heart.MUTANTS,
    *ground.MUTANTS,
)
