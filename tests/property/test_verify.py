"""What `verify` says under any interleaving: no alarm is false, and no row that stays wrong is missed."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from hypothesis import given, settings
from hypothesis import strategies as st

from snowmelt.databases.comparing.rows import Hashes, RowHashes, SourceRows
from snowmelt.verify.rounds import LakeRows, find_wrong

KEYS = 4
Table = dict[int, int]
"""Key and value: 0 is no value."""


@dataclass
class Model:
    """A source whose history is written step by step, a lake that lags behind it, and a lie in the lake.

    Every answer first lets time pass: `pace` says how many changes happen before it, and how much of them is in it.
    """

    history: list[tuple[int, int]]
    """Changes still to come: key and new value, 0 for a delete."""
    pace: list[int]
    lie: tuple[int, int] | None
    """What the lake says of a key instead of the truth, until the key changes again."""
    exact: bool
    keyed: bool = True
    happened: list[tuple[int, int]] = field(default_factory=list)
    looks: list[int] = field(default_factory=list)
    """Where the lake was when it was read."""

    def _pass(self) -> int:
        steps = self.pace.pop(0) if self.pace else 0
        self.happened += self.history[:steps]
        del self.history[:steps]
        return self.pace.pop(0) if self.pace else 0

    def truth(self, place: int) -> Table:
        table = {key: 10 + key for key in range(KEYS)}
        for key, value in self.happened[:place]:
            table[key] = value
        return {key: value for key, value in table.items() if value}

    def held(self, place: int) -> Table:
        table = self.truth(place)
        if self.lie is not None and all(key != self.lie[0] for key, _ in self.happened[:place]):
            table[self.lie[0]] = self.lie[1]
        return {key: value for key, value in table.items() if value}

    def _rows(self, table: Table) -> RowHashes:
        keys = [key if self.keyed else value * 100 + key for key, value in table.items()]
        values = [value * 100 + key for key, value in table.items()]
        return RowHashes.of(np.array(keys, np.uint64), np.array(values, np.uint64))

    def source(self, classes: npt.NDArray[np.int64]) -> SourceRows:
        unsure = self._pass()
        high = len(self.happened)
        if self.exact:
            return SourceRows(self._rows(self.truth(high)), high, high)
        low = max(0, high - unsure)
        return SourceRows(self._rows(self.truth((low + high) // 2)), low, high)

    def lake(self, classes: npt.NDArray[np.int64], after: int) -> LakeRows:
        behind = self._pass()
        place = max(after, len(self.happened) - behind)
        self.looks.append(place)
        return LakeRows(self._rows(self.held(place)), place)

    def changes(self, after: int, upto: int) -> RowHashes:
        before, parts = self.truth(after), []
        touched: Table = {}
        for key, value in self.happened[after:upto]:
            old = touched.get(key, before.get(key, 0))
            for gone, count in ((old, -1), (value, 1)):
                if gone:
                    parts.append((gone * 100 + key, count))
            touched[key] = value
        if self.keyed:
            keys = np.array(list(touched), np.uint64)
            rows = np.array([value * 100 + key for key, value in touched.items()], np.uint64)
            return RowHashes(keys, rows, np.array([int(value > 0) for value in touched.values()], np.int64))
        hashes = np.array([row for row, _ in parts], np.uint64)
        return RowHashes(hashes, hashes, np.array([count for _, count in parts], np.int64))

    def classes(self, keys: Hashes, among: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return among


changes = st.tuples(st.integers(0, KEYS - 1), st.integers(0, 3))
lies = st.none() | st.tuples(st.integers(0, KEYS), st.integers(0, 3) | st.just(99))
models = st.builds(Model, st.lists(changes, max_size=12), st.lists(st.integers(0, 4), max_size=14), lies, st.booleans(), st.booleans())


def wrong_at(model: Model, place: int) -> set[int]:
    truth, held = model._rows(model.truth(place)), model._rows(model.held(place))
    theirs, ours = (set(zip(rows.keys.tolist(), rows.rows.tolist(), strict=True)) for rows in (truth, held))
    return {key for key, _ in theirs ^ ours}


@settings(max_examples=2000, deadline=None)
@given(models, st.integers(1, 3))
def test_no_alarm_is_false_and_no_row_that_stays_wrong_is_missed(model: Model, rounds: int) -> None:
    wrong = find_wrong(model, np.zeros(1, np.int64), keyed=model.keyed, rounds_max=rounds)
    told, last = set(wrong.keys.tolist()), model.looks[-1]
    assert told <= wrong_at(model, last), "a row is called wrong that was right when the lake was read"
    if model.lie is not None and all(key != model.lie[0] for key, _ in model.happened):
        # Nothing heals the lie, nor does the source ever say the same.
        assert told == wrong_at(model, last), "a row that was wrong all the time was not told"
