"""Our scores are sacreBLEU's: against its command line and against cases by hand; and errors."""

from __future__ import annotations

import math
import random
import subprocess
import sys

import numpy as np
import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.significance import PairedTest

from seq2seq.evaluation.scoring import report_text
from seq2seq.metrics import scorers

WORDS = [
    "the",
    "a",
    "cat",
    "dog",
    "sat",
    "ran",
    "on",
    "under",
    "mat",
    "house",
    ",",
    ".",
    "quickly",
    "slowly",
    "I",
    "you",
    "Berlin",
    "42",
    "don't",
    "x-ray",
]


def sentences(seed: int, count: int) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(4, 14))) + "." for _ in range(count)]


def noisy(lines: list[str], seed: int, share: float) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choice(WORDS) if rng.random() < share else w for w in line.split()) for line in lines]


def test_bleu_by_hand():
    """Five of six words, 4/5 bigrams, 3/4 trigrams, 2/3 four-grams; six words on both sides: no brevity penalty."""
    score = scorers.bleu(["the cat sat on the floor"], ["the cat sat on the mat"])
    by_hand = 100 * (5 / 6 * 4 / 5 * 3 / 4 * 2 / 3) ** 0.25
    assert score.value == pytest.approx(by_hand, abs=1e-9)
    assert score.name == "BLEU"
    assert "tok:13a" in score.signature
    assert "version:" in score.signature


def test_brevity_penalty_by_hand():
    score = scorers.bleu(["the cat sat on"], ["the cat sat on the mat"])
    assert score.value == pytest.approx(100 * math.exp(1 - 6 / 4), abs=1e-9)


def ter(hypotheses: list[str], references: list[str], **options: str) -> float:
    (score,) = scorers.scores(hypotheses, references, metrics=["ter"], **options)
    return score.value


def test_ter_by_hand():
    """One substitution in six words; the shift of a block counts as one edit."""
    assert ter(["the cat sat on the floor"], ["the cat sat on the mat"]) == pytest.approx(100 / 6)
    assert ter(["d e a b c"], ["a b c d e"]) == pytest.approx(100 / 5)


def test_equal_text_is_perfect():
    lines = sentences(random.randrange(10**9), 20)
    assert scorers.bleu(lines, lines).value == pytest.approx(100)
    assert scorers.chrf(lines, lines).value == pytest.approx(100)
    assert ter(lines, lines) == 0


@pytest.mark.parametrize("tokenize", ["13a", "zh", "intl", "char"])
def test_same_as_sacrebleu_command_line(tmp_path, tokenize):
    seed = random.randrange(10**9)
    references = [sentences(seed, 60), sentences(seed + 1, 60)]
    hypotheses = noisy(references[0], seed + 2, 0.3)
    paths = []
    for name, lines in [("h", hypotheses), ("r1", references[0]), ("r2", references[1])]:
        paths.append(tmp_path / name)
        paths[-1].write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    flags = ["-m", "bleu", "chrf", "--tokenize", tokenize, "-w", "8", "-f", "text", "-sh"]
    command = [sys.executable, "-m", "sacrebleu", paths[1], paths[2], "-i", paths[0], *flags]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    for line, score in zip(
        printed,
        [scorers.bleu(hypotheses, references, tokenize=tokenize), scorers.chrf(hypotheses, references)],
        strict=True,
    ):
        assert float(line.split(" = ")[1].split()[0]) == pytest.approx(score.value, abs=1e-7), (seed, line)


def test_chinese_needs_its_tokenizer():
    reference, hypothesis = ["今天天气很好,我们去公园。"], ["今天天气很好,我们去学校。"]
    assert scorers.bleu(hypothesis, reference, tokenize="13a").value < 20
    assert scorers.bleu(hypothesis, reference, tokenize=scorers.tokenize_for("zh")).value > 60
    # 14 characters and punctuation marks, two of them wrong
    assert 5 < ter(hypothesis, reference, tokenize="zh") < 25


def test_tokenizer_of_a_language():
    assert [scorers.tokenize_for(x) for x in ("de", "en", "xx", None)] == ["13a"] * 4
    assert {scorers.tokenize_for(x) for x in ("zh", "ZH-cn", "zh_TW", "zho_Hans", "cmn")} == {"zh"}
    assert scorers.tokenize_for("ja") == "ja-mecab"
    assert scorers.tokenize_for("ko") == "ko-mecab"
    assert scorers.tokenize_for("th") == "char"


def test_lowercase_changes_score_and_signature():
    sensitive, folded = (scorers.bleu(["THE CAT SAT ON"], ["the cat sat on"], lowercase=x) for x in (False, True))
    assert sensitive.value == 0
    assert folded.value == pytest.approx(100)
    assert "case:mixed" in sensitive.signature
    assert "case:lc" in folded.signature
    (chrf,) = scorers.scores(["THE CAT SAT ON"], ["the cat sat on"], metrics=["chrf"], lowercase=True)
    assert chrf.value == pytest.approx(100)


def test_wrong_input_names_the_numbers():
    with pytest.raises(ValueError, match="3 lines, but the reference has 2"):
        scorers.bleu(["a", "b", "c"], ["a", "b"])
    with pytest.raises(ValueError, match="reference 2 has 1"):
        scorers.chrf(["a", "b"], [["a", "b"], ["a"]])
    with pytest.raises(ValueError, match="0 lines"):
        ter([], [])
    with pytest.raises(ValueError, match="TER"):
        ter(["a b"], ["a c"], tokenize="char")
    with pytest.raises(ValueError, match="not one string"):
        scorers.bleu("abc", "abc")
    with pytest.raises(ValueError, match=r"unknown BLEU tokenizer 'moses': choose one of .*13a"):
        scorers.bleu(["a"], ["a"], tokenize="moses")


def test_missing_mecab_is_a_clear_error():
    try:
        import MeCab  # type: ignore[import-not-found]  # noqa: F401
    except ImportError:
        with pytest.raises(ValueError, match=r"'ja-mecab' cannot be used here: install sacrebleu\[ja\]"):
            scorers.check_tokenize("ja-mecab")


def test_empty_lines_are_scored():
    assert scorers.bleu(["", "a b c d"], ["x y", "a b c d"]).value > 0
    assert scorers.bleu(["", ""], ["x", "y"]).value == 0


def test_paired_bootstrap_tells_better_from_equal():
    references = sentences(7, 80)
    good, other, bad = noisy(references, 8, 0.1), noisy(references, 9, 0.1), noisy(references, 10, 0.5)
    rows = scorers.paired_bootstrap({"good": good, "other": other, "bad": bad}, references, samples=200)
    table = {(r.system, r.name): r for r in rows}
    assert len(rows) == 6
    assert table["good", "BLEU"].p_value is None
    assert table["good", "BLEU"].value == pytest.approx(scorers.bleu(good, references).value)
    p_bad, p_other = table["bad", "BLEU"].p_value, table["other", "BLEU"].p_value
    assert p_bad is not None
    assert p_other is not None
    assert p_bad < 0.01 < 0.05 < p_other
    assert table["good", "BLEU"].mean == pytest.approx(table["good", "BLEU"].value, abs=3)
    assert "bs:200" in table["bad", "chrF2"].signature
    assert "seed:12345" in table["bad", "chrF2"].signature


def test_resamples_equal_sacrebleus():
    references = sentences(7, 40)
    systems = {name: noisy(references, seed, 0.2) for name, seed in (("one", 8), ("two", 9))}
    test = PairedTest(list(systems.items()), {"BLEU": BLEU(), "chrF2": CHRF()}, [references], "bs", n_samples=100)
    signatures, theirs = test()
    for row in scorers.paired_bootstrap(systems, references, samples=100):
        expected = theirs[row.name][list(systems).index(row.system)]
        assert (row.value, row.mean, row.interval) == pytest.approx((expected.score, expected.mean, expected.ci))
        assert row.signature == str(signatures[row.name])


@pytest.mark.parametrize("how", [{"tokenize": "char"}, {"lowercase": True}], ids=str)
def test_the_bootstrap_scores_as_asked(how):
    references = sentences(7, 20)
    given = [line.replace("the", "The") for line in noisy(references, 8, 0.2)]
    found, _ = scorers.paired_bootstrap(
        {"one": given, "two": references}, references, samples=5, metrics=["bleu"], **how
    )
    expected = scorers.bleu(given, references, **how)
    assert found.value == pytest.approx(expected.value) != scorers.bleu(given, references).value
    assert set(expected.signature.split("|")) < set(found.signature.split("|"))


def test_no_p_value_is_zero():
    """The observed value counts as one more sample."""
    assert scorers.bootstrap_p(5.0, np.zeros(99)) == pytest.approx(1 / 100)


def test_p_values_of_equal_systems_are_uniform():
    """Two systems that exchange their lines at random: p < 0.05 in a twentieth of the cases, p < 0.5 in half."""
    one, two = ([random.gauss(0, 1) for _ in range(200)] for _ in range(2))
    values = []
    for _ in range(400):
        swapped = np.array([(a, b) if random.random() < 0.5 else (b, a) for a, b in zip(one, two, strict=True)])
        lines = np.random.randint(200, size=(200, 200))
        difference = swapped[:, 0] - swapped[:, 1]
        values.append(scorers.bootstrap_p(difference.mean(), difference[lines].mean(1)))
    assert 0.01 < np.mean(np.array(values) < 0.05) < 0.1
    assert 0.4 < np.mean(np.array(values) < 0.5) < 0.6


def test_one_sentence_has_no_interval_and_no_p():
    rows = scorers.paired_bootstrap({"one": ["a b c d"], "two": ["a b c e"]}, ["a b c d"], samples=50)
    assert {(row.interval, row.p_value) for row in rows} == {(None, None)}
    text = report_text({"comparison": [row._asdict() for row in rows]})
    assert "±" not in text
    assert "one sentence" in text
    assert [text.count(word) for word in ("baseline", "no p")] == [2, 2]


def test_paired_bootstrap_checks_its_input():
    with pytest.raises(ValueError, match="b: 2 lines, but the reference has 1"):
        scorers.paired_bootstrap({"a": ["x"], "b": ["x", "y"]}, ["x"])


def test_equal_translations_do_not_differ_significantly():
    lines = [" ".join(random.choices("abcdefgh", k=9)) for _ in range(50)]
    other = [line[::-1] for line in lines]
    rows = scorers.paired_bootstrap({"one": other, "two": list(other), "three": lines}, lines, samples=50)
    assert [row.p_value for row in rows if row.system == "two"] == [1.0, 1.0]
    assert all(row.p_value < 0.05 for row in rows if row.system == "three" and row.p_value is not None)


def test_bleu_of_summed_counts_is_sacrebleus():
    """Test counts without a match of some length, without any match, and for empty text."""
    references = ["a b c d e f", "g h i j", "k l m", "n o p q r"]
    for hypotheses in (
        references,
        ["a b c d x f", "g h", "k", "n o q p r s"],
        ["a b x", "", "y", "z"],
        ["x", "y", "z", "w"],
        ["", "", "", ""],
        ["a x b y", "g h i x j", "z l", "n y p q z r u v w"],
    ):
        for lowercase in (False, True):
            counts = scorers.bleu_counts(hypotheses, references, lowercase=lowercase)
            expected = scorers.bleu(hypotheses, references, lowercase=lowercase).value
            assert float(scorers.bleu_of_counts(counts.sum(0))) == pytest.approx(expected)


def test_accuracy_by_hand():
    """Lines that equal one of their references, apart from spaces at the ends, and the bootstrap of their share."""
    (score,) = scorers.scores(["a b", "b ", "C"], [["a b", "x", "c"], ["q", "b", "d"]], metrics=("accuracy",))
    assert score.value == pytest.approx(200 / 3)
    (lower,) = scorers.scores(
        ["a b", "b ", "C"], [["a b", "x", "c"], ["q", "b", "d"]], metrics=("accuracy",), lowercase=True
    )
    assert (lower.value, lower.signature.split("|")[:2]) == (100.0, ["nrefs:2", "case:lc"])
    systems = {"good": ["a", "b"] * 20, "bad": ["a", "c"] * 20}
    good, bad = scorers.paired_bootstrap(systems, ["a", "b"] * 20, metrics=("accuracy",), samples=100)
    assert (good.value, bad.value) == (100.0, 50.0)
    assert bad.p_value is not None
    assert bad.p_value < 0.05
