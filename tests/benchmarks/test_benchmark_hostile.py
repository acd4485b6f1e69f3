"""The campaign of wrong settings and files: its rule for outcomes, and its processes."""

from __future__ import annotations

import dataclasses
import random

import pytest

from benchmarks.hostile import attempts, settings
from benchmarks.hostile.__main__ import CAMPAIGN
from benchmarks.hostile.attempts import Attempt
from benchmarks.hostile.processes import Command, Done, Limits, run

EXHAUSTIVE = {"test_a_command_runs_in_a_fork_as_python_m_would"}


def done(status=2, err="error: --beam is not an option\n", out=b"", exceeded=""):
    return Done(status=status, out=out, err=err, exceeded=exceeded, cpu=0.1, wall=0.2, megabytes=3)


def attempt(**values):
    return Attempt(what="x", command=Command("seq2seq.translate"), **{"named": ("--beam",), **values})


@pytest.mark.parametrize(
    ("values", "ended", "outcome"),
    [
        ({}, done(), "refused"),
        ({}, done(err="warning: odd\nerror: --beam is not an option\n(a hint)\n"), "refused"),
        ({}, done(status=0), "worked"),
        ({"must": "refuse"}, done(status=0), "else"),
        ({"must": "work"}, done(), "else"),
        ({"check": lambda _: "a line is missing"}, done(status=0), "else"),
        ({}, done(err="error: something\n"), "else"),
        ({}, done(err=""), "else"),
        ({"silent": True, "statuses": (141,)}, done(status=141, err=""), "refused"),
        ({}, done(err="error: --beam\nand more\n"), "else"),
        ({}, done(status=1), "else"),
        ({}, done(status=-11), "else"),
        ({}, done(exceeded="more than 4 CPU seconds"), "else"),
        ({}, done(err="Traceback (most recent call last):\n  x\nValueError: --beam\n"), "else"),
        ({}, done(err="error: --beam" + "x" * 5000), "else"),
    ],
)
def test_an_outcome_is_sorted_by_the_rule(values, ended, outcome, tmp_path):
    assert attempts.judge(attempt(**values), ended, tmp_path)[0] == outcome


def test_a_file_that_is_left_half_written_is_a_defect(tmp_path):
    (tmp_path / ".out.tmp").touch()
    assert attempts.judge(attempt(), done(), tmp_path) == ("else", "left .out.tmp")


def test_a_command_runs_in_a_fork_as_python_m_would(tmp_path):
    # Refused before torch is imported, so the fork needs nothing of it
    for name in ("work", "kept"):
        (tmp_path / name).mkdir()
    found = attempts.carry_out(
        Attempt(what="x", command=Command("seq2seq.translate", ("--ckpt", "x", "--beam=0")), named=("--beam",)),
        tmp_path,
    )
    assert (found["outcome"], found["status"]) == ("refused", 2)
    assert found["command"] == "python -m seq2seq.translate --ckpt x --beam=0"


def test_a_command_that_does_not_end_is_killed(tmp_path):
    command = Command("http.server", ("0", "--bind", "127.0.0.1"), limits=Limits(wall=0.3))
    assert run(command, tmp_path, tmp_path).exceeded == "more than 0 seconds"


def test_an_attempt_follows_from_seed_and_number():
    kinds = list(CAMPAIGN.kinds)
    drawn = [CAMPAIGN.kind_of(0, number, kinds) for number in range(300)]
    assert drawn == [CAMPAIGN.kind_of(0, number, kinds) for number in range(300)]
    assert set(drawn) == set(kinds)
    first, second = (settings.misspell(random.Random(3), "optim.weight_decay") for _ in range(2))
    assert first == second != "optim.weight_decay"


def test_every_setting_with_one_type_is_known():
    known = settings.known(())
    assert known["optim.lr"] is float
    assert known["trainer.test"] is bool
    assert known["data.clean.empty"] is bool
    # A duration is written in several ways
    assert "trainer.max_time" not in known


def test_the_summary_counts_outcomes_and_lists_defects():
    rows = [
        {"number": n, "kind": "options", "outcome": outcome, "what": "x", "why": "y"}
        for n, outcome in enumerate(["worked", "refused", "else"])
    ]
    summary = CAMPAIGN.summarize(rows)
    assert summary["kinds"] == {"options": {"worked": 1, "refused": 1, "else": 1}}
    assert [row["number"] for row in summary["defects"]] == [2]
    machine = {"date": "2026-01-01", "torch": "2", "python": "3"}
    table = CAMPAIGN.table({**summary, "machine": machine, "seed": 0, "seconds": 1})
    assert "| all | 1 | 1 | 1 |" in table
    assert "- 2 options: else: x: y" in table


def test_a_fault_of_the_campaign_is_a_defect(tmp_path):
    def broken(*_):
        raise KeyError("nothing")

    campaign = dataclasses.replace(CAMPAIGN, carry_out=broken)
    row = campaign.attempt(3, world=None, seed=0, kinds=["input"], root=tmp_path, keep=False)
    assert (row["number"], row["kind"], row["outcome"]) == (3, "input", "else")
    assert "nothing" in row["why"]
