"""Mistakes on the command line: unknown keys, choices and flags, and what Hydra refuses."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import PATIENCE

from seq2seq.settings.aliases import SETTING_OF_NAME
from seq2seq.settings.compose import resolved_settings
from seq2seq.settings.declare import settings_rows
from seq2seq.settings.explain import explain
from seq2seq.settings.run import SECTIONS, read_settings
from seq2seq.system.resources import conf_dir
from seq2seq.training.command import refuse_mistakes, run_program, with_home

# Each composes settings, up to a second; `make test-all` has every case
EXHAUSTIVE = {"test_a_sweep_is_refused_if_all_of_its_jobs_are_wrong", "test_help_may_lose_its_reader"}
REPRESENTATIVE = {
    "test_a_program_ends_with_one_line": ["train"],
    "test_a_mistyped_key_is_told_with_what_is_like_it": [
        "words0-trainer.maxtime-trainer.max_time",
        "words4-optim.lrr-optim.lr",
        "words7-hydra.launchr.x-hydra.launcher",
    ],
    "test_what_is_right_passes": ["words0", "words3", "words5"],
    "test_a_name_of_another_framework_leads_to_the_setting": [
        "words0-the setting is optim.lr",
        "words7-did you mean model.dropout",
    ],
    "test_whatever_is_wrong_is_one_line_and_status_2": [
        *(
            "data=3",
            "mixer={a: 1}",
            "=3",
            "seed=${foo}",
            "~trainer.patience",
        ),
        *("+model.layerdrop=0.1", "++data.batch_size=64", "+mixer.foo=1", "--nbest"),
    ],
}


ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("words", "wrong", "near"),
    [
        (["trainer.maxtime=3"], "trainer.maxtime", "trainer.max_time"),
        (["trainr.max_time=3"], "trainr.max_time", "trainer.max_time"),
        (["mixr=lightconv"], "mixr", "mixer"),
        (["data=files", "data.train=x", "data.trian=y"], "data.trian", "data.train"),
        (["seed=1,2", "mixer=bahdanau,transformer", "optim.lrr=3,4"], "optim.lrr", "optim.lr"),
        (["model.dropot=choice(0.1,0.2)", "seed=range(1,3)"], "model.dropot", "model.dropout"),
        (["optim.lrr=1", "modl.dim=2"], "optim.lrr", "optim.lr"),
        (["hydra.launchr.x=1"], "hydra.launchr.x", "hydra.launcher"),
    ],
)
def test_a_mistyped_key_is_told_with_what_is_like_it(words, wrong, near):
    message = explain(words)
    assert message.startswith(f"{wrong} is not a setting; did you mean {near}"), message


@pytest.mark.parametrize(
    "words",
    [
        ["trainer.max_time=3", "mixer=dynamicconv", "mixer/self@mixer.encoder=attention"],
        ["~logger.csv", "~mixer.encoder.per_layer", "logger.tensorboard=null"],
        ["data.corpora={a: {train: x}}", "mixer.encoder.per_layer.kernel_size=[3,7]"],
        ["run=it-${seed}-${hydra:job.num}", "hydra/launcher=slurm", "hydra.launcher.partition=gpu"],
        ["optim.lr=interval(1e-4,1e-3)", "seed=range(1,4)", "run=2024-${seed}"],
        ["run=2024"],
        ["mixer=glob(*)", "mixer/self@mixer.decoder=glob([l*,a*],exclude=lstm)"],
    ],
)
def test_what_is_right_passes(words):
    assert explain(words) == ""
    refuse_mistakes("train", ["-m", *words])
    refuse_mistakes("train", ["--config-dir=elsewhere", "their.key=1"])


def test_an_interruption_while_settings_are_composed_is_one_line(monkeypatch, capsys):
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("sys.argv", ["train"])
    with pytest.raises(SystemExit) as end:
        run_program("train", interrupted)
    assert end.value.code == 130
    assert capsys.readouterr().err == "train: interrupted\n"


def test_a_group_is_chosen_once():
    for word in ("+data=phrasebook", "++data=ffiles", "+model=big"):
        assert explain(["data=files", "model=tiny", word]).startswith(f"{word}: ")
    assert explain(["+mixer/self@mixer.kinds.conv=dynamicconv", "mixer=transformer", "mixer=lightconv"]) == ""


def test_jobs_of_a_sweep_have_folders_of_their_own(capsys):
    for words in (["run=m", "seed=1,2"], ["run=a,b", "seed=1,2"], ["mixer=glob(gru*)", "run=m"]):
        with pytest.raises(SystemExit):
            refuse_mistakes("train", ["-m", *words])
        assert "would be the folder of several jobs; leave run out" in capsys.readouterr().err
    for words in (["run=m-${seed}", "seed=1,2"], ["run=a,b", "seed=1"], ["run=null", "seed=1,2"], ["seed=1,2"]):
        refuse_mistakes("train", ["-m", *words])


def test_the_flag_of_a_sweep_stands_first(capsys):
    with pytest.raises(SystemExit):
        refuse_mistakes("train", ["mixer=gru", "-m", "seed=1,2"])
    assert "train: -m stands before all settings: -m mixer=gru seed=1,2\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    "value",
    [
        "x/epoch=1-step=30.safetensors",
        "a[1]/x",
        "a(1)/x",
        "~x/y",
        "x/ü",
        "it's/x",
        'a"b=c',
        "a\\b=c",
        "x/ü, [a] (b) {c} = d",
    ],
)
def test_a_path_that_cannot_be_read_is_shown_in_quotes(value):
    """As a shell takes it: what is shown gives this very value."""
    message = explain([f"init_from={value}"])
    shown = message.partition(": write ")[2]
    assert resolved_settings(shlex.split(shown))["init_from"] == value


def test_a_list_that_cannot_be_read_is_no_path():
    for value in ("[a=1,b]", "{de: a=1, en: b}", '"a=1', "[a,b", "=" * 2000):
        assert "cannot be read" in (message := explain([f"data.train={value}"]))
        assert ": write " not in message
        assert len(message) < 500


def test_a_comma_in_a_path(capsys):
    with pytest.raises(SystemExit):
        refuse_mistakes("train", ["data.train=en,de/train"])
    assert "for a path 'data.train=\"en,de/train\"'" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        refuse_mistakes("train", ["mixer=gru,lstm"])
    assert "for a path" not in capsys.readouterr().err


def test_a_home_folder_is_found_behind_the_equals_sign(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    given = [
        "init_from=~/x.safetensors",
        'data.train="~/a,b"',
        "+a.b=~/c",
        "~callbacks.x",
        "data.test=a~/b",
        "runs=~x/y",
    ]
    expected = ["init_from=/home/me/x.safetensors", 'data.train="/home/me/a,b"', "+a.b=/home/me/c", *given[3:]]
    assert [with_home(word) for word in given] == expected
    seen = []
    monkeypatch.setattr(sys, "argv", ["train", "init_from=~/x.safetensors"])
    run_program("train", lambda: seen.extend(sys.argv[1:]))
    assert seen == expected[:1]


def test_several_values_need_a_sweep(capsys):
    for word, remedy in (("model.dropout=0,5", "model.dropout=[0,5]"), ("seed=range(1,3)", "-m runs them all")):
        with pytest.raises(SystemExit) as end:
            refuse_mistakes("train", [word])
        assert end.value.code == 2
        assert remedy in capsys.readouterr().err.splitlines()[0]
    refuse_mistakes("train", ["hydra.mode=MULTIRUN", "seed=range(1,3)"])


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        (["mixer=gru,nosuch"], "mixer=nosuch"),
        (["seed=1,2", "mixer=choice(gru,transfomer)"], "mixer=transfomer"),
        (["mixer=gru", "mixer/self@mixer.decoder=gru,dynamicon"], "mixer/self@mixer.decoder=dynamicon"),
        (["mixer=gru,lstm", "optim=muon,null"], "optim=null"),
    ],
)
def test_every_choice_of_a_sweep_has_a_file(capsys, words, wrong):
    with pytest.raises(SystemExit) as end:
        refuse_mistakes("train", ["-m", *words])
    assert end.value.code == 2
    assert capsys.readouterr().err.startswith(f"train: {wrong} is not a choice")
    refuse_mistakes("train", ["-m", "mixer=gru,lstm", "mixer/self@mixer.decoder=gru,none"])


@pytest.mark.parametrize(
    ("word", "near"),
    [
        ("mixer=transfomer", "transformer"),
        ("mixer/self@mixer.encoder=attentoin", "attention"),
        ("data=phrasbook", "phrasebook"),
        ("model=smal", "small"),
        ("optim=aneal", "anneal"),
        ("experiment=tateoba", "tatoeba"),
    ],
)
def test_an_unknown_choice_is_told_with_what_is_like_it(word, near):
    message = explain(["seed=2", word])
    assert message.startswith(f"{word} is not a choice; did you mean {near}"), message
    assert "schema" not in message
    assert "\n" not in message
    assert explain(["mixer=qqqqqq"]).startswith("mixer=qqqqqq is not a choice (known: aan, average, bahdanau, ")


def test_what_is_refused_is_a_value_error_of_one_line():
    assert resolved_settings(["model=small"])["optim"]["peak_lr"] == 5e-4
    for words, message in (
        (["modl=small"], "modl is not a setting"),
        (["no override"], "'no override' is not a setting with a value"),
    ):
        with pytest.raises(ValueError, match=message) as refused:
            resolved_settings(words)
        assert "\n" not in str(refused.value)


def test_a_setting_that_is_there_needs_no_plus():
    message = "data.num_workers is a setting already: write data.num_workers=1"
    assert explain(["+data.num_workers=1"]) == message


def test_nothing_like_it_is_told_too():
    assert explain(["qqqqqqqq=1"]) == "qqqqqqqq is not a setting (--help lists all)"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["lr=1e-3"], "the setting is optim.lr"),
        (["learning_rate=1e-3"], "the setting is optim.lr"),
        (["batch_size=64"], "the setting is data.max_tokens"),
        (["data.batch_size=64"], "the setting is data.max_tokens"),
        (["epochs=3"], "the setting is trainer.max_epochs"),
        (["max_epochs=3"], "did you mean trainer.max_epochs"),
        (["warmup=100"], "the setting is optim.warmup_steps"),
        (["dropout=0.1"], "did you mean model.dropout"),
        (["lr_scheduler=cosine"], "the setting is optim.schedule"),
        (["beam=5"], "the setting is search.beam_size"),
        (["model.beam_size=5"], "did you mean search.beam_size"),
    ],
)
def test_a_name_of_another_framework_leads_to_the_setting(words, message):
    assert message in explain(words)


def test_every_setting_that_other_names_lead_to_exists():
    known = {*settings(), "trainer.dry_run"}
    for place in SETTING_OF_NAME.values():
        words = [word.rstrip(",") for word in place.split() if re.fullmatch(r"[a-z]+\.[a-z_.]+,?", word)]
        for word in words:
            assert word.startswith("seq2seq.") or word in known or word.startswith("mixer."), place


def settings() -> list[str]:
    return [name for section, cls in SECTIONS.items() for name, *_ in settings_rows(cls, section)]


def started(words: list[str]) -> None:
    """What Hydra takes is read once, by the run."""
    refuse_mistakes("train", words)
    read_settings(resolved_settings(words))


@pytest.mark.parametrize(
    "word",
    [
        *("data=3", "data=null", "model=", "logger=null", "mixer={a: 1}", "data=[a,b]", "mixer=", "trainer=3", "=3"),
        *("trainer.precision", "trainer.precision=[1", 'data.train="a', "no override", "seed=${foo}", "seed=${seed}"),
        *("~trainer.patience", "~nonsense", "~data", "~mixer", "+experiment=tatoeba", "hydra/launcher=bad"),
        *("hydra.mode=foo", "hydra.launcher.foo=1", "hydra.run.dir=${foo}"),
        *("+data=files", "+foo=1", "++foo=1", "+model.layerdrop=0.1", "++data.batch_size=64", "+mixer.foo=1"),
        *("logger.csv=3", "+callbacks.x=3", "mixer/slf@mixer.decoder=gru", "mixer/self@mixer.decodr=gru"),
        *(
            "+hydra.sweeper.params.optim.lrr=1",
            "run=${oc.env:NOPE_NOPE}",
            "data.train=a,b,model.dim=1",
            "-x",
            "--nbest",
        ),
    ],
)
def test_whatever_is_wrong_is_one_line_and_status_2(word, capsys):
    """With the line about the variable for more; never Hydra's own 8 to 38 lines."""
    words = ["seed=2", word] if word != "seed=${seed}" else [word]
    with pytest.raises((SystemExit, ValueError)) as end:
        started(words)
    lines = [f"train: {end.value}"]
    if isinstance(end.value, SystemExit):
        lines = capsys.readouterr().err.splitlines()
        assert end.value.code == 2
        assert lines.pop() == "(HYDRA_FULL_ERROR=1 shows where)"
    assert len(lines) == 1
    assert lines[0].startswith("train: ")
    assert "\n" not in lines[0]
    assert len(lines[0]) < 1000


def test_a_sweep_is_refused_if_all_of_its_jobs_are_wrong(capsys):
    refuse_mistakes("train", ["-m", "model.dim=0,64"])
    refuse_mistakes("train", ["-m", "seed=1,2", "model.dropout=0.1"])
    blind = ["seed=1,2", "trainer.median_stop=2", "logger=tensorboard"]
    for words in (["seed=1,2", "model.dim=0"], ["seed=1,2", "+foo=1"], ["seed=1,2", "run=../x"], blind):
        with pytest.raises(SystemExit):
            refuse_mistakes("train", ["-m", *words])
        assert words[1].lstrip("+").partition("=")[0] in capsys.readouterr().err


def test_a_glob_that_matches_nothing_is_told():
    assert explain(["mixer=glob(zz*)"]).startswith("mixer=glob(zz*) matches no choice (known: aan, average, ")


def test_flags_that_exclude_each_other_are_named(capsys):
    with pytest.raises(SystemExit) as end:
        refuse_mistakes("train", ["-m", "mixer=gru,lstm", "--cfg", "job"])
    assert end.value.code == 2
    assert capsys.readouterr().err.startswith("train: --multirun and --cfg exclude each other: leave one out\n")


def test_an_experiment_that_names_its_own_sweep_is_read(capsys):
    """And its own settings, which it sweeps over; some of its values may be chosen on the command line."""
    refuse_mistakes("train", ["-m", "experiment=ablation_wu", "seed=1,2"])
    refuse_mistakes("train", ["-m", "experiment=ablation_wu", "experiment/wu_table3=cnn,sharing"])
    with pytest.raises(SystemExit):
        refuse_mistakes("train", ["-m", "experiment=ablation_wu", "experiment/wu_table3=cn"])
    assert "experiment/wu_table3=cn is not a choice; did you mean cnn" in capsys.readouterr().err


@pytest.mark.parametrize("program", ["train", "prepare"])
def test_help_says_what_the_program_does_and_lists_groups_and_settings(program, capsys):
    with pytest.raises(SystemExit) as end:
        refuse_mistakes(program, ["--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    assert f"python -m seq2seq.{program}" in text
    assert all(name in text for name in settings())
    assert all(f"  {group.name}=" in text for group in conf_dir().iterdir() if group.is_dir() and group.name != "hydra")
    assert max(map(len, text.splitlines())) <= 124


@pytest.mark.parametrize("program", ["train", "prepare"])
def test_help_may_lose_its_reader(program):
    """`| head`: no traceback, no message."""
    command = [sys.executable, "-m", f"seq2seq.{program}", "--help"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(PATIENCE) == 141


@pytest.mark.parametrize("program", ["train", "prepare"])
def test_a_program_ends_with_one_line(tmp_path, program):
    command = [sys.executable, "-m", f"seq2seq.{program}", "trainer.maxtime=3"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=PATIENCE)
    assert done.returncode == 2
    assert done.stderr.startswith(f"{program}: trainer.maxtime is not a setting; did you mean trainer.max_time")
    assert "+trainer" not in done.stderr
    assert not list(tmp_path.iterdir())
