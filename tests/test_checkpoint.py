"""A checkpoint survives what happens to files, and a hostile one gets one line and runs nothing."""

from __future__ import annotations

import io
import json
import os
import pickle
import random
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import tiny
import torch

from seq2seq import checkpoint, files
from seq2seq.build import build_model
from seq2seq.checkpoint import CheckpointError
from seq2seq.experiments.averaging import average
from seq2seq.inference.translator import Translator
from seq2seq.settings.search import SearchSettings


@pytest.fixture(scope="module")
def good() -> dict:
    return tiny.payload()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.ckpt"


def changed(good: dict, **entry) -> dict:
    return {**good, "seq2seq": {**good["seq2seq"], **entry}}


def write(path: Path, payload: object) -> None:
    """Past `save`, which would refuse."""
    torch.save(payload, path)


def refusal(path: Path, **options) -> str:
    """The message of the CheckpointError, one line that names the file."""
    with pytest.raises(CheckpointError) as caught:
        checkpoint.load(path, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    assert "weights_only" not in message
    return message


def test_round_trip(good, path):
    checkpoint.save(path, good)
    loaded = checkpoint.load(path)
    assert not loaded.model.training
    for name, weight in loaded.model.state_dict().items():
        assert torch.equal(weight, good["state_dict"]["model." + name])
    line = tiny.sentences(tiny.GERMAN, 1, seed=random.randrange(10**9))
    assert loaded.tokenizer.encode_src(line) == tiny.tokenizer().encode_src(line)
    assert loaded.meta["src_lang"] == "de"
    assert loaded.meta["versions"]["torch"] == str(torch.__version__)
    assert [p.name for p in path.parent.iterdir()] == ["a.ckpt"]


def test_a_checkpoint_trained_with_triton_translates_anywhere(path):
    """backend=triton is what the training machine was asked for; loading chooses anew."""
    light = {"_target_": "seq2seq.mixers.lightconv.LightConv", "num_heads": 2, "kernel_size": 3, "backend": "triton"}
    cross = {"_target_": "seq2seq.mixers.attention.CrossAttention", "num_heads": 2}
    checkpoint.save(path, tiny.payload(mixer={"encoder": light, "decoder": dict(light), "cross": cross}))
    loaded = checkpoint.load(path)
    layers = [*loaded.model.encoder.layers, *loaded.model.decoder.layers]
    assert {layer.self_mixer.backend for layer in layers} == {"auto"}
    assert loaded.meta["model"]["mixer"]["encoder"]["backend"] == "triton"


OLD = Path(__file__).parent / "fixtures" / "format1.ckpt"


def test_a_checkpoint_of_format_1_translates_as_it_did():
    """Written before the modules moved into packages, trained a minute on sentences word for word."""
    known = json.loads(OLD.with_suffix(".json").read_text("utf-8"))
    translator = Translator.load(OLD, device="cpu")
    assert translator.texts(known["source"]) == known["translation"]


def test_a_checkpoint_of_format_1_has_the_weights_in_their_order():
    """An optimizer's state, in which weights are numbered, goes on too."""
    names = [name.removeprefix(checkpoint.PREFIX) for name in checkpoint.read(OLD)["state_dict"]]
    assert names == list(checkpoint.load(OLD).model.state_dict())


def test_a_checkpoint_of_format_1_can_be_resumed():
    """The settings of its run have today's names, so that the same command finds nothing changed."""
    payload = checkpoint.read(OLD)
    assert payload["run"]["settings"]["mixer"] == payload["seq2seq"]["model"]["mixer"]
    assert payload["run"]["settings"]["mixer"]["decoder"]["backend"] == "auto"
    assert "kernel" not in payload["run"]["settings"]["mixer"]["decoder"]


def test_a_checkpoint_of_format_1_called_the_backend_kernel(path):
    """In slots, in kinds of a pattern and per layer, but not in the mixers of others."""
    light = {"_target_": "seq2seq.mixers.lightconv.LightConv", "num_heads": 2, "kernel_size": 3}
    cross = {"_target_": "seq2seq.mixers.attention.CrossAttention", "num_heads": 2}
    kinds = {"one": {**light, "per_layer": {"kernel": ["torch"]}}, "theirs": {"_target_": "their.Mixer", "kernel": 5}}
    mixer = {"encoder": {**light, "kernel": "torch"}, "decoder": {**light, "kernel": "triton"}, "cross": cross}
    payload = tiny.payload(mixer=mixer | {name: {**light, "backend": "torch"} for name in ("encoder", "decoder")})
    payload["seq2seq"] |= {"format": 1, "model": {**payload["seq2seq"]["model"], "mixer": mixer}}
    payload["run"] = {"settings": {"mixer": {"encoder": {"kinds": kinds, "pattern": ["one"]}, "decoder": None}}}
    checkpoint.save(path, payload)
    loaded = checkpoint.load(path)
    assert loaded.model.encoder.layers[0].self_mixer.backend == "torch"  # type: ignore[union-attr]
    assert loaded.model.decoder.layers[0].self_mixer.backend == "auto"  # type: ignore[union-attr]
    again = checkpoint.read(path)
    assert again["seq2seq"]["format"] == checkpoint.FORMAT
    slot = again["run"]["settings"]["mixer"]["encoder"]
    assert slot == {"pattern": ["one"], "kinds": {**kinds, "one": {**light, "per_layer": {"backend": ["torch"]}}}}


def test_settings_renamed_since_the_present_format_are_read_too(path):
    quadratic = {"_target_": "seq2seq.mixers.quadratic.Quadratic", "num_heads": 2}
    cross = {"_target_": "seq2seq.mixers.attention.CrossAttention", "num_heads": 2}
    slots = {name: {**quadratic, "center_std": 0.5} for name in ("encoder", "decoder")}
    payload = tiny.payload(mixer={**slots, "cross": cross})
    for name in ("encoder", "decoder"):
        settings = payload["seq2seq"]["model"]["mixer"][name]
        settings["centre_std"] = settings.pop("center_std")
    payload["run"] = {"settings": {"mixer": payload["seq2seq"]["model"]["mixer"]}}
    checkpoint.save(path, payload)
    checkpoint.load(path)
    again = checkpoint.read(path)
    assert again["seq2seq"]["format"] == checkpoint.FORMAT
    for mixer in (again["seq2seq"]["model"]["mixer"], again["run"]["settings"]["mixer"]):
        assert mixer["encoder"] == {**quadratic, "center_std": 0.5}


def test_what_training_adds_is_kept_by_read_and_ignored_by_load(good, path):
    extra = {
        "epoch": 3,
        "optimizer_states": [{"state": {0: {"exp_avg": torch.ones(2)}}, "param_groups": [{"lr": 1.0}]}],
    }
    checkpoint.save(path, {**good, **extra})
    again = checkpoint.read(path)
    assert again["epoch"] == 3
    assert torch.equal(again["optimizer_states"][0]["state"][0]["exp_avg"], torch.ones(2))
    checkpoint.load(path)


def test_opens_a_checkpoint_that_lightning_wrote(good, path):
    """Lightning's own dictionary, its loops, callbacks and optimizer included, holds plain types only."""
    import lightning as L
    from lightning.pytorch.callbacks import ModelCheckpoint

    class Task(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = build_model(good["seq2seq"]["model"])

        def training_step(self, batch, _):
            return self.model(batch, batch > 0, batch).square().mean()

        def configure_optimizers(self):
            adam = torch.optim.Adam(self.parameters())
            return [adam], [torch.optim.lr_scheduler.ExponentialLR(adam, 0.9)]

        def on_save_checkpoint(self, state):
            state["seq2seq"] = good["seq2seq"]

    keep = ModelCheckpoint(dirpath=path.parent / "kept", save_last=True)
    quiet = {"logger": False, "accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False}
    trainer = L.Trainer(max_epochs=1, callbacks=[keep], **quiet)
    trainer.fit(Task(), torch.utils.data.DataLoader(torch.randint(4, 90, (4, 5)), batch_size=2))
    trainer.save_checkpoint(path)
    payload = checkpoint.read(path)
    assert payload["global_step"] == 2
    checkpoint.load(path)
    checkpoint.save(path, payload)  # and ours writes what Lightning made
    checkpoint.load(path)


@pytest.mark.parametrize("kind", ["text", "empty", "zip", "other program", "tar", "pickle", "list"])
def test_what_is_no_checkpoint_is_one_line(path, kind):
    if kind == "text":
        path.write_text("Das ist ein Text.\n" * 30)
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("report.txt", "x" * 100)
    elif kind == "other program":
        write(path, {"state_dict": {"w": torch.zeros(3)}, "epoch": 1})
    elif kind == "tar":
        torch.save({"a": torch.zeros(2)}, path, _use_new_zipfile_serialization=False)
    elif kind == "pickle":
        path.write_bytes(pickle.dumps({"a": 1}))
    else:
        write(path, [1, 2, 3])
    message = refusal(path)
    assert ("empty file" if kind == "empty" else "not a checkpoint") in message


def test_missing_and_folder(path):
    assert "no such file" in refusal(path)
    path.mkdir()
    assert "is a directory" in refusal(path)


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may read everything")
def test_unreadable(good, path):
    checkpoint.save(path, good)
    path.chmod(0)
    assert "Permission denied" in refusal(path)


def test_truncated_anywhere(good, path):
    checkpoint.save(path, good)
    whole = path.read_bytes()
    seed = random.randrange(10**9)
    rng = random.Random(seed)
    for size in [1, 2, 10, len(whole) - 1, *(rng.randrange(3, len(whole)) for _ in range(20))]:
        path.write_bytes(whole[:size])
        message = refusal(path)
        assert ("truncated or damaged" in message) == (size > 1), (seed, size, message)


def test_a_flipped_bit_in_the_weights_is_found(good, path):
    """A damaged file of which torch itself would load wrong numbers without a word."""
    checkpoint.save(path, good)
    whole = bytearray(path.read_bytes())
    weight = good["state_dict"]["model.encoder.layers.0.feed_forward.up.weight"].numpy().tobytes()
    place = whole.find(weight)
    assert place > 0
    whole[place + random.randrange(len(weight))] ^= 0x40
    path.write_bytes(whole)
    assert "wrong checksum" in refusal(path)


def test_random_damage_never_passes(good, path):
    checkpoint.save(path, good)
    whole = path.read_bytes()
    seed = random.randrange(10**9)
    rng = random.Random(seed)
    for _ in range(30):
        data = bytearray(whole)
        start = rng.randrange(len(data) - 64)
        data[start : start + 64] = rng.randbytes(64)
        path.write_bytes(data)
        try:
            loaded = checkpoint.load(path)
        except CheckpointError:
            continue
        # The damage hit padding between records
        for name, weight in loaded.model.state_dict().items():
            assert torch.equal(weight, good["state_dict"]["model." + name]), seed


@pytest.mark.parametrize(("key", "missing"), [("seq2seq", "has no 'seq2seq' entry"), ("state_dict", "has no weights")])
def test_another_programs_file_leads_to_a_checkpoint(good, path, key, missing):
    write(path, {name: value for name, value in good.items() if name != key})
    message = refusal(path)
    assert missing in message
    assert message.endswith(
        "name a file that training or seq2seq.average wrote, such as runs/.../checkpoints/best.ckpt"
    )


def test_newer_format(good, path):
    write(path, changed(good, format=checkpoint.FORMAT + 1))
    assert f"format {checkpoint.FORMAT + 1}, but this version reads up to {checkpoint.FORMAT}" in refusal(path)
    for wrong in ("1", None, True, 0, 1.0):
        write(path, changed(good, format=wrong))
        assert "not a format number" in refusal(path)


@pytest.mark.parametrize("field", ["model", "tokenizer", "src_lang", "tokenize", "versions"])
def test_missing_entry(good, path, field):
    entry = {k: v for k, v in good["seq2seq"].items() if k != field}
    write(path, {**good, "seq2seq": entry})
    assert f"'seq2seq.{field}' is missing" in refusal(path)


@pytest.mark.parametrize(
    "search", [[], None, {"beam_size": 0}, {"beam_size": 2.5}, {"length_penalty": float("nan")}, {"max_len_ratio": "2"}]
)
def test_a_search_that_cannot_be(good, path, search):
    write(path, changed(good, search=search))
    assert "search" in refusal(path)


def test_what_a_later_version_says_of_the_search_is_ignored(good, path):
    write(path, changed(good, search={"beam_size": 2, "max_len_ratio": 1, "diversity": 0.5}))
    assert checkpoint.search_settings(checkpoint.load(path).meta) == SearchSettings(beam_size=2, max_len_ratio=1)


def test_wrong_weights(good, path):
    weights = dict(good["state_dict"])
    name = "model.encoder.layers.0.feed_forward.up.weight"
    removed = weights.pop(name)
    write(path, {**good, "state_dict": weights})
    assert "1 weights are missing, the first is 'encoder.layers.0.feed_forward.up.weight'" in refusal(path)
    write(path, {**good, "state_dict": {**weights, name: removed[:, :3].clone()}})
    assert "has shape (32, 3), the model needs (32, 16)" in refusal(path)
    write(path, {**good, "state_dict": {**good["state_dict"], "model.surplus": removed}})
    assert "1 weights fit nothing, the first is 'surplus'" in refusal(path)
    write(path, {**good, "state_dict": {**weights, name: "a string"}})
    assert "other than tensors" in refusal(path)
    write(path, {**good, "state_dict": {}})
    assert "no weights" in refusal(path)


def test_damaged_tokenizer(good, path):
    for state in ({}, {**good["seq2seq"]["tokenizer"], "src_model": b"\x00\xff" * 9}):
        write(path, changed(good, tokenizer=state))
        assert "tokenizer does not load" in refusal(path)
    other = tiny.tokenizer(type="bpe", character_coverage=1.0).to_state()
    config = {**good["seq2seq"]["model"], "src_vocab_size": 299}
    write(path, changed(good, tokenizer=other, model=config))
    assert "pieces (source, target)" in refusal(path)


def test_impossible_settings(good, path):
    model = good["seq2seq"]["model"]
    for config in (
        {**model, "model": {**model["model"], "dim": "wide"}},
        {**model, "mixer": 7},
        {**model, "model": {}},
    ):
        write(path, changed(good, model=config))
        assert "settings build no model" in refusal(path)


def test_settings_cannot_ask_for_memory_that_the_file_does_not_fill(good, path):
    """4 TB of parameters: found by their shape, not by running out of memory."""
    model = good["seq2seq"]["model"]
    write(path, changed(good, model={**model, "model": {**model["model"], "dim": 1 << 20}}))
    assert "the model needs (300, 1048576)" in refusal(path)


WEIGHT = "model.encoder.layers.0.feed_forward.up.weight"  # (32, 16)


def hostile_weights(good: dict) -> dict[str, torch.Tensor]:
    """Tensors of the right shape, or none, that are not the numbers that the shape promises."""
    weight = good["state_dict"][WEIGHT]
    return {
        "stride 0": torch.zeros(1).expand(32, 16),
        "sparse": weight.to_sparse(),
        "meta": weight.to("meta"),
        "whole numbers": weight.to(torch.int64),
        "nested": torch.nested.nested_tensor([weight]),
        "complex": weight.to(torch.complex64),
        "quantized": torch.quantize_per_tensor(weight, 0.1, 0, torch.qint8),
        "float8": weight.to(torch.float8_e4m3fn),
    }


@pytest.mark.parametrize(
    "kind",
    [
        "stride 0",
        "sparse",
        "meta",
        "whole numbers",
        "nested",
        "wrapper",
        "complex",
        "quantized",
        "float8",
    ],
)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_weights_are_numbers_that_the_file_holds(good, path, kind):
    if kind == "wrapper":  # a tensor of any size without memory

        class Wrapper:
            def __reduce__(self):
                layout = (torch.float32, (32, 16), (16, 1), 0, torch.strided, torch.device("cpu"), False)
                return (torch._utils._rebuild_wrapper_subclass, (torch.nn.Parameter, *layout))

        weight: object = Wrapper()
    else:
        weight = hostile_weights(good)[kind]
    write(path, {**good, "state_dict": {**good["state_dict"], WEIGHT: weight}})
    assert re.search("not stored as plain numbers|holds something other than tensors of plain numbers", refusal(path))
    # The average builds no model, to which whole numbers would not fit
    if kind != "whole numbers":
        with pytest.raises(CheckpointError, match="plain numbers"):
            average([path, path])


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_weights_that_are_not_finite_are_refused_by_every_reader(good, path, tmp_path, value, dtype):
    weights = {name: weight.to(dtype, copy=True) for name, weight in good["state_dict"].items()}
    weights[WEIGHT][3, 4] = value
    write(path, {**good, "state_dict": weights})
    message = f"weight '{WEIGHT}' is not finite"
    assert message in refusal(path)
    fine = tmp_path / "fine.ckpt"
    checkpoint.save(fine, good)
    for read in (lambda: checkpoint.read(path), lambda: average([fine, path]), lambda: Translator.load(path)):
        with pytest.raises(CheckpointError, match="not finite"):
            read()
    with pytest.raises(checkpoint.NotFiniteWeightsError, match=message):
        checkpoint.save(tmp_path / "new.ckpt", {**good, "state_dict": weights})
    assert not (tmp_path / "new.ckpt").exists()


def test_finite_weights_whose_sum_is_not_are_accepted(good, path):
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
        largest = torch.full((32, 16), torch.finfo(dtype).max, dtype=dtype)
        write(path, {**good, "state_dict": {**good["state_dict"], WEIGHT: largest}})
        assert torch.equal(checkpoint.read(path)["state_dict"][WEIGHT], largest)


@pytest.mark.parametrize("change", [{"pad_id": True}, {"pad_id": 5}, {"joint": 1}, {"pad_id": [1]}])
def test_special_ids_of_model_and_tokenizer_agree(good, path, change):
    write(path, changed(good, model={**good["seq2seq"]["model"], **change}))
    assert f"its tokenizer has {next(iter(change))}" in refusal(path)


def test_one_memory_for_many_weights_is_no_checkpoint(good, path):
    """300 layers that all lie in the same few bytes: half a megabyte of file for 4 MB of weights."""
    model, shared, weights = good["seq2seq"]["model"], {}, dict(good["state_dict"])
    for name in list(weights):
        if name.startswith("model.encoder.layers.0."):
            shared[name.removeprefix("model.encoder.layers.0.")] = torch.zeros(weights[name].shape)
    for layer in range(1, 300):
        weights |= {f"model.encoder.layers.{layer}.{name}": weight for name, weight in shared.items()}
    deep = {**model, "model": {**model["model"], "encoder_layers": 300}}
    write(path, {**changed(good, model=deep), "state_dict": weights})
    assert "is shorter than the" in refusal(path)
    # While numbers in another order are all there, and the table that is shared stands in the file once
    tied = dict(good["state_dict"])
    for name in ("model.decoder.embedding.table.weight", "model.output.weight"):
        assert torch.equal(tied[name], tied["model.encoder.embedding.table.weight"])
        tied[name] = tied["model.encoder.embedding.table.weight"]
    tied[WEIGHT] = tied[WEIGHT].t().contiguous().t()
    write(path, {**good, "state_dict": tied})
    assert torch.equal(checkpoint.load(path).model.state_dict()[WEIGHT.removeprefix("model.")], tied[WEIGHT])


@pytest.mark.parametrize("where", ["encoder_layers", "decoder_layers", "extra_encoder_layers"])
def test_layers_without_end_are_not_built(good, path, where, monkeypatch):
    model = good["seq2seq"]["model"]
    section = "mixer" if where == "extra_encoder_layers" else "model"
    write(path, changed(good, model={**model, section: {**model[section], where: 10**8}}))
    monkeypatch.setattr("seq2seq.checkpoint.build_model", None)
    assert "more layers than it has weights" in refusal(path)


@pytest.mark.parametrize(
    "change", [{"src_model": 10**12}, {"sampling_alpha": [1]}, {"joint": False}, {"joint": 0, "tgt_model": 10**12}]
)
def test_a_tokenizer_of_other_types_is_refused_unread(good, path, change):
    write(path, changed(good, tokenizer={**good["seq2seq"]["tokenizer"], **change}))
    assert "is missing or of the wrong type" in refusal(path)


def test_a_number_does_not_become_that_many_bytes(good, path):
    class Bytes:
        def __reduce__(self):
            return (bytearray, (1 << 33,))

    write(path, {**good, "x": Bytes()})
    assert "bytearray" in refusal(path)


@pytest.mark.parametrize("name", ["identity", "nmt_nfkc"])
def test_the_normaliser_is_visible(name):
    t = tiny.tokenizer(normalizer=name)
    rest = {"src_lang": "de", "tgt_lang": "en", "tokenize": "13a", "data": "x"}
    assert checkpoint.describe(model_config=tiny.model_config(t), tokenizer=t, **rest)["normalizer"] == name


class Payload:
    """Its unpickling makes a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return (os.mkdir, (str(self.marker),))


@pytest.mark.parametrize("where", ["top", "weights", "entry", "legacy"])
def test_pickle_payload_is_not_run(good, path, tmp_path, where):
    marker = tmp_path / "ran"
    evil = Payload(marker)
    if where == "top":
        write(path, evil)
    elif where == "weights":
        write(path, {**good, "state_dict": {**good["state_dict"], "model.x": evil}})
    elif where == "entry":
        write(path, changed(good, model=evil))
    else:
        torch.save({**good, "x": evil}, path, _use_new_zipfile_serialization=False)
    message = refusal(path)
    assert ("not a checkpoint" if where == "legacy" else "nothing in it was run") in message
    assert not marker.exists()
    # The payload is a live one: an unsafe reader would run it
    torch.load(path, weights_only=False)
    assert marker.exists()


@pytest.mark.parametrize(
    "target",
    [
        "os.mkdir",
        "os.system",
        "builtins.exec",
        "subprocess.Popen",
        "seq2seq.files.os.mkdir",
        "seq2seq.checkpoint.os.mkdir",
        "seq2seq.checkpoint.Path",
        "seq2seq.checkpoint.save",
        "seq2seq.mixers.attention.nn.Linear",
        "seq2seq.model.Seq2Seq",
        "torch.nn.Linear",
        "evil_package.Mixer",
        "",
        7,
    ],
)
def test_forbidden_target_is_not_run(good, path, tmp_path, target, monkeypatch):
    marker = tmp_path / "ran"
    # A package that marks its import, in the current folder and on the path
    package = tmp_path / "evil_package"
    package.mkdir()
    (package / "__init__.py").write_text(f"import os\nos.mkdir({str(marker)!r})\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    model = good["seq2seq"]["model"]
    slot = {"_target_": target, "name": str(marker), "path": str(marker), "command": f"mkdir {marker}"}
    for name in ("encoder", "decoder", "cross"):
        write(path, changed(good, model={**model, "mixer": {**model["mixer"], name: slot}}))
        message = refusal(path)
        assert "refused" in message or "build no model" in message
        assert not marker.exists()


def test_a_trusted_package_may_bring_mixers(good, path, tmp_path, monkeypatch):
    (tmp_path / "my_mixers.py").write_text(
        "from seq2seq.mixers.attention import Attention\n\n\nclass Mine(Attention):\n    pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    model = good["seq2seq"]["model"]
    mixer = {**model["mixer"], "encoder": {"_target_": "my_mixers.Mine", "num_heads": 2}}
    checkpoint.save(path, changed(good, model={**model, "mixer": mixer}))
    assert "refused" in refusal(path)
    assert type(checkpoint.load(path, trust=["my_mixers"]).model.encoder.layers[0].self_mixer).__name__ == "Mine"


def test_a_compressed_bomb_is_not_unpacked(path):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/data.pkl", b"\x80\x02}.")
        archive.writestr("a/data/0", bytes(50_000_000))
    assert path.stat().st_size < 100_000
    assert "not a checkpoint" in refusal(path)


def test_failed_write_leaves_the_old_file_and_no_other(good, path, monkeypatch):
    checkpoint.save(path, good)
    before = path.read_bytes()

    def full(payload: object, file: io.IOBase) -> None:
        file.write(b"half a checkpoint")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match="No space left"):
        checkpoint.save(path, good)
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == ["a.ckpt"]


def test_killed_while_writing_leaves_the_old_file(good, path):
    checkpoint.save(path, good)
    before = path.read_bytes()
    program = f"""
import os, signal
from seq2seq.files import atomic_file
with atomic_file({str(path)!r}) as file:
    file.write(b"x" * 1000)
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == -9
    assert path.read_bytes() == before


def test_what_read_would_refuse_is_not_written(good, path):
    with pytest.raises(ValueError, match=r"PosixPath.*plain types"):
        checkpoint.save(path, {**good, "hyper_parameters": {"folder": Path("x")}})
    with pytest.raises(ValueError, match="no 'seq2seq' entry"):
        checkpoint.save(path, {"state_dict": good["state_dict"]})
    assert list(path.parent.iterdir()) == []


def test_describe_wants_plain_types(good):
    from omegaconf import OmegaConf

    t = tiny.tokenizer()
    config = tiny.model_config(t)
    given = {"tokenizer": t, "src_lang": "de", "tgt_lang": "en", "tokenize": "13a", "data": "x"}
    config["mixer"]["encoder"]["sizes"] = OmegaConf.create([3, 7])
    with pytest.raises(ValueError, match=r"seq2seq.model.mixer.encoder.sizes is a omegaconf.listconfig.ListConfig"):
        checkpoint.describe(model_config=config, **given)
    config["mixer"]["encoder"]["sizes"] = (3, 7)
    with pytest.raises(ValueError, match=r"seq2seq.tgt_langs is a omegaconf.listconfig.ListConfig"):
        checkpoint.describe(model_config=config, **given, tgt_langs=OmegaConf.create(["en", "fr"]))
    assert checkpoint.describe(model_config=config, **given)["model"]["mixer"]["encoder"]["sizes"] == [3, 7]


def test_atomic_file_follows_links_and_keeps_modes(tmp_path):
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_bytes(b"old")
    target.chmod(0o640)
    link.symlink_to(target)
    with files.atomic_file(link) as file:
        file.write(b"new")
        assert target.read_bytes() == b"old"
    assert link.is_symlink()
    assert target.read_bytes() == b"new"
    assert target.stat().st_mode & 0o777 == 0o640
    with files.atomic_file("/dev/null") as file:
        file.write(b"x")
    assert not Path("/dev/null").is_file()
    with pytest.raises(IsADirectoryError), files.atomic_file(tmp_path):
        pass
