"""Run the tests that draw random numbers with other ones, again and again: python tests/fuzz.py --rounds 20.

Each round draws a number, which goes into the seed of every test and of Hypothesis. Whole training runs, processes and
compilers are left out: their outcome does not depend on it, and a round takes some minutes of one core.
"""

from __future__ import annotations

import argparse
import os
import re
import secrets
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Test files, and single tests of files whose other tests draw nothing
TESTS = [
    "mixers",
    "kernels/test_kernels.py",
    "kernels/test_convolutions.py",
    "kernels/test_triton.py",
    "network/test_model.py",
    "search/test_search.py",
    "evaluation",
    "analysis",
    "data/test_batching.py",
    "data/test_corpus.py::test_read_lines_agrees_with_the_definition",
    "data/test_corpus.py::test_duplicates_are_found_across_blocks",
    "data/test_multi_corpus.py",
    "data/test_tokenizer.py",
    "training/test_loss.py",
    "training/test_optim.py",
    "training/test_task.py",
    "training/test_datamodule.py::test_hash_set_agrees_with_a_set",
    "training/test_auto_batch_size.py::test_the_search_finds_the_largest_but_for_its_tolerance",
    "training/test_auto_batch_size.py::test_what_is_found_has_fitted_whatever_else_does_not",
    "training/test_auto_batch_size.py::test_no_batch_is_worse_than_the_worst",
    "commands/test_compare.py",
    "commands/test_translate_fuzz.py",
]
# Tests of these files that compile, start processes or train
LEFT_OUT = "compiled or recompile or export or inductor or processes or trace or whole_run or from_training"


def run_round(number: int, jobs: str) -> tuple[list[str], str]:
    """Run the tests with `number`, and return the names of the failed tests and the output."""
    tests = [str(ROOT / "tests" / name) for name in TESTS]
    options = ["-n", jobs, "--dist", "worksteal", "-k", f"not ({LEFT_OUT})", "-r", "fE", "--tb", "short"]
    command = [sys.executable, "-m", "pytest", *options, *tests]
    environment = {**os.environ, "SEQ2SEQ_TEST_SEED": str(number)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    failed = re.findall(r"^(?:FAILED|ERROR) (\S.*?)(?: - .*)?$", done.stdout, flags=re.MULTILINE)
    if done.returncode not in (0, 1):
        failed = failed or [f"pytest ended with status {done.returncode}"]
    return failed, done.stdout + done.stderr


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="how many numbers to draw")
    parser.add_argument("--jobs", default="logical", help="processes, as pytest -n takes them")
    options = parser.parse_args()
    failures = 0
    for index in range(1, options.rounds + 1):
        number, began = secrets.randbelow(2**31), time.monotonic()
        failed, output = run_round(number, options.jobs)
        failures += len(failed)
        result = f"{len(failed)} failed" if failed else "passed"
        print(f"round {index} of {options.rounds}, {number}: {result}, {time.monotonic() - began:.0f} s", flush=True)
        if failed:
            print(output)
        for name in failed:
            print(
                f"FAILED {name}\n  repeat: SEQ2SEQ_TEST_SEED={number} {sys.executable} -m pytest '{name}'", flush=True
            )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
