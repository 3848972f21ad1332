"""Curves as an SVG picture, one panel below the other. Each panel has its own scale, which begins at zero."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

COLORS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd")
WIDTH, HEIGHT, LEFT, TOP, GAP = 760, 120, 60, 30, 44


@dataclass(frozen=True, slots=True)
class Panel:
    title: str
    curves: Mapping[str, Sequence[float]]
    """By name; each as long as the numbers below all panels."""
    lines: Mapping[str, float] = field(default_factory=dict)
    """Levels to compare with, dashed."""


def draw(title: str, across: str, numbers: Sequence[float], panels: Sequence[Panel]) -> str:
    """`across`: what the numbers below the panels are."""
    height = TOP + len(panels) * (HEIGHT + GAP) + 16
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH + LEFT + 20} {height}" font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{LEFT}" y="16" font-size="14">{escape(title)}</text>',
    ]
    for place, panel in enumerate(panels):
        parts += _panel(panel, numbers, TOP + 18 + place * (HEIGHT + GAP))
    parts += [f'<text x="{LEFT + WIDTH}" y="{height - 6}" text-anchor="end">{escape(across)}</text>', "</svg>"]
    return "\n".join(parts) + "\n"


def _panel(panel: Panel, numbers: Sequence[float], top: int) -> list[str]:
    most = max([*(value for curve in panel.curves.values() for value in curve), *panel.lines.values()], default=0) * 1.05 or 1
    last = max(numbers, default=1) or 1

    def x(number: float) -> str:
        return f"{LEFT + WIDTH * number / last:.1f}"

    def y(value: float) -> str:
        return f"{top + HEIGHT * (1 - value / most):.1f}"

    parts = [f'<text x="{LEFT}" y="{top - 6}" font-weight="bold">{escape(panel.title)}</text>']
    for part in (0.0, 0.5, 1.0):
        at = y(most * part)
        parts += [
            f'<line x1="{LEFT}" x2="{LEFT + WIDTH}" y1="{at}" y2="{at}" stroke="#dddddd"/>',
            f'<text x="{LEFT - 6}" y="{at}" text-anchor="end">{_short(most * part)}</text>',
            f'<text x="{x(last * part)}" y="{top + HEIGHT + 14}" text-anchor="middle">{_short(last * part)}</text>',
        ]
    right = LEFT + WIDTH
    for color, (name, curve) in reversed([*zip(COLORS, panel.curves.items(), strict=False)]):
        points = " ".join(f"{x(number)},{y(value)}" for number, value in zip(numbers, curve, strict=True))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="1.5"/>')
        parts.append(f'<text x="{right}" y="{top - 6}" text-anchor="end" fill="{color}">{escape(name)}</text>')
        right -= 7 * len(name) + 16
    for name, value in panel.lines.items():
        parts.append(f'<line x1="{LEFT}" x2="{LEFT + WIDTH}" y1="{y(value)}" y2="{y(value)}" stroke="#444444" stroke-dasharray="4 3"/>')
        parts.append(f'<text x="{LEFT + 4}" y="{float(y(value)) - 3:.1f}" fill="#444444">{escape(name)}</text>')
    return parts


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 20 else f"{value:.2g}"
