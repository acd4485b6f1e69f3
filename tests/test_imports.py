"""The shape of the package itself: which file may import which, how long a function may be, what a file is called."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import seq2seq

ROOT = Path(seq2seq.__file__).parent
FILES = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in sorted(ROOT.rglob("*.py"))}
TREES = {name.removesuffix(".__init__"): ast.parse(path.read_text("utf-8")) for name, path in FILES.items()}
# train.py and the files it is split into
LIGHTNING = {"task", "datamodule", "train", "progress", "control", "csvlog", "profiling", "keep", "pruning", "strategy"}
HYDRA = {"train", "sweep", "loggers", "inspect", "prepare", "keys"}
# what of ours a module may import ("x." = anything below x); modules that are not named here are data and entry points
ALLOWED = {
    "mixer": [],
    "kernels.": ["kernels."],
    "mixers.": ["mixer", "mixers.", "kernels."],
    "embedding": ["kernels."],
    "model": ["mixer", "embedding", "kernels."],
    "build": ["mixer", "embedding", "model"],
    "search": ["mixer", "model"],
    "jacobian": ["mixer"],
    "atlas": ["mixer", "build", "jacobian"],
    "growth": ["mixer", "build", "atlas"],
    "atlas_table": ["mixer", "build", "atlas", "growth"],
    "atlas_map": ["atlas_table", "drawing"],
    "mixing": ["mixer", "model", "jacobian"],
    "drawing": ["mixing", "figure", "checkpoint", "kernels."],
    "report": ["mixing", "drawing", "run"],
    "loss": [],
    "optim": [],
    "metrics": [],
    "resources": [],
    "pictures": [],
    "tokenizer": ["pictures"],
    "cleaning": [],
    "direction": ["cleaning"],
    "reading": ["cleaning"],
    "building": [],
    "corpus": ["building", "cleaning", "direction", "reading", "resources"],
    "encoding": ["building", "cleaning", "pictures", "tokenizer"],
    "mixture": ["corpus", "tokenizer"],
    "pairs": ["batching", "tokenizer"],
    "stream": ["batching", "cleaning", "corpus", "encoding", "mixture", "pairs"],
}


def imports(module: str, *, only_at_import: bool = False) -> set[str]:
    """Dotted names of what `module` imports; `from a import b` counts as a.b."""
    found: set[str] = set()
    package = module if FILES.get(module) is None else module.rpartition(".")[0]
    for node in _nodes(TREES[module], only_at_import):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                up = ["seq2seq", *package.split(".")] if package else ["seq2seq"]
                base = ".".join([*up[: len(up) - node.level + 1], *([node.module] if node.module else [])])
            found |= {f"{base}.{alias.name}" for alias in node.names}
    return found


def _nodes(tree: ast.AST, only_at_import: bool) -> list[ast.AST]:
    """All nodes; with only_at_import, those outside functions and `if TYPE_CHECKING`."""
    found: list[ast.AST] = []
    for child in ast.iter_child_nodes(tree):
        if only_at_import and isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if only_at_import and isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        found += [child, *_nodes(child, only_at_import)]
    return found


def ours(module: str) -> set[str]:
    """Which modules of this package `module` imports."""
    found = {name.removeprefix("seq2seq.") for name in imports(module) if name.split(".")[0] == "seq2seq"}
    known = set(TREES)
    return {name if name in known else name.rpartition(".")[0] for name in found} - {"", "seq2seq", module}


def within(name: str, allowed: list[str]) -> bool:
    return any(name == a or (a.endswith(".") and f"{name}.".startswith(a)) for a in allowed)


@pytest.mark.parametrize("module", TREES)
def test_imports_point_one_way(module):
    for rule, allowed in ALLOWED.items():
        if within(module, [rule]):
            wrong = {name for name in ours(module) if not within(name, allowed)}
            assert not wrong, f"seq2seq.{module} may not import {', '.join(sorted(wrong))}"


@pytest.mark.parametrize("module", TREES)
def test_only_build_knows_no_mixer_and_few_know_the_model(module):
    """No module but a mixer names a concrete mixer: they are reached by their settings."""
    if not module.startswith("mixers"):
        assert not {name for name in ours(module) if name.startswith("mixers.")}


@pytest.mark.parametrize("module", TREES)
def test_heavy_frameworks_stay_where_they_belong(module):
    roots = {name.split(".")[0] for name in imports(module)}
    if module not in LIGHTNING:
        assert not roots & {"lightning", "pytorch_lightning"}
    if module not in HYDRA:
        assert not roots & {"hydra"}


@pytest.mark.parametrize("module", TREES)
def test_datasets_is_imported_when_it_is_needed(module):
    """HF datasets takes a second to import: inside functions only."""
    assert "datasets" not in {name.split(".")[0] for name in imports(module, only_at_import=True)}


def loaded_by(statement: str) -> set[str]:
    """Which packages a fresh interpreter has loaded after `statement`."""
    code = f"{statement}\nimport sys\nprint(*{{name.split('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT.parent, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "module",
    [name for name in ("translate", "score", "serve", "compare", "average", "inspect", "draw") if name in TREES],
)
def test_entry_points_parse_before_they_load(module):
    """Importing one loads neither torch nor anything heavy: a wrong option is answered at once."""
    heavy = {"torch", "lightning", "pytorch_lightning", "datasets", "hydra", "sacrebleu", "sentencepiece", "matplotlib"}
    assert not loaded_by(f"import seq2seq.{module}") & heavy


def test_translating_needs_no_lightning():
    """What translation is made of never loads a training framework."""
    names = [name for name in ("checkpoint", "search", "model", "build", "tokenizer", "metrics") if name in TREES]
    statement = "import " + ", ".join(f"seq2seq.{name}" for name in names)
    assert not loaded_by(statement) & {"lightning", "pytorch_lightning", "hydra", "datasets", "omegaconf"}


@pytest.mark.parametrize("module", TREES)
def test_no_function_is_longer_than_a_page(module):
    for node in ast.walk(TREES[module]):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            assert lines <= 60, f"seq2seq.{module}.{node.name} has {lines} lines"


@pytest.mark.parametrize(
    "module", [name for name in TREES if name in ("model", "embedding") or name.startswith("mixers.")]
)
def test_modules_are_built_by_keyword(module):
    """Constructors of modules: keyword-only, at most 8 arguments, no **kwargs."""
    for node in ast.walk(TREES[module]):
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            arguments = node.args
            assert len(arguments.args) == 1, f"seq2seq.{module}: positional arguments at line {node.lineno}"
            assert arguments.vararg is None
            assert arguments.kwarg is None
            assert len(arguments.kwonlyargs) <= 8, f"seq2seq.{module}: line {node.lineno}"


def test_files_say_what_they_hold():
    vague = {"utils", "util", "helpers", "helper", "common", "misc"}
    assert not [name for name in TREES if vague & set(name.split("."))]


def test_the_whole_model_is_one_file():
    """model.py shows everything, in under 300 lines; mixers/__init__.py lists nothing."""
    assert len((ROOT / "model.py").read_text("utf-8").splitlines()) < 300
    assert not (ROOT / "mixers" / "__init__.py").read_text("utf-8").strip()
