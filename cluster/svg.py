"""Pictures as SVG documents that stand alone: no script, no style sheet, no font of their own."""

from __future__ import annotations

from collections.abc import Iterable
from xml.sax.saxutils import escape, quoteattr

from fencelock.cluster.log import printable

FONT = "system-ui, sans-serif"
INK, PALE = "#222222", "#dddddd"
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#999999")
"""Colours that also differ for colour-blind eyes (Okabe and Ito)."""


class Picture:
    """A picture on a white ground. Lengths are in pixels, and y grows downwards."""

    def __init__(self, width: float, height: float, title: str) -> None:
        self._head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
            f'viewBox="0 0 {width:g} {height:g}" font-family="{FONT}" role="img">'
            f"<title>{escape(printable(title))}</title>"
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
            'markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" fill="context-stroke"/>'
            '</marker></defs><rect width="100%" height="100%" fill="white"/>'
        )
        self._parts: list[str] = []

    def line(
        self,
        points: Iterable[tuple[float, float]],
        colour: str = INK,
        width: float = 1.0,
        *,
        arrow: bool = False,
        dashed: bool = False,
        title: str = "",
    ) -> None:
        """Draw a line through ``points``; ``title`` is shown while a mouse rests on it."""
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        more = ' marker-end="url(#head)"' if arrow else ""
        more += ' stroke-dasharray="4 3"' if dashed else ""
        self._parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width:g}"'
            f"{more}>{_title(title)}</polyline>"
        )

    def rectangle(
        self, x: float, y: float, width: float, height: float, colour: str, title: str = ""
    ) -> None:
        self._parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.5):.1f}" height="{height:.1f}" '
            f'fill="{colour}">{_title(title)}</rect>'
        )

    def dot(self, x: float, y: float, colour: str, radius: float = 3.0, title: str = "") -> None:
        self._parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" fill="{colour}">'
            f"{_title(title)}</circle>"
        )

    def text(
        self,
        x: float,
        y: float,
        text: str,
        size: float = 11.0,
        colour: str = INK,
        *,
        anchor: str = "start",
        bold: bool = False,
    ) -> None:
        """Write ``text`` with its baseline at ``y``; ``anchor`` is start, middle or end."""
        weight = ' font-weight="bold"' if bold else ""
        self._parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size:g}" fill={quoteattr(colour)} '
            f'text-anchor="{anchor}"{weight}>{escape(printable(text))}</text>'
        )

    def __str__(self) -> str:
        return "\n".join([self._head, *self._parts, "</svg>", ""])


def _title(text: str) -> str:
    return f"<title>{escape(printable(text))}</title>" if text else ""
