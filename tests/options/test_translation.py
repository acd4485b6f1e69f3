"""Samples, minimum Bayes risk, prefixes, phrases and ensembles, and given translations, through the translator."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from pathlib import Path

import numpy as np
import pandas
import pytest
import tiny
import torch
from composed import resolved
from sacrebleu.metrics.chrf import CHRF

from seq2seq import checkpoint, score, translate
from seq2seq.inference.forced import force, links, pharaoh, saliency, word_weights, words_of
from seq2seq.inference.forced_text import force_lines
from seq2seq.inference.line_formats import FORMATS
from seq2seq.inference.mbr import rank_by_agreement, utility
from seq2seq.inference.translator import TranslatedText, Translator
from seq2seq.metadata import describe
from seq2seq.network.build import build_model
from seq2seq.search import Ensemble, Specials
from seq2seq.settings.search import SamplingSettings, SearchSettings

EXHAUSTIVE = {"test_a_search_may_be_interrupted_by_another_and_left"}

LINES = [*tiny.sentences(tiny.GERMAN, 5, seed=4), "", "der Hund"]
# Short translations: the random model hardly ever ends by itself
LIMITS = {"max_len_ratio": 0.3, "max_len_extra": 5}
HOW = SearchSettings(beam_size=3, n_best=2, **LIMITS)


@pytest.fixture(scope="module")
def ckpt(tmp_path_factory) -> Path:
    return tiny.save(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="module")
def other(ckpt) -> Path:
    """A deeper checkpoint with the same tokenizer."""
    path = ckpt.with_name("other.safetensors")
    checkpoint.save(path, tiny.payload(seed=1, decoder_layers=2))
    return path


@pytest.fixture(scope="module")
def translator(ckpt) -> Translator:
    return Translator.load(ckpt, settings=HOW, device="cpu")


def translated(ckpt: Path, source: Path, *options: str) -> list[str]:
    """Translate LINES from a file into a file, by the command."""
    out = source.with_name("out")
    source.write_text("\n".join(LINES) + "\n")
    limits = ["--max-len-ratio", "0.3", "--max-len-extra", "5"]
    assert translate.main(["--ckpt", str(ckpt), "--input", str(source), "--output", str(out), *limits, *options]) == 0
    return out.read_bytes().decode().split("\n")[:-1]


def texts(results):
    return [[candidate.text for candidate in row] for row in results]


def test_a_lone_surrogate_is_replaced_in_all_texts(translator):
    """In lines, prefixes and phrases, encoding replaces a lone surrogate by a question mark."""
    how = {"prefixes": ["the \ud800"], "phrases": [["dog\udfff"]]}
    whole = {"prefixes": ["the ?"], "phrases": [["dog?"]]}
    noted, expected = [], []
    found = translator.translate(["der \udc00 Hund"], note=noted.append, **how)
    assert found == translator.translate(["der ? Hund"], note=expected.append, **whole)
    assert noted == expected
    with pytest.raises(ValueError, match=r"vocabulary has no piece '\?'"):
        translator.translate(["der Hund"], suppress=["\ud800"])


def test_a_search_may_be_interrupted_by_another_and_left(translator):
    """Between two steps, `progress` may translate with the same model, or end the call by an error."""
    inner, done = [], []

    def interrupt(lines: int) -> None:
        done.append(lines)
        inner.append(translator.translate(LINES[:2]))

    assert translator.translate(LINES, progress=interrupt) == translator.translate(LINES)
    assert sum(done) == len(LINES) - 1
    # Also after steps that finish no line
    assert 0 in done
    assert all(found == translator.translate(LINES[:2]) for found in inner)
    with pytest.raises(ZeroDivisionError):
        translator.translate(LINES, progress=lambda lines: 1 / 0)


def test_samples_depend_on_the_seed_and_the_line_alone(translator):
    sampling = SamplingSettings(seed=3)
    drawn = texts(translator.translate(LINES, sampling=sampling))
    assert drawn[:3] == [texts(translator.translate([line], sampling=sampling))[0] for line in LINES[:3]]
    assert drawn[::-1] == texts(translator.translate(LINES[::-1], sampling=sampling))
    assert drawn != texts(translator.translate(LINES, sampling=SamplingSettings(seed=4)))
    assert drawn[5] == ["", ""]


def expected_utilities(texts: list[str], score) -> list[float]:
    ranked = rank_by_agreement([TranslatedText(text, 0.0) for text in texts], score)
    return [{each.text: each.score for each in ranked}[text] for text in texts]


def test_expected_utilities_are_sacrebleus_means():
    given = ["the cat walks", "the cat runs", "the cat walks", "a dog"]
    metric = CHRF()
    expected = [sum(metric.sentence_score(h, [r]).score for r in given) / 4 for h in given]
    assert expected_utilities(given, utility("chrf")) == pytest.approx(expected)
    assert utility("bleu")("the cat walks home today", "the cat walks home today") == pytest.approx(100)
    # For 13a, a sentence without spaces would be one word
    chinese = expected_utilities(["我喜欢猫", "我喜欢小猫", "今天下雨"], utility("bleu", "zh"))
    assert max(chinese[:2]) > chinese[2] + 10
    with pytest.raises(ValueError, match="unknown utility 'ter'"):
        utility("ter")


def test_minimum_bayes_risk_ranks_the_samples(translator):
    """Samples with the largest mean agreement come first, each text once."""
    sampling = SamplingSettings(seed=3)
    every = translator.translate(LINES, settings=SearchSettings(beam_size=6, n_best=6, **LIMITS), sampling=sampling)
    best = translator.translate(
        LINES, settings=SearchSettings(beam_size=6, n_best=2, **LIMITS), sampling=sampling, mbr="chrf"
    )
    for samples, found in zip(texts(every)[:5], best[:5], strict=True):
        means = dict(zip(samples, expected_utilities(samples, utility("chrf")), strict=True))
        expected = sorted(means.values(), reverse=True)[:2]
        assert [c.score for c in found if c.score > -math.inf] == pytest.approx(expected)
        assert found[0].score == pytest.approx(means[found[0].text])
    with pytest.raises(ValueError, match="needs sampling"):
        translator.translate(LINES, mbr="chrf")


def test_prefixes_and_phrases(translator):
    """All translations contain their prefixes and phrases; blank lines stay blank."""
    begun = translator.translate(LINES, prefixes=["the cat"] * 7)
    assert all(c.text.startswith("the cat") for row in begun[:5] for c in row if c.score > -math.inf)
    with_words = translator.translate(LINES, phrases=[["quickly", "dog"]] * 6 + [[]])
    assert all("quickly" in row[0].text and "dog" in row[0].text for row in with_words[:5])
    assert texts(with_words)[5] == texts(begun)[5] == ["", ""]
    with pytest.raises(ValueError, match="without sampling"):
        translator.translate(LINES, phrases=[[]] * 7, sampling=SamplingSettings())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"prefixes": ["the"]}, "prefixes has 1 entries for 2 lines"),
        ({"prefixes": ["the"] * 3}, "prefixes has 3 entries for 2 lines"),
        ({"phrases": [["dog"]]}, "phrases has 1 entries for 2 lines"),
        ({"lines": "ab"}, "lines is the str 'ab'"),
        ({"prefixes": "ab"}, "prefixes is the str 'ab'"),
        ({"suppress": "ab"}, "suppress is the str 'ab'"),
        ({"lines": {"ab", "cd"}}, "lines is the set"),
        ({"lines": {"ab": "cd"}}, "lines is the dict"),
        ({"lines": b"ab"}, "lines is the bytes"),
        ({"lines": iter(["ab"])}, "lines is the list_iterator"),
        ({"lines": None}, "lines is the NoneType"),
        ({"lines": pandas.DataFrame({"ab": ["cd"]})}, "lines is the DataFrame"),
        ({"phrases": [None, ["dog"]]}, r"phrases\[0\] is the NoneType"),
        ({"phrases": "ab"}, "phrases is the str 'ab'"),
        ({"phrases": [["dog"], "ab"]}, r"phrases\[1\] is the str 'ab'"),
        ({"lines": ["der", None]}, r"lines\[1\] is None; give a str"),
        ({"phrases": [[], [3]]}, r"phrases\[1\]\[0\] is 3; give a str"),
    ],
)
def test_each_line_has_a_prefix_and_a_list_of_phrases(translator, given, message):
    with pytest.raises(ValueError, match=message):
        translator.translate(**{"lines": LINES[:2], **given})


@pytest.mark.parametrize("column", [tuple, np.array, pandas.Index, lambda texts: pandas.Series(texts, index=[7, 9])])
def test_arrays_and_columns_stand_for_lists(translator, column):
    given = {"prefixes": ["the", "a"], "phrases": [["dog"], []]}
    found = translator.translate(column(LINES[:2]), prefixes=column(given["prefixes"]), phrases=given["phrases"])
    assert found == translator.translate(LINES[:2], **given)


@pytest.mark.parametrize("pairs", [("a", "b"), ["ab"], [("a", None)], [("a",)]])
def test_a_given_translation_is_a_pair_of_texts(translator, pairs):
    with pytest.raises(ValueError, match=r"pairs\[0\] is .*; give a pair"):
        translator.score(pairs)


def test_an_ensemble_averages_probabilities(ckpt, other, translator):
    both = Translator.load(ckpt, settings=HOW, device="cpu", ensemble=[other])
    twice = Translator.load(ckpt, settings=HOW, device="cpu", ensemble=[ckpt])
    assert texts(twice.translate(LINES)) == texts(translator.translate(LINES))
    second = Translator.load(other, settings=HOW, device="cpu")
    pairs = list(zip(LINES, both.texts(LINES), strict=True))
    found = [list(force_lines(each, pairs, note=print)) for each in (both, translator, second)]
    for mean, one, two in zip(*found, strict=True):
        for (_, value), (_, a), (_, b) in zip(mean.pieces, one.pieces, two.pieces, strict=True):
            assert value == pytest.approx(math.log((math.exp(a) + math.exp(b)) / 2), abs=1e-5)


@pytest.mark.parametrize(
    ("meta", "message"),
    [
        ({"tokenizer": tiny.tokenizer(normalizer="nfkc").to_state()}, "has another tokenizer than"),
        ({"src_lang": "en", "tgt_lang": "de"}, r"b\.safetensors translates en to de, and .* de to en"),
    ],
    ids=["tokenizer", "direction"],
)
def test_models_of_an_ensemble_have_one_vocabulary_and_direction(ckpt, tmp_path, meta, message):
    entry = tiny.payload()
    entry.meta.update(meta)
    checkpoint.save(tmp_path / "b.safetensors", entry)
    with pytest.raises(ValueError, match=message):
        Translator.load(ckpt, device="cpu", ensemble=[tmp_path / "b.safetensors"])


def test_an_ensemble_has_the_fewest_positions_of_its_models(tmp_path):
    paths = []
    for size in (64, 32):
        (tmp_path / str(size)).mkdir()
        paths.append(tiny.save(tmp_path / str(size), positions="learned", max_len=size))
    for one, other in (paths, paths[::-1]):
        both = Translator.load(one, device="cpu", ensemble=[other])
        assert (both.settings.max_len, both.max_len) == (32, 32)


def test_settings_of_a_call_keep_the_positions_of_the_model(tmp_path):
    learned = Translator.load(tiny.save(tmp_path, positions="learned", max_len=16), device="cpu")
    notes = []
    longest = SearchSettings(beam_size=1, min_len=15, max_len_extra=1000)
    (row,) = learned.translate(["der Hund"], settings=longest, note=notes.append)
    assert row[0].text
    assert {note.kind for note in notes} <= {"limit"}
    with pytest.raises(ValueError, match=r"min_len is 16; the model has 16 target positions, .*: choose at most 15"):
        learned.translate(["der Hund"], settings=dataclasses.replace(longest, min_len=16))


@pytest.mark.parametrize("given", [{"prefixes": ["Ж the dog", "the"]}, {"phrases": [["dog Ж"], ["the"]]}], ids=str)
def test_text_that_the_vocabulary_cannot_write_is_noted(given, tmp_path):
    """Without byte pieces, an unknown character would vanish from a translation that must contain it."""
    t = tiny.tokenizer(byte_fallback=False, vocab_size=50)
    model = build_model(tiny.model_config(t))
    entry = {"src_lang": "de", "tgt_lang": "en", "tokenize": "13a", "data": "x"}
    described = describe(model_config=tiny.model_config(t), tokenizer=t, **entry)
    checkpoint.save(tmp_path / "a.safetensors", checkpoint.Stored(described, model.state_dict()))
    notes = []
    translator = Translator.load(tmp_path / "a.safetensors", device="cpu")
    (refused, _), (good, _) = translator.translate(["der Hund", "der Hund"], settings=HOW, note=notes.append, **given)
    assert (refused.score, math.isfinite(good.score)) == (-math.inf, True)
    told = [(note.position, "a character that the vocabulary lacks" in note.reason) for note in notes if note.reason]
    assert told == [(0, True)]


@pytest.mark.parametrize("name", ["relu_attention", "lightconv", "dynamicconv", "attention"])
def test_alignments_are_shares_whatever_the_weights_sum_to(name, translator):
    words = (f"mixer/cross={name}", "model.dim=16", "model.num_heads=2", "model.ffn_dim=32")
    depth = ("model.encoder_layers=1", "model.decoder_layers=2")
    plain = resolved(("mixer=transformer", "model=tiny", *depth, *words))
    t = translator.tokenizer
    sizes = {name: getattr(t, name) for name in ("src_vocab_size", "tgt_vocab_size", "pad_id", "joint")}
    model = build_model({"model": plain["model"], "mixer": plain["mixer"], **sizes}).eval()
    pairs = list(zip(t.encode_src(LINES[:3]), t.encode_tgt(["the cat walks", "a dog", "I"]), strict=True))
    special = Specials(t.bos_id, t.eos_id, t.pad_id)
    for found in force(model, pairs, special=special, device=torch.device("cpu"), align=True):
        assert found.weights is not None
        torch.testing.assert_close(found.weights.sum(-1), torch.ones(len(found.weights)))


@pytest.mark.parametrize("ensemble", [False, True])
def test_an_alignment_is_the_mean_of_all_layers_and_models(translator, monkeypatch, ensemble):
    config = tiny.model_config(translator.tokenizer, decoder_layers=1 if ensemble else 2)
    models = [build_model(config).eval() for _ in range(2 if ensemble else 1)]
    for place, layer in enumerate(layer for model in models for layer in model.decoder.layers):
        # All of its attention is on one position
        weights = torch.eye(5)[place].expand(1, 2, 2, 5)
        monkeypatch.setattr(layer.cross_mixer, "read_weights", lambda x, context, weights=weights: weights)
    model = Ensemble(models) if ensemble else models[0]
    pairs = [([5, 6, 7, 8, 3], [9, 3])]
    (found,) = force(model, pairs, special=translator.special, device=torch.device("cpu"), align=True)
    torch.testing.assert_close(found.weights, torch.tensor([[0.5, 0.5, 0, 0, 0]] * 2))


def test_an_alignment_sums_to_one_where_a_head_reads_nothing(translator, monkeypatch):
    """A head with ReLU weights may read nothing; if no head reads anything, the row stays 0."""
    model = build_model(tiny.model_config(translator.tokenizer, decoder_layers=1)).eval()
    weights = torch.zeros(1, 2, 2, 5)
    weights[0, 1, 0, :2] = torch.tensor([1.0, 3.0])
    monkeypatch.setattr(model.decoder.layers[0].cross_mixer, "read_weights", lambda x, context: weights)
    pairs = [([5, 6, 7, 8, 3], [9, 3])]
    (found,) = force(model, pairs, special=translator.special, device=torch.device("cpu"), align=True)
    torch.testing.assert_close(found.weights, torch.tensor([[0.25, 0.75, 0, 0, 0], [0] * 5]))


def test_no_word_is_aligned_with_the_tag_of_the_language(tmp_path):
    payload = tiny.payload(t=tiny.tokenizer(symbols=("<2en>", "<2zh>")))
    payload.meta["tgt_langs"] = ["en", "zh"]
    checkpoint.save(tmp_path / "several.safetensors", payload)
    chinese = Translator.load(tmp_path / "several.safetensors", device="cpu", tgt_lang="zh")
    (found,) = force_lines(chinese, [("der Hund geht", "the dog")], note=print, align=True)
    assert (found.words.source, found.words.target) == (["der", "Hund", "geht"], ["the", "dog"])
    assert {source for source, _ in found.words.links} <= {0, 1, 2}
    assert [len(row) for row in found.words.weights] == [3, 3]


def test_forced_log_probabilities_are_the_searchs(translator):
    """The score of the search's translations is the mean of the log-probabilities of their pieces."""
    src = translator.tokenizer.encode_src(LINES[:4])
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones(len(row)) for row in src], batch_first=True).bool()
    ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in src], batch_first=True)
    from seq2seq.search import search

    found = search(translator.model, ids, mask, special=translator.special, settings=HOW)
    eos = translator.tokenizer.eos_id
    pairs = [(row, [*h.ids, eos]) for row, hypotheses in zip(src, found, strict=True) for h in hypotheses]
    forced = force(translator.model, pairs, special=translator.special, device=torch.device("cpu"))
    every = [h for hypotheses in found for h in hypotheses]
    for one, hypothesis in zip(forced, every, strict=True):
        assert sum(one.log_probs) == pytest.approx(hypothesis.log_prob, abs=1e-4)
        assert len(one.log_probs) == len(hypothesis.ids) + 1


def test_forced_log_probabilities_that_are_not_finite_end_the_command(tmp_path, capsys):
    damaged = tiny.payload()
    for name, weight in damaged.weights.items():
        damaged.weights[name] = weight * 1e25 if weight.dim() == 2 else weight
    checkpoint.save(tmp_path / "damaged.safetensors", damaged)
    (tmp_path / "in.de").write_text("der Hund\n")
    (tmp_path / "given.en").write_text("the dog\n")
    command = ["--ckpt", str(tmp_path / "damaged.safetensors"), "--device", "cpu", "--json"]
    assert score.main([*command, "--forced-decoding", str(tmp_path / "in.de"), str(tmp_path / "given.en")]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: the model's scores are not finite: ")
    assert printed.err.count("\n") == 1


def test_words_are_aligned_by_hand():
    """Sums over the source word's pieces, means over the target word's: 0.55 against 0.2, then 0.7 against 0.2."""
    weights = torch.tensor([[0.1, 0.3, 0.4, 0.2], [0.4, 0.1, 0.3, 0.2], [0.1, 0.2, 0.2, 0.5], [1.0, 0.0, 0.0, 0.0]])
    words = word_weights(weights, words_of(["", "▁ein", "▁Ha", "us"]), words_of(["▁ho", "use", "▁the", ""]))
    torch.testing.assert_close(words, torch.tensor([[0.2, 0.55], [0.2, 0.7]]))
    assert links(words) == [(1, 0), (1, 1)]
    assert links(torch.tensor([[0.2, 0.8], [0.0, 0.0], [0.3, 0.1]])) == [(1, 0), (0, 2)]
    swapped = torch.tensor([[0.1, 0.8, 0.1], [0.7, 0.2, 0.1], [0.0, 0.0, 1.0]])
    assert pharaoh(links(word_weights(swapped, words_of(["▁a", "▁b", ""]), words_of(["▁c", "▁d", ""])))) == "1-0 0-1"
    assert pharaoh(links(word_weights(swapped[:, :1], words_of([""]), words_of(["▁c", "▁d", ""])))) == ""


def test_saliency_is_a_distribution_over_real_positions(translator):
    model = translator.model
    src = torch.tensor([[5, 6, 7, 3], [8, 3, 0, 0]])
    out = torch.tensor([[9, 10, 3], [11, 3, 0]])
    given = torch.cat([torch.full((2, 1), 2), out[:, :-1]], 1)
    found = saliency(model, src, src > 0, given, out, out > 0)
    torch.testing.assert_close(found.sum(-1), torch.ones(2, 3))
    assert not found[1, :, 2:].any()
    assert (found[0] > 0).all()


def test_commands_have_all_options(ckpt, other, tmp_path, capsys):
    source, begin, words = (tmp_path / name for name in ("in.de", "begin.en", "words.en"))
    lines = functools.partial(translated, ckpt, source)
    begin.write_text("the cat\n" * 7)
    words.write_text("dog\tcat\n" * 7)

    drawn = lines("--samples", "3", "--top-p", "0.9", "--temperature", "0.7", "--seed", "4", "--mbr", "chrf")
    assert len(drawn) == 7
    assert all(line.startswith("the cat") for line in lines("--prefixes", str(begin))[:5])
    assert all("dog" in line and "cat" in line for line in lines("--phrases", str(words))[:5])
    assert len(lines("--suppress", "▁the", "--min-len", "3", "--no-repeat-ngram", "2")) == 7
    assert len(lines("--ensemble", str(other), "--beam-size", "4", "--beam-groups", "2", "--length-norm", "gnmt")) == 7
    links = tmp_path / "links"
    assert len(lines("--alignments", str(links))) == 7
    aligned = links.read_text().split("\n")[:-1]
    assert len(aligned) == 7
    assert aligned[5] == ""
    # Each target word has one of the source's words
    for line, pairs in zip(LINES, aligned, strict=True):
        columns = [pair.split("-") for pair in pairs.split()]
        assert [int(target) for _, target in columns] == list(range(len(columns)))
        assert all(int(source) < len(line.split()) for source, _ in columns)
    words.write_text("dog\n")
    assert translate.main(["--ckpt", str(ckpt), "--input", str(source), "--phrases", str(words)]) == 2
    assert "words.en has 1 lines, and the input 7; it needs one for each" in capsys.readouterr().err


def test_formats(ckpt, tmp_path, translator):
    """The same translations as lines, columns and objects; details are as in `seq2seq.score --forced-decoding`."""
    lines = functools.partial(translated, ckpt, tmp_path / "in.de", "--beam-size", "3", "--n-best", "2")
    columns = [line.split("\t") for line in lines()]
    assert columns == [line.split("\t") for line in lines("--format", "tsv")]
    assert lines("--format", "text") == [text for _, _, text in columns]
    objects = [json.loads(line) for line in lines("--format", "json", "--pieces", "--align")]
    assert [entry["line"] for entry in objects] == list(range(1, 8))
    forced = force_lines(
        translator, zip(LINES, [entry["translation"] for entry in objects], strict=True), note=print, align=True
    )
    for entry, one, (_, best, first), (_, other, second) in zip(
        objects, forced, columns[::2], columns[1::2], strict=True
    ):
        assert (entry["translation"], f"{entry['score']:.4f}") == (first, best)
        others = [(each["translation"], f"{each['score']:.4f}") for each in entry["alternatives"]]
        assert others == [(second, other)]
        assert entry["alignment"] == one.alignment
        pieces = [(each["piece"], pytest.approx(each["log_prob"], abs=1e-4)) for each in entry["pieces"]]
        assert pieces == one.pieces
    assert [entry["pieces"][-1]["piece"] for entry in objects if entry["pieces"]] == ["</s>"] * 6
    assert (objects[5]["pieces"], objects[5]["alignment"], objects[5]["score"]) == ([], "", 0.0)
    plain = [json.loads(line) for line in lines("--format", "json", "--n-best", "1")]
    fields = ("line", "translation", "score", "limited", "warnings")
    assert plain == [{key: entry[key] for key in fields if key in entry} for entry in objects]


def test_a_line_that_failed_has_no_score():
    failed = json.loads(FORMATS["json"](3, [TranslatedText("", -math.inf)], {}))
    assert failed == {"line": 3, "translation": "", "score": None}
    several = [TranslatedText('Möhre "a"', -0.5), TranslatedText("", -math.inf)]
    printed = FORMATS["json"](1, several, {"alignment": "0-0"})
    assert printed.index("\n") == len(printed) - 1
    assert "Möhre" in printed
    assert json.loads(printed) == {
        "line": 1, "translation": 'Möhre "a"', "score": -0.5, "alternatives": [], "alignment": "0-0"
    }  # fmt: skip


def test_a_tab_in_a_translation_makes_no_column():
    assert (
        FORMATS["tsv"](2, [TranslatedText("a\tb", -0.5), TranslatedText("", -math.inf)], {})
        == "2\t-0.5000\ta b\n2\t-inf\t\n"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--pieces"], "--pieces needs --format json"),
        (["--align", "--format", "tsv"], "--align needs --format json"),
        (["--seed", "1"], "--seed needs --samples"),
        (["--samples", "2", "--beam-size", "3"], "--beam-size is an option of beam search, which --samples replaces"),
        (["--samples", "2", "--diversity", "0"], "--diversity is an option of beam search, which --samples replaces"),
        (["--diversity", "3"], "--diversity=3.0 has no effect with --beam-groups=1: leave it out, or set"),
        (["--samples", "2", "--n-best", "3"], "--n-best 3 is more than --samples 2"),
        (["--samples", "2", "--top-p", "0"], "argument --top-p: '0' is not a number above 0 and at most 1"),
        (["--beam-size", "5", "--beam-groups", "2"], "--beam-groups is 2; choose a divisor of --beam-size (5)"),
        (["--suppress", "nosuchpiece"], "no piece 'nosuchpiece'"),
    ],
)
def test_options_that_exclude_each_other_are_one_line(ckpt, options, message, tmp_path, capsys):
    (tmp_path / "in").write_text("der Hund\n")
    try:
        status = translate.main(["--ckpt", str(ckpt), "--input", str(tmp_path / "in"), *options])
    except SystemExit as stop:
        status = stop.code
    assert status == 2
    assert message in capsys.readouterr().err


def test_score_prints_forced_log_probabilities(ckpt, tmp_path, capsys, translator):
    source, target = tmp_path / "in.de", tmp_path / "given.en"
    source.write_text("\n".join(LINES) + "\n")
    target.write_text("the cat walks\n" * 7)
    command = ["--ckpt", str(ckpt), "--forced-decoding", str(source), str(target)]
    assert score.main(command) == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.split("\n")[:-1]]
    assert len(rows) == 7
    assert rows[5] == [""]
    assert score.main([*command, "--json", "--align"]) == 0
    for row, line in zip(rows, capsys.readouterr().out.split("\n"), strict=False):
        entry = json.loads(line)
        if entry["log_prob"] is not None:
            assert float(row[0]) == pytest.approx(sum(p["log_prob"] for p in entry["pieces"]), abs=1e-3)
            assert [pair.split("-")[1] for pair in entry["alignment"].split()] == ["0", "1", "2"]
    target.write_text("the cat walks\n")
    assert score.main(command) == 2
    assert "has 7 lines" in capsys.readouterr().err
