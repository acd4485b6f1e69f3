"""Run a command of this package: `seq2seq translate ...` is `python -m seq2seq.translate ...`."""

from __future__ import annotations

import ast
import runpy
import sys
from pathlib import Path

from seq2seq import __version__
from seq2seq.options.command_line import Parser, exit_status, fail
from seq2seq.settings.values import suggestion

# In the order in which most users need them.
COMMANDS = (
    "prepare",
    "train",
    "translate",
    "score",
    "serve",
    "compare",
    "inspect",
    "average",
    "export",
    "convert",
    "shortlist",
    "distill",
    "draw",
)


def main() -> None:
    """Run the command that the first word names as this process, as `python -m` does."""
    # pip's script is called as the user typed it; `python -m seq2seq` is called as this file
    program = "python -m seq2seq" if Path(sys.argv[0]).name == "__main__.py" else "seq2seq"
    command = sys.argv[1] if len(sys.argv) > 1 else ""
    if command in ("-h", "--help", "--version"):
        text = f"seq2seq-mixers {__version__}" if command == "--version" else _help(program)
        sys.exit(exit_status(lambda: print(text) or 0))
    elif command not in COMMANDS:
        what = f"there is no command {command!r}{suggestion(command, COMMANDS)}" if command else "name a command"
        sys.exit(fail(f"{what} (--help lists them)"))
    else:
        Parser.called_as = f"{program} "
        del sys.argv[1]
        # `__main__` is the command's own module, as multiprocessing, Lightning's launcher and cloudpickle expect
        runpy.run_module(f"seq2seq.{command}", run_name="__main__", alter_sys=True)


def _help(program: str) -> str:
    """Return the usage, and a line for each command: the first of its docstring, which is read without importing it."""
    lines = [f"usage: {program} COMMAND [OPTIONS]; {program} COMMAND --help lists the options of a command", ""]
    for command in COMMANDS:
        source = Path(__file__).with_name(f"{command}.py").read_text("utf-8")
        first = (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]
        # The example in code belongs to the documentation
        lines.append(f"  {command:<10} {first.partition(': `')[0].rstrip('.')}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
