"""Test averaging of checkpoints: against a hand computation, its refusals, and translation with the result."""

from __future__ import annotations

import copy
import sys

import pytest
import tiny
import torch

from seq2seq import average, checkpoint, metadata
from seq2seq.inference.export.card import Origin
from seq2seq.inference.export.formats import write_safetensors
from seq2seq.inference.translator import Translator
from seq2seq.runs import averaging
from seq2seq.settings.search import SearchSettings


@pytest.fixture(scope="module")
def base() -> checkpoint.Stored:
    """Make one payload for all tests, since training a tokenizer takes time."""
    return tiny.payload(search=SearchSettings(beam_size=3, length_penalty=0.6))


def perturbed(base: checkpoint.Stored, generator_seed: int) -> checkpoint.Stored:
    """Copy a checkpoint with other weights."""
    generator = torch.Generator().manual_seed(generator_seed)
    noise = {name: torch.randn(weight.shape, generator=generator) for name, weight in base.weights.items()}
    return base._replace(weights={name: weight + noise[name] for name, weight in base.weights.items()})


@pytest.fixture
def paths(base, tmp_path, seed):
    found = [tmp_path / f"{name}.safetensors" for name in "abc"]
    for number, path in enumerate(found):
        checkpoint.save(path, perturbed(base, seed + number))
    return found


def test_the_mean_is_that_of_a_hand_computation(paths, tmp_path, capsys):
    out = tmp_path / "mean.safetensors"
    assert average.main(["--out", str(out), *map(str, paths)]) == 0
    assert f"--ckpt {out}" in capsys.readouterr().out
    parts, mean = [checkpoint.read(path).weights for path in paths], checkpoint.read(out)
    assert mean.weights.keys() == parts[0].keys()
    for name, weight in mean.weights.items():
        exact = (parts[0][name].double() + parts[1][name].double() + parts[2][name].double()) / 3
        assert weight.dtype == parts[0][name].dtype
        assert weight.equal(exact.float())
        assert not weight.equal(parts[0][name])
    assert mean.meta == checkpoint.read(paths[0]).meta


def test_sums_are_taken_in_float64(base, tmp_path):
    """1 is lost in 2**24 + 1 in float32, and a part of every mean in half precision."""
    paths = []
    for number, value in enumerate((2.0**24, 1.0, 1.0, 2.0**24)):
        payload = copy.deepcopy(base)
        payload = payload._replace(weights={k: torch.full_like(v, value) for k, v in payload.weights.items()})
        paths.append(tmp_path / f"{number}.safetensors")
        checkpoint.save(paths[-1], payload)
    for weight in averaging.average(paths).weights.values():
        assert (weight == (2.0**25 + 2) / 4).all()
    for path, value in zip(paths[:2], (2048.0, 2050.0), strict=True):
        payload = checkpoint.read(path)
        halves = {k: v.new_full(v.shape, value).half() for k, v in payload.weights.items()}
        checkpoint.save(path, payload._replace(weights=halves))
    assert all((weight == 2049).all() for weight in averaging.average(paths[:2]).weights.values())


def test_the_mean_of_the_same_weights_translates_alike(base, tmp_path):
    one, out = tmp_path / "one.safetensors", tmp_path / "mean.safetensors"
    checkpoint.save(one, base)
    checkpoint.save(out, averaging.average([one, one, one]))
    lines = tiny.sentences(tiny.GERMAN, 5)
    mean = Translator.load(out)
    assert mean.texts(lines) == Translator.load(one).texts(lines)
    assert (mean.settings.beam_size, mean.settings.length_penalty) == (3, 0.6)


def test_checkpoints_trained_with_other_sampling_of_the_same_pieces_are_averaged(base, tmp_path):
    paths = [tmp_path / "a.safetensors", tmp_path / "b.safetensors"]
    other = copy.deepcopy(base)
    other.meta["tokenizer"]["sampling_alpha"] = 0.3
    for path, payload in zip(paths, (base, other), strict=True):
        checkpoint.save(path, payload)
    mean = averaging.average(paths)
    assert mean.meta == base.meta
    for name, weight in base.weights.items():
        torch.testing.assert_close(mean.weights[name], weight)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: p.meta["model"]["model"].update(activation="gelu"), r"model\.activation is gelu there"),
        (lambda p: p.meta.update(tgt_lang="fr"), "tgt_lang is fr there and en here"),
        (lambda p: p.meta.update(context=2), "context is 2 there and 0 here"),
        (lambda p: p.meta["tokenizer"].update(src_model=b"other"), "another tokenizer"),
        (lambda p: p.weights.popitem(), "different weights"),
        (lambda p: p.weights.update({next(iter(p.weights)): torch.zeros(2)}), "different weights"),
    ],
)
def test_what_does_not_belong_together_is_refused(base, tmp_path, capsys, change, message):
    other, out = copy.deepcopy(base), tmp_path / "mean.safetensors"
    change(other)
    for name, payload in (("a", base), ("b", other)):
        checkpoint.save(tmp_path / f"{name}.safetensors", payload)
    assert average.main(["--out", str(out), str(tmp_path / "a.safetensors"), str(tmp_path / "b.safetensors")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert str(tmp_path / "b.safetensors") in error
    with pytest.raises(ValueError, match=message):
        averaging.average([tmp_path / "a.safetensors", tmp_path / "b.safetensors"])
    assert not out.exists()


def test_the_last_of_a_run(paths, tmp_path, capsys):
    folder = tmp_path / "run" / "checkpoints"
    folder.mkdir(parents=True)
    for step, path in zip((900, 1000, 1100), paths, strict=True):
        path.rename(folder / f"step-{step}.safetensors")
    # The name has no number, so the file is left alone
    (folder / "step-best.safetensors").write_bytes(b"")
    assert average.main(["--last", "2", str(tmp_path / "run")]) == 0
    parts = [checkpoint.read(folder / f"step-{step}.safetensors").weights for step in (1000, 1100)]
    mean = checkpoint.read(folder / "average.safetensors").weights
    for name in mean:
        assert mean[name].equal(((parts[0][name].double() + parts[1][name].double()) / 2).float())
    assert average.main(["--last", "4", str(tmp_path / "run")]) == 2
    assert "kept 3 step checkpoints, not 4; train with trainer.keep_last=4" in capsys.readouterr().err


def test_nothing_that_is_needed_is_overwritten(paths, tmp_path, capsys):
    """An input, under any name, and a file of training are not replaced; an earlier average is replaced."""
    folder = tmp_path / "run" / "checkpoints"
    folder.mkdir(parents=True)
    names = ("last.ckpt", "best.safetensors", "step-7.safetensors", "top-7.safetensors")
    for path in [*(folder / name for name in names), folder / "step-8.safetensors", folder / "step-9.safetensors"]:
        path.write_bytes(paths[len(path.stem) % 3].read_bytes())
    (tmp_path / "link.safetensors").symlink_to(folder / "last.ckpt")
    (tmp_path / "input.safetensors").symlink_to(paths[1])
    before = {path: path.read_bytes() for path in [*paths, *folder.iterdir()]}
    outs = [*(folder / name for name in names), tmp_path / "link.safetensors"]
    for out in outs:
        assert average.main(["--last", "2", str(tmp_path / "run"), "--out", str(out)]) == 2
        assert f"--out {out} is a checkpoint of a run; choose another file" in capsys.readouterr().err
    for out in (paths[0], tmp_path / "input.safetensors"):
        assert average.main(["--out", str(out), *map(str, paths)]) == 2
        assert f"--out {out} is the input; choose another file" in capsys.readouterr().err
    assert before == {path: path.read_bytes() for path in [*paths, *folder.iterdir()]}
    for out in (folder / "average.safetensors", tmp_path / "best.safetensors"):
        for _ in range(2):
            assert average.main(["--out", str(out), *map(str, paths)]) == 0


def test_inputs_that_make_no_average_are_refused(paths, tmp_path, capsys):
    again = paths[0].parent / "." / ".." / paths[0].parent.name / paths[0].name
    last = tmp_path / "run" / "checkpoints" / "last.ckpt"
    last.parent.mkdir(parents=True)
    last.write_bytes(b"PK")
    for inputs, message in (
        ([paths[0]], "needs two"),
        ([paths[0], paths[1], again], f"{again} is named twice"),
        ([paths[0], last], "last.ckpt: holds a training state"),
    ):
        assert average.main(["--out", str(tmp_path / "x.safetensors"), *map(str, inputs)]) == 2
        assert message in capsys.readouterr().err
        assert not (tmp_path / "x.safetensors").exists()


def test_a_setting_that_is_newer_than_one_checkpoint_counts_as_its_default(base, paths):
    older = checkpoint.read(paths[1])
    for key in ("encoder_stages", "attention_dropout"):
        older.meta["model"]["model"].pop(key, None)
    younger = checkpoint.read(paths[0])
    younger.meta["model"]["model"]["encoder_stages"] = 1
    checkpoint.save(paths[0], younger)
    checkpoint.save(paths[1], older)
    for pair in (paths[:2], paths[1::-1]):
        averaging.average(pair)
    younger.meta["model"]["model"]["encoder_stages"] = 2
    checkpoint.save(paths[0], younger)
    with pytest.raises(ValueError, match=r"encoder_stages is 1 there and 2 here"):
        averaging.average(paths[:2])


def test_checkpoints_of_other_versions_are_averaged(base, paths, monkeypatch):
    """Versions, formats and arguments that a later version writes out at their defaults do not differ by value."""
    monkeypatch.setattr(metadata, "FORMAT", 2)
    younger = checkpoint.read(paths[0])
    younger.meta.update(format=2, versions={"seq2seq": "0.9.0"}, tokenize="char", news=1)
    younger.meta["model"]["mixer"]["encoder"].update(num_kv_heads=None, backend="auto", dropout=0.2)
    younger.meta["model"]["mixer"]["extra_encoder_layers"] = 0
    checkpoint.save(paths[0], younger)
    for pair in (paths[:2], paths[1::-1]):
        averaging.average(pair)
    younger.meta["model"]["mixer"]["encoder"]["num_kv_heads"] = 1
    checkpoint.save(paths[0], younger)
    with pytest.raises(ValueError, match=r"encoder\.num_kv_heads is null there and 1 here"):
        averaging.average(paths[:2])


def test_a_strangers_mixer_is_compared_without_an_import(base, paths):
    for path in paths[:2]:
        payload = checkpoint.read(path)
        payload.meta["model"]["mixer"]["cross"]["_target_"] = "antigravity.Cross"
        checkpoint.save(path, payload)
    averaging.average(paths[:2])
    assert "antigravity" not in sys.modules
    with pytest.raises(ValueError, match=r"mixer\.cross\._target_ is "):
        averaging.average(paths[1:])


def test_exported_folders_are_averaged_with_runs(base, paths, tmp_path, capsys):
    (tmp_path / "folder").mkdir()
    write_safetensors(tmp_path / "folder", checkpoint.load(paths[0]), Origin({}, {}), marian=False)
    outs = [tmp_path / "one.safetensors", tmp_path / "two.safetensors"]
    assert average.main(["--out", str(outs[0]), str(tmp_path / "folder"), str(paths[1])]) == 0
    assert average.main(["--out", str(outs[1]), *map(str, paths[:2])]) == 0
    assert outs[0].read_bytes() == outs[1].read_bytes()
    capsys.readouterr()
    (tmp_path / "folder" / "model.safetensors").unlink()
    assert average.main(["--out", str(outs[0]), str(tmp_path / "folder"), str(paths[1])]) == 2
    assert "folder: is a folder without" in capsys.readouterr().err


def test_models_of_other_target_languages_are_not_averaged(base, paths):
    for path, languages in zip(paths, (["en", "fr"], ["fr", "en"], None), strict=True):
        payload = checkpoint.read(path)
        payload.meta.update({"tgt_langs": languages} if languages else {})
        checkpoint.save(path, payload)
    averaging.average(paths[:2])
    with pytest.raises(ValueError, match="tgt_langs is "):
        averaging.average(paths)


def test_folders_of_runs_stand_for_their_best(paths, tmp_path):
    for path in paths[:2]:
        best = tmp_path / path.stem / "checkpoints" / "best.safetensors"
        best.parent.mkdir(parents=True)
        best.write_bytes(path.read_bytes())
    outs = [tmp_path / "one.safetensors", tmp_path / "two.safetensors"]
    assert average.main(["--out", str(outs[0]), *map(str, paths[:2])]) == 0
    assert average.main(["--out", str(outs[1]), str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    assert outs[0].read_bytes() == outs[1].read_bytes()
