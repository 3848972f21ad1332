"""The parser of the log's statements: what they change of tables.

Laws:

- A statement that names no captured table never fails, whatever its syntax: the kind and the target are read first, and the
  rest only where it matters.
- The shape after a statement equals, field for field, the server's catalogue after it. If it does not follow from the text
  (unique keys that no shape records, LIKE of an unknown table), the shape is None, never a guess.
- Metadata-only is a white list. An ALTER that changes stored rows without row events is `Rewrites`, and so is one with an
  unknown action.
- Names are compared without case for columns, as spelled for tables (lower-cased first where the server does so).

    words         the text as tokens, by the session's mode and the server's version
    rules         what decides how words are read
    definitions   column definitions
    keys          indexes and constraints
    options       a table's options that belong to its shape
    whitelist     changes that keep stored values
    alteration    an ALTER applied to a shape
    statement     a statement in its session
    create, alter the two statements with a grammar of their own
    reader        all statements, by their first word
    changes       the results

The parser uses recursive descent. It understands only what changes columns, and skips all else with balanced parentheses.
Why we have a parser of our own: docs/decisions/0005.
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
