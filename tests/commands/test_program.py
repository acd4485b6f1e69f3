"""The program `seq2seq`, whose first word is a command."""

from __future__ import annotations

import subprocess
import sys

import pytest
from test_imports import COMMANDS as MODULES

from seq2seq import __main__ as program

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
    program.main()
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
