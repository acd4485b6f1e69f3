"""Images as lines of text: patches, their projection, bad images, drawing, and a whole run."""

from __future__ import annotations

import base64
import io
import json
import pickle
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import toycorpus
from composed import PAD, TINY, config
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from PIL import Image
from torch import nn

from benchmarks import images
from seq2seq import checkpoint, draw, inspect, translate
from seq2seq.analysis import image_maps, mixing_matrix, model_report
from seq2seq.data.multi_corpus import parts_of
from seq2seq.data.plan import DataPlan
from seq2seq.data.preparation import prepare_corpora
from seq2seq.data.token_cache import PairEncoder
from seq2seq.data.tokenizer import Tokenizer, load_tokenizer, train_tokenizer
from seq2seq.images.lines import encode_images, pack, read_image, unpack, write_image, write_splits
from seq2seq.images.words import WordImages, has_letter
from seq2seq.inference.encoding import source_pieces
from seq2seq.inference.translator import Translator
from seq2seq.mixers.quadratic import Quadratic
from seq2seq.network.build import build_model, max_positions
from seq2seq.network.embedding import GridPositions, PatchProjection, SinusoidalPositions
from seq2seq.settings.declare import read_section
from seq2seq.settings.tokenizer import PatchGrid, TokenizerSettings
from seq2seq.system.errors import LineError
from seq2seq.system.resources import conf_dir
from seq2seq.training.finetune import ready_models
from seq2seq.training.lightning_parts.datamodule import TranslationDataModule
from seq2seq.training.machine.flops import training_flops
from seq2seq.training.plan import make_plan
from seq2seq.training.run import train

EXHAUSTIVE = {"test_a_pyramid_takes_made_up_lengths_too", "test_the_table_of_finished_runs"}

GRID = PatchGrid(8, 24)
PATCHES = {"height": 8, "width": 24, "size": 2, "bits": 8, "channels": 1}
SIZES = {"joint": False, "src_vocab_size": GRID.vocab_size, "patches": PATCHES}
TEXTS = ["the cat", "a dog", "we go", "I see", "two", "red ox", "my hat", "it is"] * 30
SETTINGS = TokenizerSettings(vocab_size=22, byte_fallback=False, joint=False, patches=GRID)


def pixels(count: int, grid: PatchGrid = GRID) -> np.ndarray:
    colors = (grid.channels,) if grid.channels > 1 else ()
    return np.random.randint(0, 256, (count, grid.height, grid.width, *colors), dtype=np.uint8)


def lines(count: int, grid: PatchGrid = GRID) -> list[str]:
    return [write_image(image) for image in pixels(count, grid)]


def saved(image: Image.Image, kind: str = "PNG", **options: int) -> str:
    file = io.BytesIO()
    image.save(file, format=kind, **options)
    return base64.b64encode(file.getvalue()).decode()


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(src_lines=iter([]), tgt_lines=TEXTS, settings=SETTINGS)


# ------------------------------------------------------------------ patches


@pytest.mark.parametrize(
    ("size", "bits", "channels"),
    [(1, 8, 1), (2, 8, 1), (2, 3, 1), (4, 3, 1), (1, 1, 1), (1, 8, 3), (2, 5, 3), (2, 8, 3), (4, 7, 3)],
)
def test_images_become_patches_and_images_again(size, bits, channels):
    grid = PatchGrid(8, 24, size, bits, channels)
    given = pixels(5, grid)
    ids = np.array(encode_images([write_image(image) for image in given], grid))
    assert ids.shape == (5, grid.length * -(-size * size * channels // (62 // bits)))
    assert 0 <= ids.min() <= ids.max() < grid.vocab_size
    again = unpack(ids, grid)
    assert np.array_equal(pack(again, grid), ids)
    assert np.abs(again.astype(int) - given).max() < 2 ** (8 - bits)  # 8 bits lose nothing


def test_a_block_of_images_needs_little_more_memory_than_its_ids():
    grid = PatchGrid(64, 64, 8, 8, 1)
    line = lines(1, grid)
    tracemalloc.start()
    found = encode_images(line * 100, grid)
    held, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(found) == 100
    # A few images, each of 26 bytes a pixel
    assert peak - held < 10 * 26 * 64 * 64


def test_a_patch_of_colors_by_hand():
    """The values are in the order row, column, color, the first in the lowest bits."""
    image = np.zeros((2, 4, 3), dtype=np.uint8)
    image[0, 2] = [8, 16, 24]
    image[1, 3] = [255, 0, 0]
    ids = encode_images([write_image(image)], PatchGrid(2, 4, 2, 5, 3))[0]
    assert ids == [0, 1 + 2 * 2**5 + 3 * 2**10 + 31 * 2**45]


def test_a_patch_of_many_bits_has_several_ids():
    """Twelve values of 8 bits are two ids of six values each, the first six in the first id."""
    image = np.zeros((2, 4, 3), dtype=np.uint8)
    image[0, 2] = [1, 2, 3]
    image[1, 3] = [255, 0, 7]
    ids = encode_images([write_image(image)], PatchGrid(2, 4, 2, 8, 3))[0]
    assert ids == [0, 0, 1 + 2 * 2**8 + 3 * 2**16, 255 * 2**24 + 7 * 2**40]


def test_a_gray_image_has_colors_but_not_the_other_way_round():
    gray, color = pixels(1)[0], pixels(1, PatchGrid(8, 24, 1, 8, 3))[0]
    assert np.array_equal(read_image(write_image(gray), height=8, width=24, channels=3), gray[..., None].repeat(3, 2))
    with pytest.raises(ValueError, match=r"mode RGB; save it after convert\('L'\), or train on colors \(tokenizer"):
        read_image(write_image(color), height=8, width=24)
    palette = Image.fromarray(color).convert("P")
    with pytest.raises(
        ValueError, match=r"mode P; save .*'L'\), or save it after convert\('RGB'\) and train on colors"
    ):
        read_image(saved(palette), height=8, width=24)
    assert read_image(saved(palette.convert("RGB")), height=8, width=24, channels=3).shape == (8, 24, 3)
    with pytest.raises(ValueError, match=r"not 8-bit RGB but of Pillow's mode RGBA; save it after convert\('RGB'\)"):
        read_image(saved(Image.fromarray(color).convert("RGBA")), height=8, width=24, channels=3)


def test_grey_of_one_bit_and_spaces_around_are_fine():
    image = pixels(1)[0] > 127
    line = saved(Image.fromarray(image))
    assert np.array_equal(read_image(f" {line}\r", height=8, width=24), image * np.uint8(255))


def wrong_lines() -> dict[str, str]:
    grey = Image.fromarray(pixels(1)[0])
    damaged = bytearray(base64.b64decode(saved(grey)))
    damaged[-30] ^= 255
    return {
        "not base64": "no image at all",
        "holds no PNG": base64.b64encode(b"0123456789").decode(),
        "holds no PNG; save": saved(grey, "GIF"),
        "24 x 9 pixels instead of 24 x 8": saved(Image.fromarray(np.zeros((9, 24), dtype=np.uint8))),
        "of Pillow's mode RGB": saved(grey.convert("RGB")),
        "PNG is damaged": base64.b64encode(damaged).decode(),
        "16 bits for each value": saved(Image.fromarray(np.zeros((8, 24), dtype=np.uint16))),
        "one of its colors is transparent": saved(grey, transparency=0),
    }


@pytest.mark.parametrize("reason", wrong_lines())
def test_a_bad_image_is_reported_with_line_value_and_remedy(reason):
    line = wrong_lines()[reason]
    with pytest.raises(LineError, match="line 3 is ") as error:
        encode_images([*lines(2), line, *lines(1)], GRID)
    assert reason in str(error.value)
    assert line[:20] in str(error.value)
    assert str(pickle.loads(pickle.dumps(error.value))) == str(error.value)  # as a worker process sends it


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((8, 25), "25 x 8 pixels are not cut into whole patches of 2 x 2"),
        ((8, 24, 2, 9), "bits=.* from 1 to 8"),
        ((8, 24, 2, 8, 2), "channels=2"),
        ((0, 24), r"patches\.height=0 is not a whole number from 1"),
        ((2, 2), "one patch has nothing to mix"),
    ],
)
def test_impossible_grids_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        PatchGrid(*values)
    with pytest.raises(ValueError, match="known: height, width, size, bits, channels"):
        read_section(PatchGrid, {"height": 8, "wide": 24}, "tokenizer.patches")


def test_pillow_is_asked_for(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install 'seq2seq-mixers\[images\]'"):
        PatchGrid(8, 24)


# ------------------------------------------------------------------ embedding and model


@pytest.mark.parametrize(
    ("size", "bits", "channels"), [(2, 8, 1), (4, 3, 1), (1, 8, 1), (2, 5, 3), (2, 8, 3), (4, 8, 3)]
)
def test_the_projection_of_patches_is_a_strided_convolution(size, bits, channels):
    """Conv2d(channels, D, size, stride=size) over the whole image, in float64."""
    grid = PatchGrid(8, 24, size, bits, channels)
    project = PatchProjection(dim=6, size=size, bits=bits, channels=channels).double()
    conv = nn.Conv2d(channels, 6, size, stride=size).double()
    with torch.no_grad():
        conv.weight.copy_(project.proj.weight.view(6, size, size, channels).permute(0, 3, 1, 2))
        conv.bias.copy_(project.proj.bias)  # type: ignore[union-attr]
    given = pixels(3, grid)
    image = torch.from_numpy((given >> (8 - bits)) / (2**bits - 1) * 2 - 1)
    image = image.permute(0, 3, 1, 2) if channels > 1 else image[:, None]
    expected = conv(image).flatten(2).transpose(1, 2)  # (N, rows * columns, D)
    torch.testing.assert_close(project(torch.from_numpy(pack(given, grid))), expected, rtol=1e-12, atol=1e-12)


def image_model(*overrides: str, **extra):
    return build_model(config("mixer=quadratic", *TINY, "model.tie=target", *overrides, **SIZES, **extra))


def test_a_model_of_many_bits_has_a_position_for_each_patch():
    """Eight bits of color need two ids a patch: the encoder's positions are patches, also where a batch is padded."""
    grid = PatchGrid(8, 24, 2, 8, 3)
    sizes = {**SIZES, "src_vocab_size": grid.vocab_size, "patches": {**PATCHES, "channels": 3}}
    model = build_model(config("mixer=quadratic", *TINY, "model.tie=target", "model.encoder_stages=2", **sizes)).eval()
    ids = torch.tensor(encode_images(lines(2, grid), grid))
    assert ids.shape == (2, 2 * grid.length)
    memory, mask = model.encoder(ids, torch.ones_like(ids).bool())
    assert memory.shape[1] == grid.length // 4 == int(mask[0].sum())
    padded, wider = model.encoder(*(nn.functional.pad(each, (0, 8)) for each in (ids, torch.ones_like(ids).bool())))
    torch.testing.assert_close(padded[wider], memory[mask], rtol=1e-5, atol=1e-5)


def test_matrices_of_a_pyramid_on_colors_have_a_row_for_each_patch():
    """Also in the later stage, whose matrices are spread over the patches of the image."""
    grid = PatchGrid(8, 8, 2, 8, 3)
    sizes = {**SIZES, "src_vocab_size": grid.vocab_size, "patches": {**PATCHES, "width": 8, "channels": 3}}
    model = build_model(config("mixer=quadratic", *TINY, "model.tie=target", "model.encoder_stages=2", **sizes)).eval()
    ids = torch.tensor(encode_images(lines(1, grid), grid))
    views = mixing_matrix.views(model, ids, torch.tensor([[2]]), columns=grid.columns)
    assert {tuple(view.total.shape) for view in views if view.part == "encoder"} == {(16, 16)}
    assert {tuple(view.total.shape) for view in views if view.part == "cross"} == {(1, 16)}


def test_mixers_on_a_grid_get_its_columns():
    model = image_model("model.src_positions=none")
    assert [layer.self_mixer.grid_width for layer in model.encoder.layers] == [12] * 4
    assert model.encoder.embedding.positions is None
    assert isinstance(model.decoder.embedding.positions, SinusoidalPositions)
    assert model.decoder.layers[0].self_mixer.grid_width is None
    chosen = image_model("mixer.encoder.grid_width=48")
    assert isinstance(mixer := chosen.encoder.layers[0].self_mixer, Quadratic)
    assert mixer.grid_width == 48
    assert isinstance(chosen.encoder.embedding.positions, SinusoidalPositions)


def test_positions_and_ties_of_an_image():
    with pytest.raises(ValueError, match=r"model\.src_positions=odd"):
        image_model("model.src_positions=odd")
    with pytest.raises(ValueError, match=r"an image has no table to share.*model\.tie=target"):
        image_model("model.tie=all")
    learned = config("mixer=transformer", *TINY, "model.src_positions=learned", "model.max_len=50")
    assert max_positions(learned) == 50


def test_positions_on_a_grid():
    """Two patches of a row share the first half of their positions, two of a column the second."""
    positions = image_model("model.src_positions=grid").encoder.embedding.positions
    assert isinstance(positions, GridPositions)
    row, column = positions(torch.arange(GRID.length)).view(GRID.rows, GRID.columns, 2, 8).unbind(2)
    line = SinusoidalPositions(dim=8)
    assert torch.equal(row, line(torch.arange(GRID.rows))[:, None].expand_as(row))
    assert torch.equal(column, line(torch.arange(GRID.columns)).expand_as(column))
    with pytest.raises(ValueError, match="src_positions=grid is for images"):
        build_model(config("mixer=transformer", *TINY, "model.src_positions=grid"))
    with pytest.raises(ValueError, match="divisible by 4, not 18"):
        image_model("model.src_positions=grid", "model.dim=18")


@pytest.mark.parametrize("stages", [1, 3])
def test_padding_does_not_change_an_image(stages):
    """Padding of a batch does not change the result."""
    model = image_model("model.src_positions=none", f"model.encoder_stages={stages}").eval()
    src = torch.from_numpy(pack(pixels(2), GRID))
    tgt = torch.randint(4, 20, (2, 5))
    alone = model(src, torch.ones_like(src, dtype=torch.bool), tgt)
    wide = torch.cat([src, src.new_full((2, 5), PAD)], 1)
    mask = torch.arange(wide.shape[1]).expand(2, -1) < src.shape[1]
    torch.testing.assert_close(model(wide, mask, tgt), alone, rtol=1e-5, atol=1e-5)


def test_a_pyramid_takes_made_up_lengths_too():
    """Warm-ups of batches and counts of FLOPs have sources of other lengths than an image."""
    model = image_model("model.encoder_stages=2")
    for length in (1, 2, GRID.length + 3):
        src = torch.zeros(1, length, dtype=torch.int64)
        memory, mask = model.encoder(src, torch.ones_like(src).bool())
        assert memory.shape[:2] == mask.shape == (1, GRID.length // 4)
        assert memory.isfinite().all()
    settings = config("mixer=quadratic", *TINY, "model.tie=target", "model.encoder_stages=2")
    assert training_flops({**settings, **SIZES}) is not None


def test_each_stage_of_a_pyramid_has_its_grid():
    model = image_model("model.encoder_stages=3")
    widths = [layer.self_mixer.grid_width for layer in model.encoder.layers]
    assert widths == [12, 12, 6, 3]
    src = torch.from_numpy(pack(pixels(2), GRID))
    memory, mask = model.encoder(src, torch.ones_like(src).bool())
    assert memory.shape[:2] == mask.shape == (2, 3)
    with pytest.raises(ValueError, match="encoder_stages 4 divide a grid of 4 x 12 patches 3 times by 2"):
        image_model("model.encoder_stages=4")


# ------------------------------------------------------------------ tokenizer and corpus


def test_a_tokenizer_of_images(tokenizer):
    given = lines(3)
    assert tokenizer.encode_src(given) == encode_images(given, GRID)
    assert tokenizer.decode(tokenizer.encode_tgt(TEXTS[:8])) == TEXTS[:8]
    assert (tokenizer.joint, tokenizer.src_vocab_size, tokenizer.tgt_vocab_size) == (False, 2**32, 22)
    state = pickle.loads(pickle.dumps(tokenizer.to_state()))
    again = Tokenizer.from_state(state)
    assert again.fingerprint == tokenizer.fingerprint
    assert again.encode_src(given) == tokenizer.encode_src(given)
    other = Tokenizer.from_state({**state, "patches": {**state["patches"], "bits": 7}})
    assert other.fingerprint != tokenizer.fingerprint
    with pytest.raises(ValueError, match="'patches' is missing or of the wrong type"):
        Tokenizer.from_state({**state, "patches": 7})


def test_ready_models_of_the_text_alone(tokenizer, tmp_path):
    (tmp_path / "en.model").write_bytes(tokenizer.to_state()["tgt_model"])
    ready = load_tokenizer(replace(SETTINGS, tgt_model=str(tmp_path / "en.model")))
    assert ready.fingerprint == tokenizer.fingerprint
    started = ready_models(tokenizer, TokenizerSettings(joint=False), tmp_path)  # of init_from
    assert load_tokenizer(started).fingerprint == tokenizer.fingerprint
    for wrong, message in (
        ({"joint": True}, "share no vocabulary"),
        ({"model": str(tmp_path / "en.model")}, "no SentencePiece model"),
        ({"symbols": ("<2en>",)}, "take no tags"),
    ):
        with pytest.raises(ValueError, match=message):
            replace(SETTINGS, **wrong)


def test_alignments_count_patches_and_not_ids(tokenizer):
    grid = PatchGrid(8, 24, 2, 8, 3)
    colors = Tokenizer(tgt_model=tokenizer.to_state()["tgt_model"], patches=grid)
    ids = colors.encode_src(lines(1, grid))[0]
    assert (len(ids), len(source_pieces(colors, ids))) == (2 * grid.length, grid.length)


def test_ids_of_patches_keep_all_their_bits(tokenizer):
    white = write_image(np.full((8, 24), 255, dtype=np.uint8))
    src, _ = PairEncoder(tokenizer=tokenizer)(([white, *lines(1)], ["two", "two"]))
    assert src.ids.dtype == np.uint32
    assert set(src.ids[: GRID.length].tolist()) == {2**32 - 1}


@pytest.fixture(scope="module")
def drawn(tmp_path_factory) -> Path:
    """A corpus that the command draws, with 60 training images."""
    folder = tmp_path_factory.mktemp("drawn")
    sizes = ["--height", "8", "--width", "24", "--letters", "4", "--train", "60", "--held-out", "6"]
    assert draw.main(["--corpus", str(folder), *sizes]) == 0
    return folder


def data_plan(folder: Path, cache: Path, *, sampling_alpha: float = 0.0, opened: bool = True) -> DataPlan:
    data = {"name": "drawn", "src": "png64", "tgt": "en", "max_tokens": 384}
    data["clean"] = {"length_ratio": None, "duplicates": False}
    data |= {split: str(folder / split) for split in ("train", "valid", "test")}
    settings = replace(SETTINGS, vocab_size=60, character_coverage=1.0, sampling_alpha=sampling_alpha)
    if opened:
        return toycorpus.data_plan(data, tokenizer=settings, seed=1, cache_dir=cache)
    read = toycorpus.data_settings(data)
    return DataPlan.of(read, tokenizer=settings, seed=1, cache_dir=cache, parts=parts_of(read))


def test_batches_hold_whole_images(drawn, tmp_path):
    data = TranslationDataModule(prepare_corpora(data_plan(drawn, tmp_path)))
    source = (drawn / "train.png64").read_text().split("\n")
    seen = 0
    for batch in data.train_dataloader():
        assert batch.src.dtype == torch.int64
        assert batch.src_mask.all()
        for ids, index in zip(batch.src.numpy(), batch.index.tolist(), strict=True):
            assert np.array_equal(unpack(ids[None], GRID)[0], read_image(source[index], height=8, width=24))
            seen += 1
    assert seen == data.prepared.size("train") == 60


def test_segmentations_of_the_text_are_drawn_beside_images(drawn, tmp_path):
    data = prepare_corpora(data_plan(drawn, tmp_path, sampling_alpha=0.3))
    batch = next(iter(TranslationDataModule(data).train_dataloader()))
    sources = data.sources("train")
    expected = data.tokenizer.encode_src([sources[i] for i in batch.index.tolist()])
    assert batch.src.tolist() == expected


def test_a_bad_image_of_a_corpus_is_found(drawn, tmp_path, monkeypatch):
    """A bad image among the first thousand lines is found before any work, a later one during encoding."""
    for split in ("train", "valid", "test"):
        for side in ("png64", "en"):
            text = (drawn / f"{split}.{side}").read_text().split("\n")
            if (split, side) == ("train", "png64"):
                text[40] = "cGljdHVyZQ=="
            (tmp_path / f"{split}.{side}").write_text("\n".join(text))
    with pytest.raises(ValueError, match=r"data\.train: line 41 is 'cGljdHVyZQ==': its base64 holds no PNG"):
        data_plan(tmp_path, tmp_path / "cache")
    monkeypatch.setattr("seq2seq.data.readers.ROWS", 16)
    with pytest.raises(ValueError, match=r"data\.train, .*line 41 is "):
        prepare_corpora(data_plan(tmp_path, tmp_path / "cache", opened=False))


# ------------------------------------------------------------------ drawing


def test_drawing_is_a_function_of_seed_and_line(capfdbinary, monkeypatch):
    def drawn(*options: str) -> list[bytes]:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"cat\n\ndog\ncat\n")))
        assert draw.main(list(options)) == 0
        return capfdbinary.readouterr().out.split(b"\n")

    first, again, other = drawn(), drawn(), drawn("--seed", "2")
    assert len(first) == 5  # a line each, and what follows the last end of line
    assert first == again != other
    assert first[1] == first[4] == b""
    assert len({*first}) == 4  # the second cat is another image
    images = [read_image(line.decode(), height=10, width=32) for line in first if line]
    assert all(image.min() < 110 and np.median(image) > 140 for image in images)  # ink on paper


def test_text_without_room_is_refused(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"cat\nincomprehensible\n")))
    assert draw.main([]) == 2
    error = capsys.readouterr().err
    assert "line 2: 'incomprehensible' has no room in 32 x 10 pixels" in error
    assert "--width" in error


def test_letters_that_the_font_lacks_are_refused(capsys, monkeypatch):
    """All letters that the font lacks would look the same."""
    letters = "".join(map(chr, range(33, 127)))
    assert all(has_letter(letter) for letter in letters)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("cat\n你好\n".encode())))
    assert draw.main([]) == 2
    assert "line 2: '你好': Pillow's own font, in which words are drawn, has no '你'" in capsys.readouterr().err


def test_impossible_corpora_are_refused(tmp_path, capsys):
    for given, told in ((["--height", "3"], "raise --letters, --height or --width"), (["--seed", "-1"], "--seed")):
        try:
            status = draw.main(["--corpus", str(tmp_path / "drawn"), *given])
        except SystemExit as stop:
            status = stop.code
        assert status == 2
        assert told in capsys.readouterr().err
    assert not (tmp_path / "drawn").exists()


def test_frames_are_the_patches_of_a_moving_text(capsys, tmp_path):
    """Patches of frames follow each other: T x H x W positions, each frame the first one moved by 2 pixels more."""
    images_of = WordImages(height=8, width=24, frames=3)
    film = read_image(images_of.line("we left", 5), height=24, width=24)
    still = read_image(WordImages(height=8, width=24).line("we", 5), height=8, width=24)
    frames = [still, np.roll(still, -2, 1), np.roll(still, -4, 1)]
    whole = pack(film[None], PatchGrid(24, 24))
    assert np.array_equal(whole, np.concatenate([pack(each[None], GRID) for each in frames], 1))
    sizes = ["--height", "8", "--width", "24", "--letters", "2", "--train", "9", "--held-out", "3"]
    assert draw.main(["--corpus", str(tmp_path), "--frames", "3", *sizes]) == 0
    texts = (tmp_path / "train.en").read_text().split("\n")[:-1]
    assert {text.split(" ")[-1] for text in texts} <= {"left", "right", "up", "down"}
    for wrong in ("we", "left", "we over"):
        with pytest.raises(ValueError, match=f"line 1: '{wrong}'.*left, right, up, down"):
            images_of.line(wrong, 0)


def test_an_interrupted_drawing_leaves_no_file(tmp_path):
    def examples():
        yield "line", "text"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_splits(tmp_path, {"valid": [("line", "text")], "train": examples()})
    assert not list(tmp_path.iterdir())


def test_a_drawn_corpus_keeps_its_parts_apart(drawn):
    texts = {split: (drawn / f"{split}.en").read_text().split("\n")[:-1] for split in ("train", "valid", "test")}
    assert [len(part) for part in texts.values()] == [60, 6, 6]
    assert not {*texts["train"]} & {*texts["valid"], *texts["test"]}
    assert not {*texts["valid"]} & {*texts["test"]}


# ------------------------------------------------------------------ from end to end


@pytest.fixture(scope="module")
def run(drawn, tmp_path_factory) -> Path:
    """A run of a few updates."""
    folder = tmp_path_factory.mktemp("read")
    sizes = ["tokenizer.patches.height=8", "tokenizer.patches.width=24", "data.vocab_size=60", "data.max_tokens=384"]
    small = [word for word in toycorpus.TINY if not word.startswith("data.")]
    files = [f"data.{split}={drawn / split}" for split in ("train", "valid", "test")]
    places = [f"runs={folder}", "run=few", f"cache={folder / 'cache'}", "trainer.keep_last=3"]
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        found = compose("train", ["experiment=drawn_words", *small, *sizes, *files, *places])
    train(make_plan(OmegaConf.to_container(found, resolve=True), mixer="quadratic"))  # type: ignore[arg-type]
    return folder / "few"


def test_a_run_reads_images_and_leaves_what_translation_needs(run, drawn, tmp_path, capsys):
    results = json.loads((run / "results.json").read_text())
    assert results["steps"] == 4
    assert results["padding"] >= 0
    best = run / "checkpoints" / "best.safetensors"
    loaded = checkpoint.load(best)
    assert loaded.meta["model"]["patches"] == PATCHES
    assert loaded.model.encoder.layers[0].self_mixer.grid_width == 12  # type: ignore[union-attr]
    source = (drawn / "test.png64").read_text().split("\n")[:6]
    nasty = [source[0], "", "no image", source[1], write_image(np.zeros((8, 8), dtype=np.uint8)), *source[2:]]
    (tmp_path / "in").write_text("\n".join(nasty) + "\n")
    command = ["--ckpt", str(best), "--input", str(tmp_path / "in"), "--output", str(tmp_path / "out")]
    limits = ["--beam-size", "2", "--max-len-ratio", "0", "--max-len-extra", "12", "--max-len", "9"]
    status = translate.main([*command, *limits, "--format", "tsv"])
    assert status == 1
    told = capsys.readouterr().err
    assert "line 3 was not translated and is empty (it is not base64" in told
    assert "line 5 was not translated and is empty (it has 8 x 8 pixels instead of 24 x 8" in told
    assert "cut" not in told  # images are not cut
    rows = [line.split("\t") for line in (tmp_path / "out").read_text().split("\n")[:-1]]
    assert [row[0] for row in rows] == [str(number) for number in range(1, len(nasty) + 1)]
    assert [rows[i][1:] for i in (1, 2, 4)] == [["0.0000", ""], ["-inf", ""], ["-inf", ""]]
    hypotheses = (run / "test.hyp").read_text().split("\n")[:6]
    assert [row[2] for row in (rows[0], rows[3], *rows[5:])] == hypotheses


def test_many_bad_lines_cost_no_good_one(run):
    translator = Translator.load(run / "checkpoints" / "best.safetensors", device="cpu")
    translator.settings = replace(translator.settings, beam_size=1, max_len_ratio=0, max_len_extra=6)
    good = np.random.rand(20) < 0.5
    given = [line if keep else f"{'?' * i}." for i, (line, keep) in enumerate(zip(lines(20), good, strict=True))]
    notes: list[translator.Note] = []
    found = translator.texts(given, note=notes.append)
    assert sorted(note.position for note in notes if note.kind == "failed") == np.flatnonzero(~good).tolist()
    alone = [translator.texts([line])[0] for line, keep in zip(given, good, strict=True) if keep]
    assert [text for text, keep in zip(found, good, strict=True) if keep] == alone


def test_inspect_takes_images_of_more_ids_than_a_text_may_have(run, drawn, tmp_path, monkeypatch):
    load = Translator.load
    monkeypatch.setattr(Translator, "load", lambda *args, **options: load(*args, max_len=9, **options))
    image = (drawn / "test.png64").read_text().split("\n")[0]
    best = run / "checkpoints" / "best.safetensors"
    subject = model_report.of_checkpoint(
        best, text=image, target="a", src_lang=None, tgt_lang=None, trust=(), out=tmp_path / "seen", seed=0
    )
    assert subject.src.shape == (1, GRID.ids)


@pytest.mark.exhaustive
def test_inspect_names_patches_and_draws_centers(run, drawn, tmp_path):
    image = (drawn / "test.png64").read_text().split("\n")[0]
    best = run / "checkpoints" / "best.safetensors"
    assert inspect.main(["--ckpt", str(best), "--text", image, "--out", str(tmp_path / "seen")]) == 0
    for name in ("encoder-centers", "encoder-image", "cross-image"):
        assert (tmp_path / "seen" / f"{name}.png").is_file()
    assert "distances in rows and columns" in (tmp_path / "seen" / "report.html").read_text("utf-8")
    names = model_report._patches(GRID)
    assert (len(names), names[0], names[12], names[-1]) == (48, "1,1", "2,1", "4,12")


def test_the_table_of_finished_runs(run, capsys):
    images.main([str(run)])
    row = [cell.strip() for cell in capsys.readouterr().out.split("\n")[2].split("|")]
    assert row[1] == "few"
    assert row[6] == "4"
    assert [images.distance(*pair) for pair in (("", "abc"), ("reads", "reads"), ("kitten", "sitting"))] == [3, 0, 3]


def test_maps_over_an_image():
    """A patch's share is the opacity of its pixels; the patch that varies most is framed."""
    grid = PatchGrid(height=4, width=6, size=2)
    pixels = np.full((4, 6), 200, dtype=np.uint8)
    pixels[2:, 2:4] = [[0, 255], [255, 0]]
    assert image_maps.busiest_patch(pixels, grid) == 4
    shares = torch.tensor([0.0, 0.1, 0.2, 0.0, 0.4, 0.3])
    opacity = image_maps.overlay(shares.numpy(), grid)[..., 3]
    for i in range(4):
        for j in range(6):
            assert opacity[i, j] == pytest.approx(0.8 * float(shares[i // 2 * 3 + j // 2]) / 0.4)
    rows = [("1 Quadratic", [("all", shares), ("$", shares)]), ("2 Quadratic", [("all", shares)])]
    figure = image_maps.draw(rows, pixels, grid, 4)
    assert [len(axes.images) for axes in figure.axes] == [2, 2, 2, 0]
