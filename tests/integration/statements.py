"""Statements of every kind, and a follower that keeps the shapes of tables by what the log says of them."""

# ruff: noqa: E501 (tables of types and statements)

from __future__ import annotations

import dataclasses
import re
from typing import Any

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
from snowmelt.databases.mysql.types.columns import MySqlTable
from snowmelt.model.table import TableId
from tests.kit.servers import Server, log_end


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
            case AlterColumns(table=table, after=after):
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
