"""Test mixing matrices against hand computations, and the inspect command: its pages, files and refusals."""

from __future__ import annotations

import base64
import dataclasses
import json
import math
import random
import re
import warnings
from pathlib import Path

import pytest
import tiny
import torch
from composed import tiny as composed_tiny
from torch import Tensor

from seq2seq import inspect
from seq2seq.analysis import mixing_matrix, plots
from seq2seq.analysis.mixing_matrix import View
from seq2seq.mixers.attention import Attention
from seq2seq.search import NotFiniteScoresError
from seq2seq.system import canvas


def pair(src: int = 7, tgt: int = 5) -> tuple[Tensor, Tensor]:
    return torch.randint(4, 23, (1, src)), torch.randint(4, 23, (1, tgt))


def view(found: list[View], part: str, layer: int) -> View:
    return next(v for v in found if (v.part, v.layer) == (part, layer))


def rows_sum_to_one(matrix: Tensor) -> None:
    torch.testing.assert_close(matrix.sum(-1), torch.ones(matrix.shape[:-1]).to(matrix))


def shares_of_relu(scores: Tensor) -> Tensor:
    weights = scores.relu()
    return weights / weights.sum(-1, keepdim=True).clamp_min(1e-300)


@pytest.mark.parametrize(
    ("mixer", "normalize"), [("transformer", lambda scores: scores.softmax(-1)), ("relu_attention", shares_of_relu)]
)
def test_heads_of_attention_are_its_weights(mixer, normalize):
    """Heads equal the scaled products, written out: causal, cross, and before a norm that mixes heads."""
    model = composed_tiny(f"mixer={mixer}", "model.dim=24", "model.num_heads=3").double()
    given: dict[str, Tensor] = {}
    layer = model.decoder.layers[1]
    layer.self_mixer.register_forward_pre_hook(lambda _, args: given.update(x=args[0]))
    layer.cross_mixer.register_forward_pre_hook(lambda _, args: given.update(y=args[0]))
    src, tgt = pair()
    found = mixing_matrix.views(model, src, tgt)
    # Weights of the scaled products of the recorded input, causal
    q, k, _ = (part.unflatten(-1, (3, 8)).transpose(1, 2) for part in layer.self_mixer.qkv(given["x"]).chunk(3, -1))
    future = torch.ones(5, 5).triu(1).bool()
    weights = normalize((q @ k.mT / 8**0.5).masked_fill(future, -torch.inf))[0]
    torch.testing.assert_close(view(found, "decoder", 2).heads, weights.detach())
    # The cross form: keys of the memory, queries of the recorded input
    memory, _ = model.encoder(src, torch.ones_like(src).bool())
    k = layer.cross_mixer.key_value(memory).chunk(2, -1)[0].unflatten(-1, (3, 8)).transpose(1, 2)
    q = layer.cross_mixer.query(given["y"]).unflatten(-1, (3, 8)).transpose(1, 2)
    torch.testing.assert_close(view(found, "cross", 2).heads, normalize(q @ k.mT / 8**0.5)[0].detach())


def test_total_is_the_norm_of_blocks():
    """d y_i / d x_j = sum_h w_ij W_v W_o of constant weights, written out; rows sum to 1; nothing from the future."""
    model = composed_tiny("mixer=transformer").double()
    found = mixing_matrix.views(model, *pair())
    mixer, own = model.decoder.layers[0].self_mixer, view(found, "decoder", 1)
    assert isinstance(mixer, Attention)
    values = mixer.qkv.weight[32:].unflatten(0, (2, 8))  # (H, D / H, D)
    out = mixer.out.weight.unflatten(1, (2, 8))  # (D, H, D / H)
    blocks = torch.einsum("hij,ohc,hcd->iojd", own.heads, out, values)
    torch.testing.assert_close(own.total, mixing_matrix.shares(blocks).detach())
    assert not own.total.triu(1).any()
    for each in found:
        rows_sum_to_one(each.total)


@pytest.mark.parametrize("mixer", ["lightconv", "dynamicconv"])
def test_kernels_of_the_convolutions(mixer):
    """Kernels are normalized over taps; without a gate their band is the head's matrix."""
    overrides = (f"mixer={mixer}", "mixer.encoder.glu=false", "mixer.decoder.glu=false", "mixer.extra_encoder_layers=0")
    model = composed_tiny(*overrides).double()
    found = mixing_matrix.views(model, *pair(9, 9))
    for part, left in (("encoder", 1), ("decoder", 2)):
        own = view(found, part, 1)
        (kernels,) = own.details.values()  # (H, 3) or (1, T, H, 3)
        rows_sum_to_one(kernels)
        if kernels.dim() == 2:
            kernels = kernels[None, None].expand(1, 9, -1, -1)
        for i in range(9):
            # Taps beyond the sentence's ends read nothing, so rows near them are normalized again
            taps = [(i + k - left, k) for k in range(3) if 0 <= i + k - left < 9]
            expected = torch.zeros(2, 9).double()
            for j, k in taps:
                expected[:, j] = kernels[0, i, :, k]
            torch.testing.assert_close(own.heads[:, i], expected / expected.sum(-1, keepdim=True))


def test_weights_of_bahdanau_are_those_of_each_step():
    model = composed_tiny("mixer=bahdanau")
    src, tgt = pair()
    own = view(mixing_matrix.views(model, src, tgt), "cross", 1)
    weights = own.details["weights"]
    assert weights.shape == (1, 1, 5, 7)
    rows_sum_to_one(weights)
    layer, given = model.decoder.layers[0].cross_mixer, []
    layer.attend.register_forward_hook(lambda _, __, y: given.append(y))
    with torch.no_grad():
        model(src, torch.ones_like(src).bool(), tgt)
    torch.testing.assert_close(weights[0, 0], torch.cat(given, 1)[0])


def test_distances_by_hand():
    total = torch.tensor([[1.0, 0.0, 0.0], [0.25, 0.5, 0.25], [0.5, 0.0, 0.5]])
    torch.testing.assert_close(mixing_matrix.distance_profile(total), torch.tensor([2.0, 0.5, 0.5]) / 3)
    assert mixing_matrix.mean_distance(total) == pytest.approx((0.5 + 2 * 0.5) / 3)
    # In a row of three and a row of one, the fourth is one away from the first and the second, two from the third
    wide = torch.tensor([[0.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, 1.0], [0.5, 0.0, 0.0, 0.5], [0.0, 0.0, 0.0, 1.0]])
    torch.testing.assert_close(mixing_matrix.distance_profile(wide, 3), torch.tensor([1.0, 2.0, 1.0]) / 4)
    # All alike: (1 + 2) / 3 away at the ends of three, 2 / 3 in the middle; of the past 0, 1 / 2, (1 + 2) / 3
    assert mixing_matrix.mean_distance(mixing_matrix.uniform_weights(3, causal=False)) == pytest.approx(
        (1 + 2 / 3 + 1) / 3
    )
    assert mixing_matrix.mean_distance(mixing_matrix.uniform_weights(3, causal=True)) == pytest.approx(
        (0 + 1 / 2 + 1) / 3
    )
    own = View("decoder", 1, "Some", mixing_matrix.uniform_weights(5, causal=True), None, {})
    assert mixing_matrix.locality(own) == pytest.approx(1)
    assert mixing_matrix.locality(dataclasses.replace(own, total=torch.eye(5))) == 0


@pytest.mark.parametrize(
    "words",
    [
        ("mixer=pyramid", "mixer.encoder.learned=true", "mixer.decoder.learned=true"),
        (
            "mixer=transformer",
            "mixer/self@mixer.encoder=preconv_attention",
            "mixer.encoder.before=depthwise",
            "mixer.encoder.batch_norm=true",
        ),
        ("mixer=relu_attention",),
    ],
)
def test_heads_are_read_after_attention(words):
    """A norm may stand before attention as well as after it."""
    model = composed_tiny(*words).eval()
    src, tgt = torch.randint(4, 20, (1, 6)), torch.randint(4, 20, (1, 4))
    found = [view for view in mixing_matrix.views(model, src, tgt) if view.heads is not None]
    assert found
    for view in found:
        assert view.heads.shape[1:] == view.total.shape


def test_centers_are_drawn(tmp_path):
    """Centers have a bar on a line, or a circle on a grid, of one standard deviation; nine heads look different."""
    sharpness = torch.rand(9) + 0.1
    line, grid = torch.randn(9), torch.randn(9, 2)
    views = [
        View("encoder", 1, "Some", torch.eye(3), None, {"centers": c, "sharpness": sharpness}) for c in (line, grid)
    ]
    (axes,) = plots.centers([views[0]]).axes
    found = [container.lines[0] for container in axes.containers]
    assert [float(dot.get_xdata()[0]) for dot in found] == pytest.approx(line.tolist())
    bars = [container.lines[2][0].get_segments()[0][:, 0] for container in axes.containers]
    assert [float(right - left) for left, right in bars] == pytest.approx((2 * (2 * sharpness) ** -0.5).tolist())
    assert len({(dot.get_color(), dot.get_marker()) for dot in found}) == 9
    (axes,) = plots.centers([views[1]]).axes
    assert [(float(dot.get_ydata()[0]), float(dot.get_xdata()[0])) for dot in axes.lines] == [
        *map(tuple, grid.tolist())
    ]
    torch.testing.assert_close(torch.tensor([circle.radius for circle in axes.patches]), (2 * sharpness) ** -0.5)
    assert axes.yaxis_inverted()


def test_pieces_are_drawn_as_they_are(tmp_path):
    """Dollar signs do not start formulas, and a script without a font causes no warning."""
    figure = plots.matrices([("layer", [("all", torch.rand(3, 3))])], ["$$", "a_{", "你"], ["$x_{$", "b", "c"])
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Glyph")
        canvas.save(figure, tmp_path / "m")
    (axes, _) = figure.axes  # the second is the color scale
    assert [label.get_text() for label in axes.get_yticklabels()] == ["$$", "a_{", "你"]
    assert not any(label.get_parse_math() for label in [*axes.get_xticklabels(), *axes.get_yticklabels()])


def images(page: Path) -> list[bytes]:
    return [base64.b64decode(found) for found in re.findall(r'src="data:image/png;base64,([^"]+)"', page.read_text())]


@pytest.mark.slow
def test_random_weights(tmp_path, capsys):
    """The report of a preset and overrides needs no other file; figures are files, too; a second report is the same."""
    out = tmp_path / "new" / "folder"
    settings = ["mixer=dynamicconv", "mixer/self@mixer.decoder=lightconv", "model.dim=16", "model.num_heads=2",
                "mixer.extra_encoder_layers=0", "model.encoder_layers=1", "model.decoder_layers=1",
                "mixer.encoder.per_layer.kernel_size=[3]", "mixer.decoder.per_layer.kernel_size=[3]"]  # fmt: skip
    assert inspect.main([*settings, "--length", "6", "--out", str(out)]) == 0
    assert "report.html and 6 figures" in capsys.readouterr().out
    page = (out / "report.html").read_text("utf-8")
    found = images(out / "report.html")
    files = sorted(out.glob("*.png"))
    assert sorted(found) == sorted(path.read_bytes() for path in files)
    assert [path.stem for path in files] == sorted(path.stem for path in out.glob("*.svg"))
    assert {"alignments", "encoder-predicted-kernels", "decoder-kernels", "distance"} <= {path.stem for path in files}
    # No link but to data inside and to anchors
    assert not re.search(r'(src|href)="(?!data:|#)', page)
    assert "mixer/self@mixer.decoder=lightconv" in page
    # Byte for byte: weights by the seed, figures without dates
    again = tmp_path / "again"
    assert inspect.main([*settings, "--length", "6", "--out", str(again)]) == 0
    for path in out.iterdir():
        assert path.read_bytes() == (again / path.name).read_bytes()


@pytest.mark.slow
def test_checkpoint(tmp_path, capsys):
    """A sentence and the model's translation, or another one; text is escaped."""
    path = tiny.save(tmp_path)
    out = tmp_path / "out"
    command = ["--ckpt", str(path), "--text", "der Hund geht & <b>", "--out", str(out)]
    assert inspect.main(command) == 0
    assert "der Hund geht &amp; &lt;b&gt;" in (out / "report.html").read_text("utf-8")
    first = (out / "alignments.png").read_bytes()
    assert inspect.main([*command, "--target", "the dog walks today and comes"]) == 0
    assert (out / "alignments.png").read_bytes() != first
    assert "the dog walks today" in (out / "report.html").read_text("utf-8")
    capsys.readouterr()


@pytest.mark.slow
def test_image_model_and_removal_of_earlier_figures(tmp_path, capsys):
    """The recipe of docs/images.md with random weights; figures that the next report lacks are removed."""
    out, small = tmp_path / "out", ["model.dim=16", "model.ffn_dim=16", "model.num_heads=2", "model.encoder_layers=1"]
    images = ["experiment=drawn_words", "tokenizer.patches.height=4", "tokenizer.patches.width=6"]
    assert inspect.main(["mixer=quadratic", *images, *small, "--length", "3", "--out", str(out)]) == 0
    assert "encoder layer 1 of 1" in capsys.readouterr().err
    assert "distances in rows and columns" in (out / "report.html").read_text("utf-8")
    assert (out / "encoder-centers.svg").is_file()
    # A file that is not from a report stays
    (out / "mine.png").touch()
    assert (
        inspect.main(["mixer=transformer", *small, "model.decoder_layers=1", "--length", "3", "--out", str(out)]) == 0
    )
    assert not [*out.glob("encoder-centers.*")]
    assert (out / "mine.png").is_file()


def test_atlas(tmp_path, capsys):
    """The page is printed, and written with the data and the map."""
    out = tmp_path / "atlas"
    command = ["--atlas", "--mixers", "attention,dynamicconv", "--seconds", "0", "--figure", "--out", str(out)]
    assert inspect.main(command) == 0
    assert capsys.readouterr().out == (out / "atlas.md").read_text("utf-8")
    assert [row["name"] for row in json.loads((out / "atlas.json").read_text())] == ["attention", "dynamicconv"]
    assert (out / "map.png").is_file()


def test_atlas_reports_wrong_declarations(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(Attention, "properties", None)
    assert inspect.main(["--atlas", "--mixers", "attention", "--seconds", "0", "--out", str(tmp_path)]) == 1
    assert "attention declares no `properties`" in capsys.readouterr().err


def test_wrong_options_and_files_are_one_line(tmp_path, capsys, monkeypatch):
    """The line names the mistake, and the exit status is 2."""
    (tmp_path / "file").touch()
    ckpt = str(tiny.save(tmp_path))
    long = " ".join(random.choices(tiny.GERMAN, k=3000))
    (tmp_path / "others").mkdir()
    for name in ("atlas.md", "report.html"):
        (tmp_path / "others" / name).write_text('<h2 id="notes">of somebody else</h2>')
    cases = [
        ([], "name one thing to inspect"),
        (["--atlas", "--ckpt", ckpt], "name one thing"),
        (["--ckpt", ckpt], "--text TEXT"),
        (["--ckpt", ckpt, "--text", "  "], "empty"),
        (["--ckpt", ckpt, "--text", "Hund", "--target", ""], "--target is empty"),
        (["--atlas", "--text", "Hund"], "--text needs --ckpt"),
        (["mixer=lightconv", "--figure"], "--figure needs --atlas"),
        (["mixer=lightconv", "--trust", "mine"], "--trust needs --ckpt"),
        (["mixer=lightconv", "--seconds", "0"], "--seconds needs --atlas"),
        (["--ckpt", "nowhere.safetensors", "--text", "Hund"], "nowhere.safetensors: no such file"),
        (["--ckpt", str(tmp_path), "--text", "Hund"], "is a folder without checkpoints/best.safetensors"),
        (["--ckpt", ckpt, "--text", long, "--out", str(tmp_path / "o")], "pieces, the most are"),
        (["mixer=lihgtconv"], "mixer=lihgtconv is not a choice; did you mean lightconv"),
        (["model=tiny"], "mixer=<name>"),
        (["mixer=lightconv", "seed=3"], "give --seed 3 here"),
        (["mixer=lightconv", "model.dim=10", "--out", str(tmp_path / "o")], "num_heads"),
        (["--ckpt", ckpt, "--text", "Hund", "--tgt-lang", "fr"], "'fr'; it translates to"),
        (["--atlas", "--mixers", "atention", "--out", str(tmp_path)], "did you mean attention"),
        (["--atlas", "--out", "/proc/x"], "/proc/x cannot be written"),
        (["--atlas", "--out", str(tmp_path / "others")], "has a file atlas.md that is not an output of this command"),
        (["mixer=lightconv", "--out", str(tmp_path / "others")], "has a report.html"),
        (["mixer=lightconv", "--length", "1000000000"], "is not a whole number from 1 to 1,024"),
        (["--ckpt", ckpt, "--text", "Hund", "--target", "\udcff"], "--target: the text is not valid UTF-8"),
    ]
    for arguments, expected in cases:
        try:
            status = inspect.main(arguments)
        except SystemExit as stop:
            status = stop.code
        error = capsys.readouterr().err
        assert status == 2, arguments
        assert expected in error, error
        assert error.count("\n") == 1, error
    assert not (tmp_path / "o").exists()  # a failed command leaves nothing
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert inspect.main(["mixer=lightconv"]) == 2
    assert "a report needs the package matplotlib: pip install 'seq2seq-mixers[figure]'" in capsys.readouterr().err


def test_a_model_that_is_not_finite_is_not_drawn():
    """NaN would be drawn as if a position read nothing."""
    model = composed_tiny("mixer=lightconv")
    with torch.no_grad():
        next(model.encoder.layers.parameters()).fill_(math.nan)
    with pytest.raises(NotFiniteScoresError):
        mixing_matrix.views(model, *pair())


def test_quadratic_reports_its_centers(tmp_path):
    model = composed_tiny("mixer=quadratic")
    own = view(mixing_matrix.views(model, *pair()), "encoder", 1)
    mixer = model.encoder.layers[0].self_mixer
    assert torch.equal(own.details["centers"], mixer.centers[:, 0])
    places, widths = plots._widths(own)
    assert places.shape == (2,)
    # One standard deviation from the center a weight has fallen to exp(-1/2) of the largest
    torch.testing.assert_close(torch.tensor(widths).square() * mixer.sharpness, torch.full((2,), 0.5))
