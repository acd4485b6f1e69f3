"""Test the README and docs/: commands compose, settings and options exist, links lead somewhere."""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import inspect
import io
import json
import re
import shlex
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from composed import resolved, settings_of
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig

from seq2seq.mixers.average import Average
from seq2seq.network.build import build_model, on_meta_device
from seq2seq.settings.compose import typed_settings
from seq2seq.settings.declare import read_section, require_used
from seq2seq.settings.run import SECTIONS
from seq2seq.system.resources import conf_dir

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        ROOT / "data/README.md",
        ROOT / "benchmarks/README.md",
    ]
)
# Pages that may mention names of the past
HISTORY = ("CHANGELOG.md", "log.md")
COMMAND = re.compile(r"python -m seq2seq\.(\w+)([^\n`|]*)")
OPTION_COMMANDS = ("translate", "score", "average", "convert", "compare", "inspect", "draw", "export", "serve")


def text_of(page: Path) -> str:
    """The text of a page, each continued line joined with the next."""
    return re.sub(r"\\\n\s*", " ", page.read_text(encoding="utf-8"))


def script(name: str) -> Any:
    """A script of docs/, which is not a package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / f"docs/{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def commands(names: tuple[str, ...], pages: list[Path] = PAGES) -> list[list[str]]:
    """The distinct commands of `pages` as [name, argument, ...], placeholders such as `...` and `<x>` left out."""
    distinct: dict[str, list[str]] = {}
    for page in pages:
        for name, rest in COMMAND.findall(text_of(page)):
            if name in names:
                words = shlex.split(re.split(r" [<>] ", rest)[0], comments=True)
                arguments = [word for word in words if "..." not in word and "<" not in re.sub(r'"<\w+>"', "", word)]
                distinct.setdefault(" ".join([name, *arguments]), [name, *arguments])
    return list(distinct.values())


def first_values(arguments: list[str]) -> list[str]:
    """The overrides of the first job of a training command: the first value of each sweep, without Hydra's own."""
    words = [word.replace("glob(*)", "transformer") for word in arguments if "=" in word]
    overrides = OverridesParser.create().parse_overrides([word for word in words if not word.startswith("hydra")])
    plain = []
    for override in overrides:
        if not override.is_sweep_override():
            plain.append(override.input_line)
        elif override.is_choice_sweep():
            plain.append(f"{override.key_or_group}={next(override.sweep_string_iterator())}")
    return [word for word in plain if word is not None]


# Composing takes a third of a second: some commands of the README are always tested, all others in `make rest`
REPRESENTATIVE = {
    "test_training_commands_compose_and_build": {
        "train",
        "train data=files data.train=corpus/train trainer.max_time=1h resume=auto",
        "train mixer=rotary",
    }
}
EXHAUSTIVE = {"test_the_table_of_sizes"}


@pytest.mark.parametrize("command", commands(("train", "prepare")), ids=" ".join)
def test_training_commands_compose_and_build(command):
    words = first_values(command[1:])
    plain = resolved(words)
    for name in ("data", "optim", "search"):
        require_used(read_section(SECTIONS[name], plain[name], name), typed_settings(words))
    tokenizer = plain["tokenizer"]
    sizes = {"src_vocab_size": 8, "tgt_vocab_size": 8, "pad_id": 0, "joint": tokenizer["joint"]}
    if tokenizer.get("patches"):
        sizes["patches"] = tokenizer["patches"]
    build_once(json.dumps({"model": plain["model"], "mixer": plain["mixer"], **sizes}))


@cache
def build_once(config: str) -> None:
    """Build a model without memory; most commands have one of a few."""
    with on_meta_device():
        build_model(json.loads(config))


@pytest.mark.parametrize("command", commands(OPTION_COMMANDS), ids=" ".join)
def test_options_of_other_commands_exist(command):
    name, *arguments = command
    for option in [word.partition("=")[0] for word in arguments if word.startswith("--")]:
        assert option in options_of(name), f"{name} has no {option}"


@cache
def options_of(name: str) -> set[str]:
    """The options that the help of a command names."""
    module = importlib.import_module(f"seq2seq.{name}")
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), pytest.raises(SystemExit):
        module.main(["--help"])
    return set(re.findall(r"--[a-z][\w-]*", shown.getvalue()))


def test_settings_and_presets_named_exist():
    known = {key for overrides in ([], ["experiment=drawn_words"]) for key in keys(settings_of(*overrides))}
    for page in PAGES:
        if page.name in HISTORY:
            continue
        text = text_of(page)
        for group in ("mixer", "model", "experiment", "tokenizer", "optim", "logger"):
            for name in re.findall(rf"(?<![\w./@]){group}=([a-z]\w*(?:/\w+)?)(?![\w(/])", text):
                assert (conf_dir() / group / f"{name}.yaml").is_file(), f"{page.name}: {group}={name}"
        for key in re.findall(r"`'?((?:trainer|data|model|optim|search|tokenizer)(?:\.[a-z]\w*)+)(?=[=`])", text):
            assert key in known or key.endswith((".py", ".pt", ".json", ".safetensors")), f"{page.name}: {key}"


def keys(config: DictConfig, prefix: str = "") -> set[str]:
    """All dotted keys of a config, with its sections."""
    names: set[str] = set()
    for key in config:
        names.add(f"{prefix}{key}")
        value = config._get_node(key)
        if isinstance(value, DictConfig) and not value._is_none():
            names |= keys(value, f"{prefix}{key}.")
    return names


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)#\s]+)", text):
        assert target.startswith("https://") or (page.parent / target).exists(), target


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 130


def test_the_table_of_sizes():
    names = ["dim", "ffn_dim", "encoder_layers", "num_heads", "norm", "dropout"]
    rows = re.findall(r"^\| `(\w+)` \|(.*\d.*)\|$", text_of(ROOT / "docs" / "training.md"), flags=re.MULTILINE)
    sizes = {name: [cell.strip() for cell in rest.split("|")] for name, rest in rows}
    for name in ("tiny", "small", "base", "big"):
        settings = settings_of(f"model={name}")
        model = [settings.model[key] for key in names]
        *cells, rate = sizes[name]
        cells[2] = cells[2].partition(" ")[0]
        cells[4] = "pre" if cells[4].startswith("before") else "post"
        assert cells == [str(value) for value in model], name
        assert float(rate) == settings.optim.peak_lr
        assert settings.model.encoder_layers == settings.model.decoder_layers


def test_the_mixer_of_the_readme_is_the_repositorys():
    """Signatures as in the class, settings as in conf/."""
    readme = (ROOT / "README.md").read_text("utf-8")
    (skeleton,) = re.findall(r"```python\n(.*?)```", readme, flags=re.DOTALL)
    methods = [node for node in ast.walk(ast.parse(skeleton)) if isinstance(node, ast.FunctionDef)]
    for method in methods:
        arguments = [each.arg for each in (*method.args.args, *method.args.kwonlyargs)]
        assert arguments == list(inspect.signature(getattr(Average, method.name)).parameters), method.name
    for name, settings in re.findall(r"```yaml\n# (conf/\S+)\n(.*?)```", readme, flags=re.DOTALL):
        assert settings == (ROOT / name).read_text("utf-8"), name


@pytest.mark.filterwarnings("ignore:.*Defaults list is missing")
@pytest.mark.parametrize("preset", ["talk", "bahdanau", "local_blocks"])
def test_a_row_of_the_table_of_mixers(preset):
    """A row has a preset's name, a line of prose with an equation, and a paper; `make docs` makes all rows."""
    pytest.importorskip("mkdocs")
    hooks = script("hooks")
    name, what, papers = hooks.preset_table([preset]).splitlines()[2].strip("| ").split(" | ")
    assert name.startswith(f"[`{preset}`][seq2seq.mixers.")
    assert re.match(r"[A-Z].{10,}<br><span class=\"equation\">.* = .*</span><br>Settings: .*<code>", what), what
    assert re.search(r"[A-Z]\w+.* \d{4}", papers), papers


@pytest.mark.filterwarnings("ignore:.*Defaults list is missing")
@pytest.mark.parametrize(
    ("preset", "cls"),
    [
        ("transformer", "attention.Attention"),
        ("relu_attention", "attention.Attention"),
        ("qk_norm", "qk_norm.NormalizedAttention"),
        ("conv2d", "conv2d.Conv2d"),
        ("luong", "luong.Luong"),
        ("luong_attention", "luong.LuongAttention"),
        ("fixed_gaussian", "fixed_gaussian.FixedGaussian"),
        ("cross_dynamicconv", "cross_convolution.CrossConvolution"),
    ],
)
def test_a_row_is_of_the_class_that_names_the_preset(preset, cls):
    pytest.importorskip("mkdocs")
    assert f"| [`{preset}`][seq2seq.mixers.{cls}] |" in script("hooks").preset_table([preset])


@pytest.mark.filterwarnings("ignore:.*Defaults list is missing")
def test_rows_of_cross_mixers_are_of_cross_mixers():
    pytest.importorskip("mkdocs")
    table = script("hooks").cross_table()
    assert "| [`attention`][seq2seq.mixers.attention.CrossAttention] |" in table
    assert "| [`fixed_gaussian`][seq2seq.mixers.fixed_gaussian.FixedGaussian] |" in table


def test_references_of_mixers_name_papers_alone():
    """A difference from a paper is a sentence with "published", which the cards show whole."""
    pytest.importorskip("mkdocs")
    papers_of = script("hooks").papers_of
    for path in (ROOT / "seq2seq/mixers").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef) and "Reference:" in (docstring := ast.get_docstring(node) or ""):
                names = re.sub(r"'.*?'(?!\w)|\(.*?\)", "", papers_of(docstring))
                assert not re.search(r"\b(here|in|who|whose|which|with|without|this)\b", names), node.name


def test_the_page_of_mixers_names_each_with_a_longest_sentence():
    bullet = re.search(r"^- \*\*Length.*?(?=^- )", text_of(ROOT / "docs/mixers.md"), re.MULTILINE | re.DOTALL)
    assert bullet
    files = (conf_dir() / "mixer/self").glob("*.yaml")
    bounded = {path.stem for path in files if "\nmax_len:" in path.read_text("utf-8")}
    assert "mlp" in bounded
    assert bounded <= set(re.findall(r"`(\w+)`", bullet[0]))


@pytest.mark.parametrize(
    ("equation", "expected"),
    [
        (
            "y_t = sum_k w_{t,k} x_{t+k}",
            "<i>y</i>_[<i>t</i>] = ∑_[<i>k</i>] <i>w</i>_[<i>t</i>,<i>k</i>] <i>x</i>_[<i>t</i>+<i>k</i>]",
        ),
        (
            "M_ij = g^(i-j), with a gain a",
            "<i>M</i>_[<i>ij</i>] = <i>g</i>^[(<i>i</i>-<i>j</i>)], with a gain <i>a</i>",
        ),
        (
            "W of D x D; M x W_v <= q's",
            "<i>W</i> of <i>D</i> × <i>D</i>; <i>M</i> <i>x</i> <i>W</i>_[<i>v</i>] ≤ <i>q</i>'s",
        ),
    ],
)
def test_an_equation_is_typeset(equation, expected):
    pytest.importorskip("mkdocs")
    html = script("hooks").typeset(equation).removeprefix('<span class="equation">').removesuffix("</span>")
    assert re.sub(r"<su([bp])>(.*?)</su.>", lambda found: f"{'_^'[found[1] == 'p']}[{found[2]}]", html) == expected


def test_the_picture_of_the_packages_is_up_to_date():
    package_map = script("package_map")
    assert package_map.TARGET.read_text("utf-8") == package_map.svg(), "run: python docs/package_map.py"


def test_files_named_in_the_pages_exist():
    """Paths in code type; placeholders such as `<name>` are left out."""
    for page in PAGES:
        if page.name in HISTORY:
            continue
        for path in re.findall(r"`((?:seq2seq|tests|conf|docs|benchmarks|hydra_plugins)/[\w./]*)`", text_of(page)):
            assert (ROOT / path).exists(), f"{page.name}: {path}"
