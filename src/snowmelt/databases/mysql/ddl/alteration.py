"""An ALTER TABLE applied to a shape.

Laws:

- The shape afterwards is exact, or None where only the catalogue can tell: a shape records one key, so others that may
  take its place are unknown.
- One reason why stored rows may change is enough for `Rewrites`, which has all reasons.
- Columns stand in the order that the server gives them: old ones first, then each action's place in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from snowmelt.databases.mysql.ddl.changes import AlterColumns, Rewrites
from snowmelt.databases.mysql.ddl.definitions import BINARY_TWIN, TEXT_SIZES, Definition, complete, sized
from snowmelt.databases.mysql.ddl.keys import KeyClauses, first_key, note_keys, spelled, with_key_not_null
from snowmelt.databases.mysql.ddl.options import Options
from snowmelt.databases.mysql.ddl.rules import CHARSET_BYTES_MAX, Rules, SqlMode
from snowmelt.databases.mysql.ddl.whitelist import NotConstant, stored_value, why_values_change
from snowmelt.databases.mysql.ddl.words import Unreadable
from snowmelt.databases.mysql.types.columns import IMPLICIT_PERIOD, MySqlColumn, MySqlTable
from snowmelt.model.table import TableId


@dataclass(slots=True)
class Placed:
    """A definition of ALTER: a new column, or an old one changed."""

    raw: Definition
    old: str | None
    place: str | None = None
    first: bool = False


@dataclass(slots=True, kw_only=True)
class Alteration:
    """All that the actions of one ALTER TABLE ask for."""

    placed: list[Placed] = field(default_factory=list)
    dropped: set[str] = field(default_factory=set)
    renamed: dict[str, str] = field(default_factory=dict)
    altered: dict[str, Callable[[MySqlColumn], MySqlColumn]] = field(default_factory=dict)
    keys: KeyClauses = field(default_factory=KeyClauses)
    options: Options = field(default_factory=Options)
    convert: Options | None = None
    new_name: TableId | None = None
    exchanged: list[TableId] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    opaque: bool = False
    """Whether the shape afterwards can't be told."""
    ignore: bool = False
    cascades: bool = False


def apply(before: MySqlTable, alteration: Alteration, rules: Rules, sql: str) -> AlterColumns | Rewrites | None:
    """The table after an ALTER, and whether stored rows survive it; None where the shape stays as it is."""
    reasons = list(alteration.reasons)
    inherited = before.collation or "utf8mb4_general_ci"
    collation = (alteration.convert or alteration.options).resolved(inherited, rules)
    columns = list(before.columns)
    opaque = alteration.opaque
    definitions = [(placed, complete(placed.raw, collation, rules)) for placed in alteration.placed]
    if alteration.convert is not None:
        if alteration.convert.charset in (None, "default") and alteration.convert.collation is None:
            return Rewrites(before.id, None, "it is converted to the database's character set", sql)
        # What becomes of text that is defined in the same statement differs by server, down to a shorter type; so does the
        # default that wins where the statement sets it too.
        opaque |= any(column.charset is not None for _, column in definitions)
        opaque |= alteration.options.charset is not None or alteration.options.collation is not None
        columns = [_converted_to(column, collation, rules) for column in columns]
        if columns == list(before.columns) and not opaque:
            if not rules.mariadb and rules.version < (5, 7, 0) and alteration == Alteration(convert=alteration.convert):
                # Old servers take it for no change at all, the default included.
                return None
        else:
            reasons.append("it is converted to another character set or collation")
    after, renamed, more = _rearranged(columns, before, alteration, definitions, rules)
    reasons += more
    filled: dict[str, str | bytes | None] = {}
    for placed, column in definitions:
        if placed.old is None:
            try:
                filled[column.name] = stored_value(column, placed.raw, rules)
            except NotConstant as why:
                reasons.append(str(why))

    if computed := _why_computed_anew(before, after, renamed, filled):
        reasons.append(computed)
    if alteration.ignore:
        reasons.append("rows that do not fit are dropped without an entry in the log")
    keys = alteration.keys
    for placed, _ in definitions:
        note_keys(placed.raw, keys)
    after = with_key_not_null(after, keys.primary or ())
    key, known = _key_after(before, after, renamed, alteration, rules)
    # A primary key's column is NOT NULL even where its new definition does not say so.
    is_primary = bool(key) and (keys.primary is not None or (bool(before.key) and before.key_is_primary))
    if is_primary:
        after = with_key_not_null(after, key)
    expected = tuple(renamed.get(name, name) for name in before.key)
    if not known or key != expected or (before.key and is_primary != before.key_is_primary):
        reasons.append("the key that identifies rows changes")
    shape = replace(
        before,
        columns=tuple(after),
        key=key,
        key_is_primary=is_primary,
        engine=alteration.options.engine or before.engine,
        charset=rules.charset_of(collation),
        collation=collation,
        comment=before.comment if alteration.options.comment is None else alteration.options.comment,
    )
    if reasons:
        # A reason may come twice, by the column and by its key.
        text = "; ".join(dict.fromkeys(reasons))
        return Rewrites(before.id, None if opaque or not known else shape, text, sql)
    # A column that is dropped and added by one statement may look as it did, and has none of its values.
    if shape == before and not renamed and not filled and not alteration.cascades:
        return None
    return AlterColumns(table=before.id, before=before, after=shape, renamed=renamed, filled=filled, cascades=alteration.cascades)


def _rearranged(
    columns: list[MySqlColumn],
    before: MySqlTable,
    alteration: Alteration,
    definitions: list[tuple[Placed, MySqlColumn]],
    rules: Rules,
) -> tuple[list[MySqlColumn], dict[str, str], list[str]]:
    """The columns in their new order, the renamed ones, and why values change.

    The server walks the old columns first: dropped ones go, the others stay where they are, changed or not. Then what has a
    place is moved there, in the order of the statement, beside names of the new table.
    """
    strict = bool(rules.sql_mode & (SqlMode.STRICT_TRANS_TABLES | SqlMode.STRICT_ALL_TABLES)) and not alteration.ignore
    in_key = {name.lower() for name in before.key}
    changed = {placed.old.lower(): (placed, column) for placed, column in definitions if placed.old is not None}
    have = {column.name.lower() for column in columns}
    for name in (*alteration.dropped, *changed, *alteration.renamed, *alteration.altered):
        if name not in have:
            raise Unreadable(f"the table as we know it has no column {name}")
    result: list[MySqlColumn] = []
    renamed: dict[str, str] = {}
    reasons: list[str] = []
    hidden = columns[-2:] if tuple(columns[-2:]) == IMPLICIT_PERIOD else []
    for column in columns[: len(columns) - len(hidden)]:
        name = column.name.lower()
        if name in alteration.dropped:
            continue
        if name in changed:
            placed, new = changed[name]
            if why := why_values_change(column, new, in_key=name in in_key, strict=strict):
                reasons.append(why)
            if placed.raw.rounds:
                # The catalogue's shape does not say whether it was so before.
                reasons.append(f"values of column {column.name} are rounded")
            if new.auto_increment and (column.nullable or not column.auto_increment):
                # A column that had it keeps its zeros; one that gets it has them numbered like NULLs.
                reasons.append(f"zeros and NULLs of column {column.name} are numbered")
            if new.name != column.name:
                renamed[column.name] = new.name
            result.append(new)
            continue
        kept = alteration.altered[name](column) if name in alteration.altered else column
        if name in alteration.renamed:
            kept = replace(kept, name=alteration.renamed[name])
            renamed[column.name] = kept.name
        result.append(kept)
    for placed, column in definitions:
        moved = placed.first or placed.place is not None
        if moved and placed.old is not None:
            result.remove(column)
        if placed.first:
            result.insert(0, column)
        elif placed.place is not None:
            result.insert(_place(result, placed.place, renamed) + 1, column)
        elif placed.old is None:
            result.append(column)
    return result + hidden, renamed, reasons


def _why_computed_anew(
    before: MySqlTable, after: list[MySqlColumn], renamed: Mapping[str, str], filled: Mapping[str, object]
) -> str | None:
    """Why a generated column that the statement does not name may have other values. A shape does not record its expression. So
    any other column counts whose type or collation changes, or whose name is another column's now."""
    if not any(column.generated for column in after if column not in IMPLICIT_PERIOD):
        return None
    now = {column.name: _values(column) for column in after}
    for old in before.columns:
        name = renamed.get(old.name, old.name)
        if not old.generated and name in now and (now[name] != _values(old) or (name in filled and old.name not in renamed)):
            return f"what is generated from column {old.name} is computed anew"
    return None


def _values(column: MySqlColumn) -> MySqlColumn:
    """The properties of a column that decide how its values look and compare."""
    return replace(column, name="", nullable=True, invisible=False, auto_increment=False, default=None, comment="")


def _place(columns: list[MySqlColumn], name: str, renamed: Mapping[str, str]) -> int:
    for wanted in (name, next((new for old, new in renamed.items() if old.lower() == name.lower()), name)):
        for index, column in enumerate(columns):
            if column.name.lower() == wanted.lower():
                return index
    raise Unreadable(f"the table as we know it has no column {name}")


def _key_after(
    before: MySqlTable, after: list[MySqlColumn], renamed: Mapping[str, str], alteration: Alteration, rules: Rules
) -> tuple[tuple[str, ...], bool]:
    """The key afterwards, and whether it can be told: a shape records one key, so others that may take its place are unknown."""
    keys = alteration.keys
    if keys.primary is not None:
        return spelled((*keys.primary, *_row_end(before)), after), True
    now = {column.name: column for column in after}
    kept = tuple(renamed.get(name, name) for name in before.key if name.lower() not in alteration.dropped)
    if before.key and before.key_is_primary:
        # A primary key loses the columns that are dropped.
        return (kept, True) if kept and not keys.drops_primary else ((), False)
    pairs = [(column, now.get(renamed.get(column.name, column.name), column)) for column in before.columns]
    relaxed = {old.name for old, new in pairs if new.nullable and not old.nullable}
    tightened = any(old.nullable and not new.nullable for old, new in pairs)
    if before.key:
        unsure = keys.drops_index or keys.unique or tightened or len(kept) < len(before.key)
        return kept, not unsure and not relaxed & set(before.key)
    added, _ = first_key(after, keys)
    # MySQL takes a dropped column out of its keys, and what remains may be unique and never NULL.
    narrowed = not rules.mariadb and any(old.nullable and old.name.lower() in alteration.dropped for old in before.columns)
    return added, not tightened and not narrowed


def _row_end(table: MySqlTable) -> tuple[str, ...]:
    """The column that versioning adds to a key, if this key has one."""
    last = table.column(table.key[-1]) if table.key else None
    return (last.name,) if last is not None and last.base == "timestamp" and last.generated == "stored" else ()


def _converted_to(column: MySqlColumn, collation: str, rules: Rules) -> MySqlColumn:
    """A column after CONVERT TO CHARACTER SET."""
    charset = rules.charset_of(collation)
    if column.charset is None or column.charset == "binary":
        return column
    if charset == "binary":
        base = BINARY_TWIN.get(column.base, column.base)
        return replace(column, base=base, charset=None, collation=None)
    base = column.base
    for prefix, most in TEXT_SIZES:
        if base == f"{prefix}text" and prefix != "long":
            characters = most // CHARSET_BYTES_MAX.get(column.charset, 1)
            grown = sized("text", characters * CHARSET_BYTES_MAX.get(charset, 1))
            base = max(base, grown, key=[f"{p}text" for p, _ in TEXT_SIZES].index)
            break
    return replace(column, base=base, charset=charset, collation=collation)
