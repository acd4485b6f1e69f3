"""Fine-tuning takes the checkpoint's model and tokenizer, and refuses a choice of the user that contradicts them."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
import toycorpus
from composed import resolved

from seq2seq import checkpoint
from seq2seq.data.extension import extend_tokenizer
from seq2seq.data.multi_corpus import parts_of
from seq2seq.data.plan import DataPlan
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.data.vocabulary_fit import report_fit
from seq2seq.inference.export.agreement import greedy
from seq2seq.inference.export.card import Origin
from seq2seq.inference.export.formats import write_safetensors
from seq2seq.inference.translator import Translator
from seq2seq.network.build import build_model
from seq2seq.settings.compose import chosen_settings, is_chosen
from seq2seq.settings.tokenizer import PatchGrid, TokenizerSettings
from seq2seq.training import dry_run, finetune
from seq2seq.training.checks import make_data_plan
from seq2seq.training.plan import RunPlan, make_plan

# Words of a user that contradict the checkpoint, and the text of the message.
CONTRADICTIONS = {
    "model.dim=128": r"model\.dim is 16 there and 128 here; add model\.dim=16",
    "model=base": r"model\.dim is 16 there and 512 here",
    "mixer.encoder.num_heads=4": r"mixer\.encoder\.num_heads is 2 there and 4 here",
    "data.vocab_size=2000": r"data\.vocab_size is 300 there and 2000 here; leave it out",
    "tokenizer.joint=false": r"tokenizer\.joint is True there and False here",
    "tokenizer.normalizer=nfkc": r"tokenizer\.normalizer is identity there and nfkc here",
    "experiment=iwslt14_de_en_transformer": r"is .* there and .* here",
}
REPRESENTATIVE = {
    "test_a_choice_that_contradicts_the_checkpoint_is_refused": {"model.dim=128", "data.vocab_size=2000"},
    "test_languages_that_were_not_given_are_the_checkpoints": {
        "../x-de-words14-de-en-translates ../x-de, this run de-en",
        "en-de-words0-en-de-",
        "en-de-words10-en-zh-translates en-de, this run en-zh",
        "en-de-words12-de-en-translates en-de, this run de-en",
        "en-fr-words5-de-en-translates en-fr, this run de-en",
    },
    "test_a_fine_tuned_run_has_the_label_of_its_checkpoint": {
        "../x-attention",
        "3-attention",
        "transformer-transformer",
    },
    "test_an_extended_model_translates_as_before": {"target-True"},
}
EXHAUSTIVE = {
    "test_a_preset_that_is_typed_names_the_same_folder",
    "test_another_machine_computes_in_its_own_way",
    "test_settings_of_an_extension_have_no_effect_without_one",
    "test_a_tagged_checkpoint_is_fine_tuned_with_tags",
}


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save(tmp_path_factory.mktemp("start"))


def plan(start: Path, *words: str) -> RunPlan:
    """The plan of `train init_from=<start> <words>`, as typed on a command line."""
    words = (f"init_from={start}", *words)
    return make_plan(resolved(words), mixer="dynamicconv", chosen=chosen_settings(words))


def adopted(start: Path, *words: str) -> dict[str, Any]:
    return finetune.adopt(plan(start, *words), checkpoint.load(start)).config


def test_nothing_of_the_model_needs_to_be_typed(start, caplog):
    caplog.set_level(logging.INFO)
    config = adopted(start)
    model = checkpoint.load(start).meta["model"]
    for section in ("model", "mixer"):
        assert all(config[section][key] == value for key, value in model[section].items())
    assert config["optim"]["lr"] == finetune.LEARNING_RATE
    assert "highest learning rate is 0.0001, for fine-tuning (from scratch it would be 0.004)" in caplog.text
    assert finetune.adopt(plan(start), checkpoint.load(start)).mixer == "attention"


def test_choices_that_may_differ_are_obeyed(start):
    config = adopted(start, "model.dropout=0.4", "optim.lr=0.01", "model.dim=16", "data.vocab_size=300")
    assert (config["model"]["dropout"], config["model"]["dim"], config["optim"]["lr"]) == (0.4, 16, 0.01)
    # Another optimizer has its own rate
    assert adopted(start, "optim=cosine")["optim"]["lr"] == 1e-3


@pytest.mark.parametrize(("word", "message"), CONTRADICTIONS.items(), ids=CONTRADICTIONS)
def test_a_choice_that_contradicts_the_checkpoint_is_refused(start, word, message):
    with pytest.raises(ValueError, match=message) as caught:
        adopted(start, word)
    assert f"init_from={start}" in str(caught.value)


def test_a_setting_within_the_mixer_leaves_it_its_name(start):
    assert finetune.adopt(plan(start, "mixer.encoder.num_heads=2"), checkpoint.load(start)).mixer == "attention"


def test_a_dry_run_starts_from_the_same_model_at_the_same_rate(start):
    short = dry_run.shortened(plan(start, "model.dropout=0.4"))
    config = finetune.adopt(short, checkpoint.load(start)).config
    assert (config["model"]["dim"], config["model"]["dropout"]) == (16, 0.4)
    assert config["optim"]["lr"] == finetune.LEARNING_RATE


def test_keys_that_were_typed():
    chosen = chosen_settings(
        ["mixer=gru", "mixer/self@mixer.decoder=lstm", "+model.x=1", "~data.y", "trainer.max_steps=3"]
    )
    assert chosen == {"mixer", "mixer.decoder", "model.x", "data.y", "trainer.max_steps"}
    assert is_chosen("mixer.encoder.num_heads", chosen)
    assert is_chosen("trainer", chosen)
    assert not is_chosen("model.dim", chosen)
    assert not is_chosen("model", {"modelling"})
    recipe = chosen_settings(["experiment=iwslt14_de_en_transformer"])
    assert {"model", "mixer", "optim", "data.vocab_size"} <= recipe
    assert chosen_settings(["experiment=null"]) == frozenset()


def test_dropout_of_the_model_reaches_its_mixers(tmp_path):
    """Mixers of a checkpoint follow a dropout of the model if they had its value; other values stay."""
    attention = {"_target_": "seq2seq.mixers.attention.Attention", "num_heads": 2, "dropout": 0.0}
    conv = {"_target_": "seq2seq.mixers.lightconv.LightConv", "num_heads": 2, "kernel_size": 3, "weight_dropout": 0.0}
    cross = {"_target_": "seq2seq.mixers.attention.CrossAttention", "num_heads": 2, "dropout": 0.0}
    depthwise = {"_target_": "seq2seq.mixers.depthwise.Depthwise", "kernel_size": 3, "weight_dropout": 0.1}
    # Kinds may have kinds
    deep = {"kinds": {"one": dict(attention)}, "pattern": ["one"]}
    stack = {"kinds": {"deep": deep, "two": conv, "own": depthwise}, "pattern": ["deep", "two", "own"]}
    start = tiny.save(
        tmp_path, mixer={"encoder": stack, "decoder": attention, "cross": cross}, encoder_layers=3, weight_dropout=0.0
    )
    words = ("model.attention_dropout=0.3", "model.weight_dropout=0.2", "mixer.cross.dropout=0.1")
    fine = finetune.adopt(plan(start, *words), checkpoint.load(start))
    assert fine.mixer == "attention"
    config = fine.config
    mixer = config["mixer"]
    assert (config["model"]["attention_dropout"], config["model"]["weight_dropout"]) == (0.3, 0.2)
    assert mixer["encoder"]["kinds"]["deep"]["kinds"]["one"]["dropout"] == mixer["decoder"]["dropout"] == 0.3
    assert mixer["encoder"]["kinds"]["two"]["weight_dropout"] == 0.2
    assert mixer["cross"]["dropout"] == 0.1
    assert mixer["encoder"]["kinds"]["own"]["weight_dropout"] == 0.1


def test_another_machine_computes_in_its_own_way(tmp_path):
    """A checkpoint of a GPU is fine-tuned on a CPU, and the other way round."""
    gpu = {"_target_": "seq2seq.mixers.attention.Attention", "num_heads": 2, "packed": True}
    cross = {"_target_": "seq2seq.mixers.attention.CrossAttention", "num_heads": 2}
    start = tiny.save(tmp_path, mixer={"encoder": gpu, "decoder": gpu | {"packed": False}, "cross": cross})
    words = ("mixer=transformer", "model.num_heads=2", "+mixer.encoder.packed=false", "+mixer.cross.packed=true")
    mixer = adopted(start, *words)["mixer"]
    assert [mixer[slot]["packed"] for slot in ("encoder", "cross")] == [False, True]
    conv = {"_target_": "seq2seq.mixers.dynamicconv.DynamicConv", "num_heads": 2, "kernel_size": 3, "backend": "triton"}
    start = tiny.save(tmp_path, mixer={"encoder": conv, "decoder": conv, "cross": cross})
    assert adopted(start)["mixer"]["encoder"]["backend"] == "triton"
    mixer = adopted(start, "mixer.encoder.backend=auto")["mixer"]
    assert [mixer[slot]["backend"] for slot in ("encoder", "decoder")] == ["auto", "triton"]


def test_a_file_of_the_data_chooses_no_vocabulary(start, tmp_path):
    """The vocabulary size in a data file is a default, not the user's choice."""
    data = [f"data.{split}={tmp_path / split}" for split in ("train", "valid", "test")]
    assert adopted(start, "data=files", "data.name=mine", "data.src=de", "data.tgt=en", *data)["data"]["name"] == "mine"
    assert adopted(start, "tokenizer=bpe")


def of_languages(folder: Path, src: str, *targets: str, **entry: Any) -> Path:
    """A checkpoint of one direction, or, of several targets, with tags."""
    payload = tiny.payload(t=tiny.tokenizer(symbols=tuple(f"<2{each}>" for each in targets)))
    payload.meta.update({"src_lang": src, "tgt_lang": targets[0], **entry})
    payload.meta.update({"tgt_langs": list(targets)} if len(targets) > 1 else {})
    checkpoint.save(folder / "start.safetensors", payload)
    return folder / "start.safetensors"


FILES = ("data=files", "data.train=train", "data.valid=valid", "data.test=test")


@pytest.mark.parametrize(
    ("there", "words", "here", "warning"),
    [
        # Without given languages: the checkpoint's, for files and for a data set that has both languages
        ("en-de", FILES, "en-de", ""),
        ("en-fr", FILES, "en-fr", ""),
        ("en-de", (), "en-de", ""),
        ("en-de", ("data=multi30k",), "en-de", ""),
        ("en-de", ("data=opus100",), "en-de", ""),
        # A data set without these languages keeps its own
        ("en-fr", (), "de-en", "translates en-fr, this run de-en"),
        ("en-fr", ("data=multi30k",), "de-en", "translates en-fr, this run de-en"),
        ("en-fr", ("data=opus100",), "de-en", "translates en-fr, this run de-en"),
        # Given languages are used, with a warning
        ("en-de", (*FILES, "data.src=en", "data.tgt=fr"), "en-fr", "translates en-de, this run en-fr"),
        ("en-de", (*FILES, "data.src=de", "data.tgt=en"), "de-en", "translates en-de, this run de-en"),
        ("en-de", (*FILES, "data.tgt=zh"), "en-zh", "translates en-de, this run en-zh"),
        ("en-de", (*FILES, "data.src=en"), "en-de", ""),
        ("en-de", ("data.src=de", "data.tgt=en"), "de-en", "translates en-de, this run de-en"),
        # A further corpus, too
        ("en-de", (*FILES, "data.corpora={more: {train: x, src: fr}}"), "en-de", "this run en-de, fr-de"),
        # A language with a slash does not become part of a path
        ("../x-de", FILES, "de-en", "translates ../x-de, this run de-en"),
    ],
)
def test_languages_that_were_not_given_are_the_checkpoints(tmp_path, caplog, there, words, here, warning):
    start = of_languages(tmp_path, *there.rsplit("-", 1))
    data = adopted(start, *words)["data"]
    assert f"{data['src']}-{data['tgt']}" == here
    assert [record.levelname for record in caplog.records].count("WARNING") == bool(warning)
    assert warning in caplog.text


def test_from_python_languages_that_differ_are_a_warning(tmp_path, caplog):
    start = of_languages(tmp_path, "en", "de")
    given = make_plan(resolved([f"init_from={start}"]), mixer="dynamicconv")
    assert finetune.adopt(given, checkpoint.load(start)) is given
    assert "translates en-de, this run de-en" in caplog.text


def test_a_tagged_checkpoint_is_fine_tuned_with_tags(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    start = of_languages(tmp_path, "en", "de", "fr")
    words = (*FILES, "data.src=en", "data.tgt=fr")
    assert adopted(start, *words)["data"]["tag_target"] is True
    assert "data.tag_target=true, as the checkpoint's" in caplog.text
    assert "this run" not in caplog.text
    with pytest.raises(ValueError, match=r"data\.tag_target is true there and false here; add data\.tag_target=true"):
        adopted(start, *words, "data.tag_target=false")
    plain = make_plan(resolved([f"init_from={start}", *words]), mixer="dynamicconv")
    with pytest.raises(ValueError, match=r"data\.tag_target is true there"):
        finetune.adopt(plain, checkpoint.load(start))


def test_a_fine_tuned_model_keeps_every_language_that_its_weights_know(tmp_path):
    loaded = checkpoint.load(of_languages(tmp_path, "en", "de", "fr", "nl"))
    for tag, expected in ((True, ["fr", "de", "nl"]), (False, [])):
        words = (f"data.tag_target={tag}", *FILES, "data.src=en", "data.tgt=fr")
        section = resolved(words)["data"]
        read = toycorpus.data_settings(section)
        tokenizer = TokenizerSettings()
        data = DataPlan.of(read, tokenizer=tokenizer, seed=1, cache_dir=tmp_path, parts=parts_of(read))
        assert finetune.target_languages_of(data, loaded) == expected
        assert finetune.target_languages_of(data, None) == expected[:1]


@pytest.mark.parametrize(
    ("preset", "label"),
    [("transformer", "transformer"), ("gru+decoder.dynamicconv", "gru+decoder.dynamicconv")]
    # Not a valid label: the module of the encoder's class
    + [(wrong, "attention") for wrong in (None, 3, "", "a|b", "\x1b[2J", "../x", "x" * 200)],
)
def test_a_fine_tuned_run_has_the_label_of_its_checkpoint(tmp_path, preset, label):
    start = of_languages(tmp_path, "de", "en", preset=preset)
    assert finetune.adopt(plan(start), checkpoint.load(start)).mixer == label


def test_a_preset_that_is_typed_names_the_same_folder(tmp_path):
    """`mixer=transformer` changes nothing if the checkpoint has that preset."""
    trained = resolved(["mixer=transformer", "model.attention_dropout=0.25"])
    mixer, model = trained["mixer"], trained["model"]
    start = of_languages(tmp_path, "de", "en")
    payload = checkpoint.read(start)
    meta = payload.meta | {"preset": "transformer", "model": {**payload.meta["model"], "mixer": mixer, "model": model}}
    adapted = []
    for words in ((), ("mixer=transformer",)):
        words = (f"init_from={start}", *words)
        given = make_plan(resolved(words), mixer="transformer", chosen=chosen_settings(words))
        adapted.append(finetune.adopt(given, checkpoint.Loaded(None, tiny.tokenizer(), meta)))
    assert adapted[0].mixer == adapted[1].mixer == "transformer"
    assert adapted[0].folder.path == adapted[1].folder.path
    assert adapted[1].config["mixer"]["decoder"]["dropout"] == 0.25


def test_a_run_starts_from_an_exported_folder(start, tmp_path):
    loaded = checkpoint.load(start)
    write_safetensors(tmp_path, loaded, Origin({}, {}), marian=False)
    again = checkpoint.load(tmp_path)
    assert again.tokenizer.fingerprint == loaded.tokenizer.fingerprint
    assert all(weight.equal(loaded.model.state_dict()[name]) for name, weight in again.model.state_dict().items())
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"is a folder without .*name a checkpoint, a run, or a folder of export"):
        checkpoint.load(tmp_path)


def extended(old: Tokenizer, count: int = 30) -> Tokenizer:
    """Extend a tokenizer by Greek pieces and a tag."""
    lines = tiny.sentences(["η", "γάτα", "το", "σπίτι", "τρέχει", "γρήγορα"], 100)
    settings = TokenizerSettings(extend=count, symbols=("<2el>",))
    return extend_tokenizer(old, src_lines=tiny.sentences(tiny.ENGLISH, 100), tgt_lines=lines, settings=settings)


@pytest.mark.parametrize(("tie", "joint"), [("all", True), ("target", True), ("none", True), ("none", False)])
def test_an_extended_model_translates_as_before(tmp_path, tie, joint):
    """Old rows stay, and the logit of a new piece is a mean of old logits, which is never the highest."""
    old = tiny.tokenizer(joint=joint, vocab_size=290)
    checkpoint.save(tmp_path / "start.safetensors", tiny.payload(t=old, tie=tie))
    start = checkpoint.load(tmp_path / "start.safetensors")
    new = extended(old)
    model = build_model(tiny.model_config(new, tie=tie))
    model.load_state_dict(finetune.start_weights(start, new))
    piece = new.tgt.piece_to_id("γάτα"[0])
    cut = old.tgt.encode("γ")[1:]
    pairs = [(start.model.encoder.embedding.table.weight, model.encoder.embedding.table.weight, new.src)]
    pairs += [(start.model.decoder.embedding.table.weight, model.decoder.embedding.table.weight, new.tgt)]
    pairs += [(start.model.output.weight, model.output.weight, new.tgt)]
    pairs += [(start.model.output.bias, model.output.bias, new.tgt)] if tie == "none" else []
    for before, after, side in pairs:
        assert len(after) == side.get_piece_size() > len(before) == 290
        assert after[:290].equal(before)
    torch.testing.assert_close(model.output.weight[piece], start.model.output.weight[cut].mean(0))
    rows = old.encode_src(tiny.sentences(tiny.GERMAN, 8))
    assert greedy(model.eval(), new, rows, 20) == greedy(start.model, old, rows, 20)


def test_tables_with_new_pieces_count_as_new_weights(start):
    """So that low-rank updates train them whole: the rows of new tags are equal at first."""
    loaded = checkpoint.load(start)
    model = build_model({**loaded.meta["model"], **extended(loaded.tokenizer).sizes})
    found = finetune.new_weights(model, loaded.model.state_dict())
    assert found
    assert all(name.endswith("table.weight") or name.startswith("output.") for name in found)


def test_what_a_checkpoint_reads_besides_the_sentence_is_not_dropped_silently(tmp_path, caplog):
    adopted(of_languages(tmp_path, "de", "en", context=2, terms=True), *FILES)
    assert "data.context=2, this run 0" in caplog.text
    assert "data.augment.terms" in caplog.text


def test_a_tokenizer_of_the_user_extends_the_checkpoints_or_is_refused(start, tmp_path):
    loaded = checkpoint.load(start)
    corpus = toycorpus.write(tmp_path / "corpus")
    for name, given in (("more", extended(loaded.tokenizer)), ("other", tiny.tokenizer(vocab_size=290))):
        model = tmp_path / f"{name}.model"
        model.write_bytes(given.to_state()["src_model"])
        words = (*FILES, *(f"data.{split}={corpus / split}" for split in ("train", "valid", "test")))
        fine = finetune.adopt(plan(start, *words, f"tokenizer.model={model}", f"cache={tmp_path}"), loaded)
        if name == "more":
            assert make_data_plan(fine, loaded).tokenizer.model == str(model)
    with pytest.raises(ValueError, match=r"tokenizer\.model: piece 2\d\d is .* leave tokenizer\.model out"):
        make_data_plan(fine, loaded)


def test_settings_of_an_extension_have_no_effect_without_one(start, caplog):
    words = ("tokenizer.extend=50", "tokenizer.character_coverage=1", "tokenizer.seed=3")
    assert adopted(start, *words)["tokenizer"]["extend"] == 50
    for word in ("tokenizer.character_coverage=1", "tokenizer.type=bpe tokenizer.extend=50"):
        adopted(start, *word.split())
        assert f"{word.split()[0]} has no effect on its tokenizer" in caplog.text.replace("coverage=1.0", "coverage=1")
    with pytest.raises(ValueError, match=r"tokenizer\.extend=50 adds to an existing tokenizer: name a checkpoint"):
        make_plan(resolved(["tokenizer.extend=50"]), mixer="transformer")


def test_arguments_of_mixers_that_a_checkpoint_lacks_have_their_defaults(tmp_path):
    """A later version may add an argument to a class and to its file in conf/."""
    start = of_languages(tmp_path, "de", "en")
    assert "num_kv_heads" not in checkpoint.load(start).meta["model"]["mixer"]["encoder"]
    assert adopted(start, "+mixer.encoder.num_kv_heads=null")
    with pytest.raises(ValueError, match=r"num_kv_heads is \(unset\) there and 1 here; add ~mixer\.encoder\.num_kv"):
        adopted(start, "+mixer.encoder.num_kv_heads=1")


def reported(folder: Path, source: str, tokenizer: Tokenizer) -> None:
    """Log how the tokenizer of a checkpoint splits `source` and an English line."""
    (folder / "train.de").write_text(source * 20)
    (folder / "train.en").write_text("the dog walks\n" * 20)
    section = resolved(["data=files", f"data.train={folder / 'train'}"])["data"]
    report_fit(tokenizer, toycorpus.data_plan(section, tokenizer={}, seed=1, cache_dir=folder), "x.safetensors")


@pytest.mark.parametrize(
    ("source", "expected", "warned"),
    [
        ("der Hund geht\n", r"1\.\d pieces a word \(source\) and 2\.\d pieces a word \(target\); 0\.0%", False),
        (
            "今天的天气真的是非常非常好啊我们走吧\n",
            r"\d\.\d pieces a character \(source\) and 2\.\d pieces a word",
            True,
        ),
        ("кот и пёс\n", r"\d\.\d pieces a word \(source\)", True),
    ],
)
def test_the_pieces_of_new_text_are_logged(tmp_path, caplog, source, expected, warned):
    caplog.set_level(logging.INFO)
    reported(tmp_path, source, tiny.tokenizer())
    assert re.search(expected, caplog.text)
    assert bool(re.search(r"init_from=x\.\w+: \d\d% of the pieces of the source text are bytes", caplog.text)) is warned
    assert "target text" not in caplog.text


def test_images_have_no_pieces_of_text(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    grid = PatchGrid(height=2, width=4, size=2, bits=1)
    reported(tmp_path, "image\n", Tokenizer(tgt_model=tiny.tokenizer().to_state()["src_model"], patches=grid))
    assert "pieces a word (target)" in caplog.text
    assert "source" not in caplog.text


@pytest.mark.parametrize("place", ["src_lang", "preset", "data"])
def test_values_of_a_checkpoint_are_not_resolved(tmp_path, monkeypatch, caplog, place):
    monkeypatch.setenv("SECRET", "hunter2")
    start = of_languages(tmp_path, "de", "en", **{place: "${oc.env:SECRET}"})
    given = finetune.adopt(plan(start), checkpoint.load(start))
    assert "hunter2" not in given.config_yaml + caplog.text + str(given.folder.path)


def test_no_setting_of_a_checkpoints_mixer_is_resolved(tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET", "hunter2")
    payload = tiny.payload()
    payload.meta["model"]["mixer"]["encoder"]["backend"] = "${oc.env:SECRET}"
    checkpoint.save(tmp_path / "start.safetensors", payload)
    with pytest.raises(checkpoint.CheckpointError) as refused:
        checkpoint.load(tmp_path / "start.safetensors")
    assert "hunter2" not in str(refused.value)


def test_a_fine_tuned_model_and_its_checkpoint_are_one_ensemble(tmp_path):
    """The two translate into the same languages, in another order."""
    paths = []
    for name, targets in (("start", ("de", "fr")), ("fine", ("fr", "de")), ("other", ("fr", "nl"))):
        (tmp_path / name).mkdir()
        path = of_languages(tmp_path / name, "en", *targets)
        payload = checkpoint.read(path)
        payload.meta["tokenizer"] = tiny.tokenizer(symbols=("<2de>", "<2fr>", "<2nl>")).to_state()
        payload.meta["model"] = tiny.payload(t=tiny.tokenizer(symbols=("<2de>", "<2fr>", "<2nl>"))).meta["model"]
        checkpoint.save(path, payload)
        paths.append(str(path))
    assert Translator.load(paths[0], ensemble=paths[1:2], tgt_lang="fr").tgt_lang == "fr"
    with pytest.raises(ValueError, match="an ensemble needs one direction"):
        Translator.load(paths[0], ensemble=paths[2:])
