"""Test run folders: their names, their small files, and resuming in them."""

from __future__ import annotations

import copy
import subprocess
from pathlib import Path

import pytest
import torch
from composed import resolved

from seq2seq.runs import folder
from seq2seq.runs.resume import resolve_resume
from seq2seq.runs.training_state import save_state, updates
from seq2seq.settings import dicts
from seq2seq.settings.run import read_settings
from seq2seq.settings.trainer import DEFAULT_EPOCHS
from seq2seq.system import files
from seq2seq.training.lightning_parts.loggers import CsvLogger

# As few settings as a run's name needs.
CONFIG = {
    "data": {"name": "phrasebook", "num_workers": 0, "src": "de"},
    "model": {"dim": 256},
    "trainer": {"max_steps": 100, "log_steps": 50, "devices": 1},
    "resume": None,
    "runs": "runs",
    "run": None,
    "cache": ".cache",
    "seed": 1,
}


def test_the_revision_marks_changed_and_new_source_files(tmp_path, monkeypatch):
    package, conf, docs = (tmp_path / name for name in ("seq2seq", "conf", "docs"))
    for each in (package, conf, docs):
        each.mkdir()
        (each / "old").touch()
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *words], check=True)
    monkeypatch.setattr(folder, "__file__", str(package / "runs" / "folder.py"))
    clean = folder.git_revision()
    assert clean
    assert not clean.endswith("+")
    (docs / "new").touch()
    assert folder.git_revision() == clean
    for each in (package / "new", conf / "new", package / "old"):
        each.write_text("x")
        assert folder.git_revision() == f"{clean}+"
        subprocess.run([*git, "stash", "push", "-qu", "seq2seq", "conf"], check=True)


def changed(key: str, value: object) -> dict:
    config = copy.deepcopy(CONFIG)
    *parents, leaf = key.split(".")
    node = config
    for parent in parents:
        node = node[parent]
    node[leaf] = value
    return config


@pytest.mark.parametrize(
    ("key", "renames"),
    [
        *((key, False) for key in ("resume", "runs", "run", "cache", "trainer.log_steps", "trainer.devices")),
        ("data.num_workers", False),
        *((key, True) for key in ("seed", "model.dim", "trainer.max_steps", "data.src")),
    ],
)
def test_only_harmless_settings_do_not_change_the_name(key, renames):
    assert (folder.config_hash(changed(key, "other")) != folder.config_hash(CONFIG)) == renames


def test_the_default_budget_counts_as_if_it_were_typed():
    free = resolved(["trainer.max_epochs=null"])
    hashes = [
        folder.config_hash(read_settings({**free, "trainer": {**free["trainer"], "max_epochs": epochs}}).plain())
        for epochs in (None, DEFAULT_EPOCHS, DEFAULT_EPOCHS + 1)
    ]
    assert hashes[0] == hashes[1] != hashes[2]


def test_a_new_setting_renames_no_run():
    """A missing value and its default have one hash, for arguments of mixers too."""
    config = read_settings(resolved(["mixer=dynamicconv"])).plain()
    name = folder.config_hash(config)
    for section, key in (("trainer", "bf16_residual"), ("search", "diversity"), ("optim", "r_drop")):
        older = {each: value for each, value in config[section].items() if each != key}
        assert folder.config_hash({**config, section: older}) == name
        assert folder.config_hash({**config, section: older | {key: 0.25}}) != name
    encoder = config["mixer"]["encoder"]
    older = {key: value for key, value in encoder.items() if key != "backend"}
    assert folder.config_hash({**config, "mixer": {**config["mixer"], "encoder": older}}) == name
    other = {**encoder, "backend": "torch"}
    assert folder.config_hash({**config, "mixer": {**config["mixer"], "encoder": other}}) != name


def test_a_missing_entry_of_a_mapping_changes_the_name():
    config = resolved()
    tokenize = {key: value for key, value in config["data"]["tokenize"].items() if key != "de"}
    other = {**config, "data": {**config["data"], "tokenize": tokenize}}
    assert folder.config_hash(other) != folder.config_hash(config)


def test_equal_numbers_have_one_hash():
    as_float, as_int = changed("trainer.max_steps", 1e3), changed("trainer.max_steps", 1000)
    assert folder.config_hash(as_float) == folder.config_hash(as_int)


def test_the_hash_ignores_the_order_of_keys():
    before = copy.deepcopy(CONFIG)
    assert folder.config_hash(dict(reversed(CONFIG.items()))) == folder.config_hash(CONFIG)
    assert before == CONFIG, "hashing changes no setting"


def test_the_name_is_readable_and_safe():
    assert folder.folder_of(CONFIG, "dynamicconv").name.startswith("phrasebook-dynamicconv-")
    assert folder.folder_of(changed("data.name", "a/b c"), "x/y").parent == folder.folder_of(CONFIG, "x").parent


@pytest.mark.parametrize(
    ("overrides", "label"),
    [
        ([], "transformer"),
        (["model=small", "mixer=transformer", "mixer.cross.num_heads=2"], "transformer"),
        (["mixer/cross=dynamicconv"], "transformer+dynamicconv"),
        (["mixer/self@mixer.encoder=dynamicconv"], "transformer+encoder.dynamicconv"),
        (["mixer/self@mixer.decoder=dynamicconv"], "transformer+decoder.dynamicconv"),
        (["mixer/cross=additive", "+mixer/self@mixer.kinds.conv=gru"], "transformer+additive+kinds.conv.gru"),
        (["+mixer/self@mixer.kinds.conv=gru", "mixer/cross=additive"], "transformer+additive+kinds.conv.gru"),
    ],
)
def test_replaced_slots_show_in_the_label(overrides, label):
    assert folder.mixer_label("transformer", overrides) == label


def test_resume_by_path_continues_in_the_checkpoints_own_folder(tmp_path, monkeypatch):
    here, there = folder.RunFolder(tmp_path / "here"), folder.RunFolder(tmp_path / "there")
    there.create("a: 1\n")
    write_state(there.last, 6)
    assert resolve_resume("auto", here) == (here, None)
    owner, found = resolve_resume(str(there.last), here)
    assert (owner.path, found) == (there.path, there.last)
    # By a path relative to the run's folder, or to the folder of checkpoints
    for place, resume in ((there.path, "checkpoints/last.ckpt"), (there.last.parent, "last.ckpt")):
        monkeypatch.chdir(place)
        owner, found = resolve_resume(resume, here)
        assert (owner.path, found) == (there.path, there.last)
    monkeypatch.chdir(tmp_path)
    assert resolve_resume("there", here)[1] == there.last


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("stray.ckpt", "is in no run's folder"),
        ("runs/it/checkpoints/best.safetensors", r"only weights, .* init_from="),
        ("gone.ckpt", "no such file; name a run's folder"),
        ("runs", "no such file; name a run's folder"),
    ],
)
def test_a_path_without_a_state_is_refused(tmp_path, name, message):
    run = folder.RunFolder(tmp_path / "runs" / "it")
    run.create("a: 1\n")
    for path in (run.best, tmp_path / "stray.ckpt"):
        path.write_bytes(b"x")
    with pytest.raises(ValueError, match=message):
        resolve_resume(str(tmp_path / name), folder.RunFolder(tmp_path / "here"))


def test_a_requeued_job_continues_its_own_work(tmp_path, monkeypatch):
    here = folder.RunFolder(tmp_path / "here")
    here.create("a: 1\n")
    other = here.last.with_name("other.ckpt")
    write_state(other, 5)
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    # Killed before its first checkpoint
    assert resolve_resume(str(other), here)[1] == other
    here.best.write_bytes(b"x")
    assert resolve_resume(None, here) == (here, None)
    write_state(here.last, 6)
    for resume in (None, "auto", str(other)):
        assert resolve_resume(resume, here)[1] == here.last
    # Requeued before it saved anything: the folder has an older state
    write_state(here.last, 4)
    assert resolve_resume(str(other), here)[1] == other
    monkeypatch.setenv("SLURM_RESTART_COUNT", "0")
    assert resolve_resume(str(other), here)[1] == other
    with pytest.raises(ValueError, match="resume=auto"):
        resolve_resume(None, here)


def test_differences_are_named_by_section():
    first, second = {"a": {"b": 1, "c": {}}, "d": [1]}, {"a": {"c": {}, "b": 2}, "e": None}
    assert list(dicts.differences(first, second)) == [
        ("a.b", 1, 2), ("d", [1], dicts.UNSET), ("e", dicts.UNSET, None),
    ]  # fmt: skip


def test_the_translate_command_can_be_pasted():
    """Words are quoted, and the packages that must be trusted are named."""
    start = "python -m seq2seq.translate --ckpt"
    command = folder.translate_command(Path("a b.safetensors"), "--n-best", "3", trust=("mypackage", "seq2seq"))
    assert command == f"{start} 'a b.safetensors' --trust mypackage --n-best 3"
    assert folder.translate_command("best.safetensors", trust=("seq2seq",)) == f"{start} best.safetensors"


def test_writing_leaves_no_temporary_file(tmp_path):
    files.write_json(tmp_path / "r.json", {"name": "Größe"})
    files.write_json(tmp_path / "r.json", {"name": "größer"})
    assert [path.name for path in tmp_path.iterdir()] == ["r.json"]
    assert "größer" in (tmp_path / "r.json").read_text(encoding="utf-8")


def test_metrics_are_appended_and_rows_to_be_repeated_dropped(tmp_path: Path):
    log = CsvLogger(save_dir=str(tmp_path))
    log.log_metrics({"loss": 2.0}, 1)
    log.log_metrics({"bleu": 10.0}, 1)  # a new column
    log.log_metrics({"loss": 1.0}, 2)
    assert log.path.read_text().splitlines() == ["step,loss,bleu", "1,2,", "1,,10", "2,1,"]
    # A run that is resumed at update 1 repeats its validation and update 2
    again = CsvLogger(save_dir=str(tmp_path))
    again.keep_until(1)
    again.log_metrics({"bleu": 11.0, "chrf": 20.0}, 1)
    again.log_metrics({"loss": 1.5}, 2)
    assert log.path.read_text().splitlines() == ["step,loss,bleu,chrf", "1,2,,", "1,,11,20", "2,1.5,,"]
    with log.path.open("a") as file:
        # Cut off by a crash, and a digit that is no number
        file.write("3,0.\n²,1,1,1\n")
    assert len(CsvLogger(save_dir=str(tmp_path))._rows) == 3


def test_a_broken_link_is_not_replaced_by_a_new_run(tmp_path):
    here = folder.RunFolder(tmp_path / "run")
    here.last.parent.mkdir(parents=True)
    here.last.symlink_to(here.last.name)
    with pytest.raises(ValueError, match="cannot be read"):
        resolve_resume("auto", here)


def write_state(path, step):
    """Write a state of a training that has no weights; last.ckpt moves to previous.ckpt."""
    parts = ("seq2seq", "run", "state_dict", "optimizer_states", "lr_schedulers", "loops", "callbacks")
    save_state(path, {part: {} for part in parts} | {"global_step": step, "table": torch.zeros(50)})


def cut(path):
    path.write_bytes(path.read_bytes()[:-40])


def zeroed(path):
    path.write_bytes(bytes(path.stat().st_size))


def one_bit(path):
    data = bytearray(path.read_bytes())
    where = data.index(bytes(200))  # the values of the table
    data[where + 100] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("damage", [cut, zeroed, one_bit, Path.unlink])
def test_the_newest_whole_state_is_resumed(tmp_path, caplog, damage):
    run = folder.RunFolder(tmp_path / "run")
    run.create("a: 1\n")
    write_state(run.last, 2)
    write_state(run.last, 4)
    assert [updates(path) for path in run.states] == [4, 2]
    assert resolve_resume("auto", run)[1] == run.last
    damage(run.previous)
    assert resolve_resume("auto", run)[1] == run.last
    write_state(run.last, 6)
    damage(run.last)
    assert resolve_resume("auto", run)[1] == run.previous
    assert "previous.ckpt, of update 4" in caplog.text
    assert resolve_resume(str(run.path), folder.RunFolder(tmp_path / "other"))[1] == run.previous
    damage(run.previous)
    if run.states:
        with pytest.raises(ValueError, match=r"last.ckpt.*previous.ckpt"):
            resolve_resume("auto", run)


@pytest.mark.parametrize("left", ["checkpoints/best.safetensors", "checkpoints/step-6.safetensors", "results.json"])
@pytest.mark.parametrize("resume", [None, "auto"])
def test_an_earlier_run_without_a_state_is_replaced_by_force_alone(tmp_path, left, resume):
    run = folder.RunFolder(tmp_path / "run")
    run.create("a: 1\n")
    assert resolve_resume(resume, run) == (run, None)
    (run.path / left).write_bytes(b"x")
    with pytest.raises(ValueError, match="force=true"):
        resolve_resume(resume, run)
    assert resolve_resume(resume, run, force=True) == (run, None)


def test_a_run_with_a_state_is_never_replaced(tmp_path):
    run = folder.RunFolder(tmp_path / "run")
    run.create("a: 1\n")
    run.last.touch()
    with pytest.raises(ValueError, match="delete the folder"):
        resolve_resume(None, run, force=True)
