"""Durations, precision and devices, and settings that have no effect."""

from __future__ import annotations

import re

import pytest
import tiny
import torch
from composed import resolved

from seq2seq.prepare import prepare
from seq2seq.settings.compose import typed_settings
from seq2seq.settings.declare import read_section, require_used
from seq2seq.settings.dicts import differences
from seq2seq.settings.run import read_settings
from seq2seq.settings.trainer import DEFAULT_EPOCHS, TrainerSettings
from seq2seq.settings.values import seconds
from seq2seq.system.resources import conf_dir
from seq2seq.training.machine.hardware import resolve_accelerator, resolve_precision
from seq2seq.training.plan import make_plan

EXHAUSTIVE = {"test_no_experiment_sets_what_it_does_not_use", "test_a_ready_tokenizer_takes_no_settings_of_another"}
REPRESENTATIVE = {
    "test_a_setting_without_effect_is_refused": {
        "words0-optim.warmup_steps=9 .* optim.schedule=anneal: .* to inverse_sqrt or",
        "words17-encoder.kernel_size=5 .*per_layer.kernel_size=\\\\[3, 7",
        "words6-data.shuffle_buffer=9 .* data.streaming=false: .* to true",
        "words8-data.temperature=5.0 .* data.corpora=null",
    },
    "test_a_resumed_run_accepts_a_setting_without_effect": {"data.shuffle_buffer=9"},
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *((90, 90), ("90", 90), ("0.5", 0.5), ("90s", 90), ("10m", 600), ("1h30m", 5400), ("2d", 172800)),
        *(("02:30", 150), ("1:00:00", 3600), ("00:00:10:00", 600), ("01:00:00:01", 86401)),
    ],
)
def test_durations(text, expected):
    assert seconds(text) == expected


@pytest.mark.parametrize("text", ["", "0", "soon", "10 minutes", "-5m", "1:2:3:4:5", "m"])
def test_wrong_durations_are_refused(text):
    with pytest.raises(ValueError, match=re.escape(text)):
        seconds(text)


def test_six_epochs_bound_a_run_without_another_bound():
    assert TrainerSettings().max_epochs == DEFAULT_EPOCHS == 6
    for key in ("max_steps", "max_epochs", "max_time"):
        given = read_section(TrainerSettings, {key: 7}, "trainer")
        assert (given.max_epochs, getattr(given, key)) == (7 if key == "max_epochs" else None, 7)


def test_precision_follows_the_hardware(monkeypatch):
    monkeypatch.setattr("seq2seq.training.machine.hardware.has_bf16", lambda accelerator: True)
    assert resolve_precision("auto", "cpu") == "bf16-mixed"
    monkeypatch.setattr("seq2seq.training.machine.hardware.has_bf16", lambda accelerator: False)
    assert resolve_precision("auto", "cpu") == "32-true"
    assert resolve_precision("bf16", "cpu") == "bf16-mixed"
    assert resolve_precision("32", "gpu") == "32-true"


def test_a_missing_gpu_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="no GPU"):
        resolve_accelerator(TrainerSettings(max_steps=1, accelerator="gpu"))
    assert resolve_accelerator(TrainerSettings(max_steps=1)) == "cpu"


def test_values_of_other_types_that_have_a_meaning():
    """Accept words, null, whole numbers for floats, 0 and 1 for booleans, and lists."""
    given = [
        "data.max_tokens=auto", "data.batch_tokens=25e3", "data.temperature=1e9",
        "data.clean.max_length=null", "data.clean.length_ratio=false",
        "data.clean.duplicates=null", "trainer.max_time=10m", "trainer.save_time=null", "trainer.precision=bf16",
        "trainer.test=0", "trainer.max_epochs=2", "trainer.ema=0.9", "optim.lr=1", "optim.warmup_steps=4e3",
        "search.max_len_ratio=2", "search.length_penalty=-1", "+mixer.encoder.kernel_size=${model.num_heads}",
        "+mixer.encoder.per_layer.kernel_size=[3,7]", "logger=csv",
    ]  # fmt: skip
    read_settings(resolved(given))


def test_a_whole_number_may_be_written_as_a_float():
    """A float that is a whole number gives the same run, with the same name."""
    written = [
        "trainer.max_steps=1e3",
        "seed=1.0",
        "data.max_tokens=4e3",
        "data.clean.max_length=200.0",
        "model.dim=64.0",
    ]
    plan = make_plan(resolved(written), mixer="transformer")
    same = ["trainer.max_steps=1000", "seed=1", "data.max_tokens=4000", "data.clean.max_length=200", "model.dim=64"]
    assert plan == make_plan(resolved(same), mixer="transformer")
    assert "4000.0" not in plan.config_yaml


def test_a_peak_rate_without_effect_is_refused():
    def plan(*words: str) -> float:
        return make_plan(resolved(words), mixer="transformer", typed=typed_settings(words)).optim.lr

    assert plan("optim.peak_lr=1e-2") == plan("optim=muon", "optim.peak_lr=1e-2") == 1e-2
    for words in (["optim=adam"], ["optim.lr=1e-3"]):
        with pytest.raises(ValueError, match=r"optim\.peak_lr=0\.01 has no effect .* is optim\.lr=.*: set optim\.lr"):
            plan(*words, "optim.peak_lr=1e-2")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["optim.warmup_steps=9"], "optim.warmup_steps=9 .* optim.schedule=anneal: .* to inverse_sqrt or"),
        (["optim=adam", "optim.momentum=0.9"], "optim.momentum=0.9 .* optim.name=adam"),
        (["optim.rho=0.5"], "optim.rho=0.5 .* optim.name=muon: .* set optim.name to adadelta"),
        (["optim=adadelta", "optim.betas=[0.9,0.99]"], r"betas=\[0.9, 0.99\] .* optim.name=adadelta"),
        (["optim=adadelta", "optim.min_lr=1e-5"], "optim.min_lr=1e-05 .* optim.schedule=constant"),
        (["optim=adam", "optim.period=5"], "optim.period=5 .* optim.schedule=inverse_sqrt"),
        (["data.shuffle_buffer=9"], "data.shuffle_buffer=9 .* data.streaming=false: .* to true"),
        (["data.lowercase=true"], "data.lowercase=true .* data.convention=null: .* to tokenized or"),
        (["data.temperature=5"], "data.temperature=5.0 .* data.corpora=null"),
        (["data=files", "data.train=a", "data.revision=b"], "data.revision=b .* data.path=null"),
        (["data.holdout=5"], "data.holdout=5 .* data.valid and data.test: .* to null"),
        (["trainer.accumulate_share=0.3"], "accumulate_share=0.3 .* trainer.accumulate_start=null"),
        (["trainer.accumulate_start=1"], "accumulate_start=1 .* trainer.accumulate to a multiple"),
        (
            ["trainer.accumulate=2", "trainer.accumulate_start=2"],
            "accumulate_start=2 .* trainer.accumulate to",
        ),
        (["optim.warmup_init_lr=1e-3", "optim.warmup_share=0"], "init_lr=0.001 .*warmup_share=0"),
        (["trainer.median_stop=4"], "median_stop=4 .* sweep: leave it out"),
        (["trainer.val_share=0.2"], "val_share=0.2 .* updates or epochs"),
        (["mixer=lightconv", "+mixer.encoder.kernel_size=5"], r"encoder.kernel_size=5 .*per_layer.kernel_size=\[3, 7"),
        (["search.diversity=3"], "search.diversity=3.0 .* search.beam_groups=1: .* to 2 or more"),
    ],
)
def test_a_setting_without_effect_is_refused(words, message):
    with pytest.raises(ValueError, match=message):
        make_plan(resolved(words), mixer="transformer", typed=typed_settings(words))
    # From Python the setting is ignored, since the typed settings are unknown
    make_plan(resolved(words), mixer="transformer")


@pytest.mark.parametrize("schedule", ["anneal", "cosine", "adam"])
def test_a_lowest_rate_above_the_peak_is_refused(schedule):
    words = [f"optim={schedule}", "optim.lr=1e-3", "optim.min_lr=1e-2"]
    with pytest.raises(ValueError, match=r"min_lr=0.01 is above .* optim.lr=0.001: lower"):
        make_plan(resolved(words), mixer="transformer")


@pytest.mark.parametrize("idle", ["data.shuffle_buffer=9", "trainer.accumulate_start=1"])
def test_a_resumed_run_accepts_a_setting_without_effect(tmp_path, idle):
    """A resumed run accepts such a setting, with resume=auto, too, if there is such a run."""

    def plan(resume: str) -> None:
        words = [idle, f"runs={tmp_path}", "run=it", f"resume={resume}"]
        make_plan(resolved(words), mixer="transformer", typed=typed_settings(words))

    for new in ("auto", "null"):
        with pytest.raises(ValueError, match="has no effect"):
            plan(new)
    plan("other.safetensors")
    last = tmp_path / "it" / "checkpoints" / "last.ckpt"
    last.parent.mkdir(parents=True)
    last.touch()
    plan("auto")


@pytest.mark.parametrize(
    "words",
    [
        ["optim=adam", "optim.momentum=0.95"],  # the default
        ["experiment=multi30k_en_de", "data.convention=null"],  # the experiment sets data.lowercase
        ["optim=adadelta"],  # optim/adadelta.yaml sets what other optimizers read
    ],
)
def test_a_setting_that_was_not_typed_may_have_no_effect(words):
    make_plan(resolved(words), mixer="transformer", typed=typed_settings(words))


def test_a_batch_grows_by_a_whole_factor():
    with pytest.raises(ValueError, match=r"accumulate_start=3 .* trainer.accumulate=4"):
        TrainerSettings(max_steps=1, accumulate=4, accumulate_start=3)
    assert TrainerSettings(max_steps=1, accumulate=4, accumulate_start=2).first_window == 2
    assert TrainerSettings(max_steps=1, accumulate=4).first_window == 4


def test_settings_that_need_others_are_taken_with_them():
    words = ["optim=cosine", "optim.period=5", "optim.warmup_steps=7", "optim.min_lr=1e-6", "optim.betas=[0.9,0.99]"]
    words += ["search.beam_size=4", "search.beam_groups=2", "search.diversity=1", "data.convention=tokenized"]
    words += ["data.lowercase=true"]
    plan = make_plan(resolved(words), mixer="transformer", typed=typed_settings(words))
    assert (plan.optim.period, plan.search.diversity, plan.data.lowercase) == (5, 1, True)


def test_no_experiment_sets_what_it_does_not_use():
    defaults = resolved()
    for path in sorted((conf_dir() / "experiment").glob("*.yaml")):
        settings = resolved([f"experiment={path.stem}"])
        typed = {key for key, _, _ in differences(defaults, settings)}
        sections = read_settings(settings)
        for section in (sections.data, sections.search):
            require_used(section, typed)


def test_a_ready_tokenizer_takes_no_settings_of_another(tmp_path):
    """A vocabulary size equal to the model's own is accepted, and so is sampling, which does not change the pieces."""
    model, other = tmp_path / "m.model", tmp_path / "n.model"
    model.write_bytes(tiny.tokenizer().to_state()["src_model"])
    other.write_bytes(tiny.tokenizer(vocab_size=290).to_state()["src_model"])
    both = (f"tokenizer.src_model={model}", f"tokenizer.tgt_model={other}", "tokenizer.joint=false", "model.tie=target")
    one = (f"tokenizer.model={model}",)

    def check(*words: str) -> None:
        make_plan(resolved(words), mixer="x", typed=typed_settings(words))

    words = (*one, "data.vocab_size=4000", f"cache={tmp_path / 'cache'}")
    with pytest.raises(ValueError, match=r"m\.model has 300 pieces"):
        prepare(make_plan(resolved(words), mixer="x", typed=typed_settings(words)))
    for words in (
        (*one, "data.vocab_size=300"),
        (*one, "tokenizer.sampling_alpha=0.1", "tokenizer.joint=true", "tokenizer.type=unigram"),
        (*both, "data.vocab_size=300"),
        (*both, "tokenizer.vocab_size=290"),
        ("tokenizer.type=bpe", "data.vocab_size=4000"),
    ):
        check(*words)
    for words, message in (
        ((*one, "data.vocab_size=4000"), r"data\.vocab_size=4000 .*m\.model has 300 pieces"),
        ((*one, "tokenizer.vocab_size=4000"), r"data\.vocab_size=4000"),
        ((*both, "data.vocab_size=4000"), r"m\.model and .*n\.model has 290 and 300 pieces"),
        ((*one, "tokenizer.type=bpe"), r"tokenizer\.type=bpe .*m\.model"),
        ((*one, "tokenizer.normalizer=nfkc"), r"tokenizer\.normalizer=nfkc"),
        ((*one, "tokenizer.joint=false"), r"tokenizer\.joint=false"),
    ):
        with pytest.raises(ValueError, match=message):
            check(*words)
