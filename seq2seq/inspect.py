"""Look into a model's token mixers, or measure every self mixer's place on the map."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seq2seq.cli import Parser, UsageError, exit_status, fail, positive, require_folder, seed, warn

if TYPE_CHECKING:
    from seq2seq.analysis.html_report import Pair
    from seq2seq.config.tokenizer import PatchGrid
    from seq2seq.model import Seq2Seq

EPILOG = """\
Examples:
  python -m seq2seq.inspect mixer=dynamicconv                       # random weights; settings as for seq2seq.train
  python -m seq2seq.inspect --ckpt runs/demo/checkpoints/best.ckpt --text "Ich habe gestern zwei Bücher gekauft."
  python -m seq2seq.inspect --atlas --figure --out docs/atlas       # every self mixer, measured

The first two write report.html, which needs no other file, and its figures as PNG and SVG. The atlas is printed, and
written as atlas.md and atlas.json (--figure: map.png and map.svg).
Exit status: 0 done; 1 a mixer's declared properties differ from the measured ones (--atlas); 2 wrong options or files;
130 interrupted."""

# which option goes with which
NEEDS = {
    "--text": "--ckpt",
    "--target": "--ckpt",
    "--tgt-lang": "--ckpt",
    "--length": "mixer=<name>",
    "--mixers": "--atlas",
    "--limit": "--atlas",
    "--figure": "--atlas",
}


def _parser() -> Parser:
    parser = Parser(prog="python -m seq2seq.inspect", description=__doc__, epilog=EPILOG)
    add = parser.add_argument
    add("overrides", nargs="*", metavar="KEY=VALUE", help="settings of a model with random weights, mixer=<name> first")
    add("--ckpt", metavar="FILE", help="the checkpoint to look into")
    add("--text", metavar="TEXT", help="the source sentence (with --ckpt)")
    add("--target", metavar="TEXT", help="the target sentence (the model's own translation)")
    add("--tgt-lang", metavar="LANG", help="target language, of a checkpoint that has several")
    text = "package, besides seq2seq, whose mixers a checkpoint may name; may be repeated"
    add("--trust", action="append", default=[], metavar="PACKAGE", help=text)
    add("--length", type=positive, metavar="N", help="positions of a model with random weights (16)")
    add("--atlas", action="store_true", help="measure the self mixers of conf/mixer/self")
    add("--mixers", metavar="A,B", help="only these (with --atlas)")
    add("--limit", type=float, metavar="SECONDS", help="of each mixer's growth; 0: no growth (10; with --atlas)")
    add("--figure", action="store_true", help="draw the map too (with --atlas)")
    add("--out", metavar="DIR", help="where figures and tables go (inspect/<name>)")
    add("--seed", type=seed, default=1, metavar="N", help="of random weights and inputs (1)")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    parser = _parser()
    options = parser.parse_intermixed_args(argv)
    _check(parser, options)
    try:
        return exit_status(lambda: _run(options))
    except ValueError as error:
        return fail(error)


def _check(parser: Parser, options: argparse.Namespace) -> None:
    ways = [options.atlas, options.ckpt is not None, bool(options.overrides)]
    if sum(ways) != 1:
        parser.error("say what to look into, one of: mixer=<name>, --ckpt FILE --text TEXT, --atlas")
    for name, needed in NEEDS.items():
        given = options.overrides if needed == "mixer=<name>" else getattr(options, needed[2:])
        if getattr(options, name[2:].replace("-", "_")) not in (None, False) and not given:
            parser.error(f"{name} goes with {needed}")
    if options.ckpt is not None and not (options.text or "").strip():
        parser.error("--ckpt needs a sentence to look at: --text TEXT" + (", which is empty" if options.text else ""))
    if options.target is not None and not options.target.strip():
        parser.error("--target is empty; leave it out for the model's own translation")


def _run(options: argparse.Namespace) -> int:
    # the profiler, which counts memory, would tell of each start and end; read when torch is imported
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
    from seq2seq.experiments.figures import require_matplotlib

    if options.figure or not options.atlas:
        require_matplotlib("--figure" if options.atlas else "a report")
    work = _atlas if options.atlas else _checkpoint if options.ckpt else _random
    return work(options)


def _folder(options: argparse.Namespace, name: str) -> Path:
    """The folder that will be written to; UsageError, before any work, where nothing can be written."""
    return require_folder(Path(options.out or Path("inspect") / name))


def _atlas(options: argparse.Namespace) -> int:
    names = self_mixers()
    if options.mixers is not None:
        names = [_known(name.strip(), names, "self mixer") for name in options.mixers.split(",")]
    folder = _folder(options, "atlas")
    import torch

    from seq2seq.analysis.atlas.table import as_json, markdown, survey
    from seq2seq.files import write_json, write_text

    limit = 10.0 if options.limit is None else options.limit
    points = []
    with composer() as settings_of:
        for name in names:
            settings = settings_of(name)
            told = "measuring ..." if settings else "left out: a stack of several mixers"
            print(f"{name}: {told}", file=sys.stderr, flush=True)
            torch.manual_seed(options.seed)
            if settings:
                points.append(survey(name, settings, limit=limit or None))
    page = markdown(points)
    print(page, end="", flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "atlas.md", page)
    write_json(folder / "atlas.json", as_json(points))
    if options.figure:
        from seq2seq.analysis.atlas.map import draw

        draw(points, folder / "map")
    print(f"written: {folder}", file=sys.stderr)
    wrong = [line for point in points for line in point.disagreements()]
    for line in wrong:
        warn(line)
    return 1 if wrong else 0


def self_mixers() -> list[str]:
    """The self mixers of conf/mixer/self: every file but the empty slot."""
    from seq2seq.resources import conf_dir

    return sorted(path.stem for path in (conf_dir() / "mixer" / "self").glob("*.yaml") if path.stem != "none")


def presets() -> list[str]:
    """The presets: the files of conf/mixer."""
    from seq2seq.resources import conf_dir

    return sorted(path.stem for path in (conf_dir() / "mixer").glob("*.yaml"))


@contextmanager
def composer() -> Iterator[Callable[[str], Callable[[int, int, int], Mapping[str, Any]] | None]]:
    """From a self mixer's name to its settings by width, heads and longest sequence, as composed by Hydra.

    None for a stack of several mixers, which is no point of the map (kinds of one mixer are).
    """
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    from seq2seq.resources import conf_dir

    def settings_of(name: str) -> Callable[[int, int, int], Mapping[str, Any]] | None:
        config = compose("train", ["mixer=transformer", f"mixer/self@mixer.encoder={name}"])
        if len({kind["_target_"] for kind in config.mixer.encoder.get("kinds", {}).values()}) > 1:
            return None

        def settings(dim: int, heads: int, max_len: int) -> Mapping[str, Any]:
            config.model.dim, config.model.num_heads, config.model.max_len = dim, heads, max_len
            found = OmegaConf.to_container(config.mixer.encoder, resolve=True)
            assert isinstance(found, dict)
            return {str(key): value for key, value in found.items()}

        return settings

    with initialize_config_dir(version_base="1.3", config_dir=str(conf_dir())):
        yield settings_of


def _known(name: str, known: Sequence[str], what: str) -> str:
    """`name` if it is known; UsageError with the nearest names otherwise."""
    if name in known:
        return name
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(known)}"
    raise UsageError(f"unknown {what} '{name}'; {hint}")


def _random(options: argparse.Namespace) -> int:
    given = dict(part.partition("=")[::2] for part in options.overrides)
    if "mixer" not in given:
        raise UsageError("name a preset: mixer=<name>, e.g. mixer=dynamicconv")
    name = given["mixer"]
    if "hydra.searchpath" not in given:  # which may hold further presets
        name = _known(name, presets(), "mixer")
    config = _compose(options.overrides)
    folder = _folder(options, name)
    import torch

    from seq2seq.analysis.html_report import Pair
    from seq2seq.build import build_model
    from seq2seq.config.settings import read_section
    from seq2seq.config.tokenizer import TokenizerSettings

    length, grid = options.length or 16, read_section(TokenizerSettings, config["tokenizer"], "tokenizer").patches
    torch.manual_seed(options.seed)
    sizes = {"src_vocab_size": length + 1, "tgt_vocab_size": length + 1, "pad_id": length, "joint": grid is None}
    sizes |= {"patches": dataclasses.asdict(grid)} if grid else {}
    model = build_model({"model": config["model"], "mixer": config["mixer"], **sizes})
    read, given = [f"s{i}" for i in range(1, length + 1)], f"{length} random tokens on each side"
    src, tgt = torch.randperm(length)[None], torch.randperm(length)[None]
    if grid:
        read, given = _patches(grid), f"a picture of random patches, and {length} random tokens"
        src = torch.randint(grid.vocab_size, (1, grid.length))
    pair = Pair(read, [f"t{i}" for i in range(1, length + 1)])
    facts = [("settings", " ".join(options.overrides)), ("weights", f"random (seed {options.seed})"),
             ("input", given)]  # fmt: skip
    return _report(folder, f"{name}, untrained", facts, model, src, tgt, pair, grid)


def _compose(overrides: Sequence[str]) -> dict[str, Any]:
    """Compose the settings of seq2seq.train with `overrides`; UsageError in one line where Hydra refuses them."""
    from seq2seq.config.compose import compose_settings

    try:
        return compose_settings(overrides)
    except ValueError as error:
        raise UsageError(str(error)) from None


def _checkpoint(options: argparse.Namespace) -> int:
    path = Path(options.ckpt)
    if not path.is_file():
        raise UsageError(f"no such checkpoint: {path}")
    home = path.resolve().parent
    folder = _folder(options, home.parent.name if home.name == "checkpoints" else path.stem)
    import torch

    from seq2seq.analysis.html_report import Pair
    from seq2seq.data.cleaning import shorten
    from seq2seq.inference.translator import Translator

    torch.manual_seed(options.seed)
    translator = Translator.load(path, device="cpu", trust=options.trust, tgt_lang=options.tgt_lang)
    tokenizer, meta = translator.tokenizer, translator.meta
    text = " ".join(options.text.split())
    source = [*translator.tags, *tokenizer.encode_src([text])[0]]
    _require_short("--text", source, translator.max_len)
    told = options.target is not None
    target_text = " ".join(options.target.split()) if told else translator.texts([text])[0]
    target = [tokenizer.bos_id, *tokenizer.encode_tgt([target_text])[0][:-1]]
    _require_short("the target", target, translator.max_len)
    grid = tokenizer.patches
    read = _patches(grid) if grid else _pieces(tokenizer, tokenizer.src, source)
    pair = Pair(read, _pieces(tokenizer, tokenizer.tgt, target))
    text = shorten(text, 200)  # a picture is a long line
    languages = f"{meta['src_lang']} to {options.tgt_lang or meta['tgt_lang']}"
    facts = [("checkpoint", path.name), ("data", f"{meta['data']}, {languages}"), ("source", text),
             ("target" if told else "translation", target_text)]  # fmt: skip
    src, tgt = torch.tensor([source]), torch.tensor([target])
    return _report(folder, f"{folder.name}: {text}", facts, translator.model, src, tgt, pair, grid)


def _require_short(what: str, row: Sequence[int], most: int) -> None:
    if len(row) > most:
        raise UsageError(f"{what} has {len(row):,} pieces, the most are {most:,}; shorten it")


def _patches(grid: PatchGrid) -> list[str]:
    """Names of a picture's patches: row and column, from 1."""
    return [f"{row + 1},{column + 1}" for row in range(grid.rows) for column in range(grid.columns)]


def _pieces(tokenizer: Any, model: Any, ids: Sequence[int]) -> list[str]:
    """The pieces of one side, a word's beginning marked as SentencePiece does."""
    special = {tokenizer.bos_id: "<s>", tokenizer.eos_id: "</s>", tokenizer.unk_id: "<unk>"}
    return [special.get(i) or model.id_to_piece(i).replace("▁", "_") for i in ids]


def _report(
    folder: Path,
    title: str,
    facts: list[tuple[str, str]],
    model: Seq2Seq,
    src: Any,
    tgt: Any,
    pair: Pair,
    grid: PatchGrid | None,
) -> int:
    from seq2seq.analysis.html_report import sections, write
    from seq2seq.analysis.mixing_matrix import views

    def tell(what: str) -> None:
        print(f"looking at {what} ...", file=sys.stderr, flush=True)

    seen = views(model, src, tgt, columns=grid.columns if grid else None, tell=tell)
    found = list(sections(seen, pair))
    print(f"written: {write(folder, title, facts, found)} and {len(found)} figures", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
