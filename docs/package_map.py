"""Draw the packages and the direction of their imports: python docs/package_map.py

The levels come from tests/test_imports.py, so that the picture shows what the test checks.
"""

from __future__ import annotations

import ast
import html
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs/figures/packages.svg"
CONTENT = {
    "analysis": "jacobians, plots, atlas",
    "checkpoint": "all that translation needs",
    "comparison": "statistics over runs",
    "data": "corpora, tokenizer, batches",
    "evaluation": "decode and score a split",
    "images": "pictures as source",
    "inference": "translator, exports",
    "kernels": "fast operators",
    "metadata": "how a model is described",
    "metrics": "BLEU, chrF, TER",
    "mixers": "one file each",
    "network": "contract, model, state",
    "options": "options that commands share",
    "runs": "a run's folder and results",
    "search": "beam search",
    "settings": "settings, helpful errors",
    "sweeps": "records of many runs",
    "system": "files, streams, ranks",
    "training": "run and its loop",
    "training.bounds": "budget, validations",
    "training.callbacks": "one job each",
    "training.lightning_parts": "task, data module",
    "training.machine": "device, precision",
    "training.objective": "loss, optimizer",
}
WIDTH = 860
ROW = 62
BOX = 44
LEFT = 54
GAP = 12
STYLE = """
  text { font-family: system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; text-anchor: middle; }
  .name { font-size: 14px; font-weight: 600; fill: #1a1f36; }
  .content { font-size: 11px; fill: #4a5068; }
  .package { fill: #dfe5fb; stroke: #5a6bc0; }
  .module { fill: #ffffff; stroke: #8a93b8; }
  .command { fill: #fdeed3; stroke: #c58a2b; }
  .arrow { stroke: #4a5068; stroke-width: 2; fill: none; }
  .rule { stroke: #d5d9e8; stroke-dasharray: 3 4; }
"""


def constants() -> dict[str, tuple]:
    """Return the constants LEVELS and COMMANDS of the test."""
    tree = ast.parse((ROOT / "tests/test_imports.py").read_text("utf-8"))
    assigned = [node for node in tree.body if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)]
    values = {node.targets[0].id: node.value for node in assigned if isinstance(node.targets[0], ast.Name)}
    return {name: tuple(ast.literal_eval(values[name])) for name in ("LEVELS", "COMMANDS")}


def box(name: str, content: str, x: float, y: float, width: float, style: str) -> str:
    """Draw a part with its name and what it holds."""
    middle = x + width / 2
    return (
        f'<rect class="{style}" x="{x:.1f}" y="{y}" width="{width:.1f}" height="{BOX}" rx="7"/>'
        f'<text class="name" x="{middle:.1f}" y="{y + 18}">{html.escape(name)}</text>'
        f'<text class="content" x="{middle:.1f}" y="{y + 35}">{html.escape(content)}</text>\n'
    )


def row(names: tuple[str, ...], y: int) -> str:
    """Draw the parts of one level side by side."""
    width = min(240, (WIDTH - LEFT - GAP * len(names) - GAP) / len(names))
    start = LEFT + (WIDTH - LEFT - len(names) * (width + GAP) + GAP) / 2
    boxes = ""
    for index, name in enumerate(names):
        style = "package" if (ROOT / "seq2seq" / name.replace(".", "/")).is_dir() else "module"
        boxes += box(name, CONTENT.get(name, ""), start + index * (width + GAP), y, width, style)
    return boxes


def svg() -> str:
    """Return the picture: commands at the top, the lowest level at the bottom."""
    known = constants()
    levels = known["LEVELS"][::-1]
    height = ROW * (len(levels) + 1) + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        "<title>The packages of seq2seq; each imports only what is below it</title>",
        f"<style>{STYLE}</style>",
        f'<rect width="{WIDTH}" height="{height}" rx="10" fill="#f8f9fd"/>',
        '<defs><marker id="tip" markerWidth="8" markerHeight="8" refX="4" refY="4" orient="auto">'
        '<path d="M0,0 L8,4 L0,8 z" fill="#4a5068"/></marker></defs>',
        f'<path class="arrow" d="M30,24 V{height - 24}" marker-end="url(#tip)"/>',
        f'<text class="content" transform="translate(20 {height / 2}) rotate(-90)">imports point down</text>',
        box("commands", " · ".join(sorted(known["COMMANDS"])), LEFT + GAP, 16, WIDTH - LEFT - 2 * GAP, "command"),
    ]
    for index, names in enumerate(levels, start=1):
        parts.append(f'<path class="rule" d="M{LEFT},{16 + ROW * index - 9} H{WIDTH - GAP}"/>')
        parts.append(row(names, 16 + ROW * index))
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    TARGET.write_text(svg(), encoding="utf-8")
