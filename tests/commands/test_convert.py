"""Published models become checkpoints: the same logits, ids and translations as their own programs compute."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from exported import need
from published import RARE, write_marian

from seq2seq import checkpoint, convert
from seq2seq.checkpoint import Loaded
from seq2seq.inference.export.agreement import specials
from seq2seq.search import search
from seq2seq.settings.search import SearchSettings

need("transformers")

LINES = tiny.sentences(tiny.GERMAN, 200)
# Foreign words, characters without a piece, and no text
ODD = ["Ünknöwn 漢字 text", "", "quickly > x", "  two  blanks "]


@pytest.fixture(scope="module")
def marian(tmp_path_factory) -> Path:
    """A folder of a MarianMTModel with biases everywhere."""
    folder = tmp_path_factory.mktemp("published") / "opus-mt-de-en"
    write_marian(folder, LINES)
    return folder


@pytest.fixture(scope="module")
def ours(marian, tmp_path_factory) -> Loaded:
    out = tmp_path_factory.mktemp("converted") / "de-en.safetensors"
    assert run(marian, "--out", out) == 0
    return checkpoint.load(out)


@pytest.fixture(scope="module")
def theirs(marian) -> Any:
    from transformers import MarianMTModel

    return MarianMTModel.from_pretrained(marian).eval()


def run(*options: str | Path) -> int:
    return convert.main([str(option) for option in options])


def same_logits(ours: Loaded, theirs: Any) -> None:
    """Compare the logits of a padded batch."""
    size = ours.tokenizer.tgt_vocab_size
    src, tgt = torch.randint(1, size - 1, (3, 11)), torch.randint(1, size - 1, (3, 9))
    tgt[:, 0] = ours.tokenizer.bos_id
    mask = torch.arange(11) < torch.tensor([[11], [7], [1]])
    with torch.no_grad():
        expected = theirs(input_ids=src, attention_mask=mask.long(), decoder_input_ids=tgt).logits
        torch.testing.assert_close(ours.model(src, mask, tgt), expected, atol=1e-5, rtol=0)


def test_marian_has_the_same_logits(ours, theirs):
    same_logits(ours, theirs)
    assert ours.model.output.bias is not None
    assert ours.meta["model"]["mixer"]["cross"]["bias"] is True
    assert (ours.meta["src_lang"], ours.meta["tgt_lang"]) == ("de", "en")


@pytest.mark.parametrize("beam", [1, 4])
def test_marian_translates_as_generate(ours, theirs, beam):
    """Both searches end when the beam is full of finished hypotheses, or at the limit, which for ours includes eos."""
    for row in ours.tokenizer.encode_src(tiny.sentences(tiny.GERMAN, 4, seed=5)):
        src = torch.tensor([row])
        options = {"num_beams": beam, "early_stopping": beam > 1, "max_length": None, "forced_eos_token_id": None}
        limit = 2 * len(row) + 20
        expected = theirs.generate(src, max_new_tokens=limit, do_sample=False, **options)[0].tolist()[1:limit]
        settings = SearchSettings(beam_size=beam)
        mask = torch.ones_like(src).bool()
        found = search(ours.model, src, mask, special=specials(ours.tokenizer), settings=settings)[0][0].ids
        assert found == list(itertools.takewhile(lambda i: i != ours.tokenizer.eos_id, expected))


def test_marian_cuts_text_alike(marian, ours):
    from transformers import MarianTokenizer

    theirs = MarianTokenizer.from_pretrained(marian)
    lines = [*LINES[:50], *ODD]
    assert ours.tokenizer.encode_src(lines) == [theirs(line)["input_ids"] for line in lines]
    assert ours.tokenizer.encode_tgt(lines) == [theirs(text_target=line)["input_ids"] for line in lines]
    ids = ours.tokenizer.encode_tgt(lines[:5])
    assert ours.tokenizer.decode(ids) == [theirs.decode(row, skip_special_tokens=True) for row in ids]
    # A piece that the vocabulary lacks is unk, and not cut into others
    assert ours.tokenizer.encode_src([RARE[1:]]) == [[ours.tokenizer.unk_id, ours.tokenizer.eos_id]]
