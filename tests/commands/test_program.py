"""The program `seq2seq`, whose first word is a command."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import published
import pytest
import tiny
from test_imports import COMMANDS as MODULES

from seq2seq import __main__ as program
from seq2seq.system import packages

ROOT = Path(__file__).resolve().parents[2]
# The script that pip installs, called by its name
SCRIPT = "import sys; from seq2seq.__main__ import main; sys.argv[0] = '/usr/bin/seq2seq'; main()"
# Hides packages, as if they were not installed
BLOCK = """
import sys
from importlib.machinery import PathFinder
class Hiding(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.split(".")[0] in {names!r} else super().find_spec(name, path, target)
sys.meta_path[sys.meta_path.index(PathFinder)] = Hiding
"""


def run(*words: str, script: str = SCRIPT) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True)


def test_help_lists_every_command_without_importing_it(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["/usr/bin/seq2seq", "--help"])
    with pytest.raises(SystemExit) as stop:
        program.main()
    assert stop.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("usage: seq2seq COMMAND")
    assert {line.split()[0] for line in lines[2:]} == set(program.COMMANDS) == MODULES - {"__main__"}
    assert all(len(line.split()) > 3 for line in lines[2:])


@pytest.mark.parametrize(("words", "said"), [(["trainslate"], "did you mean translate"), ([], "name a command")])
def test_an_unknown_command_is_refused(words, said, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["seq2seq", *words])
    with pytest.raises(SystemExit) as stop:
        program.main()
    assert stop.value.code == 2
    assert said in capsys.readouterr().err


def test_a_command_shows_itself_as_it_was_typed_and_keeps_its_status():
    done = run("average", "--help")
    assert done.returncode == 0
    assert done.stdout.startswith("usage: seq2seq average ")
    assert "\n  seq2seq average --out" in done.stdout
    assert "python -m" not in done.stdout
    assert run("average").returncode == 2
    as_module = [sys.executable, "-m", "seq2seq", "average", "--help"]
    assert subprocess.run(as_module, capture_output=True, text=True).stdout.startswith(
        "usage: python -m seq2seq average"
    )


def test_main_is_the_command_for_processes_that_it_starts(monkeypatch):
    """Spawned processes and Lightning's launcher start again from `__main__`, which must not be the dispatcher."""
    monkeypatch.setattr(sys, "argv", ["seq2seq", "train", "mixer=gru"])
    seen = []
    # Put back after this test
    monkeypatch.setattr(program.Parser, "called_as", program.Parser.called_as)
    monkeypatch.setattr(program.runpy, "run_module", lambda name, **how: seen.append((name, how, sys.argv[1:])))
    program.main()
    assert seen == [("seq2seq.train", {"run_name": "__main__", "alter_sys": True}, ["mixer=gru"])]


@pytest.mark.parametrize("command", ["train", "prepare"])
def test_training_without_its_packages_names_the_extra(command):
    script = BLOCK.format(names={"lightning"}) + SCRIPT
    done = run(command, script=script)
    assert done.returncode == 2
    assert "pip install 'seq2seq-mixers[train]'" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("python", "hydra", "runs"), [((3, 14), "1.3.8", False), ((3, 14), "1.4.0", True), ((3, 13), "1.3.8", True)]
)
def test_training_is_refused_where_hydra_is_older_than_python(python, hydra, runs, monkeypatch):
    monkeypatch.setattr(packages.sys, "version_info", (*python, 0))
    monkeypatch.setattr(packages.importlib.metadata, "version", lambda name: hydra)
    with (
        contextlib.nullcontext()
        if runs
        else pytest.raises(ValueError, match=r"Hydra 1\.3\.8: use Python 3\.11 to 3\.13")
    ):
        packages.require_training("train")


# Each command in one process, in the folder of a checkpoint tiny.safetensors
BARE = """
import os, signal, sys, threading, time
from seq2seq import Translator, average, convert, export, inspect, score, serve, translate
ckpt = ["--ckpt", "tiny.safetensors"]
assert len(Translator.load("tiny.safetensors").translate(["a b"])) == 1
assert translate.main([*ckpt, "--input", "in.txt", "--output", "out.txt"]) in (0, 1)
assert "sacrebleu" not in sys.modules
assert score.main(["--hypotheses", "out.txt", "--references", "in.txt"]) == 0
assert score.main([*ckpt, "--forced-decoding", "in.txt", "in.txt"]) == 0
assert score.main([*ckpt, "--data", "named.yaml"]) in (0, 1)
assert inspect.main([*ckpt, "--text", "a b", "--out", "report"]) == 0
assert average.main(["--out", "mean.safetensors", "tiny.safetensors", "other.safetensors"]) == 0
assert convert.main(["marian", "--out", "converted.safetensors", "--src-lang", "de", "--tgt-lang", "en"]) == 0
assert export.main([*ckpt, "--format", "onnx", "--out", "onnx"]) == 0
assert translate.main(["--ckpt", "onnx", "--input", "in.txt", "--output", "onnx.txt"]) in (0, 1)
for refused in (["--data", "phrasebook"], ["--data", "named.yaml", "test=in.parquet"]):
    assert score.main([*ckpt, *refused]) == 2
assert translate.main(["--ckpt", "no/model", "--input", "in.txt"]) == 2
def stop():
    while signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGTERM)
threading.Thread(target=stop, daemon=True).start()
assert serve.main([*ckpt, "--port", "0"]) == 0
"""


@pytest.mark.slow
def test_the_bare_package_translates_and_serves(tmp_path: Path):
    pytest.importorskip("transformers")
    pytest.importorskip("matplotlib")
    for name in ("in.txt", "in.de", "in.en"):
        (tmp_path / name).write_text("a b\nc d\n")
    shutil.copy(tiny.save(tmp_path), tmp_path / "other.safetensors")
    published.write_marian(tmp_path / "marian", tiny.sentences(tiny.GERMAN, 200), steps=1)
    (tmp_path / "named.yaml").write_text(f"name: files\ntest: {tmp_path / 'in'}\n")
    hidden = {"lightning", "pytorch_lightning", "hydra", "omegaconf", "datasets", "pyarrow", "pandas", "tensorboard"}
    script = BLOCK.format(names=hidden | {"rich", "huggingface_hub"}) + BARE
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr.count("pip install 'seq2seq-mixers[train]'") == 2
    assert done.stderr.count("pip install 'seq2seq-mixers[hub]'") == 1
