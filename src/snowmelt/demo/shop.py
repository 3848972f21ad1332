"""The demo's database: a shop with six tables of different keys, and people who keep changing it.

    customers    key: text whose collation takes User7 and USER7 for one, so that only the database can order it
    orders       key: a number; copied in several chunks
    order_lines  key: two columns
    everything   every type that is mapped, with NULL and the least, the greatest and the oddest values
    carts        small, and emptied by TRUNCATE
    payments     goes to the lake as its history

A writer counts what it changed, of transactions that were committed, by what the server says of each statement: a number that
nothing of ours has touched. What makes a payment's history provable to the last change: a payment above the first ones, and the last
of them, is never deleted nor given another id (`history` says why).
"""

from __future__ import annotations

import contextlib
import random
import secrets
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from snowmelt.credentials import Secret
from snowmelt.databases.mysql.connect import MySqlOptions, Session
from snowmelt.demo.server import write_secret
from snowmelt.errors import SnowmeltError

DATABASE = "shop"
USER = "repl"
WRITERS = 4
MOVED = 1_000_000_000
"""How far the id of a payment moves when it is changed."""
_PAUSE_S = 0.01
_AT_ONCE = 20
_LOST = ("1213 ", "1205 ")
"""A deadlock, a lock that was waited for too long: one of two that meet has to begin again, which is no error of the shop's."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many rows each table has to begin with."""

    rows: int

    @property
    def customers(self) -> int:
        return self.rows * 15 // 100

    @property
    def lines(self) -> int:
        return self.rows * 30 // 100

    @property
    def payments(self) -> int:
        return self.rows * 75 // 1000

    @property
    def everything(self) -> int:
        return self.rows * 2 // 100

    @property
    def carts(self) -> int:
        return self.rows * 5 // 1000

    @property
    def orders(self) -> int:
        return self.rows - self.customers - self.lines - self.payments - self.everything - self.carts

    @property
    def rows_per_chunk(self) -> int:
        """So that orders are several chunks, and the first payments less than one, as their proof needs it."""
        return self.rows // 10 + 5_000


@dataclass(frozen=True, slots=True)
class _Typed:
    """A column of `everything`: what it is filled with, by the number `seq`, and its edge values."""

    definition: str
    filled: str
    edges: tuple[str, str, str]
    """Its least, greatest and oddest value."""
    since: tuple[int, int] = (10, 3)


_EVERYTHING = {
    "c_tinyint": _Typed("TINYINT", "seq % 256 - 128", ("-128", "127", "0")),
    "c_tinyint_u": _Typed("TINYINT UNSIGNED", "seq % 256", ("0", "255", "128")),
    "c_smallint": _Typed("SMALLINT", "seq % 65536 - 32768", ("-32768", "32767", "-1")),
    "c_smallint_u": _Typed("SMALLINT UNSIGNED", "seq % 65536", ("0", "65535", "32768")),
    "c_mediumint": _Typed("MEDIUMINT", "seq * 37 - 8388608", ("-8388608", "8388607", "-1")),
    "c_mediumint_u": _Typed("MEDIUMINT UNSIGNED", "seq * 37", ("0", "16777215", "8388608")),
    "c_int": _Typed("INT", "seq * 4001 - 2147483648", ("-2147483648", "2147483647", "-1")),
    "c_int_u": _Typed("INT UNSIGNED", "seq * 4001", ("0", "4294967295", "2147483648")),
    "c_zerofill": _Typed("INT(9) ZEROFILL", "seq", ("0", "4294967295", "7")),
    "c_bigint": _Typed("BIGINT", "seq * 90071992547", ("-9223372036854775808", "9223372036854775807", "-1")),
    "c_bigint_u": _Typed("BIGINT UNSIGNED", "seq * 180143985094", ("0", "18446744073709551615", "9223372036854775808")),
    "c_float": _Typed("FLOAT", "seq / 7e0", ("-3.4028234663852886e38", "3.4028234663852886e38", "-0e0")),
    "c_double": _Typed("DOUBLE", "seq / 11e0", ("-1.7976931348623157e308", "1.7976931348623157e308", "2.2250738585072014e-308")),
    "c_decimal": _Typed("DECIMAL(10,2)", "seq / 3", ("-99999999.99", "99999999.99", "0.01")),
    "c_decimal_38": _Typed("DECIMAL(38,10)", "seq / 7", ("-" + "9" * 28 + "." + "9" * 10, "9" * 28 + "." + "9" * 10, "0.0000000001")),
    "c_decimal_65": _Typed("DECIMAL(65,30)", "seq / 13", ("-" + "9" * 35 + "." + "9" * 30, "9" * 35 + "." + "9" * 30, "-0.1")),
    "c_date": _Typed("DATE", "'2000-01-01' + INTERVAL seq DAY", ("'0001-01-01'", "'9999-12-31'", "'0000-00-00'")),
    "c_datetime": _Typed(
        "DATETIME(6)", "'2000-01-01' + INTERVAL seq * 1000001 MICROSECOND", ("'0001-01-01'", "'9999-12-31 23:59:59.999999'", "'2021-02-30'")
    ),
    "c_timestamp": _Typed(
        "TIMESTAMP(6) NULL DEFAULT NULL",
        "'2001-01-01' + INTERVAL seq * 1000003 MICROSECOND",
        ("'1970-01-01 00:00:01'",
        "'2038-01-19 03:14:07.999999'",
        "'0000-00-00 00:00:00'"),
    ),
    "c_time": _Typed("TIME(6)", "SEC_TO_TIME(seq * 13.251 - 9000)", ("'-838:59:59'", "'838:59:59'", "'-00:00:00.000001'")),
    "c_year": _Typed("YEAR", "1901 + seq % 255", ("1901", "2155", "0")),
    "c_char": _Typed("CHAR(10)", "CONCAT('c', seq)", ("''", "'zzzzzzzzzz'", "' a'")),
    "c_varchar": _Typed("VARCHAR(100)", "CONCAT('Zoë Nº ', seq)", ("''", "REPEAT('😀', 100)", "'ends in blanks  '")),
    "c_latin1": _Typed("VARCHAR(50) CHARACTER SET latin1", "CONCAT('Käse ', seq)", ("''", "REPEAT('ÿ', 50)", "'€'")),
    "c_sjis": _Typed("VARCHAR(20) CHARACTER SET sjis", "CONCAT('表', seq)", ("''", "REPEAT('ソ', 20)", "'ｶ'")),
    "c_tinytext": _Typed("TINYTEXT", "MD5(seq)", ("''", "REPEAT('x', 255)", "'\\t\\'\"\\\\'")),
    "c_text": _Typed("TEXT", "REPEAT('text ', seq % 20)", ("''", "REPEAT('é', 32767)", "'\\0'")),
    "c_mediumtext": _Typed("MEDIUMTEXT", "CONCAT('m', seq)", ("''", "REPEAT('m', 300)", "' '")),
    "c_longtext": _Typed("LONGTEXT", "CONCAT('l', seq)", ("''", "REPEAT('l', 300)", "' '")),
    "c_enum": _Typed("ENUM('low','middle','high')", "1 + seq % 3", ("'low'", "'high'", "0")),
    "c_set": _Typed("SET('red','green','blue')", "seq % 8", ("''", "'red,green,blue'", "'blue'")),
    "c_binary": _Typed("BINARY(8)", "UNHEX(LEFT(MD5(seq), 10))", ("''", "x'ffffffffffffffff'", "x'6100'")),
    "c_varbinary": _Typed("VARBINARY(40)", "UNHEX(MD5(seq))", ("''", "REPEAT(x'ff', 40)", "x'6100'")),
    "c_tinyblob": _Typed("TINYBLOB", "UNHEX(MD5(seq))", ("''", "REPEAT(x'ff', 255)", "x'00'")),
    "c_blob": _Typed("BLOB", "UNHEX(SHA1(seq))", ("''", "REPEAT(x'ff', 65535)", "x'00'")),
    "c_mediumblob": _Typed("MEDIUMBLOB", "UNHEX(SHA1(seq))", ("''", "REPEAT(x'00', 300)", "x'00'")),
    "c_longblob": _Typed("LONGBLOB", "UNHEX(SHA1(seq))", ("''", "REPEAT(x'00', 300)", "x'00'")),
    "c_bit": _Typed("BIT(1)", "seq % 2", ("b'0'", "b'1'", "b'1'")),
    "c_bits": _Typed("BIT(12)", "seq % 4096", ("b'0'", "b'111111111111'", "b'100000000000'")),
    "c_json": _Typed("JSON", "JSON_OBJECT('n', seq, 'é', JSON_ARRAY(NULL, TRUE, seq / 7))", ("'{}'", "'[1e308, \"😀\"]'", "'null'")),
    "c_point": _Typed("POINT", "POINT(seq, -seq / 3)", ("POINT(0, 0)", "POINT(1e10, -1e10)", "ST_GeomFromText('POINT(1 2)', 4326)")),
    "c_geometry": _Typed(
        "GEOMETRY",
        "LineString(POINT(0, 0), POINT(seq, 1))",
        ("POINT(0, 0)", "ST_GeomFromText('POLYGON((0 0,0 3,3 3,0 0))')", "POINT(-1, 1)"),
    ),
    "c_inet6": _Typed("INET6", "INET6_NTOA(UNHEX(MD5(seq)))", ("'::'", "CONCAT('ffff', REPEAT(':ffff', 7))", "'::ffff:1.2.3.4'"), (10, 5)),
    "c_uuid": _Typed(
        "UUID",
        "INSERT(INSERT(INSERT(INSERT(MD5(seq), 9, 0, '-'), 14, 0, '-'), 19, 0, '-'), 24, 0, '-')",
        ("'00000000-0000-0000-0000-000000000000'",
        "'ffffffff-ffff-ffff-ffff-ffffffffffff'",
        "'123e4567-e89b-12d3-a456-426655440000'"),
        (10, 7),
    ),
    "c_inet4": _Typed("INET4", "INET_NTOA(seq * 65537)", ("'0.0.0.0'", "'255.255.255.255'", "'127.0.0.1'"), (10, 10)),
}  # fmt: skip

_TABLES = (
    """CREATE TABLE customers (email VARCHAR(80) COLLATE utf8mb4_general_ci PRIMARY KEY, name VARCHAR(60) NOT NULL, since DATE NOT NULL,
       level ENUM('new', 'silver', 'gold') NOT NULL, balance DECIMAL(12,2) NOT NULL)""",
    """CREATE TABLE orders (id INT UNSIGNED PRIMARY KEY, email VARCHAR(80) NOT NULL, placed DATETIME(3) NOT NULL, paid TIMESTAMP(6) NULL,
       total DECIMAL(12,2) NOT NULL, note TEXT)""",
    """CREATE TABLE order_lines (order_id INT UNSIGNED, line SMALLINT, product VARCHAR(30) CHARACTER SET latin1 NOT NULL, qty INT NOT NULL,
       price DOUBLE NOT NULL, PRIMARY KEY (order_id, line))""",
    "CREATE TABLE carts (id INT UNSIGNED AUTO_INCREMENT PRIMARY KEY, product VARCHAR(30) NOT NULL, added DATETIME(3) NOT NULL)",
    """CREATE TABLE payments (id BIGINT PRIMARY KEY, order_id INT UNSIGNED NOT NULL, amount DECIMAL(12,2) NOT NULL,
       state ENUM('open', 'paid', 'returned') NOT NULL, made DATETIME(3) NOT NULL, reference VARCHAR(40), version INT NOT NULL)""",
)
TABLES = ("carts", "customers", "everything", "order_lines", "orders", "payments")
HISTORY = "payments"


def create(root: MySqlOptions, sizes: Sizes, folder: Path) -> MySqlOptions:
    """Fill the shop, and give a user to the pipeline that may do what a pipeline needs and no more; how it connects."""
    password = write_secret(folder / "password", secrets.token_hex(16))
    with Session(root) as session:
        session.execute(f"CREATE USER {USER}@localhost IDENTIFIED BY '{password.read_text()}'")
        session.execute(f"CREATE DATABASE {DATABASE} CHARACTER SET utf8mb4")
        session.execute(f"GRANT REPLICATION SLAVE, BINLOG MONITOR ON *.* TO {USER}@localhost")
        session.execute(f"GRANT SELECT ON {DATABASE}.* TO {USER}@localhost")
        session.execute(f"USE {DATABASE}")
        for statement in _TABLES:
            session.execute(statement)
        _fill(session, sizes)
        _fill_everything(session, sizes.everything)
    return MySqlOptions(port=root.port, username=USER, password=Secret(f"file:{password}"))


def _fill(session: Session, sizes: Sizes) -> None:
    """Rows are made by the server, out of its sequences."""
    session.execute(
        f"""INSERT INTO customers SELECT CONCAT(IF(seq % 2, 'User', 'user'), seq, '@example.org'), CONCAT('Zoë Nº ', seq),
            '2020-01-01' + INTERVAL seq % 2000 DAY, 1 + seq % 3, seq / 7 FROM seq_1_to_{sizes.customers}"""
    )
    session.execute(
        f"""INSERT INTO orders SELECT seq, CONCAT(IF(seq % 2, 'User', 'user'), 1 + seq % {sizes.customers}, '@example.org'),
            '2024-01-01' + INTERVAL seq MINUTE, IF(seq % 3, '2024-01-02' + INTERVAL seq SECOND, NULL), seq / 3,
            IF(seq % 5, NULL, 'gift') FROM seq_1_to_{sizes.orders}"""
    )
    session.execute(
        f"""INSERT INTO order_lines SELECT 1 + seq DIV 4, seq % 4, CONCAT('Käse ', seq % 50), seq % 9, seq / 11
            FROM seq_0_to_{sizes.lines - 1}"""
    )
    session.execute(f"INSERT INTO carts SELECT seq, CONCAT('Brezn ', seq), '2024-01-01' + INTERVAL seq SECOND FROM seq_1_to_{sizes.carts}")
    session.execute(
        f"""INSERT INTO payments SELECT seq, seq, seq / 3, 1 + seq % 3, '2024-01-01' + INTERVAL seq MINUTE, IF(seq % 4, MD5(seq), NULL), 0
            FROM seq_1_to_{sizes.payments}"""
    )


def _fill_everything(session: Session, rows: int) -> None:
    """Four rows of edges first: all NULL, all least, all greatest, all odd."""
    columns = _columns_of(session)
    defined = ", ".join(f"{name} {column.definition}" for name, column in columns.items())
    session.execute(f"CREATE TABLE everything (id INT UNSIGNED PRIMARY KEY, {defined})")
    edges = [
        ["NULL" for _ in columns],
        *([column.edges[at] for column in columns.values()] for at in range(3)),
    ]
    for number, values in enumerate(edges, start=1):
        session.execute(f"INSERT INTO everything VALUES ({number}, {', '.join(values)})")
    # One in eleven is NULL, of each column another one.
    filled = ", ".join(f"IF((seq + {at}) % 11, {column.filled}, NULL)" for at, column in enumerate(columns.values()))
    # A sequence's numbers are unsigned, and so would be what is left when more is taken away.
    numbers = f"SELECT CAST(seq AS SIGNED) AS seq FROM seq_{len(edges) + 1}_to_{rows}"
    session.execute(f"INSERT INTO everything SELECT seq, {filled} FROM ({numbers}) AS numbers")


def _columns_of(session: Session) -> dict[str, _Typed]:
    """Of `everything`, as far as this server has their types."""
    return {name: column for name, column in _EVERYTHING.items() if column.since <= session.server.version[:2]}


@dataclass(frozen=True, slots=True)
class ShopStatement:
    """One of those that change a table as a whole, while the writers are at work."""

    sql: str
    table: str


NEW_COLUMN = ShopStatement("ALTER TABLE orders ADD COLUMN channel VARCHAR(20) NULL", "orders")
NEW_COLUMN_FILLED = ShopStatement("ALTER TABLE customers ADD COLUMN points INT NOT NULL DEFAULT 10", "customers")
EMPTIED = ShopStatement("TRUNCATE TABLE carts", "carts")
LARGE = ShopStatement("UPDATE order_lines SET qty = qty + 1", "order_lines")


class Shop:
    """What the writers share: the statements that were run, and what was changed."""

    def __init__(self, options: MySqlOptions, sizes: Sizes) -> None:
        self.options = options
        self.sizes = sizes
        self.ran: set[str] = set()
        self.changed: Counter[str] = Counter()
        """Rows by table, of committed transactions."""
        self.committed = self.rolled_back = 0
        self._lock = threading.Lock()

    def run(self, statement: ShopStatement) -> None:
        """Writers know of it from now on."""
        with Session(self.options) as session:
            session.execute(f"USE {DATABASE}")
            session.execute(statement.sql)
            if statement is LARGE:
                self.count({statement.table: int(session.value("SELECT ROW_COUNT()"))})
        self.ran.add(statement.sql)

    def count(self, changed: dict[str, int]) -> None:
        with self._lock:
            self.changed.update(changed)
            self.committed += 1

    def count_roll_back(self) -> None:
        with self._lock:
            self.rolled_back += 1


class ShopWriter(threading.Thread):
    """A writer that never pauses: inserts, updates, deletes, key changes and roll-backs, in transactions of a few statements.

    Of rows that are there from the beginning each writer has its own, so that few meet.
    """

    def __init__(self, shop: Shop, number: int) -> None:
        super().__init__(name=f"snowmelt-writer-{number}", daemon=True)
        self._shop = shop
        self._number = number
        self._random = random.Random(number)
        self._new = 10_000_000 * (1 + number)
        self._changed: Counter[str] = Counter()
        self.stop = threading.Event()
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            with Session(self._shop.options) as session:
                session.execute(f"USE {DATABASE}")
                session.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
                while not self.stop.wait(_PAUSE_S):
                    self._transaction(session)
        except Exception as error:  # a thread's error must reach the thread that joins it
            self.error = error

    def _transaction(self, session: Session) -> None:
        self._session, self._changed = session, Counter()
        session.execute("START TRANSACTION")
        try:
            works = (self._buy, self._pay, self._cancel, self._rename, self._measure)
            self._random.choices(works, weights=(40, 30, 12, 10, 8))[0]()
            if self._random.randrange(10) == 0:
                session.execute("ROLLBACK")
                self._shop.count_roll_back()
                return
            session.execute("COMMIT")
        except SnowmeltError as error:
            if not error.detail.startswith(_LOST):
                raise
            session.execute("ROLLBACK")
            self._shop.count_roll_back()
            return
        self._shop.count(self._changed)

    def _do(self, table: str, sql: str, *values: object) -> None:
        self._session.execute(sql, values)
        self._changed[table] += int(self._session.value("SELECT ROW_COUNT()"))

    def _mine(self, below: int) -> int:
        """One of the first rows that no other writer touches, and not the last of all."""
        return self._random.randrange((below - 1) // WRITERS) * WRITERS + self._number + 1

    def _several(self, below: int) -> tuple[str, list[int]]:
        ids = sorted({self._mine(below) for _ in range(_AT_ONCE)})
        return f"({', '.join(['%s'] * len(ids))})", ids

    def _buy(self) -> None:
        self._new += 1
        new, draw = self._new, self._random
        if NEW_COLUMN.sql in self._shop.ran:
            sql = "INSERT INTO orders (id, email, placed, paid, total, note, channel) VALUES (%s, %s, NOW(3), NULL, 9.99, %s, 'web')"
        else:
            sql = "INSERT INTO orders (id, email, placed, paid, total, note) VALUES (%s, %s, NOW(3), NULL, 9.99, %s)"
        self._do("orders", sql, new, f"new{new}@example.org", "näh" * draw.randrange(9))
        self._do("order_lines", "INSERT INTO order_lines VALUES (%s, 0, 'Brezn', 2, 0.1), (%s, 1, 'Süßes', 1, 2.5)", new, new)
        self._do("payments", "INSERT INTO payments VALUES (%s, %s, 9.99, 'open', NOW(3), NULL, 0)", new, new)
        self._do("carts", "INSERT INTO carts (product, added) VALUES ('Brezn', NOW(3)), ('Süßes', NOW(3))")

    def _pay(self) -> None:
        places, orders = self._several(self._shop.sizes.orders)
        also = ", channel = 'shop'" if NEW_COLUMN.sql in self._shop.ran else ""
        self._do("orders", f"UPDATE orders SET total = total + 1, paid = NOW(6){also} WHERE id IN {places}", *orders)
        places, payments = self._several(self._shop.sizes.payments)
        self._do(
            "payments",
            f"UPDATE payments SET amount = amount + 1, state = 'paid', version = version + 1 WHERE id IN {places}",
            *payments,
        )
        if self._new % 10_000_000:
            # One of those that came during the load, so that they have a history too.
            recent = self._new - self._random.randrange(min(50, self._new % 10_000_000))
            self._do("payments", "UPDATE payments SET state = 'paid', version = version + 1 WHERE id = %s", recent)

    def _cancel(self) -> None:
        sizes = self._shop.sizes
        order = self._mine(min(sizes.orders, sizes.lines // 4))
        self._do("order_lines", "DELETE FROM order_lines WHERE order_id = %s", order)
        self._do("orders", "DELETE FROM orders WHERE id = %s", order)
        self._do("payments", "DELETE FROM payments WHERE id = %s", self._mine(sizes.payments))

    def _rename(self) -> None:
        """Other keys for the same rows; of some customers only the case changes, which their collation takes for the same key."""
        sizes, draw = self._shop.sizes, self._random
        self._new += 1
        email = f"user{self._mine(sizes.customers)}@example.org"
        changed = ("UPPER(email)", f"CONCAT('moved{self._new}-', email)")[draw.randrange(2)]
        self._do("customers", f"UPDATE customers SET email = {changed}, balance = balance - 1 WHERE email = %s", email)
        order = self._mine(sizes.lines // 4)
        self._do("order_lines", "UPDATE order_lines SET line = line + 10 WHERE order_id = %s ORDER BY line DESC", order)
        self._do("payments", "UPDATE payments SET id = id + %s, version = version + 1 WHERE id = %s", MOVED, self._mine(sizes.payments))

    def _measure(self) -> None:
        """Rows of `everything` copied over others, edges among them, and some gone."""
        rows = self._shop.sizes.everything
        source = self._mine(rows) if self._random.randrange(4) else self._random.randint(1, 4)
        target = 4 + self._mine(rows)
        # Not by REPLACE: whether that is one change or two is the server's secret.
        self._do("everything", "DELETE FROM everything WHERE id = %s", target)
        if self._random.randrange(4):
            columns = ", ".join(_columns_of(self._session))
            self._do("everything", f"INSERT INTO everything SELECT %s, {columns} FROM everything WHERE id = %s", target, source)


@contextlib.contextmanager
def at_work(writers: Sequence[ShopWriter]) -> Iterator[None]:
    """Writers that work while the block runs; the error of one of them is raised after it."""
    for writer in writers:
        writer.start()
    try:
        yield
    finally:
        for writer in writers:
            writer.stop.set()
        for writer in writers:
            writer.join()
    for writer in writers:
        if writer.error is not None:
            raise writer.error
