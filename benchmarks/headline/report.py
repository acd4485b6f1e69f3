"""The results as Markdown tables, and BLEU of the translations where SentencePiece and sacreBLEU are installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.headline.data import Prepared
from benchmarks.headline.parts import IN_BFLOAT16
from seq2seq.system.markdown import markdown_table

MFU = "MFU: share of the data sheet's peak and of the measured one, TFLOP/s"
RATES = ["parameters", "updates", "target tokens/s", MFU, "padding", "compiled"]


def score(result: dict[str, Any], prepared: Prepared) -> bool:
    """Add BLEU and chrF of every translation, in place; return False if a package for it is missing."""
    try:
        from seq2seq.data.tokenizer import Tokenizer
        from seq2seq.metrics.scorers import bleu, chrf
    except ImportError:
        return False
    if not any("translations" in part for part in result["parts"].values()):
        return True
    # Joint: the source's model also decodes the target
    tokenizer = Tokenizer(src_model=(prepared.folder / "tokenizer.model").read_bytes())
    for part in result["parts"].values():
        for name, translation in part.get("translations", {}).items():
            lines = tokenizer.decode(translation["ids"])
            references = prepared.references(name.removesuffix(IN_BFLOAT16))
            translation["scores"] = [metric(lines, references)._asdict() for metric in (bleu, chrf)]
            # A sample to read; the ids are complete
            translation["text"] = lines[:20]
    return True


def write(result: dict[str, Any], folder: Path) -> None:
    """Write headline.json and headline.md."""
    harness.write(folder, "headline", result, markdown(result), indent=None)


def markdown(result: dict[str, Any]) -> str:
    """Format the tables of quality and of speed."""
    device = result["device"]
    blocks = [f"{device['name']}, torch {device['torch']}, bf16 autocast, {device['date']}."]
    parts = result["parts"]
    # Of any part that has translations: all have the same test sets
    tests = list(next((part["translations"] for part in parts.values() if "translations" in part), {}))
    quality = {key: part for key, part in parts.items() if key.startswith("quality/")}
    if quality:
        header = ["mixer", *(f"BLEU {name}" for name in tests), *RATES]
        rows = [[key.split("/")[1], *_bleu(part, tests), *_rates(part)] for key, part in quality.items()]
        blocks.append(markdown_table(header, rows, right=header[1:]))
    speed = {key: part for key, part in parts.items() if key.startswith("speed/")}
    if speed:
        header = ["size, mixer, tokens a sentence", *RATES]
        rows = [[" ".join(key.split("/")[1:]), *_rates(part)] for key, part in speed.items()]
        blocks.append(markdown_table(header, rows, right=RATES))
    return "\n\n".join(blocks)


def _bleu(part: dict[str, Any], tests: list[str]) -> list[str]:
    """Format BLEU of each test set."""
    scores = [part.get("translations", {}).get(name, {}).get("scores") for name in tests]
    return [f"{each[0]['value']:.2f}" if each else "not scored" for each in scores]


def _rates(part: dict[str, Any]) -> list[str]:
    """Format the columns of RATES; of a part that failed its error."""
    if "error" in part:
        return [part["error"], *[""] * (len(RATES) - 1)]
    return [
        f"{part['parameters'] / 1e6:.1f}M",
        f"{part['steps']:,}",
        f"{part['target_tokens_per_second']:,.0f}",
        _mfu(part),
        f"{100 * part['padding']:.1f}%",
        _compiled(part),
    ]


def _mfu(part: dict[str, Any]) -> str:
    """Format both shares with what they are shares of; results of earlier versions have the first alone."""
    pairs = (("mfu", "peak_flops_per_second"), ("mfu_of_measured", "measured_flops_per_second"))
    said = [f"{100 * part[share]:.1f}% of {part[of] / 1e12:.3g}" for share, of in pairs if share in part]
    return ", ".join(said) or "-"


def _compiled(part: dict[str, Any]) -> str:
    """Format if the model ran compiled: partly, where some calls found no graph."""
    if part["compiled"]:
        return f"yes ({part['graphs']} graphs)" if "graphs" in part else "yes"
    return "partly" if part.get("graphs") else "no"
