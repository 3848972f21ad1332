"""The logs that benches read: a bulk load in transactions of 150 rows, and single-row statements as applications send them.

Two tables: `sbtest1`, sysbench's, and `orders`, fifteen columns of as many types.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.kit.servers import Server

DATABASE = "bench"

SBTEST = """CREATE TABLE sbtest1 (
  id INT NOT NULL AUTO_INCREMENT PRIMARY KEY, k INT NOT NULL DEFAULT 0, c CHAR(120) NOT NULL DEFAULT '',
  pad CHAR(60) NOT NULL DEFAULT '')"""

ORDERS = """CREATE TABLE orders (
  id BIGINT NOT NULL PRIMARY KEY, customer INT NOT NULL, amount DECIMAL(12,2) NOT NULL, tax DECIMAL(10,4), created DATETIME(6) NOT NULL,
  updated TIMESTAMP(3) NULL, name VARCHAR(80), status TINYINT NOT NULL, qty SMALLINT, region MEDIUMINT, weight DOUBLE, score FLOAT,
  due DATE, detail JSON, note TEXT)"""

_SBTEST_VALUES = "seq, CONCAT(MD5(seq), '-', MD5(seq + 1), '-', MD5(seq + 2)), CONCAT(MD5(seq + 3), '-', LEFT(MD5(seq), 20))"
_ORDERS_VALUES = """seq, seq % 100000, seq / 7, seq / 13, '2024-01-01' + INTERVAL seq SECOND + INTERVAL seq % 1000000 MICROSECOND,
  '2024-01-01' + INTERVAL seq SECOND, CONCAT('Müller ', seq), seq % 5, IF(seq % 9, seq % 1000, NULL), seq % 100000, seq * 1.01, seq / 3,
  '2024-01-01' + INTERVAL seq % 1000 DAY, CONCAT('{"a": ', seq, ', "b": "x"}'), IF(seq % 4, REPEAT('note ', seq % 20), NULL)"""

TRANSACTION_ROWS = 150


@dataclass(frozen=True, slots=True)
class Log:
    """A finished log file of the server."""

    name: str
    bytes: int
    changes: int


def prepare(server: Server) -> None:
    """An empty database with both tables, whose making is in none of the logs below."""
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {DATABASE} CHARACTER SET utf8mb4")
        cursor.execute(f"USE {DATABASE}")
        cursor.execute(SBTEST)
        cursor.execute(ORDERS)


def make_bulk(server: Server, *, transactions: int = 4000) -> Log:
    """Inserts of both tables, updates of half and deletes of a sixth of the rows, each transaction 150 rows of one table."""
    changes = 0
    with server.connect(database=DATABASE) as connection, connection.cursor() as cursor:
        name = _next_file(cursor)
        for number in range(transactions):
            low, high = number * TRANSACTION_ROWS + 1, (number + 1) * TRANSACTION_ROWS
            changes += cursor.execute(f"INSERT INTO sbtest1 (k, c, pad) SELECT {_SBTEST_VALUES} FROM seq_{low}_to_{high}")
            changes += cursor.execute(f"INSERT INTO orders SELECT {_ORDERS_VALUES} FROM seq_{low}_to_{high}")
            if number % 2:
                changes += cursor.execute(f"UPDATE sbtest1 SET k = k + 1 WHERE id BETWEEN {low} AND {high}")
                changes += cursor.execute(f"UPDATE orders SET amount = amount + 1, qty = 7 WHERE id BETWEEN {low} AND {high}")
            if number % 6 == 5:
                changes += cursor.execute(f"DELETE FROM sbtest1 WHERE id BETWEEN {low} AND {high}")
                changes += cursor.execute(f"DELETE FROM orders WHERE id BETWEEN {low} AND {high}")
        return _finished(cursor, name, changes)


def make_oltp(server: Server, *, transactions: int = 60_000) -> Log:
    """Transactions of four single-row statements: two updates, an insert, a delete. Needs the rows of `make_bulk`."""
    with server.connect(database=DATABASE) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT MAX(id) FROM sbtest1")
        rows = int(cursor.fetchone()[0])
        cursor.execute("SET SESSION binlog_format = ROW")
        cursor.execute("DROP PROCEDURE IF EXISTS oltp")
        cursor.execute(
            f"""CREATE PROCEDURE oltp(transactions INT) BEGIN
              DECLARE i, r INT DEFAULT 0;
              WHILE i < transactions DO
                SET r = 1 + FLOOR(RAND(i) * {rows});
                START TRANSACTION;
                UPDATE sbtest1 SET k = k + 1 WHERE id = r;
                UPDATE orders SET amount = amount + 1, note = CONCAT('changed ', i) WHERE id = r;
                INSERT INTO orders (id, customer, amount, created, status, name) VALUES (1000000000 + i, i, 1.5, NOW(6), 1, 'new');
                DELETE FROM orders WHERE id = 1000000000 + i - 10;
                COMMIT;
                SET i = i + 1;
              END WHILE;
            END"""
        )
        name = _next_file(cursor)
        cursor.execute("CALL oltp(%s)", [transactions])
        return _finished(cursor, name, 0)


def _next_file(cursor: object) -> str:
    cursor.execute("FLUSH BINARY LOGS")  # type: ignore[attr-defined]
    cursor.execute("SHOW MASTER STATUS")  # type: ignore[attr-defined]
    return str(cursor.fetchone()[0])  # type: ignore[attr-defined]


def _finished(cursor: object, name: str, changes: int) -> Log:
    cursor.execute("FLUSH BINARY LOGS")  # type: ignore[attr-defined]
    cursor.execute("SHOW BINARY LOGS")  # type: ignore[attr-defined]
    sizes = {row[0]: int(row[1]) for row in cursor.fetchall()}  # type: ignore[attr-defined]
    return Log(name, sizes[name], changes)
