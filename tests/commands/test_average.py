"""Test averaging of checkpoints: against a hand computation, its refusals, and translation with the result."""

from __future__ import annotations

import copy
import subprocess
import sys

import numpy as np
import pytest
import tiny
import torch

from seq2seq import average, checkpoint
from seq2seq.build import build_model
from seq2seq.experiments import averaging
from seq2seq.inference.translator import Translator
from seq2seq.settings.search import SearchSettings


@pytest.fixture(scope="module")
def base() -> dict:
    """Make one payload for all tests, since training a tokenizer takes time."""
    return tiny.payload(search=SearchSettings(beam_size=3, length_penalty=0.6))


def perturbed(base: dict, generator_seed: int) -> dict:
    """Copy a checkpoint with other weights; tied ones stay tied."""
    generator = torch.Generator().manual_seed(generator_seed)
    noise = {}
    payload = copy.deepcopy(base)
    for name, weight in base["state_dict"].items():
        # Tied weights have one shape and one sum, so they get the same noise
        key = (weight.shape, float(weight.double().sum()))
        noise.setdefault(key, torch.randn(weight.shape, generator=generator, dtype=torch.float64))
        payload["state_dict"][name] = weight + noise[key].to(weight.dtype)
    return payload


@pytest.fixture
def paths(base, tmp_path, seed):
    found = [tmp_path / f"{name}.ckpt" for name in "abc"]
    for number, path in enumerate(found):
        checkpoint.save(path, perturbed(base, seed + number))
    return found


def test_the_mean_is_that_of_a_hand_computation(paths, tmp_path, capsys):
    out = tmp_path / "mean.ckpt"
    assert average.main(["--out", str(out), *map(str, paths)]) == 0
    assert f"--ckpt {out}" in capsys.readouterr().out
    parts, mean = [torch.load(path, weights_only=True)["state_dict"] for path in paths], checkpoint.read(out)
    assert mean["state_dict"].keys() == parts[0].keys()
    for name, weight in mean["state_dict"].items():
        exact = (parts[0][name].double() + parts[1][name].double() + parts[2][name].double()) / 3
        assert weight.dtype == parts[0][name].dtype
        assert weight.equal(exact.float())
        assert not weight.equal(parts[0][name])
    assert mean[checkpoint.KEY] == checkpoint.read(paths[0])[checkpoint.KEY]


def test_sums_are_taken_in_float64(base, tmp_path):
    """1 is lost in 2**24 + 1 in float32; half precision weights stay half precision."""
    paths = []
    for number, value in enumerate((2.0**24, 1.0, 1.0, 2.0**24)):
        payload = copy.deepcopy(base)
        payload["state_dict"] = {k: torch.full_like(v, value) for k, v in payload["state_dict"].items()}
        paths.append(tmp_path / f"{number}.ckpt")
        checkpoint.save(paths[-1], payload)
    for weight in averaging.average(paths)["state_dict"].values():
        assert (weight == (2.0**25 + 2) / 4).all()
    # The mean of half precision weights is rounded back to it
    for path in paths[:2]:
        payload = checkpoint.read(path)
        payload["state_dict"] = {k: v.new_full(v.shape, 3.0).half() for k, v in payload["state_dict"].items()}
        checkpoint.save(path, payload)
    assert {w.dtype for w in averaging.average(paths[:2])["state_dict"].values()} == {torch.float16}


def test_the_mean_of_the_same_weights_translates_alike(base, tmp_path):
    one, out = tmp_path / "one.ckpt", tmp_path / "mean.ckpt"
    checkpoint.save(one, base)
    checkpoint.save(out, averaging.average([one, one, one]))
    lines = tiny.sentences(tiny.GERMAN, 5)
    mean = Translator.load(out)
    assert mean.texts(lines) == Translator.load(one).texts(lines)
    assert (mean.settings.beam_size, mean.settings.length_penalty) == (3, 0.6)


def test_checkpoints_trained_with_other_sampling_of_the_same_pieces_are_averaged(base, tmp_path):
    paths = [tmp_path / "a.ckpt", tmp_path / "b.ckpt"]
    other = copy.deepcopy(base)
    other["seq2seq"]["tokenizer"]["sampling_alpha"] = 0.3
    for path, payload in zip(paths, (base, other), strict=True):
        checkpoint.save(path, payload)
    mean = averaging.average(paths)
    assert mean["seq2seq"] == base["seq2seq"]
    for name, weight in base["state_dict"].items():
        torch.testing.assert_close(mean["state_dict"][name], weight)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: p["seq2seq"]["model"]["model"].update(activation="gelu"), r"model\.model\.activation is gelu there"),
        (lambda p: p["seq2seq"].update(tgt_lang="fr"), "tgt_lang is fr there and en here"),
        (lambda p: p["seq2seq"]["tokenizer"].update(src_model=b"other"), "another tokenizer"),
        (lambda p: p["state_dict"].popitem(), "different weights"),
        (lambda p: p["state_dict"].update({next(iter(p["state_dict"])): torch.zeros(2)}), "has shape"),
    ],
)
def test_what_does_not_belong_together_is_refused(base, tmp_path, capsys, change, message):
    other, out = copy.deepcopy(base), tmp_path / "mean.ckpt"
    change(other)
    for name, payload in (("a", base), ("b", other)):
        checkpoint.save(tmp_path / f"{name}.ckpt", payload)
    assert average.main(["--out", str(out), str(tmp_path / "a.ckpt"), str(tmp_path / "b.ckpt")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert str(tmp_path / "b.ckpt") in error
    with pytest.raises(ValueError, match=message):
        averaging.average([tmp_path / "a.ckpt", tmp_path / "b.ckpt"])
    assert not out.exists()


def test_the_last_of_a_run(paths, tmp_path, capsys):
    folder = tmp_path / "run" / "checkpoints"
    folder.mkdir(parents=True)
    for step, path in zip((900, 1000, 1100), paths, strict=True):
        path.rename(folder / f"step-{step}.ckpt")
    # Not a number: left alone
    (folder / "step-best.ckpt").write_bytes(b"")
    assert average.main(["--last", "2", str(tmp_path / "run")]) == 0
    parts = [checkpoint.read(folder / f"step-{step}.ckpt")["state_dict"] for step in (1000, 1100)]
    mean = checkpoint.read(folder / "average.ckpt")["state_dict"]
    for name in mean:
        assert mean[name].equal(((parts[0][name].double() + parts[1][name].double()) / 2).float())
    assert average.main(["--last", "4", str(tmp_path / "run")]) == 2
    assert "kept 3 step checkpoints, not 4; train with trainer.keep_last=4" in capsys.readouterr().err


def test_nothing_that_is_needed_is_overwritten(paths, tmp_path, capsys):
    """Neither an input, under whatever name, nor what training wrote; an earlier average is."""
    folder = tmp_path / "run" / "checkpoints"
    folder.mkdir(parents=True)
    names = ("last", "best", "step-7", "top-7")
    for path in [*(folder / f"{name}.ckpt" for name in names), folder / "step-8.ckpt", folder / "step-9.ckpt"]:
        path.write_bytes(paths[len(path.stem) % 3].read_bytes())
    (tmp_path / "link.ckpt").symlink_to(folder / "last.ckpt")
    (tmp_path / "input.ckpt").symlink_to(paths[1])
    before = {path: path.read_bytes() for path in [*paths, *folder.iterdir()]}
    outs = [*(folder / f"{name}.ckpt" for name in names), tmp_path / "link.ckpt"]
    for out in outs:
        assert average.main(["--last", "2", str(tmp_path / "run"), "--out", str(out)]) == 2
        assert f"--out {out} is a checkpoint of a run; choose another file" in capsys.readouterr().err
    for out in (paths[0], tmp_path / "input.ckpt"):
        assert average.main(["--out", str(out), *map(str, paths)]) == 2
        assert f"--out {out} is the input; choose another file" in capsys.readouterr().err
    # A zip file that torch has not written
    other = tmp_path / "shortlist.npz"
    np.savez(other, tokens=[1, 2])
    content = other.read_bytes()
    assert average.main(["--out", str(other), *map(str, paths)]) == 2
    assert f"--out {other} exists and is not a checkpoint" in capsys.readouterr().err
    assert other.read_bytes() == content
    assert before == {path: path.read_bytes() for path in [*paths, *folder.iterdir()]}
    for out in (folder / "average.ckpt", tmp_path / "best.ckpt"):
        for _ in range(2):
            assert average.main(["--out", str(out), *map(str, paths)]) == 0


def test_a_single_checkpoint_is_no_average(paths, tmp_path, capsys):
    assert average.main(["--out", str(tmp_path / "x.ckpt"), str(paths[0])]) == 2
    assert "needs two" in capsys.readouterr().err


def test_a_checkpoint_that_is_named_twice_is_refused(paths, tmp_path, capsys):
    again = paths[0].parent / "." / ".." / paths[0].parent.name / paths[0].name
    assert average.main(["--out", str(tmp_path / "x.ckpt"), str(paths[0]), str(paths[1]), str(again)]) == 2
    assert f"{again} is named twice" in capsys.readouterr().err
    assert not (tmp_path / "x.ckpt").exists()


def test_options_are_checked_before_torch_is_loaded():
    code = (
        "import sys; from seq2seq import average\n"
        "try: average.main(['a.ckpt'])\n"
        "except SystemExit as end: print(end.code, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["2", "False"]
    assert "--out" in done.stderr


def as_trained(payload: dict, generator_seed: int) -> dict:
    """Copy a checkpoint with other weights, of which those that are tied share their memory, as training writes it."""
    model = build_model(payload["seq2seq"]["model"])
    generator = torch.Generator().manual_seed(generator_seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator))
    return {**payload, "state_dict": {f"model.{name}": weight for name, weight in model.state_dict().items()}}


def tables(weights: dict) -> list[str]:
    """Return the names of the tied table."""
    names = [name for name, weight in weights.items() if weight.shape[:1] == (300,) and weight.dim() == 2]
    assert len(names) > 1
    return names


def test_a_tied_table_is_stored_once(base, paths, tmp_path, seed):
    for number, path in enumerate(paths):
        checkpoint.save(path, as_trained(base, seed + number))
    mean = averaging.average(paths)
    names = tables(mean["state_dict"])
    for weights in (checkpoint.read(paths[0])["state_dict"], mean["state_dict"]):
        assert len({weights[name].data_ptr() for name in names}) == 1
    checkpoint.save(tmp_path / "mean.ckpt", mean)
    assert (tmp_path / "mean.ckpt").stat().st_size < 1.05 * paths[0].stat().st_size
    checkpoint.load(tmp_path / "mean.ckpt")


def test_a_table_that_one_checkpoint_unties_stays_two(base, paths, seed):
    tied = as_trained(base, seed)
    checkpoint.save(paths[0], tied)
    first, second = tables(tied["state_dict"])[:2]
    before = tied["state_dict"][second]
    checkpoint.save(paths[1], {**tied, "state_dict": {**tied["state_dict"], second: before + 1}})
    mean = averaging.average(paths[:2])["state_dict"]
    assert mean[first].equal(before)
    torch.testing.assert_close(mean[second], before + 0.5)


def test_a_setting_that_is_younger_than_one_checkpoint_counts_as_its_default(base, paths):
    older = checkpoint.read(paths[1])
    for key in ("encoder_stages", "attention_dropout"):
        older["seq2seq"]["model"]["model"].pop(key, None)
    younger = checkpoint.read(paths[0])
    younger["seq2seq"]["model"]["model"]["encoder_stages"] = 1
    checkpoint.save(paths[0], younger)
    checkpoint.save(paths[1], older)
    for pair in (paths[:2], paths[1::-1]):
        averaging.average(pair)
    younger["seq2seq"]["model"]["model"]["encoder_stages"] = 2
    checkpoint.save(paths[0], younger)
    with pytest.raises(ValueError, match=r"encoder_stages is 1 there and 2 here"):
        averaging.average(paths[:2])


def test_models_of_other_target_languages_are_not_averaged(base, paths):
    for path, languages in zip(paths, (["en", "fr"], ["fr", "en"], None), strict=True):
        payload = checkpoint.read(path)
        payload["seq2seq"] |= {"tgt_langs": languages} if languages else {}
        checkpoint.save(path, payload)
    averaging.average(paths[:2])
    with pytest.raises(ValueError, match="tgt_langs is "):
        averaging.average(paths)


def test_an_exported_folder_has_no_checkpoint(paths, tmp_path, capsys):
    folder = tmp_path / "model"
    folder.mkdir()
    for named in ("a file, as ", "the checkpoint that it was exported from"):
        assert average.main(["--out", str(tmp_path / "m.ckpt"), str(paths[0]), str(folder)]) == 2
        assert f"is a directory; name {named}" in capsys.readouterr().err
        (folder / "config.json").write_text("{}")
