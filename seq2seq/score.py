"""Score translations with sacreBLEU: a file against references, a checkpoint on a data set, or systems in pairs."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seq2seq.cli import (
    Parser,
    UsageError,
    add_model_options,
    exit_status,
    fail,
    positive,
    require_output,
    require_text_output,
    warn,
)
from seq2seq.resources import conf_dir

if TYPE_CHECKING:
    from seq2seq.inference.translator import Note, Translator

EPILOG = """\
Examples:
  python -m seq2seq.score --hypotheses out.en --references test.en
  python -m seq2seq.score --ckpt runs/.../best.ckpt                       # the test set of the run's own data
  python -m seq2seq.score --ckpt best.ckpt --data multi30k --split valid
  python -m seq2seq.score --ckpt best.ckpt --data files test=corpus/test  # corpus/test.de and corpus/test.en
  python -m seq2seq.score --hypotheses out.de --references test.de --lang de --convention compound-split
  python -m seq2seq.score --compare baseline.en new.en --references test.en

Text is detokenised, one sentence a line; lines end at the byte \\n only; .gz, .xz and .zst are read as they are.
BLEU and chrF grow with quality, TER falls. Exit status: 0 done; 2 wrong options or files; 130 interrupted."""

METRICS = ("bleu", "chrf", "ter")
CONVENTIONS = ("tokenized", "compound-split")


def _parser() -> Parser:
    parser = Parser(prog="python -m seq2seq.score", description=__doc__, epilog=EPILOG)
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--hypotheses", metavar="FILE", help="translations to score; - is standard input")
    mode.add_argument("--ckpt", metavar="FILE", help="checkpoint to score on a data set")
    mode.add_argument("--compare", nargs="+", metavar="FILE", help="translations to compare; the first is the baseline")
    parser.add_argument("--references", nargs="+", metavar="FILE", help="one or more reference translations")
    add = parser.add_argument_group("scores").add_argument
    add("--metrics", nargs="+", choices=METRICS, default=list(METRICS), help="which scores (bleu chrf ter)")
    add("--tokenize", metavar="NAME", help="sacreBLEU's tokenizer for BLEU: 13a, zh, char, intl, none, ... (by --lang)")
    add("--lang", metavar="CODE", help="target language, for the tokenizer (the checkpoint's; else 13a)")
    add("--lowercase", action="store_true", help="ignore case")
    text = "BLEU as papers give it, too: on Moses tokens of --lang, or on those split at hyphens (En-De)"
    add("--convention", choices=CONVENTIONS, help=text)
    add("--samples", type=positive, default=1000, metavar="N", help="bootstrap resamples of --compare (1000)")
    add("--json", action="store_true", help="print JSON")
    add = parser.add_argument_group("data set, with --ckpt").add_argument
    text = "a name in conf/data, or a run's config.yaml, then settings (the checkpoint's own data)"
    add("--data", nargs="+", default=[], metavar="NAME|KEY=VALUE", help=text)
    add("--split", choices=("train", "valid", "test"), default="test", help="which part of it (test)")
    add("--limit", type=positive, metavar="N", help="only its first N sentences")
    add("--save", metavar="FILE", help="write the translations here")
    cache = os.environ.get("SEQ2SEQ_CACHE", ".cache")
    add("--cache", default=cache, metavar="FOLDER", help="where prepared data is kept ($SEQ2SEQ_CACHE or .cache)")
    add_model_options(parser.add_argument_group("translation, with --ckpt"))
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    parser = _parser()
    options = parser.parse_args(argv)
    if not options.ckpt and not options.references:
        parser.error("--hypotheses and --compare need --references")
    if options.ckpt and options.references:
        parser.error("--ckpt takes its references from --data; give --hypotheses with --references")
    if options.compare and len(options.compare) < 2:
        parser.error("--compare needs two files or more")
    if options.convention and options.compare:
        parser.error("--convention goes with --hypotheses or --ckpt; --compare resamples sacreBLEU's scores")
    if options.convention and options.hypotheses and not options.lang:
        parser.error("--convention needs --lang: Moses cuts words by language")
    try:
        return exit_status(lambda: _report(options))
    except ValueError as error:
        return fail(error)


def _report(options: argparse.Namespace) -> int:
    report = _compare(options) if options.compare else _score(options)
    print(json.dumps(report, ensure_ascii=False, indent=2) if options.json else _text(report), flush=True)
    return 0


def _tokenize(options: argparse.Namespace, known: str = "13a") -> str:
    """sacreBLEU's tokenizer: as asked for, else by language, else the one that is `known`."""
    from seq2seq.evaluation.metrics import check_tokenize, tokenize_for

    return check_tokenize(options.tokenize or (tokenize_for(options.lang) if options.lang else known))


def _score(options: argparse.Namespace) -> dict[str, Any]:
    if options.ckpt:
        return _score_checkpoint(options)
    tokenize = _tokenize(options)
    hypotheses = read_text(options.hypotheses)
    references = [read_text(path) for path in options.references]
    _check_counts(options.hypotheses, hypotheses, options.references, references)
    scores = _measure(options, hypotheses, references, tokenize)
    if options.convention:
        if len(references) > 1:
            raise UsageError("--convention compares with one reference; give one")
        scores.append(_as_papers(options, hypotheses, references[0], options.lang))
    return {"hypotheses": options.hypotheses, "lines": len(hypotheses), "scores": scores}


def _measure(options: argparse.Namespace, hypotheses: list[str], references: Any, tokenize: str) -> list[dict]:
    from seq2seq.evaluation.metrics import scores

    found = scores(hypotheses, references, metrics=options.metrics, tokenize=tokenize, lowercase=options.lowercase)
    return [score._asdict() for score in found]


def _as_papers(options: argparse.Namespace, hypotheses: list[str], references: list[str], lang: str) -> dict:
    from seq2seq.evaluation.moses_bleu import convention_bleu

    kind = {"convention": options.convention, "lang": lang, "lowercase": options.lowercase}
    return convention_bleu(hypotheses, references, **kind)._asdict()


def _compare(options: argparse.Namespace) -> dict[str, Any]:
    from seq2seq.evaluation.metrics import paired_bootstrap

    if len(set(options.compare)) < len(options.compare):
        raise UsageError("--compare names the same file twice")
    tokenize = _tokenize(options)
    systems = {path: read_text(path) for path in options.compare}
    references = [read_text(path) for path in options.references]
    for path, lines in systems.items():
        _check_counts(path, lines, options.references, references)
    rows = paired_bootstrap(
        systems,
        references,
        tokenize=tokenize,
        lowercase=options.lowercase,
        samples=options.samples,
        metrics=options.metrics,
    )
    return {"baseline": options.compare[0], "lines": len(references[0]), "comparison": [r._asdict() for r in rows]}


def read_text(path: str) -> list[str]:
    """The lines of a file, or of standard input for `-`; a line ends at the byte \\n only."""
    from seq2seq.data.readers import read_lines

    place = Path("/dev/stdin" if path == "-" else path)
    if place.is_dir():
        raise UsageError(f"{path} is a directory, not a text file")
    lines = [line.decode("utf-8", "replace") for line in read_lines(place)]
    invalid = next((number for number, line in enumerate(lines, 1) if "\ufffd" in line), None)
    if invalid:
        warn(f"{path}: line {invalid} holds text that is not UTF-8, or U+FFFD (warned once)")
    return lines


def _check_counts(path: str, lines: list[str], names: list[str], references: list[list[str]]) -> None:
    for name, reference in zip(names, references, strict=True):
        if len(reference) != len(lines):
            raise UsageError(f"{path} has {len(lines):,} lines, but {name} has {len(reference):,}")
    if not lines:
        raise UsageError(f"{path} has no lines: there is nothing to score")


# ---- a checkpoint on a data set


def _score_checkpoint(options: argparse.Namespace) -> dict[str, Any]:
    from seq2seq.cli import load_translator
    from seq2seq.evaluation.moses_bleu import check_convention

    if options.save:
        require_text_output(Path(options.save), "--save", ckpt=options.ckpt)
    if options.tokenize or options.lang:
        _tokenize(options)
    translator = load_translator(options)
    if options.convention:
        check_convention(options.convention, options.lang or translator.meta["tgt_lang"])
    data = data_plan(options.data, ckpt=options.ckpt, meta=translator.meta)
    if options.save:
        require_output(Path(options.save), "--save", inputs=_files(data, options.split))
    tokenize = _tokenize(options, known=translator.meta["tokenize"])
    sources, references = load_pairs(data, options.split, cache=Path(options.cache), limit=options.limit)
    began = time.perf_counter()
    hypotheses = _translate(translator, sources)
    seconds = time.perf_counter() - began
    if options.save:
        _save(options.save, hypotheses)
    scores = _measure(options, hypotheses, references, tokenize)
    if options.convention:
        scores.append(_as_papers(options, hypotheses, references, options.lang or translator.meta["tgt_lang"]))
    return {
        "checkpoint": options.ckpt,
        "data": data["name"],
        "split": options.split,
        "direction": f"{data['src']}-{data['tgt']}",
        "lines": len(sources),
        "seconds": round(seconds, 2),
        "beam_size": translator.settings.beam_size,
        "length_penalty": translator.settings.length_penalty,
        "scores": scores,
    }


def _translate(translator: Translator, sources: list[str]) -> list[str]:
    notes: list[Note] = []
    found = translator.texts(sources, note=notes.append)
    for note in notes:
        warn(f"sentence {note.position + 1} {note}")
    return found


def _save(path: str, lines: list[str]) -> None:
    from seq2seq.files import atomic_file

    with atomic_file(path) as file:
        file.write("".join(line + "\n" for line in lines).encode("utf-8", "replace"))


def data_plan(given: Sequence[str], *, ckpt: str, meta: dict[str, Any]) -> dict[str, Any]:
    """The `data` section that `--data` names, in the checkpoint's direction; UsageError if it cannot be that.

    `given` is a name in conf/data or a YAML file, then key=value settings. Without a name it is the data of the run
    that the checkpoint lies in, else the name that the checkpoint remembers.
    """
    from omegaconf import OmegaConf

    names = [item for item in given if "=" not in item]
    changes = [item.removeprefix("data.") for item in given if "=" in item]
    if len(names) > 1:
        raise UsageError(f"--data takes one name, then settings key=value; it has {', '.join(names)}")
    section = OmegaConf.create(_section(names[0] if names else None, ckpt, meta))
    unknown = [item for item in changes if item.split("=")[0].split(".")[0] not in section]
    if unknown:
        known = ", ".join(str(key) for key in section)
        raise UsageError(f"--data {unknown[0]}: there is no such setting; known are {known}")
    languages = {"src": meta["src_lang"], "tgt": meta["tgt_lang"]}
    merged = OmegaConf.merge(section, languages, OmegaConf.from_dotlist(list(changes)))
    data = OmegaConf.to_container(merged, resolve=True)
    assert isinstance(data, dict)
    for side, language in languages.items():
        if data[side] != language:
            raise UsageError(
                f"this checkpoint translates {languages['src']} to {languages['tgt']}; "
                f"--data {side}={data[side]} does not fit it"
            )
    return {str(key): None if value == "???" else value for key, value in data.items()}


def _section(name: str | None, ckpt: str, meta: dict[str, Any]) -> dict[str, Any]:
    """A data section by name or YAML file, its `defaults` merged; interpolations are left as they are."""
    run = Path(ckpt).absolute().parent.parent / "config.yaml"
    if name is None and run.is_file():
        return _yaml(run)["data"]
    chosen = name or meta["data"]
    if chosen.endswith((".yaml", ".yml")):
        loaded = _yaml(Path(chosen))
        return loaded.get("data", loaded)
    folder = conf_dir() / "data"
    known = sorted(path.stem for path in folder.glob("*.yaml"))
    if chosen not in known:
        hint = "" if name else " (what the checkpoint was trained on); name one with --data"
        raise UsageError(f"there is no data set '{chosen}'{hint}; known are {', '.join(known)}")
    from seq2seq.config.compose import resolved_settings

    return resolved_settings([f"data={chosen}"])["data"]


def _yaml(path: Path) -> dict[str, Any]:
    import yaml

    try:
        loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError):
        loaded = None
    if not isinstance(loaded, dict):
        raise UsageError(f"{path} is not a YAML file of settings")
    return loaded


def load_pairs(
    data: dict[str, Any], split: str, *, cache: Path, limit: int | None = None
) -> tuple[list[str], list[str]]:
    """Raw source and reference lines of a split; one that is held out of training is found by preparing the corpus."""
    from seq2seq.config.data import corpus_settings
    from seq2seq.data.corpus import load_corpus, open_split

    settings = corpus_settings(data)
    if settings.place(split) is None:
        if settings.train is None:
            raise UsageError(
                f"--data {data['name']}: say where the text is, as in --data {data['name']} {split}=<path>"
            )
        rows = load_corpus(settings, cache_dir=cache).splits[split][:limit]
        pairs = list(zip(rows["src"], rows["tgt"], strict=True))
    else:
        blocks = open_split(split, settings, cache_dir=cache)
        pairs = list(islice((pair for block in blocks for pair in zip(*block, strict=True)), limit))
    if not pairs:
        raise UsageError(f"--data {data['name']}: its {split} split is empty")
    return [src for src, _ in pairs], [tgt for _, tgt in pairs]


def _files(data: dict[str, Any], split: str) -> list[str]:
    """The files that `load_pairs` reads; none for what is on the hub, or is missing."""
    from seq2seq.config.data import corpus_settings
    from seq2seq.data.corpus import find_source

    settings = corpus_settings(data)
    found = split if settings.place(split) is not None else "train"
    return [] if settings.path or settings.place(found) is None else find_source(found, settings).files


# ---- printing


def _text(report: dict[str, Any]) -> str:
    if "comparison" in report:
        return _table(report)
    head = ""
    if "checkpoint" in report:
        head = "{data} {split}, {direction}: {lines:,} sentences in {seconds} s, beam {beam_size}\n".format(**report)
    rows = [f"{s['name']:<6} {s['value']:6.2f}  {s['signature']}" for s in report["scores"]]
    return head + "\n".join(rows)


def _table(report: dict[str, Any]) -> str:
    """One block for each metric: system, score, mean and 95% interval of the resamples, p against the baseline."""
    width = max(len(row["system"]) for row in report["comparison"])
    lines = []
    for name in dict.fromkeys(row["name"] for row in report["comparison"]):
        rows = [row for row in report["comparison"] if row["name"] == name]
        lines.append(f"{name}  {rows[0]['signature']}")
        lines += [f"  {row['system']:<{width}}  {_cells(row)}" for row in rows]
    lines.append("p: paired bootstrap against the first system; * is p < 0.05")
    return "\n".join(lines)


def _cells(row: dict[str, Any]) -> str:
    p = row["p_value"]
    last = "baseline" if p is None else f"p = {p:.4f}{' *' if p < 0.05 else ''}"
    return f"{row['value']:6.2f}  ({row['mean']:.2f} ± {row['interval']:.2f})  {last}"


if __name__ == "__main__":
    sys.exit(main())
