"""Statements read from real logs leave the shapes that the real catalogues have."""

# ruff: noqa: E501 (tables of types and statements)

from __future__ import annotations

import contextlib
import dataclasses
import random
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import pymysql
import pytest

from snowmelt.credentials import Secret
from snowmelt.databases.mysql.catalog import read_tables
from snowmelt.databases.mysql.connect import MySqlOptions, Session, Tls
from snowmelt.databases.mysql.ddl import (
    AlterColumns,
    CreateTable,
    DatabaseDefaults,
    DropDatabase,
    DropTable,
    Ignored,
    NotUnderstood,
    RenameTable,
    Rewrites,
    RowsAsText,
    Rules,
    SchemaChange,
    SqlMode,
    Truncate,
    read_statement,
)
from snowmelt.databases.mysql.ddl.rules import CHARSET_BYTES_MAX
from snowmelt.databases.mysql.types.columns import INTEGER_BITS, MySqlTable
from snowmelt.model.table import TableId
from tests.kit.servers import Server, log_end

Database = Callable[[Server], str]


class Follower:
    """Runs statements, reads them back from the log and keeps shapes by what they say, never by the catalogue."""

    def __init__(self, server: Server, database: str) -> None:
        self.database = database
        self.server = server
        self.connection = server.connect(database=database)
        secret = server.folder / "password"
        secret.write_text(server.password)
        options = MySqlOptions(
            host=server.host,
            port=server.port,
            username=server.user,
            password=Secret(f"file:{secret}"),
            tls=Tls.DISABLED,
            allow_password_to_unverified_server=True,
        )
        self.session = Session(options)
        self.shapes: dict[TableId, MySqlTable] = {}
        self.changes: list[SchemaChange] = []
        self.collation = str(self.one("SELECT @@collation_database"))

    def close(self) -> None:
        self.session.close()
        self.connection.close()

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        with self.connection.cursor() as cursor:
            cursor.execute(sql)
            return list(cursor.fetchall())

    def one(self, sql: str) -> Any:
        return self.query(sql)[0][0]

    def rules(self) -> Rules:
        mode = str(self.one("SELECT @@sql_mode")).split(",")
        return Rules(
            flavour=self.session.server.flavour,
            version=self.session.server.version,
            sql_mode=sum(int(flag) for flag in SqlMode if flag.name in mode),
            explicit_timestamps=bool(self.one("SELECT @@explicit_defaults_for_timestamp")),
        )

    def run(self, sql: str) -> tuple[SchemaChange, ...]:
        """The changes that the log tells of. A statement that the server refuses raises and is not in the log."""
        with self.connection.cursor() as cursor:
            file, start = log_end(cursor)
        self.query(sql)
        rules = self.rules()
        changes: list[SchemaChange] = []
        for _, _, kind, _, _, info in self.session.query(f"SHOW BINLOG EVENTS IN '{file}' FROM {start}"):
            if kind != "Query":
                continue
            used = re.match(r"use `((?:[^`]|``)*)`; ", info)
            for change in read_statement(
                info[used.end() :] if used else info,
                database=used[1].replace("``", "`") if used else self.database,
                schemas=self.shapes.get,
                captured=lambda table: table.database.startswith(self.database),
                defaults=lambda _: self.collation,
                rules=rules,
            ):
                self.apply(change)
                changes.append(change)
        self.changes += changes
        return tuple(changes)

    def apply(self, change: SchemaChange) -> None:
        match change:
            case CreateTable(table):
                self.shapes[table.id] = table
            case AlterColumns(table, _, after):
                self.shapes[table] = after
            case Rewrites(table, after):
                after = after or self.catalogue(table)
                if after is not None:
                    self.shapes[table] = after
            case DropTable(table):
                self.shapes.pop(table, None)
            case RenameTable(old, new, after):
                self.shapes.pop(old, None)
                if after is not None:
                    self.shapes[new] = after
            case DatabaseDefaults(_, collation):
                self.collation = collation or self.collation
            case DropDatabase(name):
                self.shapes = {table: shape for table, shape in self.shapes.items() if table.database != name}
            case Truncate() | Ignored() | RowsAsText():
                pass
            case NotUnderstood():
                raise AssertionError(change)

    def catalogue(self, table: TableId) -> MySqlTable | None:
        return read_tables(self.session, [table]).get(table)

    def compare(self, said: str) -> None:
        # By names, since lists are read several times: nothing is altered meanwhile.
        where = "WHERE table_schema LIKE CONCAT(%s, '%%')"
        listed = self.session.query(f"SELECT table_schema, table_name FROM information_schema.tables {where}", [self.database])
        there = read_tables(self.session, [TableId(*names) for names in listed])
        assert set(self.shapes) == set(there), said
        for table, shape in there.items():
            ours = self.shapes[table]
            for mine, theirs in zip(ours.columns, shape.columns, strict=False):
                assert plain(mine) == plain(theirs), f"{said}\n{table}"
            assert [c.name for c in ours.columns] == [c.name for c in shape.columns], f"{said}\n{table}"
            assert ours.fingerprint() == shape.fingerprint(), f"{said}\n{table} {ours.key} {shape.key}"
            for name in ("key", "key_is_primary", "charset", "collation", "comment"):
                assert getattr(ours, name) == getattr(shape, name), f"{said}\n{table} {name}"
            assert ours.engine.lower() == shape.engine.lower(), said


def plain(column: Any) -> dict[str, Any]:
    """A column but for its default, which each server prints in its own way."""
    return {name: value for name, value in dataclasses.asdict(column).items() if name != "default"}


@pytest.fixture
def follow(database: Database) -> Any:
    followers: list[Follower] = []

    def start(server: Server) -> Follower:
        follower = Follower(server, database(server))
        followers.append(follower)
        return follower

    yield start
    for follower in followers:
        follower.close()


EVERY_TYPE = """
tinyint; int1; smallint(3); int2; mediumint; int3; middleint; int; integer(5); int4; bigint; int8; bool; boolean; int unsigned; int zerofill;
bigint(20) unsigned zerofill; tinyint signed; decimal; decimal(7); decimal(0); decimal(65,30); dec(3,1) unsigned zerofill; numeric(4,2);
fixed(4,4); float; float4; float(24); float(25); float(7,3); float unsigned; double; float8; double precision; double(10,2); real;
bit; bit(7); bit(64); date; year; year(4); datetime; datetime(6); timestamp null; timestamp(3) null; time; time(2);
char; char(0); char(9); character(4); varchar(10); varchar(0); character varying(5); char varying(5); varcharacter(3); national char(3);
national character(3); nchar(4); nchar; national varchar(3); nvarchar(4); national char varying(3); nchar varchar(4); nchar varying(2);
national character varying(6);
tinytext; text; mediumtext; longtext; text(0); text(63); text(64); text(255); text(16383); text(16384); text(70000); text(17000000); long; long varchar;
long char varying; text(255) charset latin1; text(256) charset latin1; text(21845) charset utf8; text(21846) charset utf8;
binary; binary(0); binary(16); varbinary(20); tinyblob; blob; mediumblob; longblob; blob(0); blob(255); blob(256); blob(65535); blob(65536);
vector(3); vector; blob(16777216); long varbinary; char byte; char(5) byte; varchar(10) byte; text byte; varchar(10) charset binary; tinytext charset binary;
longtext character set binary; enum('a ','b') charset binary; set('x','y ') character set binary;
char(3) binary; varchar(3) charset latin1 binary; varchar(3) binary charset latin1; char(3) ascii; char(3) unicode; text unicode; varchar(5) ascii binary;
varchar(3) collate utf8_bin; varchar(3) charset utf8 collate utf8_general_ci; varchar(3) charset latin1; char(4) collate latin2_czech_cs;
varchar(3) character set 'cp1251'; varchar(3) char set big5; varchar(9) charset ucs2; text charset utf16; text charset utf8mb4; char(2) charset sjis;
varchar(10) collate 'latin1_german2_ci'; varchar(20) charset gbk; char(1) charset ujis; char(1) charset swe7; char(1) charset hp8; char(1) charset dec8;
char(1) charset tis620; char(1) charset euckr; char(1) charset gb2312; char(1) charset cp932; char(1) charset eucjpms; char(1) charset koi8r;
char(1) charset greek; char(1) charset hebrew; char(1) charset latin7; char(1) charset macroman; char(1) charset utf32; char(1) charset utf16le;
enum('x ','a\\'b','c''d',"q",0x41,x'4243','ä','tab\\t','a,b',''); enum('a)','(b','c;d','--e','/*f*/','#'); enum('one') collate latin1_bin;
set('a','b','c '); set('é','ß') charset utf8; enum('back\\\\slash', '100\\%'); enum('UP','up ') charset latin1 collate latin1_bin;
geometry; point; linestring; polygon; multipoint; multilinestring; multipolygon; geometrycollection; geomcollection;
json; json not null; inet4; inet6; uuid; point not null; serial; int serial default value; int null auto_increment unique; bigint auto_increment null unique;
bigint auto_increment primary key; int key; int primary; int unique; int not null unique key; int unique not null; varchar(10) not null unique key;
int not null default 5 comment 'it''s, (so)' ; int default null; int null default -5; decimal(5,2) default +1.5; varchar(5) default 'a' 'b';
varchar(5) default _utf8'x'; varchar(5) default n'y'; varchar(5) default x'41'; bit(3) default b'101'; timestamp default current_timestamp;
timestamp(3) null default now(3) on update current_timestamp(3); datetime default current_timestamp on update now(); datetime default localtime;
date default '2020-01-01'; date default date'2020-01-01'; datetime default timestamp'2020-01-01 10:00:00'; varchar(40) default (uuid());
varchar(40) default uuid(); int default (1 + 2); int default (7); int check (c > 0); int constraint pos check (c > 0); int not null check (c > 0) not enforced;
int generated always as (1 + 1); int generated always as (1 + 1) virtual; int as (2) stored; int as (3) persistent; int generated always as (4) stored not null;
varchar(10) generated always as (concat('a', ')')) virtual comment 'x'; int invisible; int not null default 3 invisible; int visible;
int column_format fixed storage disk; int references other(id); int references other(id) on delete cascade on update set null;
text compressed; varchar(20) compressed=zlib; blob compressed; geometry not null srid 0; point srid 4326 not null; int default true;
int without system versioning; varchar(10) charset utf8mb4 collate uca1400_ai_ci; varchar(10) charset default; varchar(10) collate default;
timestamp; timestamp default '2020-01-01 00:00:00'; timestamp not null; timestamp default 0; timestamp null default null;
varchar(20000); varchar(70000) charset latin1; varbinary(70000); varchar(16384) charset utf8mb4; varchar(65535) charset latin1
"""


@pytest.mark.parametrize("mode", ["", "STRICT_TRANS_TABLES", "NO_BACKSLASH_ESCAPES", "REAL_AS_FLOAT", "ORACLE", "MAXDB"])
def test_a_column_of_any_type_is_what_the_catalogue_says(any_server: Server, follow: Any, mode: str) -> None:
    follower = follow(any_server)
    try:
        follower.query(f"SET sql_mode = '{mode}'")
    except pymysql.MySQLError:
        pytest.skip(f"this server has no sql_mode {mode}")
    follower.query("SET sql_mode = REPLACE(@@sql_mode, 'NO_TABLE_OPTIONS', '')")
    types = re.split(r"\s*;\s+", EVERY_TYPE.strip())
    if mode == "ORACLE":
        types += ["number", "number(5)", "number(5,2)", "varchar2(10)", "clob", "raw(5)", "blob", "date"]
    accepted = 0
    for number, one in enumerate(types):
        for charset in ("", " DEFAULT CHARSET latin1", " COLLATE=utf8_unicode_ci") if mode == "" else ("",):
            sql = f"CREATE TABLE t{number} (c {one}, other INT){charset}"
            try:
                follower.run(sql)
            except pymysql.MySQLError:
                continue
            accepted += 1
            follower.compare(sql)
            follower.run(f"DROP TABLE t{number}")
    assert accepted > 100


def test_timestamps_without_explicit_defaults_are_not_null(any_server: Server, follow: Any) -> None:
    follower = follow(any_server)
    # MySQL 5.6 has it off, and fixed.
    with contextlib.suppress(pymysql.MySQLError):
        follower.query("SET explicit_defaults_for_timestamp = 0")
    sql = "CREATE TABLE t (a TIMESTAMP, b TIMESTAMP NOT NULL DEFAULT 0, c TIMESTAMP NULL, d TIMESTAMP(3) DEFAULT CURRENT_TIMESTAMP(3))"
    follower.query("SET sql_mode = ''")
    follower.run(sql)
    follower.compare(sql)
    assert [c.nullable for c in follower.shapes[TableId(follower.database, "t")].columns] == [False, False, True, False]


DIALOGUE = r"""
CREATE TABLE a (id INT PRIMARY KEY, `select` VARCHAR(10), `a``b` TEXT, `x.y` INT, `ünï` INT, $d INT, 1st INT) COMMENT 'first' CHARSET latin1
/* App: x */ ALTER TABLE a ADD n1 INT, ADD COLUMN n2 INT NOT NULL DEFAULT 7 AFTER id, ADD (n3 INT, n4 VARCHAR(5)), ADD n5 INT FIRST
ALTER TABLE a ADD (n6 INT, INDEX (n6), n7 INT)
ALTER TABLE a MODIFY n1 BIGINT, MODIFY n3 INT FIRST, MODIFY `select` VARCHAR(20) AFTER `ünï`, CHANGE n2 m2 INT AFTER n3
ALTER TABLE a CHANGE m2 n2 INT, ADD z INT AFTER n2, DROP n4, DROP COLUMN n5
ALTER TABLE a RENAME COLUMN n2 TO q2, RENAME COLUMN z TO n2, ADD zz INT AFTER n2
ALTER TABLE a RENAME COLUMN q2 TO n2, RENAME COLUMN n2 TO q2
ALTER TABLE a RENAME COLUMN n1 TO r1, ADD y1 INT AFTER r1
ALTER TABLE a CHANGE r1 n1 BIGINT, MODIFY y1 INT FIRST, ADD y2 INT AFTER n1
ALTER TABLE a ALTER n1 SET DEFAULT 5, ALTER COLUMN n3 DROP DEFAULT, ALTER y1 SET DEFAULT (1+2)
ALTER TABLE a ALTER COLUMN y1 SET INVISIBLE
ALTER TABLE a ALTER COLUMN y1 SET VISIBLE
ALTER TABLE a ADD IF NOT EXISTS n1 INT, DROP COLUMN IF EXISTS nothing, MODIFY IF EXISTS nothing INT, CHANGE IF EXISTS nothing nix INT
ALTER TABLE a DEFAULT CHARSET utf8mb4, ADD late VARCHAR(5)
ALTER TABLE a ADD early VARCHAR(5), CHARACTER SET = latin2 COLLATE latin2_czech_cs
ALTER TABLE a COLLATE latin1_bin ENGINE=InnoDB, COMMENT='', AUTO_INCREMENT = 5 ROW_FORMAT=DYNAMIC
ALTER TABLE a ENGINE InnoDB COMMENT 'x' KEY_BLOCK_SIZE=0, FORCE
ALTER TABLE a ADD INDEX i1 (n1), ADD UNIQUE KEY u1 (n3), ADD CONSTRAINT c1 UNIQUE (y1), ADD FULLTEXT (late), ADD KEY (n1, n3 DESC) USING BTREE COMMENT 'x'
ALTER TABLE a RENAME INDEX i1 TO i2
ALTER TABLE a DROP INDEX u1, DROP KEY c1
ALTER TABLE a ADD CONSTRAINT chk CHECK (n1 > 0), ADD CHECK (n3 < 10)
ALTER TABLE a DROP CONSTRAINT chk
ALTER TABLE a ORDER BY n1, n3 DESC
ALTER TABLE a ORDER BY n1 ASC, n3, ADD o1 INT
ALTER TABLE a DISABLE KEYS
ALTER TABLE a ADD w INT, ALGORITHM=INPLACE, LOCK=NONE
ALTER TABLE a WAIT 5 ADD w2 INT
ALTER TABLE a NOWAIT ADD w3 INT
ALTER ONLINE TABLE a ADD w4 INT
ALTER IGNORE TABLE a ADD w5 INT
ALTER TABLE IF EXISTS a ADD w6 INT
ALTER TABLE a ADD COLUMN g1 INT AS (n1 + 1) STORED, ADD g2 INT GENERATED ALWAYS AS (n1 + 2) VIRTUAL
ALTER TABLE a MODIFY g1 BIGINT AS (n1 + 3) STORED
ALTER TABLE a CONVERT TO CHARACTER SET utf8mb4
ALTER TABLE a CONVERT TO CHARACTER SET latin1 COLLATE latin1_german1_ci
ALTER TABLE a CONVERT TO CHARSET utf8
ALTER TABLE a MODIFY `a``b` TINYTEXT CHARSET latin1, ADD mt MEDIUMTEXT, ADD e ENUM('ä','b'), ADD s SET('x') COLLATE utf8mb4_bin
ALTER TABLE a CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_unicode_ci
ALTER TABLE a DROP PRIMARY KEY, ADD PRIMARY KEY (id, n2)
ALTER TABLE a MODIFY id BIGINT NOT NULL AUTO_INCREMENT
ALTER TABLE a DROP PRIMARY KEY, CHANGE id ident BIGINT, ADD PRIMARY KEY (ident)
ALTER TABLE a CHANGE ident id INT UNSIGNED
ALTER TABLE a RENAME b
ALTER TABLE b RENAME TO a, ADD viarename INT
ALTER TABLE a RENAME AS c
RENAME TABLE c TO a
CREATE TABLE b LIKE a
CREATE TABLE IF NOT EXISTS b (x INT)
CREATE TABLE c (LIKE a)
RENAME TABLE a TO tmp, b TO a, tmp TO b
ALTER TABLE b DROP COLUMN `a``b`
DROP TABLE b, c
CREATE OR REPLACE TABLE a (id INT, name VARCHAR(5), UNIQUE KEY (name), UNIQUE (id))
DROP TABLE IF EXISTS a
CREATE TABLE a (id INT NOT NULL, b INT NOT NULL, c INT, d VARCHAR(40) NOT NULL, UNIQUE (c), UNIQUE (d(5)), UNIQUE KEY zz (b), UNIQUE aa (id))
ALTER TABLE a ADD PRIMARY KEY (id)
DROP INDEX `PRIMARY` ON a
ALTER TABLE a DROP INDEX zz
CREATE UNIQUE INDEX more ON a (c, id)
ALTER TABLE a MODIFY c INT NOT NULL
DROP TABLE a
CREATE TABLE a (id INT NOT NULL, b INT, UNIQUE (b, id))
ALTER TABLE a DROP COLUMN b
DROP TABLE a
CREATE TABLE a (id INT, b INT NOT NULL)
CREATE INDEX plain ON a (b)
CREATE UNIQUE INDEX u USING BTREE ON a (b)
CREATE UNIQUE INDEX v ON a (id)
DROP INDEX plain ON a
ALTER TABLE a ADD PRIMARY KEY IF NOT EXISTS (id)
ALTER TABLE a ADD PRIMARY KEY (id)
DROP TABLE a
CREATE TABLE a (id INT PRIMARY KEY, y INT) /*!50100 PARTITION BY HASH (id) PARTITIONS 4 */
ALTER TABLE a COALESCE PARTITION 1
ALTER TABLE a ADD PARTITION PARTITIONS 2
ALTER TABLE a ADD q INT PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (10), PARTITION p1 VALUES LESS THAN MAXVALUE)
ALTER TABLE a REORGANIZE PARTITION p1 INTO (PARTITION p1 VALUES LESS THAN (20), PARTITION p2 VALUES LESS THAN MAXVALUE)
ALTER TABLE a TRUNCATE PARTITION p0
ALTER TABLE a DROP PARTITION p0, p1
CREATE TABLE ex (id INT PRIMARY KEY, y INT, q INT)
ALTER TABLE a EXCHANGE PARTITION p2 WITH TABLE ex WITHOUT VALIDATION
ALTER TABLE a EXCHANGE PARTITION p2 WITH TABLE ex
ALTER TABLE a REMOVE PARTITIONING
DROP TABLES a, ex RESTRICT
CREATE TABLE a (id INT AUTO_INCREMENT, KEY (id), v /*!80023 INVISIBLE */ INT) /*!99999 NONSENSE */ ENGINE=InnoDB
DROP TABLE a
CREATE TABLE a (id INT KEY, v INT /*!80023 INVISIBLE */ /*M!100303 INVISIBLE */ /*!50000 DEFAULT 5 */, w INT /*!99999 INVISIBLE */)
CREATE TABLE z SELECT 1 AS one, 'x' AS two, NOW(3) AS three, CAST(5 AS DECIMAL(7,2)) AS four
CREATE TABLE y (k INT PRIMARY KEY) AS SELECT id AS k, v FROM a
CREATE TABLE ser (a JSON, b INT, PRIMARY KEY (b DESC), CONSTRAINT self FOREIGN KEY (b) REFERENCES ser (b) ON DELETE CASCADE)
ALTER TABLE ser ADD COLUMN r INT, ADD FOREIGN KEY fk (r) REFERENCES ser (b) ON UPDATE NO ACTION ON DELETE SET NULL
CREATE TABLE fun (a INT, b VARCHAR(30), UNIQUE KEY ((a + 1)), KEY ((upper(b))))
ALTER TABLE fun ADD d DATE NOT NULL, ADD e ENUM('x','y') NOT NULL
SET @@system_versioning_alter_history = KEEP
CREATE TABLE sysver (id INT PRIMARY KEY, v INT) WITH SYSTEM VERSIONING
ALTER TABLE sysver ADD w INT
ALTER TABLE sysver ADD COLUMN w2 INT, ADD x INT AFTER id, MODIFY v BIGINT FIRST
ALTER TABLE sysver DROP PRIMARY KEY, ADD PRIMARY KEY (w, id)
CREATE TABLE sysver2 (id INT PRIMARY KEY, f TIMESTAMP(6) GENERATED ALWAYS AS ROW START, t TIMESTAMP(6) GENERATED ALWAYS AS ROW END INVISIBLE, PERIOD FOR SYSTEM_TIME (f, t)) WITH SYSTEM VERSIONING
ALTER TABLE sysver2 DROP SYSTEM VERSIONING
SET sql_generate_invisible_primary_key = ON
CREATE TABLE gipk (a INT)
ALTER TABLE gipk ADD b INT
SET sql_generate_invisible_primary_key = OFF
SET sql_mode = 'ANSI_QUOTES'
CREATE TABLE "quoted ""name" ("a b" INT PRIMARY KEY, c VARCHAR(5) DEFAULT '"', "enum" ENUM('a','''') )
ALTER TABLE "quoted ""name" ADD "x`y" INT COMMENT 'q'
SET sql_mode = 'NO_BACKSLASH_ESCAPES'
CREATE TABLE bs (a ENUM('\', 'b'), b ENUM('\n') COMMENT '\', c INT)
SET sql_mode = ''
ALTER DATABASE CHARACTER SET latin1
CREATE TABLE lat (a VARCHAR(5))
ALTER TABLE lat CONVERT TO CHARACTER SET DEFAULT
TRUNCATE lat
TRUNCATE TABLE lat
CREATE VIEW seen AS SELECT * FROM lat
CREATE TRIGGER tr BEFORE INSERT ON lat FOR EACH ROW SET NEW.a = 'DROP TABLE lat'
CREATE PROCEDURE pr() BEGIN DROP TABLE lat; END
ANALYZE TABLE lat
DROP PROCEDURE pr
CREATE TABLE mem (a INT PRIMARY KEY) ENGINE=MEMORY
ALTER TABLE mem ENGINE=MyISAM
CREATE TABLE vec (id INT PRIMARY KEY, v VECTOR(5) NOT NULL, t TEXT CHARSET latin1)
ALTER TABLE vec ADD w VECTOR(3), ADD VECTOR INDEX (v)
ALTER TABLE vec MODIFY w VECTOR(7) AFTER id
CREATE TABLE uca (id INT PRIMARY KEY, a VARCHAR(5) CHARSET utf8mb4, b VARCHAR(5) COLLATE utf8mb4_uca1400_as_cs) COLLATE uca1400_german2_ai_ci
CREATE TABLE u8 (id INT PRIMARY KEY, a VARCHAR(5)) CHARSET utf8mb4
ALTER TABLE u8 ADD b VARCHAR(5) CHARSET utf8mb3, ADD c TEXT CHARSET ucs2
"""


def test_a_dialogue_of_statements_leaves_what_the_catalogue_says(any_server: Server, follow: Any) -> None:
    follower = follow(any_server)
    accepted = 0
    for sql in DIALOGUE.strip().splitlines():
        try:
            follower.run(sql)
        except pymysql.MySQLError:
            continue
        accepted += 1
        follower.compare(sql)
    assert accepted > 70


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


class Generator:
    """Random statements on a few tables; what the server refuses is simply not logged."""

    TYPES = (
        "INT", "INT UNSIGNED", "BIGINT", "TINYINT(1)", "SMALLINT ZEROFILL", "DECIMAL(10,2)", "DECIMAL(12,4)", "NUMERIC", "FLOAT", "DOUBLE",
        "VARCHAR(10)", "VARCHAR(40)", "VARCHAR(20) CHARSET latin1", "CHAR(5)", "CHAR(8) COLLATE utf8mb4_bin", "TEXT", "TINYTEXT",
        "MEDIUMTEXT CHARACTER SET utf8", "TEXT(300)", "BLOB", "VARBINARY(8)", "BINARY(4)", "DATE", "DATETIME", "DATETIME(3)", "TIME(6)",
        "TIMESTAMP NULL", "YEAR", "BIT(9)", "ENUM('a','b')", "ENUM('a','b','c ')", "SET('x','y')", "SET('x','y','z') CHARSET latin1",
        "JSON", "BOOL", "NATIONAL VARCHAR(7)", "REAL", "INT8", "LONG VARCHAR",
    )  # fmt: skip
    DEFAULTS = (
        "INT NOT NULL DEFAULT '5'", "TINYINT DEFAULT TRUE", "DECIMAL(6,2) DEFAULT 1.005", "DECIMAL(6,3) NOT NULL DEFAULT '-2'", "CHAR(4) DEFAULT 'ab  '",
        "BINARY(3) NOT NULL DEFAULT 'x'", "VARBINARY(3) DEFAULT x'0041'", "BIT(9) DEFAULT b'11'", "BIT(9) NOT NULL", "BIT(20) DEFAULT 700",
        "DATE DEFAULT '2020-02-29'", "DATETIME DEFAULT '2020-01-01'", "DATETIME DEFAULT '2020-01-01 10:11:12'", "ENUM('a','b') NOT NULL",
        "ENUM('a','b') DEFAULT 'b'", "SET('x','y') DEFAULT 'y,x'", "SET('x','y') NOT NULL", "YEAR DEFAULT 1999", "DOUBLE DEFAULT 1e3",
        "FLOAT DEFAULT 0.1", "VARCHAR(9) DEFAULT 'é''s'", "VARCHAR(5) NOT NULL", "TIMESTAMP NULL DEFAULT '2020-01-01 00:00:00'",
        "TIME DEFAULT '10:00:00'", "INT DEFAULT 1.5", "BIGINT DEFAULT -2.5", "TIMESTAMP DEFAULT CURRENT_TIMESTAMP", "DATE NOT NULL",
        "BLOB NOT NULL", "TEXT NOT NULL", "INT AS (1 + 1)", "VARCHAR(40) DEFAULT (uuid())", "INT DEFAULT 0x10", "DATETIME(3) DEFAULT '2020-01-01 00:00:01.5'",
    )  # fmt: skip
    EXTRAS = ("", "", "", " NOT NULL", " NULL", " DEFAULT NULL", " COMMENT 'c'", " NOT NULL COMMENT 'd, e'")

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.number = 0

    def new(self) -> str:
        self.number += 1
        return self.random.choice((f"c{self.number}", f"`C {self.number}`", f"`k``{self.number}`"))

    def definition(self) -> str:
        return self.random.choice(self.TYPES) + self.random.choice(self.EXTRAS)

    def place(self, columns: list[str]) -> str:
        return self.random.choice(("", "", " FIRST", f" AFTER {self.random.choice(columns)}"))

    def statement(self, shapes: dict[TableId, MySqlTable]) -> str:
        if len(shapes) < 3:
            return self.create()
        table = self.random.choice(sorted(shapes))
        columns = [quoted(c.name) for c in shapes[table].columns]
        roll = self.random.random()
        if roll < 0.04:
            return f"DROP TABLE {table.name}"
        if roll < 0.08:
            return f"RENAME TABLE {table.name} TO swap, swap TO t{self.random.randint(1, 9)}"
        if roll < 0.1:
            return f"CREATE TABLE t{self.random.randint(1, 9)} LIKE {table.name}"
        actions = [self.action(columns) for _ in range(self.random.choice((1, 1, 1, 2, 3)))]
        return f"ALTER TABLE {table.name} " + ", ".join(actions)

    def create(self) -> str:
        columns = [self.new() for _ in range(self.random.randint(2, 6))]
        parts = [f"{name} {self.definition()}" for name in columns]
        parts[0] = f"{columns[0]} {self.random.choice(('INT', 'BIGINT UNSIGNED', 'VARCHAR(20)'))} NOT NULL"
        parts.append(self.random.choice((f"PRIMARY KEY ({columns[0]})", f"UNIQUE ({columns[0]})", f"KEY ({columns[0]})")))
        options = self.random.choice(("", " CHARSET=latin1", " COLLATE utf8mb4_unicode_ci", " DEFAULT CHARACTER SET utf8 COMMENT='t'"))
        return f"CREATE TABLE t{self.random.randint(1, 9)} ({', '.join(parts)}){options}"

    def action(self, columns: list[str]) -> str:
        column, other = self.random.choice(columns), self.random.choice(columns)
        return self.random.choice(
            (
                f"ADD {self.new()} {self.definition()}{self.place(columns)}",
                f"ADD {self.new()} {self.random.choice(self.DEFAULTS)}",
                f"ADD COLUMN ({self.new()} {self.definition()}, {self.new()} {self.definition()})",
                f"DROP COLUMN {column}",
                f"MODIFY {column} {self.definition()}{self.place(columns)}",
                f"MODIFY {column} {self.definition()}{self.place(columns)}",
                f"CHANGE {column} {self.new()} {self.definition()}{self.place(columns)}",
                f"RENAME COLUMN {column} TO {self.new()}",
                f"RENAME COLUMN {column} TO {other}, RENAME COLUMN {other} TO {column}",
                f"ALTER {column} DROP DEFAULT",
                f"ADD INDEX ({column}, {other})",
                f"ADD UNIQUE ({column})",
                f"ADD UNIQUE ({column}, {other})",
                "DROP PRIMARY KEY",
                f"DROP PRIMARY KEY, ADD PRIMARY KEY ({column})",
                f"ADD PRIMARY KEY ({column})",
                f"DEFAULT CHARSET {self.random.choice(('latin1', 'utf8mb4', 'utf8'))}",
                f"CONVERT TO CHARACTER SET {self.random.choice(('latin1', 'utf8mb4', 'utf8'))}",
                f"COMMENT 'n{self.number}'",
            )
        )

    def row(self, shape: MySqlTable) -> dict[str, Any]:
        """A row for this table; the server bends what doesn't fit."""
        chance, row = self.random, {}
        for column in shape.columns:
            number = chance.randint(0, 120)
            if column.generated or (column.nullable and chance.random() < 0.3):
                continue
            match column.base:
                case "date" | "datetime" | "timestamp":
                    row[column.name] = f"2020-02-{number % 28 + 1:02} 04:05:06.789"
                case "time":
                    row[column.name] = "-12:34:56.7"
                case "year":
                    row[column.name] = 1950 + number
                case "enum" | "set":
                    row[column.name] = chance.choice(column.labels)
                case "bit" | "binary" | "varbinary" | "blob":
                    row[column.name] = bytes([number, 0])
                case "json":
                    row[column.name] = f'{{"a": {number}}}'
                case base if "char" in base or "text" in base:
                    row[column.name] = chance.choice((f"é{number} ", f"{number}", ""))
                case _:
                    row[column.name] = number if column.unsigned else number - 60
        return row


def values(follower: Follower, table: TableId, columns: list[str], *, as_text: bool = False) -> dict[str, Counter[Any]]:
    """What each column holds, whatever the order of rows."""
    wanted = ", ".join(f"CAST({quoted(name)} AS CHAR)" if as_text else quoted(name) for name in columns)
    rows = follower.query(f"SELECT {wanted} FROM {quoted(table.name)}")
    return {name: Counter(row[index] for row in rows) for index, name in enumerate(columns)}


def check_values(follower: Follower, change: AlterColumns, before: dict[str, Counter[Any]], said: str) -> None:
    """The oracle of the white list: rows stored before a metadata-only change hold the same values after it."""
    names = {column.name for column in change.after.columns}
    for old, held in before.items():
        new = change.renamed.get(old, old)
        if new in names and new not in change.filled:
            assert values(follower, change.table, [new])[new] == held, f"{said}\n{old}"
    for name, fill in change.filled.items():
        if fill is None or isinstance(fill, bytes):
            found = values(follower, change.table, [name])[name]
            assert set(found) <= {fill}, f"{said}\n{name}"
        elif change.after.column(name).base in (*INTEGER_BITS, "float", "double"):
            # A ZEROFILL column prints zeros before a number.
            assert all(float(text) == pytest.approx(float(fill)) for text in values(follower, change.table, [name])[name])
        else:
            assert set(values(follower, change.table, [name], as_text=True)[name]) <= {fill}, f"{said}\n{name}"


# Two seeds show bugs of servers and are left out: 3 crashes MariaDB 10.11.19 (two columns swap names and get a unique key),
# and at 5 MySQL 8.0.33 empties an ENUM column by an ADD COLUMN, some time after columns swapped names.
@pytest.mark.parametrize(("seed", "mode"), [(1, ""), (2, "STRICT_TRANS_TABLES"), (6, "")])
def test_random_statements_leave_what_the_catalogue_says(any_server: Server, follow: Any, seed: int, mode: str) -> None:
    follower, generator = follow(any_server), Generator(seed)
    follower.query(f"SET sql_mode = '{mode}'")
    accepted = 0
    said: list[str] = []
    while accepted < 300:
        sql = generator.statement(follower.shapes)
        held = {table: values(follower, table, [c.name for c in shape.columns]) for table, shape in follower.shapes.items()}
        try:
            changes = follower.run(sql)
        except pymysql.MySQLError:
            continue
        accepted += 1
        said.append(sql)
        follower.compare("\n".join(said[-5:]))
        for change in changes:
            if isinstance(change, CreateTable):
                for _ in range(4):
                    row = generator.row(change.table)
                    with follower.connection.cursor() as cursor, contextlib.suppress(pymysql.MySQLError):
                        cursor.execute(
                            f"INSERT IGNORE INTO {quoted(change.table.id.name)} ({', '.join(map(quoted, row))}) "
                            f"VALUES ({', '.join(['%s'] * len(row))})",
                            list(row.values()),
                        )
            elif isinstance(change, AlterColumns):
                check_values(follower, change, held[change.table], sql)
    asked = [change for change in follower.changes if isinstance(change, Rewrites) and change.after is None]
    # Only the catalogue can tell the keys of a table without a primary key, and text defined by a statement that converts.
    assert all("key" in change.reason or "character set" in change.reason for change in asked)
    assert len(asked) < 0.2 * accepted
    assert sum(isinstance(change, AlterColumns) for change in follower.changes) > 50


def test_zeros_are_numbered_only_where_a_column_had_no_auto_increment_before(any_server: Server, follow: Any) -> None:
    follower = follow(any_server)
    follower.query("SET sql_mode = ''")
    for number, (start, expected) in enumerate((("INT", Rewrites), ("INT AUTO_INCREMENT", AlterColumns))):
        follower.run(f"CREATE TABLE t{number} (id {start} PRIMARY KEY)")
        follower.query("SET sql_mode = 'NO_AUTO_VALUE_ON_ZERO'")
        follower.query(f"INSERT INTO t{number} VALUES (0), (7)")
        follower.query("SET sql_mode = ''")
        (change,) = follower.run(f"ALTER TABLE t{number} MODIFY id BIGINT AUTO_INCREMENT")
        assert isinstance(change, expected)
        follower.compare(start)
        kept = follower.query(f"SELECT id FROM t{number} ORDER BY id") == [(0,), (7,)]
        assert kept == (expected is AlterColumns)


def test_rows_changed_by_a_logged_statement_leave_the_shape_as_it_was(any_server: Server, follow: Any) -> None:
    follower = follow(any_server)
    follower.run("CREATE TABLE t (id INT PRIMARY KEY, name VARCHAR(9))")
    shape = follower.shapes[TableId(follower.database, "t")]
    follower.query("SET SESSION binlog_format = 'STATEMENT'")
    for sql in (
        "INSERT INTO t VALUES (1, 'hidden')",
        "UPDATE t SET name = 'hidden' WHERE id = 1",
        "DELETE FROM t WHERE name = 'hidden'",
    ):
        found = [change for change in follower.run(sql) if not isinstance(change, Ignored)]
        assert found == [RowsAsText(sql.split()[0], (shape.id,))]
        follower.compare(sql)


UNCAPTURED = (
    "ALTER TABLE other.x SOMETHING NEW (1, 2, 'it''s') WITH 'unclosed",
    "CREATE TABLE other.x (a FANCYTYPE<INT> WEIRD) EVENMORE = `q",
    "ALTER TABLE other.x ADD CONSTRAINT FOREIGN KEY (a) REFERENCES captured (id) ON DELETE MAYBE",
    "CREATE FUNCTION f() RETURNS INT DETERMINISTIC BEGIN DECLARE x INT; DROP TABLE captured; RETURN 1; END",
    "CREATE DEFINER=`root`@`%` TRIGGER tr AFTER UPDATE ON captured FOR EACH ROW BEGIN INSERT INTO other.x VALUES ('DROP TABLE t'); END",
    "GRANT ALL ON captured TO someone",
    "ALTER USER 'u'@'%' IDENTIFIED WITH 'plugin' AS 'captured'",
    "OPTIMIZE TABLE captured",
    "THIS IS NO STATEMENT ABOUT ANYTHING",
    "",
)


def test_statements_that_name_no_captured_table_never_fail(any_server: Server) -> None:
    version = any_server.version
    rules = Rules(flavour="mariadb" if any_server.kind == "mariadb" else "mysql", version=(version[0], version[1], version[2]))
    for sql in UNCAPTURED:
        (change,) = read_statement(
            sql,
            database="shop",
            schemas=lambda _: None,
            captured=lambda table: table == TableId("shop", "captured"),
            defaults=lambda _: "utf8mb4_general_ci",
            rules=rules,
        )
        assert isinstance(change, Ignored), sql


def test_names_are_lowered_letter_by_letter_as_the_server_does(any_server: Server) -> None:
    version = any_server.version
    mariadb = any_server.kind == "mariadb"
    rules = Rules(flavour=any_server.kind, version=(version[0], version[1], version[2]), lower_case_names=True)
    letters = "".join(chr(code) for code in range(1, 0x10000) if not 0xD800 <= code <= 0xDFFF)
    charset = "utf8mb3" if mariadb or version >= (8, 0) else "utf8"
    with any_server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT LOWER(CONVERT(%s USING {charset}) COLLATE {charset}_general_ci)", [letters])
        (told,) = cursor.fetchone()
    assert [(a, b) for a, b in zip(told, rules.stored_name(letters), strict=True) if a != b] == []


def test_default_collations_are_those_of_the_server(any_server: Server, follow: Any) -> None:
    follower = follow(any_server)
    rules = follower.rules()
    listed = follower.query("SELECT character_set_name, default_collate_name, maxlen FROM information_schema.character_sets")
    for charset, collation, width in listed:
        assert rules.default_collation(charset) == collation
        assert CHARSET_BYTES_MAX.get(charset, 1) == width
