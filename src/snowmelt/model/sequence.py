"""The number line of a pipeline, and the sequence that decides which row wins.

An *offset* is a place on that line: the number of bytes that the relay ever captured up to there. It grows over files, eras and servers,
so it orders what file names and positions of several servers can't. All other places are such offsets: `V`, `h`, `s`, `e` and the place
`p` of a change, which is the end of its transaction's commit.

`_seq` is written with every row. A change has twice its offset. A row that a chunk read has one more than twice the offset of
`V`, the cut that was proven visible when the read was launched. So it is above every change up to `V`, which the read contains, and
below every change after `V`, which is also in the read or must win over it.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from snowmelt.model.numbers import LogOffset, SequenceNumber

Offsets = TypeVar("Offsets", int, npt.NDArray[np.int64])
"""One offset, or a column of them."""


def of_change(offset: Offsets) -> Offsets:
    """The sequence of a change whose transaction ends at `offset`."""
    return 2 * offset


def of_chunk(visible: LogOffset) -> SequenceNumber:
    """The sequence of the rows, and of the deletes, of a chunk that was launched when `visible` was proven so."""
    return SequenceNumber(2 * visible + 1)
