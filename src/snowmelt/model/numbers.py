"""Kinds of numbers that must not be mixed up. At run time they are plain integers; the type checker tells them apart."""

from __future__ import annotations

from typing import Final, NewType

EpochNumber = NewType("EpochNumber", int)
"""The number of an intent: dense, and the identifier of its commit in the lake. Epoch 0 is before the first."""

GenerationNumber = NewType("GenerationNumber", int)
"""The number of a driver: a newer driver has a greater one."""

LogOffset = NewType("LogOffset", int)
"""A place on the number line of a pipeline (`model.sequence`). An offset in a file of a server's log is another number (`Position`)."""

SequenceNumber = NewType("SequenceNumber", int)
"""What `_seq` holds: the greatest one of a key wins (`model.sequence`)."""

NO_EPOCH: Final = EpochNumber(0)
NO_GENERATION: Final = GenerationNumber(0)
"""Before the first epoch."""

BEGINNING: Final = LogOffset(0)
"""Of the number line."""
