"""What one sees of the demo: notes that scroll by, and below them, in a terminal, how things are now; elsewhere a line now and then."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from snowmelt.demo.process import Command
from snowmelt.demo.shop import DATABASE, TABLES, Shop

LINE_S = 10.0
_WIDTH_MIN = 100
"""Where there is no terminal lines are as long as they are; tables need a width."""


@dataclass(slots=True)
class Times:
    """Where the time went."""

    began: float = field(default_factory=time.monotonic)
    parts: list[tuple[str, float]] = field(default_factory=list)
    _last: float = field(default_factory=time.monotonic)

    def part(self, what: str) -> float:
        """What was done since the last part ended; its seconds."""
        now = time.monotonic()
        took, self._last = now - self._last, now
        self.parts.append((what, took))
        return took

    @property
    def total_s(self) -> float:
        return time.monotonic() - self.began


class Show:
    """Prints, and between `with` keeps a picture of what happens. Used by one thread."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)
        if not self.console.is_terminal:
            self.console = Console(highlight=False, width=max(_WIDTH_MIN, self.console.width), soft_wrap=True)
        self.times = Times()
        self._live = Live(console=self.console, auto_refresh=False, transient=True) if self.console.is_terminal else None
        self._due = 0.0

    def __enter__(self) -> Show:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()

    def title(self, text: str) -> None:
        self.console.print(f"\n[bold]{escape(text)}[/bold]")

    def say(self, text: str) -> None:
        self.console.print(Text(text))

    def note(self, text: str) -> None:
        """Something happened; when, counted from the beginning."""
        self.console.print(Text.assemble((f"{self.times.total_s:6.1f} s  ", "dim"), text))

    def picture(self, what: RenderableType) -> None:
        self.console.print(what)

    def look(self, doing: str, command: Command, shop: Shop) -> None:
        """How things are now. To be called a few times a second."""
        if self._live is not None:
            self._live.update(_picture(doing, command, shop), refresh=True)
        elif time.monotonic() >= self._due:
            self._due = time.monotonic() + LINE_S
            phases = Counter(command.phases.values())
            tables = "".join(f", {count} {phase}" for phase, count in sorted(phases.items()))
            self.note(f"{doing}: {_line(command, shop)}{tables}")


def _line(command: Command, shop: Shop) -> str:
    said = command.progress
    if not said:
        return f"`snowmelt {command.name}` is at work"
    lag = f"lag {said['lag_bytes'] / 1e6:.1f} MB" + (f" ({said['lag_s']:.0f} s)" if said["lag_s"] is not None else "")
    made = sum(shop.changed.values())
    return f"rows changed by the writers {made:,}; epoch {said['epoch']}, {lag}, rows brought {said['rows']:,}"


def _picture(doing: str, command: Command, shop: Shop) -> Group:
    table = Table("table", "rows changed", "lake table", "phase", "copied", title_justify="left")
    told = command.progress.get("tables", {})
    for name in TABLES:
        said = told.get(f"{DATABASE}.{name}", {})
        of = said.get("chunks_of")
        copied = "" if "chunks" not in said else f"{said['chunks']} of {of if of is not None else '?'} chunks"
        table.add_row(name, f"{shop.changed[name]:,}", said.get("target", ""), said.get("phase", ""), copied)
    return Group(Text(f"{doing}  {_line(command, shop)}", style="bold"), table)
