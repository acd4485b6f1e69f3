"""The results as a Markdown table, and BLEU from the translations' ids where SentencePiece and sacreBLEU are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.headline.data import Prepared

RATES = ["parameters", "updates", "target tokens/s", "MFU", "padding", "compiled"]


def score(result: dict[str, Any], prepared: Prepared) -> bool:
    """Add BLEU and chrF of every translation, in place; False where a package for it is missing."""
    try:
        from seq2seq.data.tokenizer import Tokenizer
        from seq2seq.evaluation.metrics import bleu, chrf
    except ImportError:
        return False
    tokenizer = Tokenizer(src_model=(prepared.folder / "tokenizer.model").read_bytes())
    for part in result["parts"].values():
        for name, found in part.get("translations", {}).items():
            lines, references = tokenizer.decode(found["ids"]), prepared.references(name)
            scores = [metric(lines, references) for metric in (bleu, chrf)]
            found["scores"] = [one._asdict() for one in scores]
            found["text"] = lines[:20]
    return True


def write(result: dict[str, Any], folder: Path) -> None:
    """headline.json and headline.md."""
    (folder / "headline.json").write_text(json.dumps(result, ensure_ascii=False) + "\n", encoding="utf-8")
    (folder / "headline.md").write_text("\n".join(markdown(result)) + "\n", encoding="utf-8")


def markdown(result: dict[str, Any]) -> list[str]:
    """The tables: quality, then speed."""
    device = result["device"]
    lines = [f"{device['name']}, torch {device['torch']}, bf16 autocast, {device['date']}.", ""]
    parts = result["parts"]
    tests = list(next((p["translations"] for p in parts.values() if "translations" in p), {}))
    rows = {key: part for key, part in parts.items() if key.startswith("quality/")}
    if rows:
        names = [*(f"BLEU {name}" for name in tests), *RATES]
        lines += _head("mixer", names)
        lines += [_row(key.split("/")[1], [*_bleu(part, tests), *_rates(part)]) for key, part in rows.items()]
        lines.append("")
    rows = {key: part for key, part in parts.items() if key.startswith("speed/")}
    if rows:
        lines += _head(
            "size, mixer, tokens a sentence", ["parameters", "updates", "target tokens/s", "MFU", "padding", "compiled"]
        )
        lines += [_row(" ".join(key.split("/")[1:]), _rates(part)) for key, part in rows.items()]
    return lines


def _bleu(part: dict[str, Any], tests: list[str]) -> list[str]:
    found = [part.get("translations", {}).get(name, {}).get("scores") for name in tests]
    return [f"{scores[0]['value']:.2f}" if scores else "not scored" for scores in found]


def _rates(part: dict[str, Any]) -> list[str]:
    if "error" in part:
        return [part["error"], *[""] * (len(RATES) - 1)]
    return [
        f"{part['parameters'] / 1e6:.1f}M",
        f"{part['steps']:,}",
        f"{part['target_tokens_per_second']:,.0f}",
        f"{100 * part['mfu']:.1f}%" if "mfu" in part else "-",
        f"{100 * part['padding']:.1f}%",
        "yes" if part["compiled"] else "no",
    ]


def _head(first: str, names: list[str]) -> list[str]:
    return [_row(first, names), "|---" + "|---:" * len(names) + "|"]


def _row(first: str, cells: list[str]) -> str:
    return "| " + " | ".join([first, *cells]) + " |"
