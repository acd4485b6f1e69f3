"""Mistakes on the command line: unknown keys, choices and flags, and refusals of Hydra."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import PATIENCE

from seq2seq.settings.aliases import SETTING_OF_NAME
from seq2seq.settings.compose import resolved_settings
from seq2seq.settings.declare import settings_rows
from seq2seq.settings.hydra_call import compose_or_raise, mistake
from seq2seq.settings.run import SECTIONS, read_settings
from seq2seq.system.resources import conf_dir
from seq2seq.training.command import refuse_mistakes, run_program, with_home

# Each composes settings, up to a second; `make test-all` has every case
EXHAUSTIVE = {
    "test_help_may_lose_its_reader",
    "test_a_sweep_is_refused_if_its_first_job_is_wrong",
    "test_jobs_of_a_sweep_have_folders_of_their_own",
}
REPRESENTATIVE = {
    "test_a_program_ends_with_one_line": ["train"],
    "test_correct_words_pass": ["words0", "words3", "words5"],
    "test_every_mistake_is_one_line": [
        *("data=3", "mixer={a: 1}", "=3", "seed=${foo}", "~data"),
        *("+model.layerdrop=0.1", "++data.batch_size=64", "+mixer.foo=1", "--nbest"),
    ],
    "test_an_unknown_key_suggests_similar_settings": {"words0-trainer.maxtime-trainer.max_time"},
    "test_a_name_of_another_framework_suggests_the_setting": {"words7-did you mean model.dropout"},
}


ROOT = Path(__file__).resolve().parents[2]


def refused(words: list[str]) -> str:
    """Return the message of a command for wrong words, before Hydra composes or after."""
    if message := mistake(words):
        return message
    with pytest.raises(ValueError, match=r".") as error:
        read_settings(resolved_settings(words))
    return str(error.value)


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
def test_an_unknown_key_suggests_similar_settings(words, wrong, near):
    message = mistake(["-m", *words])
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
def test_correct_words_pass(words):
    assert mistake(["-m", *words]) == ""
    assert mistake(["--config-dir=elsewhere", "their.key=1"]) == ""


def test_an_interruption_while_settings_are_composed_is_one_line(monkeypatch, capsys):
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("sys.argv", ["train"])
    with pytest.raises(SystemExit) as end:
        run_program("train", interrupted)
    assert end.value.code == 130
    assert capsys.readouterr().err == "train: interrupted\n"


def test_a_missing_choice_next_to_a_folder_of_settings_is_named(tmp_path, monkeypatch, capsys):
    """Hydra's error is one of files as well."""
    words = [f"hydra.searchpath=[file://{tmp_path}]", "mixer/cross=bihyena"]
    monkeypatch.setattr("sys.argv", ["train", *words])
    with pytest.raises(SystemExit) as end:
        run_program("train", lambda: compose_or_raise(words))
    assert end.value.code == 2
    assert "mixer/cross=bihyena is not a choice" in capsys.readouterr().err


def test_jobs_of_a_sweep_have_folders_of_their_own():
    swept = (["run=m", "seed=1,2"], ["run=a,b", "seed=1,2"], ["mixer=glob(gru*)", "run=m"], ["++run=m", "++seed=1,2"])
    for words in swept:
        assert mistake(["-m", *words]).startswith("run=")
    for words in (["run=m-${seed}", "seed=1,2"], ["run=a,b", "seed=1"], ["run=null", "seed=1,2"], ["seed=1,2"]):
        assert not mistake(["-m", *words])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["mixer=gru", "-m", "seed=1,2"], "seed=1,2 comes after a flag"),
        (["-m", "mixer=gru,lstm", "--cfg", "job"], "--multirun and --cfg exclude each other"),
        (["data.train=en,de/train"], "data.train=en,de/train has several values"),
        (["model.dropout=0,5"], "model.dropout=0,5 has several values: -m runs them all; for a list write"),
        (["seed=range(1,3)"], "seed=range(1,3) has several values"),
        (["mixer=gru,lstm"], "mixer=gru,lstm has several values: -m runs them all; without it, choose one"),
        (["~mixer"], "~mixer: a setting cannot be deleted"),
        (["init_from=x/epoch=1.safetensors"], "'init_from=x/epoch=1.safetensors' cannot be read"),
        (["data.train=[a=1,b]"], "'data.train=[a=1,b]' cannot be read"),
        (["run=2026_11_29"], "run=2026_11_29 is the number 20261129: write 'run=\"2026_11_29\"'"),
        (["++run=2026_11_29"], "++run=2026_11_29 is the number 20261129: write '++run=\"2026_11_29\"'"),
        (["+data.num_workers=1"], "data.num_workers is a setting already: write data.num_workers=1"),
        (["qqqqqqqq=1"], "qqqqqqqq is not a setting (--help lists all)"),
        (["mixer=glob(zz*)"], "mixer=glob(zz*) is not a choice (known: aan, average, "),
        (["mixer=qqqqqq"], "mixer=qqqqqq is not a choice (known: aan, average, bahdanau, "),
        (["data.clean={max_lenth: 3}"], "data.clean.max_lenth is not a setting; did you mean data.clean.max_length"),
        (["data.corpora={bt: {train: x}}", "data.corpora.bt.tag=3"], "data.corpora.bt.tag is new: write +data.corpora"),
    ],
)
def test_a_mistake_is_named(words, message):
    assert refused(words).startswith(message)


@pytest.mark.parametrize("group", ["mixer/self@mixer.decoder", "mixer/cross", "hydra/launcher"])
def test_a_file_as_the_value_of_its_section_names_the_group(group):
    section = group.rpartition("@")[2].replace("/", ".")
    assert mistake([f"{section}=x"]).endswith(f"write {group}=x")
    assert mistake(["-m", f"+{section.replace('.', '/')}=x,y"]).endswith(f"write {group}=x,y")
    assert not mistake([f"{section}={{}}"])


def test_a_tilde_after_the_equals_sign_is_the_home_folder(monkeypatch):
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


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        (["mixer=gru,nosuch"], "mixer=nosuch"),
        (["seed=1,2", "mixer=choice(gru,transfomer)"], "mixer=transfomer"),
        (["mixer=gru", "mixer/self@mixer.decoder=gru,dynamicon"], "mixer/self@mixer.decoder=dynamicon"),
        (["mixer=gru,lstm", "optim=muon,null"], "optim=null"),
    ],
)
def test_every_choice_of_a_sweep_has_a_file(words, wrong):
    assert mistake(["-m", *words]).startswith(f"{wrong} is not a choice")


def test_a_sweep_may_leave_a_slot_empty():
    assert not mistake(["-m", "mixer=gru,lstm", "mixer/self@mixer.decoder=gru,none"])


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
def test_an_unknown_choice_suggests_similar_ones(word, near):
    message = mistake(["-m", "seed=2", word])
    assert message.startswith(f"{word} is not a choice; did you mean {near}"), message
    assert "schema" not in message
    assert "\n" not in message


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
def test_a_name_of_another_framework_suggests_the_setting(words, message):
    assert message in mistake(["-m", *words])


def test_every_setting_that_other_names_lead_to_exists():
    known = {*settings(), "trainer.dry_run"}
    for place in SETTING_OF_NAME.values():
        words = [word.rstrip(",") for word in place.split() if re.fullmatch(r"[a-z]+\.[a-z_.]+,?", word)]
        for word in words:
            assert word.startswith("seq2seq.") or word in known or word.startswith("mixer."), place


def settings() -> list[str]:
    return [name for section, cls in SECTIONS.items() for name, *_ in settings_rows(cls, section)]


@pytest.mark.parametrize(
    "word",
    [
        *("data=3", "data=null", "model=", "logger=null", "mixer={a: 1}", "data=[a,b]", "mixer=", "trainer=3", "=3"),
        *("trainer.precision", "trainer.precision=[1", 'data.train="a', "no override", "seed=${foo}", "seed=${seed}"),
        *("~nonsense", "~data", "~mixer", "+experiment=tatoeba", "hydra/launcher=bad"),
        *("hydra.mode=foo", "hydra.launcher.foo=1"),
        *("+data=files", "+foo=1", "++foo=1", "+model.layerdrop=0.1", "++data.batch_size=64", "+mixer.foo=1"),
        *("logger.csv=3", "+callbacks.x=3", "mixer/slf@mixer.decoder=gru", "mixer/self@mixer.decodr=gru"),
        *("run=${oc.env:NOPE_NOPE}", "data.train=a,b,model.dim=1", "-x", "--nbest"),
    ],
)
def test_every_mistake_is_one_line(word):
    """Hydra's own messages have 8 to 38 lines."""
    message = refused(["seed=2", word] if word != "seed=${seed}" else [word])
    assert message
    assert "\n" not in message
    assert len(message) < 1000


def test_a_sweep_is_refused_if_its_first_job_is_wrong():
    assert not mistake(["-m", "seed=1,2", "model.dropout=0.1"])
    blind = ["seed=1,2", "trainer.median_stop=2", "logger=tensorboard"]
    for words in (["seed=1,2", "model.dim=0"], ["seed=1,2", "+foo=1"], ["seed=1,2", "run=../x"], blind):
        assert words[1].lstrip("+").partition("=")[0] in mistake(["-m", *words])


@pytest.mark.parametrize("program", ["train", "prepare"])
def test_help_describes_the_program_and_lists_groups_and_settings(program, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", [program, "--help"])
    with pytest.raises(SystemExit) as end:
        refuse_mistakes(program)
    assert end.value.code == 0
    text = capsys.readouterr().out
    assert f"python -m seq2seq.{program}" in text
    assert "submitit_local" in text
    assert all(name in text for name in settings())
    assert all(f"  {group.name}=" in text for group in conf_dir().iterdir() if group.is_dir() and group.name != "hydra")
    assert max(map(len, text.splitlines())) <= 124


@pytest.mark.parametrize("program", ["train", "prepare"])
def test_help_may_lose_its_reader(program):
    """A reader such as `| head` may leave early, without a traceback or a message."""
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
