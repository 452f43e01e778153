"""The chart of where the time of a pair goes: profiles of several versions, one above the other."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

PARTS: dict[str, tuple[str, ...]] = {
    "wire": ("wire",),
    "decode": ("decode",),
    "encode, send": ("send",),
    "dispatch": ("dispatch", "busy"),
    "sync": ("sync", "own sync"),
    "propose to reply": ("propose", "quorum", "apply", "reply"),
    "vote, follow": ("vote", "follow"),
    "client": ("client call", "client wake-up", "client session"),
}
"""Steps that are drawn as one; all other steps are drawn as the rest."""
REST = "the rest"

COLOURS = (
    "#0072b2",
    "#e69f00",
    "#56b4e9",
    "#bbbbbb",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#f0e442",
    "#ffffff",
)
"""Source: Okabe and Ito, Color Universal Design (2008), for eyes of every kind."""

LABEL_SHARE = 0.045
"""A part of the widest bar from which on its figure has room in it."""


def read_profiles(paths: list[Path]) -> list[dict[str, Any]]:
    """Return what ``fencelock bench locks --profile --json`` wrote into each file, by its name.

    Raises:
        ValueError: the last line of a file is no profile.

    """
    found: list[dict[str, Any]] = []
    for path in paths:
        lines = path.read_text(encoding="utf-8").splitlines() or [""]
        try:
            told: dict[str, Any] = json.loads(lines[-1])
            found.append({"name": path.stem, "sum_us": told["sum_us"], "by_step": told["by_step"]})
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path}: no profile on its last line: {error!r}") from error
    return found


def parts_of(by_step: dict[str, float]) -> dict[str, float]:
    """Return the parts as they are drawn; their sum equals the sum of the steps."""
    parts = {part: sum(by_step.get(step, 0.0) for step in steps) for part, steps in PARTS.items()}
    parts[REST] = sum(by_step.values()) - sum(parts.values())
    return parts


def plot_steps(profiles: list[dict[str, Any]], path: Path) -> None:
    """Draw a bar for each profile, with its parts, into the PNG file ``path``."""
    import_module("matplotlib").use("Agg")
    pyplot: Any = import_module("matplotlib.pyplot")
    names = [profile["name"] for profile in profiles]
    drawn = [parts_of(profile["by_step"]) for profile in profiles]
    widest = max(profile["sum_us"] for profile in profiles)
    figure, axes = pyplot.subplots(figsize=(9, 1.9 + 0.6 * len(names)), layout="constrained")
    left = [0.0] * len(names)
    for part, colour in zip((*PARTS, REST), COLOURS, strict=True):
        widths = [parts[part] for parts in drawn]
        if max(widths) < widest / 1000:
            continue
        bars = axes.barh(
            names, widths, left=left, color=colour, edgecolor="#333333", linewidth=0.5, label=part
        )
        texts = [f"{width:,.0f}" if width > LABEL_SHARE * widest else "" for width in widths]
        axes.bar_label(bars, texts, label_type="center", fontsize=8)
        left = [before + width for before, width in zip(left, widths, strict=True)]
    for row, total in enumerate(left):
        axes.annotate(
            f"{total:,.0f}", (total, row), xytext=(6, 0), textcoords="offset points",
            va="center", weight="bold",
        )  # fmt: skip
    axes.invert_yaxis()
    axes.margins(x=0.08)
    axes.set_xlabel("us of a pair: one client, one lock, acquire and release (less is better)")
    axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle("Where the time of a pair goes", x=0.01, ha="left", fontsize=12, weight="bold")
    figure.legend(loc="outside lower center", ncols=5, fontsize=8, frameon=False)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
