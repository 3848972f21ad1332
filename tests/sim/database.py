"""A model database: transactions that are logged before they are visible and become visible in any order, row locks until then,
key changes, statements that empty, remake or reshape a table, transactions of two phases, files that end, fail-over that loses a
tail."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from snowmelt.model.position import Position
from snowmelt.model.table import TableId
from snowmelt.relay.retention import Effect

STEP_MS = 60_000
"""How far the database's clock goes with each step of the world."""
Value = int | None
"""None: the row is gone."""


@dataclass(frozen=True, slots=True)
class Change:
    table: TableId
    key: int
    value: Value
    came_from: int | None = None
    """The key that the row had before. That it left there is a change of its own."""


@dataclass(frozen=True, slots=True, eq=False)
class Transaction:
    number: int
    time_ms: int
    """When it was committed."""
    bytes: int
    changes: tuple[Change, ...] = ()
    statements: tuple[tuple[TableId, Effect, int], ...] = ()
    """Table, effect, and the table's schema from then on."""
    silent: tuple[int, ...] = ()
    """Keys whose rows change without a word in the log: they get another value where the table is rewritten, and go where it is broken."""
    prepares: tuple[Change, ...] = ()
    """What a later one will change, if it commits this one. It has a place here, and no effect."""
    decides: int | None = None
    """Which one it commits or rolls back. The log does not repeat the changes, which are here for the oracles."""
    committed: bool = False

    @property
    def stamp_ms(self) -> int:
        """The time that the log gives it: when its last statement began, or what a session set, which may lie in the future."""
        if self.number % 11 == 7:
            return self.time_ms + 10**10
        return self.time_ms - self.number * 7919 % 97 * STEP_MS if self.number % 3 == 0 else self.time_ms

    def effects(self, table: TableId) -> list[Effect]:
        return [effect for name, effect, _ in self.statements if name == table]


@dataclass(slots=True)
class Read:
    """One read of a chunk: what it contains, by the numbers of transactions, and what it says it contains."""

    rows: dict[int, int]
    contains: frozenset[int]
    covered: frozenset[int]
    high: Position
    high_number: int
    schema: int


@dataclass(slots=True)
class Database:
    rng: Random
    tables: list[TableId]
    keys: int
    in_order: bool
    large: Random | None = None
    """Of worlds where some transactions are larger than what a task reads, change a row more than once, and change keys."""
    keeps_locks: bool = True
    """Whether statements wait for what is prepared. MySQL 5.7 keeps no locks for it across a restart."""
    renames: bool = True
    """A table may be renamed away and another into its name."""
    log: list[Transaction] = field(default_factory=list)
    places: dict[int, tuple[Position, Position]] = field(default_factory=dict)
    """Where each transaction begins and ends in the log of the server that is the primary now."""
    visible: set[int] = field(default_factory=set)
    hidden: list[Transaction] = field(default_factory=list)
    prepared: list[Transaction] = field(default_factory=list)
    """Those that wait for their second phase."""
    schemas: dict[TableId, int] = field(default_factory=dict)
    gone: set[TableId] = field(default_factory=set)
    era: int = 0
    number: int = 0
    fetched: int = 0
    """The last transaction that somebody was sent. A fail-over keeps it: replication waits for the other server."""
    end: Position = field(default_factory=lambda: Position(1, 4))

    def begin(self) -> None:
        for table in self.tables:
            self.schemas[table] = 0

    # ---- writing

    def _log(self, transaction: Transaction) -> None:
        self.log.append(transaction)
        self._place(transaction)
        self.hidden.append(transaction)

    def _place(self, transaction: Transaction) -> None:
        begins = self.end
        self.end = Position(begins.file, begins.offset + transaction.bytes, self.era)
        self.places[transaction.number] = (begins, self.end)

    def write(self, time_ms: int, *, prepare: bool = False) -> None:
        rng = self.rng
        locked = {(change.table, change.key) for transaction in self.hidden for change in transaction.changes}
        locked |= {(change.table, change.key) for transaction in self.prepared for change in transaction.prepares}
        blocked = {name for transaction in self.hidden for name, _, _ in transaction.statements} | self.gone
        self.number += 1
        changes: list[Change] = []
        table = rng.choice(self.tables)
        count, size, values = 1 if rng.random() < 0.6 else rng.randint(2, 3), rng.randint(1, 4), [self.number]
        if self.large is not None and self.large.random() < 0.1:
            count, size = self.large.randint(4, 12), self.large.randint(10, 60)
            values = [self.number * 1000 + index for index in range(count)]
        for index in range(count):
            key = rng.randrange(self.keys)
            if (table, key) in locked or table in blocked:
                continue
            value = None if rng.random() < 0.35 else values[index % len(values)]
            changes.append(Change(table, key, value))
            if self.large is not None and value is not None and self.large.random() < 0.3:
                self.move(changes, locked)
            if rng.random() < 0.4:
                table = rng.choice(self.tables)
        locked.update((change.table, change.key) for change in changes)
        if prepare and changes:
            self.prepared.append(Transaction(self.number, time_ms, size, prepares=tuple(changes)))
            self._log(self.prepared[-1])
        else:
            self._log(Transaction(self.number, time_ms, size, tuple(changes)))

    def move(self, changes: list[Change], locked: set[tuple[TableId, int]]) -> None:
        """An UPDATE of the key: the row that was just written gets another one, which may be another chunk's."""
        assert self.large is not None
        row, key = changes[-1], self.large.randrange(self.keys)
        if key != row.key and (row.table, key) not in locked:
            changes += [Change(row.table, row.key, None), Change(row.table, key, row.value, row.key)]

    def decide(self, time_ms: int) -> None:
        """The second phase of one that is prepared. Its keys were locked until now, and stay so until this is visible."""
        if self.prepared:
            first = self.prepared.pop(self.rng.randrange(len(self.prepared)))
            committed = self.rng.random() < 0.7
            self.number += 1
            changes = self.what_is_left(first) if committed else ()
            self._log(Transaction(self.number, time_ms, 1, changes, decides=first.number, committed=committed))

    def what_is_left(self, first: Transaction) -> tuple[Change, ...]:
        """What a transaction changes by its COMMIT. Of a table that a statement replaced or emptied meanwhile the server may have kept its
        rows or not. The log does not say so, and has all of them."""
        since = [one for one in self.log if one.number > first.number]
        moved = {name for one in since for name, effect, _ in one.statements if effect is not Effect.BREAKS}
        kept = [change for change in first.prepares if change.table not in moved]
        kept += [change for change in first.prepares if change.table in moved - self.gone and self.rng.random() < 0.5]
        return tuple(kept)

    def state(self, effect: Effect, time_ms: int, chosen: list[TableId] | None = None) -> None:
        """A statement on a table: it waits for whoever writes there, as the locks of a real one make it."""
        if chosen is None:
            chosen = self.rng.sample(self.tables, 2 if len(self.tables) > 1 and self.rng.random() < 0.2 else 1)
        busy = {name for t in self.hidden for name, _, _ in t.statements} | {change.table for t in self.hidden for change in t.changes}
        if self.keeps_locks:
            busy |= {change.table for t in self.prepared for change in t.prepares}
        chosen = [table for table in chosen if table not in busy and (effect is Effect.MAKES) == (table in self.gone)]
        if not chosen:
            return
        self.number += 1
        statements = []
        for table in chosen:
            self.schemas[table] += effect is Effect.RESHAPES
            (self.gone.add if effect is Effect.DROPS else self.gone.discard)(table)
            statements.append((table, effect, self.schemas[table]))
            if effect is Effect.DROPS and self.renames and self.rng.random() < 0.3:
                # Renamed away, and another into its name, by one statement.
                self.gone.discard(table)
                statements.append((table, Effect.MAKES, self.schemas[table]))
        silent = tuple(self.rng.sample(range(self.keys), 2)) if effect in (Effect.REWRITES, Effect.BREAKS) else ()
        self._log(Transaction(self.number, time_ms, 2, (), tuple(statements), silent))

    def show(self) -> None:
        """One logged transaction becomes visible; often the oldest, but not always, unless the server keeps their order."""
        if self.hidden:
            index = 0 if self.in_order or self.rng.random() < 0.7 else self.rng.randrange(len(self.hidden))
            self.visible.add(self.hidden.pop(index).number)

    def rotate(self) -> None:
        self.end = Position(self.end.file + 1, 4, self.era)

    def fail_over(self) -> None:
        """Another server takes over: it has what anybody was sent, perhaps more, at places of its own."""
        kept = [t for t in self.log if t.number <= self.fetched or self.rng.random() < 0.5]
        cut = len(kept)
        for index, transaction in enumerate(self.log):
            if index >= len(kept) or kept[index] is not transaction:
                cut = index
                break
        lost = self.log[cut:]
        del self.log[cut:]
        self.era += 1
        self.end = Position(1, 4, self.era)
        self.hidden = []
        over = {transaction.decides for transaction in self.log}
        self.prepared = [transaction for transaction in self.log if transaction.prepares and transaction.number not in over]
        self.visible = {transaction.number for transaction in self.log}
        for transaction in self.log:
            self._place(transaction)
        for table in self.tables:
            of = [(effect, schema) for t in self.log for name, effect, schema in t.statements if name == table]
            self.schemas[table] = max((schema for _, schema in of), default=0)
            lives = [effect for effect, _ in of if effect in (Effect.DROPS, Effect.MAKES)]
            (self.gone.add if lives and lives[-1] is Effect.DROPS else self.gone.discard)(table)
        for transaction in lost:
            self.places.pop(transaction.number, None)

    # ---- reading

    def shown(self) -> Position:
        """The newest place up to which all that is logged is visible."""
        if not self.hidden:
            return self.end
        first = min(transaction.number for transaction in self.hidden)
        return self.places[first][0]

    def rows(self, table: TableId, numbers: set[int] | frozenset[int]) -> dict[int, int]:
        return rows_of(table, (transaction for transaction in self.log if transaction.number in numbers))


def rows_of(table: TableId, transactions) -> dict[int, int]:  # type: ignore[no-untyped-def]
    """The rows of a table after these transactions, in the order of the log."""
    rows: dict[int, int] = {}
    for transaction in transactions:
        for effect in transaction.effects(table) if transaction.statements else ():
            if effect is Effect.REWRITES:
                rows.update(dict.fromkeys(rows.keys() & set(transaction.silent), transaction.number))
            elif effect is Effect.BREAKS:
                for key in transaction.silent:
                    rows.pop(key, None)
            elif effect is not Effect.RESHAPES:
                rows.clear()
        for change in transaction.changes:
            if change.table == table:
                if change.value is None:
                    rows.pop(change.key, None)
                else:
                    rows[change.key] = change.value
    return rows
