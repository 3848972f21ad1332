"""The demo's database: a shop with four tables of different keys, and somebody who keeps changing it."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Iterator, Sequence

from snowmelt.databases.mysql.connect import MySqlOptions, Session

DATABASE = "shop"
TABLES = (
    """CREATE TABLE customers (email VARCHAR(80) COLLATE utf8mb4_general_ci PRIMARY KEY, name VARCHAR(60) NOT NULL, since DATE NOT NULL,
       level ENUM('new', 'silver', 'gold') NOT NULL, tags SET('vip', 'press', 'staff') NOT NULL, balance DECIMAL(12,2) NOT NULL)""",
    """CREATE TABLE orders (id INT UNSIGNED PRIMARY KEY, email VARCHAR(80) NOT NULL, placed DATETIME(3) NOT NULL, paid TIMESTAMP(6) NULL,
       total DECIMAL(12,2) NOT NULL, note TEXT)""",
    """CREATE TABLE order_lines (order_id INT UNSIGNED, line SMALLINT, product VARCHAR(30) CHARACTER SET latin1 NOT NULL, qty INT NOT NULL,
       price DOUBLE NOT NULL, PRIMARY KEY (order_id, line))""",
    """CREATE TABLE sensors (id UUID PRIMARY KEY, address INET6, reading FLOAT, flags BIT(12), raw BINARY(8), took TIME(2), body JSON)""",
)
CUSTOMERS, ORDERS, LINES, SENSORS = 3_000, 20_000, 40_000, 2_000


def create(options: MySqlOptions) -> None:
    with Session(options) as session:
        session.execute(f"CREATE DATABASE {DATABASE}")
        session.execute(f"USE {DATABASE}")
        for statement in TABLES:
            session.execute(statement)
        session.execute(
            f"""INSERT INTO customers SELECT CONCAT(IF(seq % 2, 'User', 'user'), seq, '@example.org'), CONCAT('Zoë Nº ', seq),
                '2020-01-01' + INTERVAL seq % 2000 DAY, 1 + seq % 3, seq % 8, seq / 7 FROM seq_1_to_{CUSTOMERS}"""
        )
        session.execute(
            f"""INSERT INTO orders SELECT seq, CONCAT(IF(seq % 2, 'User', 'user'), 1 + seq % {CUSTOMERS}, '@example.org'),
                '2024-01-01' + INTERVAL seq MINUTE, IF(seq % 3, '2024-01-02' + INTERVAL seq SECOND, NULL), seq / 3,
                IF(seq % 5, NULL, 'gift') FROM seq_1_to_{ORDERS}"""
        )
        session.execute(
            f"INSERT INTO order_lines SELECT 1 + seq DIV 4, seq % 4, CONCAT('Käse ', seq % 50), seq % 9, seq / 11 FROM seq_0_to_{LINES - 1}"
        )
        session.execute(
            f"""INSERT INTO sensors SELECT UUID(), INET6_NTOA(UNHEX(MD5(seq))), seq / 7, seq % 4096, UNHEX(LEFT(MD5(seq), 10)),
                SEC_TO_TIME(seq * 13.25 - 9000), JSON_OBJECT('n', seq) FROM seq_1_to_{SENSORS}"""
        )


class Writer(threading.Thread):
    """Somebody who never stops to ask: inserts, updates, deletes, key changes and roll-backs, in transactions of a few statements."""

    def __init__(self, options: MySqlOptions, seed: int) -> None:
        super().__init__(daemon=True)
        self._options = options
        self._random = random.Random(seed)
        self._last = seed * 1_000_000 + ORDERS
        self.stop = threading.Event()
        self.transactions = 0
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            with Session(self._options) as session:
                session.execute(f"USE {DATABASE}")
                # Two writers may meet on one row; InnoDB then ends one transaction, which is no error of the shop's.
                session.execute("SET SESSION innodb_lock_wait_timeout = 5")
                while not self.stop.is_set():
                    self._transaction(session)
        except Exception as error:  # a thread's error must reach whoever joins it
            self.error = error

    def _transaction(self, session: Session) -> None:
        draw = self._random
        order = draw.randrange(1, ORDERS)
        new = self._last
        session.execute("START TRANSACTION")
        session.execute("UPDATE orders SET total = total + 1, paid = NOW(6) WHERE id = %s", [order])
        session.execute("INSERT INTO orders VALUES (%s, 'new@example.org', NOW(3), NULL, 9.99, %s)", [new, "näh" * draw.randrange(9)])
        session.execute("INSERT INTO order_lines VALUES (%s, 0, 'Brezn', 2, 0.1), (%s, 1, 'Süßes', 1, 2.5)", [new, new])
        match draw.randrange(4):
            case 0:
                session.execute("DELETE FROM order_lines WHERE order_id = %s", [order])
            case 1:
                session.execute("UPDATE order_lines SET line = line + 10 WHERE order_id = %s ORDER BY line DESC", [order])
            case 2:
                email = f"{draw.choice(('User', 'user'))}{draw.randrange(CUSTOMERS)}@example.org"
                session.execute("UPDATE customers SET email = UPPER(email), balance = balance - 1 WHERE email = %s", [email])
            case _:
                session.execute("UPDATE sensors SET reading = reading * 1.1, took = NULL ORDER BY id LIMIT %s", [draw.randrange(5)])
        self._last += 1
        if draw.randrange(10) == 0:
            session.execute("ROLLBACK")
        else:
            session.execute("COMMIT")
            self.transactions += 1


@contextlib.contextmanager
def at_work(writers: Sequence[Writer]) -> Iterator[None]:
    """Writers that work while the block runs; the error of one of them is raised behind it."""
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
