"""Statements of the log, read into changes of tables.

Laws:

- A statement that names no captured table never fails, whatever its syntax: the kind and the target are read first, and the
  rest only where it matters.
- The shape that a statement leaves is, field for field, what the server's catalogue says after it. Where that can't be told
  from the text (unique keys that no shape records, LIKE of an unknown table), the shape is None, never a guess.
- Metadata-only is a white list. An ALTER whose effect on stored rows the log does not carry is `Rewrites`, and an action
  that we don't know is one.
- Names are compared without case for columns, as spelled for tables (lower-cased first where the server does so).

    words         the text as tokens, by the session's mode and the server's version
    rules         what decides how words are read
    definitions   column definitions
    keys          indexes and constraints
    options       what a table's options say of its shape
    whitelist     what leaves stored values as they are
    alteration    an ALTER applied to a shape
    statement     a statement in its session
    create, alter the two statements with a grammar of their own
    reader        all statements, by their first word
    changes       what comes out

The grammar is read by recursive descent: only what changes columns is understood, all else is stepped over with its
parentheses balanced. Why it is a reader of ours: docs/decisions/0005.
"""

from snowmelt.databases.mysql.ddl.changes import (
    AlterColumns,
    CreateTable,
    DatabaseDefaults,
    DropDatabase,
    DropTable,
    Ignored,
    Merged,
    NotUnderstood,
    RenameTable,
    Rewrites,
    RowsAsText,
    SchemaChange,
    Truncate,
)
from snowmelt.databases.mysql.ddl.reader import read_statement
from snowmelt.databases.mysql.ddl.rules import Rules, SqlMode
from snowmelt.databases.mysql.ddl.statement import merged_tables

__all__ = [
    "AlterColumns",
    "CreateTable",
    "DatabaseDefaults",
    "DropDatabase",
    "DropTable",
    "Ignored",
    "Merged",
    "NotUnderstood",
    "RenameTable",
    "Rewrites",
    "RowsAsText",
    "Rules",
    "SchemaChange",
    "SqlMode",
    "Truncate",
    "merged_tables",
    "read_statement",
]
