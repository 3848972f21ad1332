"""A model database: transactions that are logged before they are visible and become visible in any order, row locks until then,
key changes, statements that empty, remake or reshape a table, transactions of two phases, files that end, fail-over that loses a
tail."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from snowmelt.model.position import Position
from snowmelt.model.table import TableId
from snowmelt.relay.retention import Effect

Value = int | None
"""None: the row is gone."""


@dataclass(frozen=True, slots=True)
class Change:
    table: TableId
    key: int
    value: Value


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
            return self.time_ms + 1_000_000
        return self.time_ms - self.number * 7919 % 97 if self.number % 3 == 0 else self.time_ms

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
        for _ in range(1 if rng.random() < 0.6 else rng.randint(2, 3)):
            key = rng.randrange(self.keys)
            if (table, key) in locked or table in blocked:
                continue
            locked.add((table, key))
            changes.append(Change(table, key, None if rng.random() < 0.35 else self.number))
            if rng.random() < 0.4:
                table = rng.choice(self.tables)
        if prepare and changes:
            self.prepared.append(Transaction(self.number, time_ms, rng.randint(1, 4), prepares=tuple(changes)))
            self._log(self.prepared[-1])
        else:
            self._log(Transaction(self.number, time_ms, rng.randint(1, 4), tuple(changes)))

    def decide(self, time_ms: int) -> None:
        """The second phase of one that is prepared. Its keys were locked until now, and stay so until this is visible."""
        if self.prepared:
            first = self.prepared.pop(self.rng.randrange(len(self.prepared)))
            committed = self.rng.random() < 0.7
            self.number += 1
            changes = first.prepares if committed else ()
            self._log(Transaction(self.number, time_ms, 1, changes, decides=first.number, committed=committed))

    def state(self, effect: Effect, time_ms: int, chosen: list[TableId] | None = None) -> None:
        """A statement on a table: it waits for whoever writes there, as the locks of a real one make it."""
        if chosen is None:
            chosen = self.rng.sample(self.tables, 2 if len(self.tables) > 1 and self.rng.random() < 0.2 else 1)
        busy = {name for t in self.hidden for name, _, _ in t.statements} | {change.table for t in self.hidden for change in t.changes}
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
            if effect is Effect.DROPS and self.rng.random() < 0.3:
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
        for effect in transaction.effects(table):
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
