"""Test checkpoints: damaged files are one line, and hostile ones run nothing and cost no memory."""

from __future__ import annotations

import contextlib
import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
import safetensors
import safetensors.torch
import tiny
import torch

from seq2seq import checkpoint, metadata
from seq2seq.checkpoint import CheckpointError, Stored
from seq2seq.inference.translator import Translator
from seq2seq.runs.averaging import average
from seq2seq.runs.training_state import read_state, save_state
from seq2seq.settings.search import SearchSettings
from seq2seq.system import files

WEIGHT = "encoder.layers.0.transform.f.up.weight"  # (32, 16)


@pytest.fixture(scope="module")
def good() -> Stored:
    return tiny.payload()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.safetensors"


def changed(good: Stored, **entry: Any) -> Stored:
    return good._replace(meta={**good.meta, **entry})


def write(path: Path, stored: Stored) -> None:
    """Write a file that `save` would refuse."""
    tokenizer = dict(stored.meta.get("tokenizer", {}))
    models = {key: tokenizer.pop(key) for key in list(tokenizer) if isinstance(tokenizer[key], bytes)}
    tensors = {f"tokenizer.{key}": torch.tensor(list(model), dtype=torch.uint8) for key, model in models.items()}
    meta = {**stored.meta, "tokenizer": tokenizer} if "tokenizer" in stored.meta else stored.meta
    safetensors.torch.save_file({**stored.weights, **tensors}, path, {"seq2seq": json.dumps(meta)})


def write_raw(path: Path, header: str | dict[str, Any], data: bytes = b"", length: int | None = None) -> None:
    """Write a file of the format with any header."""
    text = (header if isinstance(header, str) else json.dumps(header)).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)


def parts(good: Stored, path: Path) -> tuple[dict[str, Any], bytes]:
    """Return the header and the data of a good file."""
    checkpoint.save(path, good)
    whole = path.read_bytes()
    end = 8 + int.from_bytes(whole[:8], "little")
    return json.loads(whole[8:end]), whole[end:]


def refusal(path: Path, **options: Any) -> str:
    """Return the message of the CheckpointError, one line that names the file."""
    with pytest.raises(CheckpointError) as caught:
        checkpoint.load(path, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    return message


def test_round_trip(good, path):
    checkpoint.save(path, good)
    loaded = checkpoint.load(path)
    assert not loaded.model.training
    for name, weight in checkpoint.with_tied(loaded.model, good.weights).items():
        assert torch.equal(loaded.model.state_dict()[name], weight)
    line = tiny.sentences(tiny.GERMAN, 1, seed=random.randrange(10**9))
    assert loaded.tokenizer.encode_src(line) == tiny.tokenizer().encode_src(line)
    assert loaded.meta == checkpoint.read_description(path) == good.meta
    assert loaded.meta["versions"]["torch"] == str(torch.__version__)
    assert [p.name for p in path.parent.iterdir()] == ["a.safetensors"]


def test_other_programs_read_the_weights_and_the_description(good, path):
    """A checkpoint is a plain safetensors file with one key of metadata and the SentencePiece model as bytes."""
    checkpoint.save(path, good)
    with safetensors.safe_open(path, framework="np") as file:
        entry = json.loads(file.metadata()["seq2seq"])
        assert set(file.metadata()) == {"seq2seq"}
        assert file.get_tensor("tokenizer.src_model").tobytes() == good.meta["tokenizer"]["src_model"]
        assert (file.get_tensor(WEIGHT) == good.weights[WEIGHT].numpy()).all()
    assert entry["format"] == metadata.FORMAT
    assert entry["src_lang"] == "de"


def test_a_tied_table_is_stored_once(good, path):
    model = checkpoint.load(saved(good, path)).model
    names = [name for name, weight in model.state_dict().items() if weight.shape == (300, 16)]
    assert len(names) == 3
    checkpoint.save(path, good._replace(weights=model.state_dict()))
    assert set(checkpoint.read(path).weights) == set(model.state_dict()) - set(names[1:])
    again = checkpoint.load(path).model
    assert again.output.weight is again.encoder.embedding.table.weight


def saved(good: Stored, path: Path) -> Path:
    checkpoint.save(path, good)
    return path


def test_the_folder_of_a_run_or_an_export_stands_for_its_checkpoint(good, tmp_path):
    for name in ("checkpoints/best.safetensors", "model.safetensors"):
        folder = tmp_path / name.replace("/", "-")
        (folder / name).parent.mkdir(parents=True)
        assert "name a checkpoint, a run" in refusal(folder)
        checkpoint.save(folder / name, good)
        assert checkpoint.load(folder).meta == good.meta
    last = tmp_path / "run" / "checkpoints" / "last.ckpt"
    last.parent.mkdir(parents=True)
    last.write_bytes(b"PK")
    assert "first validation" in refusal(tmp_path / "run")
    assert "a training state, which only resume reads; name a run's folder" in refusal(last)
    checkpoint.save(last.with_name("best.safetensors"), good)
    assert refusal(last).endswith(f"name {tmp_path}/run")


def test_a_checkpoint_trained_with_triton_translates_anywhere(path):
    """backend=triton was a setting of the training machine; loading chooses the backend again."""
    light = {"_target_": "seq2seq.mixers.lightconv.LightConv", "num_heads": 2, "kernel_size": 3, "backend": "triton"}
    cross = {"_target_": "seq2seq.mixers.attention.CrossAttention", "num_heads": 2}
    checkpoint.save(path, tiny.payload(mixer={"encoder": light, "decoder": dict(light), "cross": cross}))
    loaded = checkpoint.load(path)
    layers = [*loaded.model.encoder.layers, *loaded.model.decoder.layers]
    assert {layer.self_mixer.backend for layer in layers} == {"auto"}
    assert loaded.meta["model"]["mixer"]["encoder"]["backend"] == "triton"


@pytest.mark.parametrize("kind", ["text", "empty", "short", "zip", "other program", "list"])
def test_a_file_that_is_not_a_checkpoint_is_one_line(good, path, kind):
    if kind == "text":
        path.write_text("Das ist ein Text.\n" * 30)
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "short":
        path.write_bytes(b"\x01\0")
    elif kind == "zip":
        torch.save({"state_dict": {}}, path)
    elif kind == "other program":
        safetensors.torch.save_file(good.weights, path)
    else:
        safetensors.torch.save_file(good.weights, path, {"seq2seq": "[1, 2]"})
    message = refusal(path)
    assert {"empty": "empty file", "list": "is not a mapping"}.get(kind, "not a checkpoint") in message


def test_pipes_and_links(good, path):
    os.mkfifo(path)
    assert "is not a regular file" in refusal(path)  # and does not wait for a writer
    path.unlink()
    path.symlink_to("nowhere")
    assert "no such file" in refusal(path)
    path.unlink()
    path.symlink_to(saved(good, path.with_name("b.safetensors")))
    checkpoint.load(path)


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may read everything")
def test_unreadable(good, path):
    saved(good, path).chmod(0)
    assert "Permission denied" in refusal(path)


def test_truncated_anywhere(good, path):
    whole = saved(good, path).read_bytes()
    seed = random.randrange(10**9)
    rng = random.Random(seed)
    for size in [1, 2, 10, len(whole) - 1, *(rng.randrange(3, len(whole)) for _ in range(20))]:
        path.write_bytes(whole[:size])
        assert ("truncated or damaged" in refusal(path)) == (size >= 8), (seed, size)


def test_random_damage_is_refused_or_changes_only_numbers(good, path):
    whole = saved(good, path).read_bytes()
    rng = random.Random(random.randrange(10**9))
    for _ in range(30):
        data = bytearray(whole)
        # In the header twice as often as elsewhere
        start = rng.randrange(rng.choice([2000, 2000, len(data)]) - 64)
        data[start : start + 64] = rng.randbytes(64)
        path.write_bytes(data)
        with contextlib.suppress(CheckpointError):
            checkpoint.load(path)


def test_a_header_that_claims_too_much_is_refused_unread(good, path):
    header, data = parts(good, path)
    write_raw(path, header, data, length=1 << 62)
    assert "is not a checkpoint (its header would have" in refusal(path)
    write_raw(path, {**header, "x": "y" * checkpoint.MAX_HEADER}, data)
    assert "is not a checkpoint (its header would have" in refusal(path)


SIZES: list[dict[str, Any]] = [
    {"shape": [1 << 40, 1 << 40]},
    {"shape": [(1 << 64) - 1, 2]},
    {"shape": [-1, 16]},
    {"shape": [64, 16]},
    {"data_offsets": [0, 1 << 50]},
    {"data_offsets": [0, 2048]},
    {"data_offsets": [4096, 2048]},
    {"dtype": "F1024"},
    {"dtype": "F64"},
]


@pytest.mark.parametrize("change", SIZES, ids=str)
def test_a_header_that_lies_about_sizes_is_refused(good, path, change):
    """Shapes, places and types must agree with one another and with the file: no overlaps and no holes."""
    header, data = parts(good, path)
    header[WEIGHT] |= change
    write_raw(path, header, data)
    assert "truncated or damaged" in refusal(path)


@pytest.mark.parametrize("where", ["header", "description"])
def test_deep_nesting_is_refused(good, path, where):
    header, data = parts(good, path)
    for depth in (100, 100_000):
        deep = '{"a":' * depth + "1" + "}" * depth
        if where == "header":
            write_raw(path, f'{{"a": {deep}}}', data)
            assert "truncated or damaged" in refusal(path)
        else:
            text = json.dumps(good.meta | {"tokenizer": {}})[:-1] + f', "more": {deep}}}'
            write_raw(path, {**header, "__metadata__": {"seq2seq": text}}, data)
            assert "nested more than" in refusal(path)


def test_a_number_of_millions_of_digits_is_refused(good, path):
    header, data = parts(good, path)
    write_raw(path, {**header, "__metadata__": {"seq2seq": '{"format": ' + "1" * 10**6 + "}"}}, data)
    assert "'seq2seq'" in refusal(path)


def test_newer_format(good, path):
    write(path, changed(good, format=metadata.FORMAT + 1))
    assert f"format {metadata.FORMAT + 1}, but this version reads up to {metadata.FORMAT}" in refusal(path)
    for wrong in ("1", None, True, 0, 1.0):
        write(path, changed(good, format=wrong))
        assert "not a format number" in refusal(path)


@pytest.mark.parametrize("field", ["model", "tokenizer", "src_lang", "tokenize", "versions"])
def test_missing_entry(good, path, field):
    write(path, good._replace(meta={k: v for k, v in good.meta.items() if k != field}))
    assert f"'seq2seq.{field}' is missing" in refusal(path)


@pytest.mark.parametrize(
    "search", [[], None, {"beam_size": 0}, {"beam_size": 2.5}, {"length_penalty": float("nan")}, {"max_len_ratio": "2"}]
)
def test_an_impossible_search(good, path, search):
    write(path, changed(good, search=search))
    assert "search" in refusal(path)


def test_unknown_search_settings_of_a_later_version_are_ignored(good, path):
    write(path, changed(good, search={"beam_size": 2, "max_len_ratio": 1, "diversity": 0.5}))
    assert metadata.search_settings(checkpoint.load(path).meta) == SearchSettings(beam_size=2, max_len_ratio=1)


def test_wrong_weights(good, path):
    weights = dict(good.weights)
    removed = weights.pop(WEIGHT)
    write(path, good._replace(weights=weights))
    assert f"1 weights are missing, the first is '{WEIGHT}'" in refusal(path)
    write(path, good._replace(weights={**weights, WEIGHT: removed[:, :3].clone()}))
    assert "has shape (32, 3), the model needs (32, 16)" in refusal(path)
    write(path, good._replace(weights={**good.weights, "surplus": torch.zeros(2)}))
    assert "1 weights fit nothing, the first is 'surplus'" in refusal(path)
    # A tied weight has one name
    write(path, good._replace(weights={**good.weights, "output.weight": torch.zeros(300, 16)}))
    assert "1 weights fit nothing, the first is 'output.weight'" in refusal(path)
    write(path, good._replace(weights={}))
    assert "no weights" in refusal(path)


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool, torch.complex64, torch.float8_e4m3fn])
def test_weights_of_another_type_are_refused(good, path, dtype):
    write(path, good._replace(weights={**good.weights, WEIGHT: torch.zeros(32, 16).to(dtype)}))
    assert f"weight '{WEIGHT}' is stored as {dtype}" in refusal(path)
    # seq2seq.average builds no model
    with pytest.raises(ValueError, match=r"stored as|whole numbers"):
        average([path, saved(good, path.with_name("b.safetensors"))])


def test_damaged_tokenizer(good, path):
    for state in ({}, {**good.meta["tokenizer"], "src_model": b"\x00\xff" * 9}):
        write(path, changed(good, tokenizer=state))
        assert "tokenizer does not load" in refusal(path)
    other = tiny.tokenizer(type="bpe", character_coverage=1.0).to_state()
    config = {**good.meta["model"], "src_vocab_size": 299}
    write(path, changed(good, tokenizer=other, model=config))
    assert "src_vocab_size" in refusal(path)


def test_a_tokenizer_of_another_form_is_refused(good, path, monkeypatch):
    header, data = parts(good, path)
    for change in ({"dtype": "I8"}, {"shape": [1, header["tokenizer.src_model"]["shape"][0]]}):
        write_raw(path, {**header, "tokenizer.src_model": header["tokenizer.src_model"] | change}, data)
        assert "not a SentencePiece model" in refusal(path)
    saved(good, path)
    monkeypatch.setattr(checkpoint, "MAX_TOKENIZER", 1000)
    assert "not a SentencePiece model of up to 1,000 bytes" in refusal(path)


def test_damaged_sentencepiece_bytes_never_crash(good, path):
    model = good.meta["tokenizer"]["src_model"]
    rng = random.Random(random.randrange(10**9))
    for _ in range(20):
        damaged = bytearray(model[: rng.randrange(len(model))]) if rng.random() < 0.5 else bytearray(model)
        start = rng.randrange(max(1, len(damaged) - 16))
        damaged[start : start + 16] = rng.randbytes(16)
        write(path, changed(good, tokenizer=good.meta["tokenizer"] | {"src_model": bytes(damaged)}))
        with contextlib.suppress(CheckpointError):
            checkpoint.load(path)


@pytest.mark.parametrize("change", [{"model": {"dim": "wide"}}, {"mixer": 7}], ids=str)
def test_impossible_settings(good, path, change):
    write(path, changed(good, model={**good.meta["model"], **change}))
    assert "settings build no model" in refusal(path)


def test_settings_cannot_ask_for_memory_that_the_file_does_not_fill(good, path):
    """4 TB of parameters: found by their shape, not by running out of memory."""
    model = good.meta["model"]
    write(path, changed(good, model={**model, "model": {**model["model"], "dim": 1 << 20}}))
    assert "the model needs (300, 1048576)" in refusal(path)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_weights_that_are_not_finite_are_refused_by_every_reader(good, path, tmp_path, value, dtype):
    weights = {name: weight.to(dtype, copy=True) for name, weight in good.weights.items()}
    weights[WEIGHT][3, 4] = value
    write(path, good._replace(weights=weights))
    message = f"weight '{WEIGHT}' is not finite"
    assert message in refusal(path)
    fine = saved(good, tmp_path / "fine.safetensors")
    for read in (lambda: checkpoint.read(path), lambda: average([fine, path]), lambda: Translator.load(path)):
        with pytest.raises(CheckpointError, match="not finite"):
            read()
    with pytest.raises(checkpoint.NotFiniteWeightsError, match=message):
        checkpoint.save(tmp_path / "new.safetensors", good._replace(weights=weights))
    assert not (tmp_path / "new.safetensors").exists()


def test_finite_weights_whose_sum_is_not_are_accepted(good, path):
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
        largest = torch.full((32, 16), torch.finfo(dtype).max, dtype=dtype)
        write(path, good._replace(weights={**good.weights, WEIGHT: largest}))
        assert torch.equal(checkpoint.read(path).weights[WEIGHT], largest)


@pytest.mark.parametrize("change", [{"pad_id": True}, {"pad_id": 5}, {"joint": 1}, {"pad_id": [1]}])
def test_special_ids_of_model_and_tokenizer_agree(good, path, change):
    write(path, changed(good, model={**good.meta["model"], **change}))
    assert f"its tokenizer has {next(iter(change))}" in refusal(path)


@pytest.mark.parametrize("where", ["encoder_layers", "decoder_layers", "extra_encoder_layers"])
def test_too_many_layers_are_not_built(good, path, where, monkeypatch):
    model = good.meta["model"]
    section = "mixer" if where == "extra_encoder_layers" else "model"
    write(path, changed(good, model={**model, section: {**model[section], where: 10**8}}))
    monkeypatch.setattr("seq2seq.checkpoint.build_model", None)
    assert "more layers than it has weights" in refusal(path)


@pytest.mark.parametrize("change", [{"sampling_alpha": [1]}, {"joint": False}, {"joint": 0}, {"src_model": "text"}])
def test_a_tokenizer_of_other_types_is_refused(good, path, change):
    write(path, changed(good, tokenizer={**good.meta["tokenizer"], **change}))
    assert "is missing or of the wrong type" in refusal(path)


@pytest.mark.parametrize("name", ["identity", "nmt_nfkc"])
def test_the_normaliser_is_visible(name):
    t = tiny.tokenizer(normalizer=name)
    rest = {"src_lang": "de", "tgt_lang": "en", "tokenize": "13a", "data": "x"}
    assert metadata.describe(model_config=tiny.model_config(t), tokenizer=t, **rest)["normalizer"] == name


@pytest.mark.parametrize(
    "target",
    [
        "os.mkdir",
        "os.system",
        "builtins.exec",
        "subprocess.Popen",
        "seq2seq.system.files.os.mkdir",
        "seq2seq.checkpoint.os.mkdir",
        "seq2seq.checkpoint.Path",
        "seq2seq.checkpoint.save",
        "seq2seq.mixers.attention.nn.Linear",
        "seq2seq.network.model.Seq2Seq",
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
    model = good.meta["model"]
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
    model = good.meta["model"]
    mixer = {**model["mixer"], "encoder": {"_target_": "my_mixers.Mine", "num_heads": 2}}
    checkpoint.save(path, changed(good, model={**model, "mixer": mixer}))
    assert "refused" in refusal(path)
    assert type(checkpoint.load(path, trust=["my_mixers"]).model.encoder.layers[0].self_mixer).__name__ == "Mine"


def test_failed_write_leaves_the_old_file_and_no_other(good, path, monkeypatch):
    before = saved(good, path).read_bytes()

    def full(number: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        checkpoint.save(path, good)
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == ["a.safetensors"]


def test_content_that_read_would_refuse_is_not_written(good, path):
    with pytest.raises(TypeError, match="PosixPath is not JSON"):
        checkpoint.save(path, changed(good, folder=Path("x")))
    with pytest.raises(ValueError, match=r"'seq2seq\.model' is missing"):
        checkpoint.save(path, changed(good, model=None))
    assert list(path.parent.iterdir()) == []


def test_describe_wants_plain_types(good):
    from omegaconf import OmegaConf

    t = tiny.tokenizer()
    config = tiny.model_config(t)
    given = {"tokenizer": t, "src_lang": "de", "tgt_lang": "en", "tokenize": "13a", "data": "x"}
    config["mixer"]["encoder"]["sizes"] = OmegaConf.create([3, 7])
    with pytest.raises(TypeError, match="ListConfig is not JSON"):
        metadata.describe(model_config=config, **given)
    config["mixer"]["encoder"]["sizes"] = (3, 7)
    assert metadata.describe(model_config=config, **given)["model"]["mixer"]["encoder"]["sizes"] == [3, 7]


def test_describe_refuses_what_no_checkpoint_may_hold():
    t = tiny.tokenizer()
    t.factors = {"lemma": {f"word{i}": i for i in range(100_000)}}
    with pytest.raises(ValueError, match=r"more than 1,048,576 bytes: shorten tokenizer\.factors"):
        metadata.describe(
            model_config=tiny.model_config(t), tokenizer=t, src_lang="de", tgt_lang="en", tokenize="13a", data="x"
        )


class Payload:
    """Object that makes a folder when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.marker),))


def test_the_state_of_a_training_is_read_without_running_it(tmp_path):
    """The state of a run is a pickle, and only plain values and tensors are read from it."""
    path, marker = tmp_path / "last.ckpt", tmp_path / "ran"
    torch.save({"seq2seq": {}, "callbacks": Payload(marker)}, path)
    with pytest.raises(ValueError, match=r"last\.ckpt: is damaged, or not the state of a run"):
        read_state(path)
    with pytest.raises(ValueError, match=r"was not written: a callback keeps more than plain values"):
        save_state(tmp_path / "new.ckpt", {"state_dict": {}, "callbacks": Payload(marker)})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["last.ckpt"]
    torch.save({"state_dict": {}}, path)
    with pytest.raises(ValueError, match="is not the state of a run: it has no 'seq2seq'"):
        read_state(path)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ValueError, match="is damaged"):
        read_state(path)


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
    # A name that is long in bytes
    with files.atomic_file(tmp_path / f"{'名' * 80}.txt") as file:
        file.write(b"x")
    with files.atomic_file("/dev/null") as file:
        file.write(b"x")
    assert not Path("/dev/null").is_file()
    with pytest.raises(IsADirectoryError), files.atomic_file(tmp_path):
        pass
