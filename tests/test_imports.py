"""Rules about the shape of the package: which part may import which. Lengths are a report: tests/lengths.py."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import seq2seq

EXHAUSTIVE = {"test_commands_parse_before_they_load_and_translating_needs_no_lightning"}

ROOT = Path(seq2seq.__file__).parent
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(ROOT.rglob("*.py"))
}
# The parts of the package, lowest first. A part imports itself and parts of lower levels.
# A module that is named by itself (`training.command`) is a separate part; modules that no level names are commands.
LEVELS = (
    ("system",),
    ("kernels", "settings", "sweeps"),
    ("images", "network"),
    ("data", "mixers", "search"),
    ("metrics", "metadata"),
    ("checkpoint",),
    ("inference", "runs"),
    ("options",),
    ("evaluation",),
    ("analysis", "comparison", "training.bounds", "training.machine"),
    ("training.objective",),
    ("training.lightning_parts",),
    ("training.callbacks",),
    ("training",),
    ("api",),
)
COMMANDS = {
    "train",
    "translate",
    "score",
    "prepare",
    "average",
    "convert",
    "compare",
    "inspect",
    "draw",
    "export",
    "serve",
    "shortlist",
    "distill",
    "__main__",
}
HYDRA = (
    "train",
    "prepare",
    "training.command",
    "settings.",
    "sweeps.hydra_callback",
    "training.lightning_parts.user_classes",
)


@functools.cache
def tree_of(module: str) -> ast.AST:
    return ast.parse(MODULES[module].read_text("utf-8"))


@functools.cache
def imports(module: str, *, only_at_import: bool = False) -> set[str]:
    """Return the dotted names that `module` imports; `from a import b` counts as a.b."""
    names: set[str] = set()
    for node in _nodes(tree_of(module), only_at_import):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"seq2seq.{module}: a relative import at line {node.lineno}"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def _nodes(tree: ast.AST, only_at_import: bool) -> Iterator[ast.AST]:
    """Yield all nodes; with only_at_import, only nodes outside of functions and `if TYPE_CHECKING`."""
    waiting = [tree]
    while waiting:
        for child in ast.iter_child_nodes(waiting.pop()):
            if only_at_import and isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if only_at_import and isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                continue
            waiting.append(child)
            yield child


def ours(module: str) -> set[str]:
    """The modules of this package that `module` imports."""
    names = {name.removeprefix("seq2seq.") for name in imports(module) if name.split(".")[0] == "seq2seq"}
    modules = {name if name in MODULES else name.rpartition(".")[0] for name in names}
    return modules - {"", "seq2seq", module}


def part_of(module: str) -> tuple[int, str]:
    """The level and the part that a module belongs to; a part that is named longer takes precedence."""
    parts = [(level, part) for level, row in enumerate(LEVELS) for part in row if f"{module}.".startswith(f"{part}.")]
    return max(parts, key=lambda each: len(each[1]), default=(len(LEVELS), module))


def matches(module: str, names: tuple[str, ...]) -> bool:
    return any(module == name or (name.endswith(".") and module.startswith(name)) for name in names)


def functions(tree: ast.AST) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def test_imports_point_one_way():
    wrong = []
    for module in MODULES:
        level, part = part_of(module)
        for name in ours(module):
            other, its_part = part_of(name)
            if other > level or (other == level and its_part != part):
                wrong.append(f"{module} imports {name}")
    assert not wrong


def test_what_stands_at_the_top_is_a_command():
    assert {part_of(module)[1] for module in MODULES if part_of(module)[0] == len(LEVELS)} - {"__init__"} == COMMANDS


def test_no_module_but_a_mixer_names_a_concrete_mixer():
    """Other modules reach mixers only through their settings."""
    wrong = [
        f"{module} imports {name}"
        for module in MODULES
        for name in ours(module)
        if name.startswith("mixers.") and not module.startswith("mixers.")
    ]
    assert not wrong


def test_heavy_frameworks_stay_where_they_belong():
    for module in MODULES:
        roots = {name.split(".")[0] for name in imports(module)}
        if not module.startswith("training."):
            assert not roots & {"lightning", "pytorch_lightning"}, f"seq2seq.{module} imports Lightning"
        if not matches(module, HYDRA):
            assert "hydra" not in roots, f"seq2seq.{module} imports Hydra"


def test_datasets_is_imported_when_it_is_needed():
    """HF datasets takes a second to import: inside functions only."""
    for module in MODULES:
        roots = {name.split(".")[0] for name in imports(module, only_at_import=True)}
        assert "datasets" not in roots, f"seq2seq.{module} imports datasets at its top"


def test_commands_parse_before_they_load_and_translating_needs_no_lightning():
    """A wrong option is answered at once; files and resources load no torch; translating loads no Lightning."""
    code = """
import sys
def loaded(*modules):
    for module in modules:
        __import__(f"seq2seq.{module}")
    return {name.split(".")[0] for name in sys.modules}
heavy = {"torch", "lightning", "pytorch_lightning", "datasets", "hydra", "sacrebleu", "sentencepiece", "numpy"}
heavy |= {"matplotlib"}
commands = ("translate", "score", "compare", "average", "convert", "distill", "inspect", "draw", "export", "serve")
commands += ("shortlist", "__main__")
light = loaded(*commands, "system.files", "system.resources", "options.command_line", "options.translation") & heavy
assert not light, light
framework = {"lightning", "pytorch_lightning", "hydra", "datasets", "omegaconf", "pyarrow", "rich", "tensorboard"}
needed = loaded("checkpoint", "search", "metrics.scorers", "inference.translator")
needed |= loaded("evaluation.checkpoint_score", "inference.onnx_model", "runs.averaging", "analysis.model_report")
assert not needed & framework, needed & framework
from seq2seq.network import build, embedding
with build.on_meta_device():
    embedding.make_table(8, 4, 0), embedding.make_positions("sinusoidal", dim=4, max_len=8)
assert "torch._dynamo" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT.parent, check=True)


def test_modules_are_built_by_keyword():
    """Constructors of modules: keyword-only, at most 8 arguments except the sizes that the model gives, no **kwargs."""
    for module in MODULES:
        if module not in ("network.model", "network.embedding") and not module.startswith("mixers."):
            continue
        for node in functions(tree_of(module)):
            if node.name == "__init__":
                arguments = node.args
                assert len(arguments.args) == 1, f"seq2seq.{module}: positional arguments at line {node.lineno}"
                assert arguments.vararg is None
                assert arguments.kwarg is None
                given = {each.arg for each in arguments.kwonlyargs} - {"dim", "causal", "memory_dim"}
                assert len(given) <= 8, f"seq2seq.{module}: line {node.lineno}"


@pytest.mark.parametrize("vague", ["utils", "util", "helpers", "helper", "common", "misc"])
def test_files_say_what_they_hold(vague):
    assert not [name for name in MODULES if vague in name.split(".")]


def test_tests_are_where_their_subject_is():
    """Folders of tests are named like folders of the package, or commands and benchmarks."""
    folders = {path.name for path in (ROOT.parent / "tests").iterdir() if list(path.glob("test_*.py"))}
    assert folders <= {path.name for path in ROOT.iterdir() if path.is_dir()} | {"commands", "benchmarks"}
