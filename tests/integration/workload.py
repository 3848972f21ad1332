"""Random writers: connections that insert, update, delete, move keys, prepare and roll back, and one that alters the tables.

All of it is such that a keyed target can follow: full row images, and ALTERs that change nothing stored. Keys are moved within
the whole range and beyond its ends, and changed in nothing but their case.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import random
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pymysql
from pymysql.constants import ER

from tests.kit.servers import Server

DATABASE = "shop"

CREATE = {
    "numbers": """CREATE TABLE numbers (id BIGINT NOT NULL PRIMARY KEY, amount DECIMAL(12,2), name VARCHAR(40), made DATETIME(3),
        small TINYINT UNSIGNED NOT NULL DEFAULT 7, ratio DOUBLE, kind ENUM('a','b','c'), note TEXT)""",
    "pairs": """CREATE TABLE pairs (region SMALLINT UNSIGNED NOT NULL, code VARCHAR(24) CHARACTER SET latin1 NOT NULL, day DATE,
        quantity INT, PRIMARY KEY (region, code))""",
    "words": """CREATE TABLE words (word VARCHAR(60) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci NOT NULL PRIMARY KEY,
        hits INT UNSIGNED, tags SET('x','y','z'), raw VARBINARY(20), seen TIMESTAMP(6) NULL)""",
    "names": """CREATE TABLE names (name CHAR(30) CHARACTER SET latin1 NOT NULL PRIMARY KEY, price FLOAT, lasted TIME(2), open BIT(1))""",
    "ledger": "CREATE TABLE ledger (id INT UNSIGNED NOT NULL PRIMARY KEY, balance DECIMAL(20,4), memo VARCHAR(30))",
    "journal": "CREATE TABLE journal (id INT UNSIGNED NOT NULL PRIMARY KEY, balance DECIMAL(20,4), memo VARCHAR(30))",
}
XA_TABLES = ("ledger", "journal")
"""Written by XA transactions alone, one at a time: a prepared one keeps its rows locked."""

ROWS = 3_000
"""In each table, to begin with."""

_LETTERS = "aAbBcCdDeEäÄöÖßñÑzZ"
_WIDE = "éÉĀāŁ字😀"


def _text(chance: random.Random, letters: str, most: int) -> str:
    return "".join(chance.choices(letters, k=chance.randint(1, most)))


def _number(chance: random.Random) -> str:
    amount, second = chance.randint(-(10**9), 10**9) / 100, chance.randrange(86_400)
    name = "NULL" if chance.random() < 0.1 else f"'{_text(chance, _LETTERS + _WIDE, 12)}'"
    note = f"REPEAT('{_text(chance, _LETTERS, 5)}', {chance.randrange(30)})"
    made = f"'2024-02-28 {second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}.{chance.randrange(1000):03}'"
    return f"{amount}, {name}, {made}, {chance.randrange(256)}, {chance.random() / 3}, {chance.randint(1, 3)}, {note}"


def _word(chance: random.Random) -> str:
    # Trailing blanks and case don't tell keys apart here, but the stored bytes do.
    return f"'{_text(chance, _LETTERS, 3)}{_text(chance, _LETTERS + _WIDE, 3)}{' ' * (chance.random() < 0.1)}'"


_ROW: dict[str, Callable[[random.Random], str]] = {
    "numbers": lambda chance: f"{chance.randint(-500, 15_000)}, {_number(chance)}",
    "pairs": lambda chance: (
        f"{chance.randint(1, 40)}, '{_text(chance, _LETTERS, 3)}', '2024-02-{chance.randint(1, 29):02}', {chance.randint(-99, 99)}"
    ),
    "words": lambda chance: (
        f"{_word(chance)}, {chance.randrange(10**9)}, {chance.randrange(8)}, x'{chance.randbytes(chance.randrange(20)).hex()}', "
        f"'2024-02-29 12:{chance.randrange(60):02}:00.{chance.randrange(10**6):06}'"
    ),
    "names": lambda chance: (
        f"'{_text(chance, _LETTERS, 4)}{_text(chance, _LETTERS, 3)}', {chance.random()}, "
        f"'{chance.randint(-800, 800)}:00:00.25', {chance.randrange(2)}"
    ),
} | dict.fromkeys(
    XA_TABLES,
    lambda chance: f"{chance.randint(1, 5_000)}, {chance.randint(-(10**12), 10**12) / 10**4}, '{_text(chance, _LETTERS, 9)}'",
)
_COLUMNS = {
    "numbers": "id, amount, name, made, small, ratio, kind, note",
    "pairs": "region, code, day, quantity",
    "words": "word, hits, tags, raw, seen",
    "names": "name, price, lasted, open",
    "ledger": "id, balance, memo",
    "journal": "id, balance, memo",
}
_KEY = {"numbers": "id", "pairs": "region, code", "words": "word", "names": "name", "ledger": "id", "journal": "id"}
_SET = {
    "numbers": "amount = {n}, note = CONCAT('n', {n}), ratio = id / 3",
    "pairs": "quantity = {n}, day = NULL",
    "words": "hits = {n}, raw = LEFT(raw, 3)",
    "names": "price = price + 1, open = NOT open",
    "ledger": "balance = -balance",
    "journal": "balance = -balance",
}
_MOVE = {
    "numbers": ("id = id + {m}", "id = {n} % 15000 + id % 97"),
    "pairs": ("region = 1 + (region + {n}) % 41", "code = UPPER(code)", "code = LEFT(CONCAT('{t}', code), 20)"),
    "words": ("word = UPPER(word)", "word = LOWER(word)", "word = LEFT(CONCAT('{t}', word), 9)", "word = REVERSE(word)"),
    "names": ("name = LOWER(name)", "name = LEFT(CONCAT('{t}', name), 9)", "name = REVERSE(name)"),
    "ledger": ("id = 1 + (id + {n}) % 5000",),
    "journal": ("id = 1 + (id * 7 + {n}) % 5000",),
}


def _from(table: str, chance: random.Random) -> str:
    """A place in the table where a statement begins."""
    match table:
        case "numbers":
            return f"id >= {chance.randint(-500, 15_000)}"
        case "pairs":
            return f"region = {chance.randint(1, 41)} AND code >= '{chance.choice(_LETTERS)}'"
        case "ledger" | "journal":
            return f"id >= {chance.randint(1, 5_000)}"
        case _:
            return f"{_KEY[table]} >= '{_text(chance, _LETTERS, 2)}'"


def insert(table: str, chance: random.Random, rows: int, verb: str = "INSERT IGNORE") -> str:
    values = ", ".join(f"({_ROW[table](chance)})" for _ in range(rows))
    return f"{verb} INTO {table} ({_COLUMNS[table]}) VALUES {values}"


def upsert(table: str, chance: random.Random, rows: int) -> str:
    return f"{insert(table, chance, rows, 'INSERT')} ON DUPLICATE KEY UPDATE {_SET[table].format(n=chance.randrange(1000))}"


def replace(table: str, chance: random.Random, rows: int) -> str:
    return insert(table, chance, rows, "REPLACE")


def update(table: str, chance: random.Random, rows: int) -> str:
    changes = _SET[table].format(n=chance.randrange(10**6))
    return f"UPDATE {table} SET {changes} WHERE {_from(table, chance)} ORDER BY {_KEY[table]} LIMIT {rows}"


def move(table: str, chance: random.Random, rows: int) -> str:
    """Change keys; where the new one is taken the row stays."""
    words = chance.choice(_MOVE[table]).format(n=chance.randrange(10**6), m=chance.randint(-3000, 3000), t=chance.choice(_LETTERS))
    return f"UPDATE IGNORE {table} SET {words} WHERE {_from(table, chance)} ORDER BY {_KEY[table]} LIMIT {rows}"


def delete(table: str, chance: random.Random, rows: int) -> str:
    return f"DELETE FROM {table} WHERE {_from(table, chance)} ORDER BY {_KEY[table]} LIMIT {rows}"


_STATEMENTS = ((insert, 5), (upsert, 2), (replace, 2), (update, 7), (move, 4), (delete, 4))
_KINDS, _WEIGHTS = zip(*_STATEMENTS, strict=True)
_COUNTED_TWICE = (upsert, replace)
"""The server counts a row that was there already as two."""


def create(server: Server, seed: int) -> None:
    """The tables and the rows that no log will ever tell of."""
    chance = random.Random(seed)
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {DATABASE} CHARACTER SET utf8mb4")
        cursor.execute(f"USE {DATABASE}")
        for table, words in CREATE.items():
            cursor.execute(words)
            for _ in range(ROWS // 500):
                cursor.execute(insert(table, chance, 500))


@contextlib.contextmanager
def written(server: Server, *, seed: int, writers: int, changes: int) -> Iterator[None]:
    """Write while the block runs and for as long as it takes to make so many changes.

    The writers are threads of a process of their own: readers and writers of a real source don't wait for one interpreter.
    """
    context = multiprocessing.get_context("spawn")
    enough, started = context.Event(), context.Event()
    ours, theirs = context.Pipe()
    arguments = (server.options(), seed, writers, changes, enough, started, theirs)
    process = context.Process(target=_run, args=arguments, daemon=True)
    process.start()
    theirs.close()
    error = "the process of the writers is gone"
    try:
        assert started.wait(60), "no writer has started"
        yield
    finally:
        enough.set()
        # The pipe ends with its process, so a process that is gone is not waited for.
        with contextlib.suppress(EOFError):
            error = ours.recv()
        process.join()
    assert error == "", error


def _run(options: dict[str, Any], seed: int, writers: int, changes: int, enough: Any, started: Any, answer: Any) -> None:
    try:
        Writers(options, seed=seed, writers=writers, changes=changes, enough=enough, started=started).run()
    except BaseException:
        answer.send(traceback.format_exc())
    else:
        answer.send("")


class Writers:
    """Threads that write until each has made its share of the changes and they are told that it is enough."""

    def __init__(self, options: dict[str, Any], *, seed: int, writers: int, changes: int, enough: Any, started: Any) -> None:
        self._options = options
        self._seed = seed
        self._share = changes // writers
        self._enough = enough
        self._started = started
        self._made = [0] * writers
        self._over = threading.Event()
        self._error: BaseException | None = None
        self._threads = [threading.Thread(target=self._guard, args=(self._write, number)) for number in range(writers - 1)]
        self._threads.append(threading.Thread(target=self._guard, args=(self._prepare, writers - 1)))
        self._alterer = threading.Thread(target=self._guard, args=(self._alter, writers))

    def run(self) -> None:
        for thread in (*self._threads, self._alterer):
            thread.start()
        for thread in self._threads:
            thread.join()
        self._over.set()
        self._alterer.join()
        if self._error is not None:
            raise self._error

    def _guard(self, work: Callable[[random.Random, int], None], number: int) -> None:
        try:
            work(random.Random(self._seed * 1000 + number), number)
        except BaseException as error:
            self._error = error

    def _done(self, number: int) -> bool:
        """Whether a writer may end. One that has done its share goes on at a walk until it may."""
        self._started.set()
        if self._error is not None:
            return True
        if self._made[number] < self._share:
            return False
        return bool(self._enough.wait(0.05))

    def _connect(self, chance: random.Random) -> Any:
        connection = pymysql.connect(**self._options, database=DATABASE, charset="utf8mb4")
        level = chance.choice(["READ COMMITTED", "REPEATABLE READ"])
        with connection.cursor() as cursor:
            cursor.execute("SET SESSION innodb_lock_wait_timeout = 2, lock_wait_timeout = 20, time_zone = '+00:00'")
            cursor.execute(f"SET SESSION TRANSACTION ISOLATION LEVEL {level}")
        connection.commit()
        return connection

    def _write(self, chance: random.Random, number: int) -> None:
        tables = [table for table in CREATE if table not in XA_TABLES]
        with self._connect(chance) as connection, connection.cursor() as cursor:
            while not self._done(number):
                try:
                    made = self._transaction(cursor, chance, lambda: chance.choice(tables))
                except pymysql.err.OperationalError as error:
                    _forgive(error)
                    connection.rollback()
                    continue
                if chance.random() < 0.1:
                    connection.rollback()
                else:
                    connection.commit()
                    self._made[number] += made

    def _transaction(self, cursor: Any, chance: random.Random, table: Callable[[], str]) -> int:
        made = 0
        for _ in range(chance.choice((1, 1, 2, 4))):
            if chance.random() < 0.1:
                cursor.execute("SAVEPOINT here")
                self._statement(cursor, chance, table())
                cursor.execute("ROLLBACK TO SAVEPOINT here")
            made += self._statement(cursor, chance, table())
        return made

    @staticmethod
    def _statement(cursor: Any, chance: random.Random, table: str) -> int:
        (kind,) = chance.choices(_KINDS, _WEIGHTS)
        changed: int = cursor.execute(kind(table, chance, chance.randint(1, 60)))
        return changed // 2 if kind in _COUNTED_TWICE else changed

    def _prepare(self, chance: random.Random, number: int) -> None:
        """XA transactions, two open at a time, which may end in another order than they were prepared in."""
        with self._connect(chance) as one, self._connect(chance) as other:
            cursors = dict(zip(XA_TABLES, (one.cursor(), other.cursor()), strict=True))
            name = 0
            while not self._done(number):
                prepared = []
                for table, cursor in cursors.items():
                    name += 1
                    cursor.execute(f"XA START 'x{name}'")
                    try:
                        made = self._transaction(cursor, chance, lambda table=table: table)
                        cursor.execute(f"XA END 'x{name}'")
                    except pymysql.err.OperationalError as error:
                        _forgive(error)
                        # After a deadlock the server says so again here; either way it is ended then.
                        with contextlib.suppress(pymysql.err.Error):
                            cursor.execute(f"XA END 'x{name}'")
                        cursor.execute(f"XA ROLLBACK 'x{name}'")
                        cursor.connection.rollback()
                        continue
                    cursor.execute(f"XA PREPARE 'x{name}'")
                    prepared.append((cursor, name, made))
                chance.shuffle(prepared)
                for cursor, prepared_name, made in prepared:
                    committed = chance.random() < 0.8
                    cursor.execute(f"XA {'COMMIT' if committed else 'ROLLBACK'} 'x{prepared_name}'")
                    self._made[number] += made * committed

    def _alter(self, chance: random.Random, number: int) -> None:
        connection = pymysql.connect(**self._options, database=DATABASE, charset="utf8mb4", autocommit=True)
        with connection, connection.cursor() as cursor:
            cursor.execute("SET SESSION lock_wait_timeout = 5, innodb_lock_wait_timeout = 5")
            extras = {table: _Extras(table) for table in CREATE}
            while not self._over.wait(0.2):
                extra = extras[chance.choice(list(CREATE))]
                words, then = extra.decide(chance)
                try:
                    cursor.execute(f"ALTER TABLE {extra.table} {words}")
                except pymysql.err.OperationalError as error:
                    _forgive(error)
                    continue
                then()
                try:
                    for change in extra.changes(chance):
                        cursor.execute(change)
                except pymysql.err.OperationalError as error:
                    _forgive(error)


def _forgive(error: pymysql.err.OperationalError) -> None:
    if error.args[0] not in (ER.LOCK_DEADLOCK, ER.LOCK_WAIT_TIMEOUT):
        raise error


_EXTRA = (
    ("INT", "BIGINT", "{n}"),
    ("INT NOT NULL DEFAULT 42", "BIGINT NOT NULL DEFAULT 42", "{n}"),
    ("VARCHAR(10) NOT NULL DEFAULT 'käse'", "VARCHAR(300) NOT NULL DEFAULT 'käse'", "'n{n}'"),
    ("DECIMAL(9,3) DEFAULT -1.5", "DECIMAL(14,4) DEFAULT -1.5", "{n} / 1000"),
    ("ENUM('no','yes') NOT NULL DEFAULT 'yes'", "ENUM('no','yes','maybe') NOT NULL DEFAULT 'yes'", "1 + {n} % 2"),
    ("DATE DEFAULT '2024-02-29'", "DATE DEFAULT '2024-02-29'", "NULL"),
    ("DATETIME", "DATETIME(4)", "'2025-01-01 10:11:12'"),
    ("BINARY(3) NOT NULL DEFAULT 'ab'", "BINARY(3) NOT NULL DEFAULT 'ab'", "x'0001'"),
    ("BIT(9) DEFAULT b'101'", "BIT(9) DEFAULT b'101'", "{n} % 512"),
    ("DOUBLE NOT NULL DEFAULT 2.5", "DOUBLE NOT NULL DEFAULT 2.5", "{n} / 7"),
    ("SET('p','q') NOT NULL DEFAULT 'q'", "SET('p','q','r') NOT NULL DEFAULT 'q'", "3"),
    ("TINYTEXT", "MEDIUMTEXT", "'text'"),
)
"""Added as, widened to, changed to."""


class _Extras:
    """The columns that were added to a table."""

    def __init__(self, table: str) -> None:
        self.table = table
        self._kinds: dict[str, tuple[int, bool]] = {}
        """Which of `_EXTRA`, and whether it was widened."""
        self._indexed = False
        self._number = 0

    def decide(self, chance: random.Random) -> tuple[str, Callable[[], None]]:
        """What to alter, and what to remember once it is done."""
        kinds = dict(self._kinds)
        names = list(kinds)
        choice = chance.choice(["add", "add", "drop", "rename", "widen", "index", "several"])
        if choice == "index":
            return ("DROP INDEX by_all" if self._indexed else f"ADD INDEX by_all ({_KEY[self.table]})"), self._flip_index
        words = []
        self._number += 1
        if names and choice in ("drop", "several"):
            name = names.pop(chance.randrange(len(names)))
            del kinds[name]
            words.append(f"DROP COLUMN {name}")
        if names and choice in ("rename", "several"):
            name = names.pop(chance.randrange(len(names)))
            kind = kinds.pop(name)
            new = f"r{self._number}"
            kinds[new] = kind
            change = f"CHANGE {name} {new} {_EXTRA[kind[0]][kind[1]]}"
            words.append(change if chance.random() < 0.5 else f"RENAME COLUMN {name} TO {new}")
        if names and choice == "widen":
            name = chance.choice(names)
            kinds[name] = (kinds[name][0], True)
            words.append(f"MODIFY COLUMN {name} {_EXTRA[kinds[name][0]][1]}")
        if len(kinds) < 3 and (choice in ("add", "several") or not words):
            kind = chance.randrange(len(_EXTRA)), False
            new = f"x{self._number}"
            kinds[new] = kind
            place = chance.choice(["", " FIRST", f" AFTER {chance.choice(_COLUMNS[self.table].split(', '))}"])
            words.append(f"ADD COLUMN {new} {_EXTRA[kind[0]][0]}{place}")
        if not words:
            words.append(f"DROP COLUMN {names[0]}")
            del kinds[names[0]]

        def then() -> None:
            self._kinds = kinds

        return ", ".join(words), then

    def _flip_index(self) -> None:
        self._indexed = not self._indexed

    def changes(self, chance: random.Random) -> list[str]:
        """Rows that hold something else than the default in what was added."""
        return [
            f"UPDATE {self.table} SET {name} = {_EXTRA[kind][2].format(n=chance.randrange(10**5))} "
            f"WHERE {_from(self.table, chance)} ORDER BY {_KEY[self.table]} LIMIT 20"
            for name, (kind, _) in self._kinds.items()
        ]
