"""Test the score command: a file, a checkpoint on a data set, systems in pairs, and refusals."""

from __future__ import annotations

import gzip
import json
import random
import subprocess
import sys
import unicodedata
import urllib.error
from pathlib import Path

import pytest
import tiny

from seq2seq import checkpoint, score, translate
from seq2seq.evaluation import eval_data
from seq2seq.inference.translator import Translator
from seq2seq.metadata import describe
from seq2seq.metrics import scorers
from seq2seq.network.build import build_model
from seq2seq.settings.data import DataSettings
from seq2seq.settings.search import SearchSettings

EXHAUSTIVE = {
    "test_files_of_others_are_not_overwritten",
    "test_what_is_read_is_not_overwritten",
    "test_a_language_of_several_has_its_own_references",
    "test_settings_of_a_named_data_set",
}

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def ckpt(tmp_path_factory) -> Path:
    return tiny.save(tmp_path_factory.mktemp("checkpoint"))


def write(path: Path, lines: list[str], end: str = "\n") -> str:
    path.write_bytes("".join(line + end for line in lines).encode())
    return str(path)


def noisy(lines: list[str], share: float, seed: int) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choice(tiny.ENGLISH) if rng.random() < share else w for w in x.split()) for x in lines]


@pytest.fixture
def files(tmp_path) -> dict[str, str]:
    """Write a test set of 60 English sentences, a good and a bad translation."""
    reference = tiny.sentences(tiny.ENGLISH, 60, seed=1)
    return {
        "reference": write(tmp_path / "ref.en", reference),
        "good": write(tmp_path / "good.en", noisy(reference, 0.1, 2)),
        "bad": write(tmp_path / "bad.en", noisy(reference, 0.6, 3)),
    }


def report(capsys, *options: object) -> dict:
    status = score.main([*map(str, options), "--json"])
    printed = capsys.readouterr()
    assert status == 0, printed.err
    return json.loads(printed.out)


def refusal(capsys, *options: object) -> str:
    """Check status 2, an empty standard output and one line on standard error, and return that line."""
    try:
        status = score.main([str(o) for o in options])
    except SystemExit as stopped:
        status = stopped.code
    printed = capsys.readouterr()
    assert status == 2
    assert printed.out == ""
    assert printed.err.startswith("error: ")
    assert printed.err.count("\n") == 1
    return printed.err


def test_a_file(files, capsys):
    found = report(capsys, "--hypotheses", files["good"], "--references", files["reference"])
    good, reference = (Path(files[k]).read_text().splitlines() for k in ("good", "reference"))
    expected = scorers.scores(good, reference)
    assert found["lines"] == 60
    assert [tuple(s.values()) for s in found["scores"]] == [tuple(s) for s in expected]
    assert score.main(["--hypotheses", files["good"], "--references", files["reference"]]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in printed] == ["BLEU", "chrF2"]
    assert f"{expected[0].value:.2f}  nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:" in printed[0]


def test_several_references_and_options(files, tmp_path, capsys):
    common = ["--hypotheses", files["good"].replace("good", "upper"), "--metrics", "bleu"]
    write(tmp_path / "upper.en", [line.upper() for line in Path(files["good"]).read_text().splitlines()])
    one = report(capsys, *common, "--references", files["reference"], "--lowercase")["scores"]
    two = report(capsys, *common, "--references", files["bad"], files["reference"], "--lowercase", "--lang", "zh")[
        "scores"
    ]
    assert len(one) == len(two) == 1
    assert "case:lc" in one[0]["signature"]
    assert "nrefs:2" in two[0]["signature"]
    assert "tok:zh" in two[0]["signature"]
    assert two[0]["value"] >= one[0]["value"] > 30


def test_lines_end_at_newline_only(tmp_path, capsys):
    """CRLF is one line end, and the last may be missing; a lone CR, U+2028 and a form feed are text, a BOM is not."""
    reference = ["a b\rc d", "e f\u2028g h", "i j\fk l", "m n o p"]
    write(tmp_path / "ref", reference)
    (tmp_path / "hyp").write_bytes(b"\xef\xbb\xbf" + "\r\n".join(reference).encode())
    found = report(capsys, "--hypotheses", tmp_path / "hyp", "--references", tmp_path / "ref")
    assert found["lines"] == 4
    assert found["scores"][0]["value"] == pytest.approx(100)


def test_compare(files, tmp_path, capsys):
    options = ["--compare", files["good"], files["bad"], "--references", files["reference"], "--resamples", "100"]
    rows = report(capsys, *options, "--metrics", "bleu", "chrf")["comparison"]
    assert [(Path(r["system"]).name, r["name"]) for r in rows] == [
        (file, name) for name in ("BLEU", "chrF2") for file in ("good.en", "bad.en")
    ]
    assert rows[0]["p_value"] is None
    assert rows[1]["p_value"] < 0.05
    assert score.main(options) == 0
    printed = capsys.readouterr().out
    assert "baseline" in printed
    assert "bs:100" in printed
    assert " *\n" in printed


CHINESE = ["一个女人的头上有一个装满水的篮子。", "那个人正在演奏乐器。", "一只狗在雪地里跑。"] * 3
OTHER = ["一个女人的头上有一个篮子。", "那个男人正在演奏。", "一只狗在草地里跑。"] * 3


def scored(capsys, hypotheses: str, reference: str, *options: str) -> tuple[dict[str, dict], str]:
    """Return the scores by name, and what is said on standard error."""
    assert score.main(["--hypotheses", hypotheses, "--references", reference, "--json", *options]) == 0
    printed = capsys.readouterr()
    return {each["name"]: each for each in json.loads(printed.out)["scores"]}, printed.err


@pytest.mark.parametrize(
    ("name", "tokenizer", "said"),
    [
        *((f"test.{code}", "zh", f"'{code}', by the suffix of") for code in ("zh", "zh-CN", "zho_Hans", "cn", "gan")),
        *((f"test{suffix}", "zh", "'zh', by the script") for suffix in ("", ".txt", ".ref", ".en", ".cht.txt")),
    ],
)
def test_the_language_is_that_of_the_suffix_or_the_script(tmp_path, capsys, name, tokenizer, said):
    hypotheses, reference = write(tmp_path / "out", OTHER), write(tmp_path / name, CHINESE)
    found, err = scored(capsys, hypotheses, reference)
    given, silence = scored(capsys, hypotheses, reference, "--lang", "zh")
    assert found == given
    assert f"tok:{tokenizer}" in found["BLEU"]["signature"]
    assert found["BLEU"]["value"] > 40
    assert said in err
    assert silence == ""
    # An explicit tokenizer takes precedence
    chosen, silence = scored(capsys, hypotheses, reference, "--tokenize", "13a")
    assert chosen["BLEU"]["value"] < 1
    assert silence == ""
    assert scored(capsys, hypotheses, reference, "--metrics", "chrf", "chrf++")[1] == ""


def test_a_language_of_spaces_for_text_without_is_told(tmp_path, capsys):
    hypotheses, reference = write(tmp_path / "out", OTHER), write(tmp_path / "ref", CHINESE)
    found, err = scored(capsys, hypotheses, reference, "--lang", "ch")
    assert "tok:13a" in found["BLEU"]["signature"]
    assert err.endswith("--tokenize zh\n")


def test_korean_has_spaces_and_a_tokenizer_of_its_own(tmp_path, capsys):
    lines = ["한 여자가 머리에 물이 든 바구니를 이고 있다."] * 3
    hypotheses = write(tmp_path / "out", lines)
    for options in ([], ["--lang", "kr"]):
        found, err = scored(capsys, hypotheses, write(tmp_path / "ref", lines), *options)
        assert "tok:13a" in found["BLEU"]["signature"]
        assert err.endswith("--tokenize ko-mecab\n")
    reference = write(tmp_path / "ref.ko", lines)
    status = score.main(["--hypotheses", hypotheses, "--references", reference])
    printed = capsys.readouterr()
    assert "'ko', by the suffix" in printed.err
    assert ("ko-mecab" in printed.out) if status == 0 else ("sacrebleu[ko]" in printed.err)


def test_a_suffix_says_nothing_of_text_in_another_script(files, tmp_path, capsys):
    reference = write(tmp_path / "ref.my", Path(files["reference"]).read_text().splitlines())
    found, err = scored(capsys, files["good"], reference)
    assert "tok:13a" in found["BLEU"]["signature"]
    assert err == ""


def test_thai_compressed_and_compared(tmp_path, capsys):
    thai = ["ผู้หญิงคนหนึ่งมีตะกร้า", "สุนัขวิ่งบนหิมะ"] * 5
    with gzip.open(tmp_path / "ref.th.gz", "wt", encoding="utf-8") as file:
        file.write("".join(f"{line}\n" for line in thai))
    systems = [write(tmp_path / name, [f"{line}{name}" for line in thai]) for name in ("a", "b")]
    options = ["--compare", *systems, "--references", str(tmp_path / "ref.th.gz"), "--resamples", "9", "--json"]
    assert score.main([*options, "--metrics", "bleu", "chrf++"]) == 0
    printed = capsys.readouterr()
    rows = json.loads(printed.out)["comparison"]
    assert "tok:char" in rows[0]["signature"]
    assert rows[0]["value"] > 50
    assert "'th', by the suffix" in printed.err
    assert {row["name"] for row in rows} == {"BLEU", "chrF2++"}


@pytest.mark.parametrize(("end", "mark"), [(" .", "' .'"), (" wa@@ ter", "'@@ '"), (" &apos;s", "'&apos;'")])
def test_text_of_tokens_or_pieces_is_told(files, tmp_path, capsys, end, mark):
    lines = Path(files["good"]).read_text().splitlines()
    marked = write(tmp_path / "marked.en", [line + end for line in lines])
    _, err = scored(capsys, marked, files["reference"])
    assert err.count("\n") == 1
    assert f"{marked}: 60 of 60 lines" in err
    assert mark in err
    _, err = scored(capsys, files["good"], marked)
    assert f"{marked}: 60 of 60 lines" in err
    # An explicit `none` scores tokens without a warning
    assert scored(capsys, marked, files["reference"], "--tokenize", "none")[1] == ""


def test_another_unicode_form_is_told(tmp_path, capsys):
    lines = ["Größe zählt über alles hier", "ein Mädchen läuft dort hinüber"]
    composed = write(tmp_path / "a.de", lines)
    decomposed = write(tmp_path / "b.de", [unicodedata.normalize("NFD", line) for line in lines])
    found, err = scored(capsys, composed, decomposed)
    assert found["BLEU"]["value"] < 50
    assert "Unicode form: 0 against 2" in err


def test_chrf_plus_plus_is_that_of_sacrebleu(files, capsys):
    found, _ = scored(capsys, files["good"], files["reference"], "--metrics", "chrf++", "chrf")
    command = [sys.executable, "-m", "sacrebleu", files["reference"], "-i", files["good"], "-m", "chrf"]
    command += ["--chrf-word-order", "2", "-f", "json", "-w", "9"]
    theirs = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert found["chrF2++"]["value"] == pytest.approx(theirs["score"], abs=1e-8)
    assert found["chrF2++"]["value"] != pytest.approx(found["chrF2"]["value"], abs=0.01)
    assert theirs["name"] == "chrF2++"
    assert found["chrF2++"]["signature"] == theirs["signature"]
    assert score.main(["--hypotheses", files["good"], "--references", files["reference"], "--metrics", "chrf++"]) == 0
    assert capsys.readouterr().out.startswith("chrF2++ ")


def test_wrong_options_and_files_are_one_line(files, tmp_path, ckpt, capsys):
    short = write(tmp_path / "short", ["one"])
    empty = write(tmp_path / "empty", [])
    good, reference = files["good"], files["reference"]
    link = tmp_path / "link"
    link.symlink_to(reference)
    for options, message in [
        (["--hypotheses", short, "--references", reference], "short has 1 lines, but "),
        (["--hypotheses", good, "--references", reference, short], "good.en has 60 lines, but "),
        (["--compare", good, short, "--references", reference], "short has 1 lines, but "),
        (["--hypotheses", empty, "--references", write(tmp_path / "nothing", [])], "nothing to score"),
        (["--hypotheses", good], "need --references"),
        (["--hypotheses", good, "--references", reference, "--data", "x"], "--data needs --ckpt"),
        (["--compare", good, short, "--references", reference, "--beam-size=2"], "--beam-size needs --ckpt"),
        (["--hypotheses", good, "--references", reference, "--resamples", "9"], "--resamples needs --compare"),
        (["--ckpt", "x", "--glossary-by", "tags"], "--glossary-by needs --glossary"),
        (["--compare", good, "--references", reference], "two files or more"),
        (["--compare", good, good, "--references", reference], "are the same file"),
        (["--hypotheses", good, "--references", reference, link], "are the same file"),
        (["--hypotheses", "-", "--references", "/dev/stdin"], "standard input and /dev/stdin are the same file"),
        (["--hypotheses", "/dev/zero", "--references", good], "is a device, not a text file"),
        (["--ckpt", ckpt, "--data", "files", "test=[/a,/b"], "test=[/a,/b: the value is not YAML"),
        (["--hypotheses", good, "--compare", good, good], "not allowed with argument"),
        (["--hypotheses", tmp_path / "no", "--references", reference], "no: No such file"),
        (["--hypotheses", tmp_path, "--references", reference], "is a directory"),
        (["--hypotheses", good, "--references", reference, "--tokenize", "moses"], "unknown BLEU tokenizer 'moses'"),
        (["--ckpt", ckpt, "--references", reference], "--ckpt takes its references from --data"),
        (["--ckpt", ckpt, "--data", "wmt99"], "no data set 'wmt99'; known are cifar10, digits, drawn_words, files, "),
        (["--ckpt", ckpt, "--data", "phrasebook", "src=en"], "translates de to en; --data src=en does not fit"),
        (["--ckpt", ckpt, "--data", "files", "tset=x"], "no such setting; known are "),
        (["--ckpt", ckpt, "--data", "tokenize=5"], "--data tokenize has no effect on this score: leave it out, or"),
        (["--ckpt", ckpt, "--data", "data.convention=tokenized"], "leave it out, or give --convention"),
        (["--ckpt", ckpt, "--device", "gpu"], "unknown device 'gpu'"),
        (["--ckpt", ckpt, "--diversity", "3"], "--diversity=3.0 has no effect with --beam-groups=1: leave it out"),
    ]:
        assert message in refusal(capsys, *options)


def test_a_missing_or_damaged_checkpoint_is_one_line(ckpt, tmp_path, capsys):
    assert "no such file" in refusal(capsys, "--ckpt", tmp_path / "none.safetensors")
    assert "is a folder without checkpoints/best.safetensors or model.saf" in refusal(capsys, "--ckpt", tmp_path)
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(ckpt.read_bytes()[:-1])
    assert "is truncated or damaged" in refusal(capsys, "--ckpt", broken, "--data", "phrasebook")


def test_a_checkpoint_on_local_files(ckpt, tmp_path, capsys):
    """The translator's own output is scored; --limit takes the first pairs; --save writes the translations."""
    source, reference = tiny.sentences(tiny.GERMAN, 30, seed=4), tiny.sentences(tiny.ENGLISH, 30, seed=5)
    source[7] = ""
    write(tmp_path / "test.de", source)
    write(tmp_path / "test.en", reference)
    data = ["--data", "files", f"data.test={tmp_path / 'test'}"]
    common = ["--ckpt", ckpt, "--beam-size", "2", "--device", "cpu", "--cache", tmp_path / "cache"]
    found = report(capsys, *common, *data, "--save", tmp_path / "out")
    expected = Translator.load(ckpt, settings=SearchSettings(beam_size=2), device="cpu").texts(source)
    assert (tmp_path / "out").read_text().split("\n")[:-1] == expected
    assert (found["data"], found["split"], found["direction"], found["lines"]) == ("files", "test", "de-en", 30)
    assert found["scores"][0]["value"] == scorers.bleu(expected, reference).value
    assert "tok:13a" in found["scores"][0]["signature"]
    few = report(capsys, *common, *data, "--limit", "5", "--metrics", "chrf")
    assert few["lines"] == 5
    assert few["scores"][0]["value"] == scorers.chrf(expected[:5], reference[:5]).value


def test_a_long_line_is_translated_in_parts_as_translate_does(ckpt, tmp_path, capsys):
    source = [*tiny.sentences(tiny.GERMAN, 2, seed=4), " ".join(tiny.sentences(tiny.GERMAN, 6, seed=6))]
    written = write(tmp_path / "test.de", source)
    write(tmp_path / "test.en", tiny.sentences(tiny.ENGLISH, 3, seed=5))
    common = ["--ckpt", str(ckpt), "--max-len", "12", "--device", "cpu"]
    scored, translated = str(tmp_path / "scored"), str(tmp_path / "translated")
    data = ["--data", "files", f"data.test={tmp_path / 'test'}", "--cache", str(tmp_path / "cache")]
    assert score.main([*common, *data, "--save", scored]) == 0
    assert "sentence 3 is split: " in capsys.readouterr().err
    assert translate.main([*common, "--input", written, "--output", translated]) == 0
    assert Path(scored).read_bytes() == Path(translated).read_bytes()


@pytest.mark.parametrize(
    "option", ["--data x", "--limit 3", "--lang zh", "--lowercase", "--beam-size 3", "--shortlist x"]
)
def test_options_without_effect_on_forced_decoding_are_refused(ckpt, option, capsys):
    message = f"{option.split()[0]} has no effect with --forced-decoding"
    assert message in refusal(capsys, "--ckpt", ckpt, "--forced-decoding", "a", "b", *option.split())


def test_sentences_that_fail_show_in_the_status(ckpt, tmp_path, capsys, monkeypatch):
    """A failed sentence counts as empty, and counts once even if several of its parts fail."""
    monkeypatch.setattr("seq2seq.inference.translator.search_stream", tiny.failing_search)
    write(tmp_path / "test.de", ["der Hund " * 20])
    write(tmp_path / "test.en", ["the dog"])
    common = ["--ckpt", ckpt, "--device", "cpu", "--cache", tmp_path / "cache", "--max-len", "12"]
    assert score.main([*map(str, common), "--data", "files", f"data.test={tmp_path / 'test'}"]) == 1
    assert "error: 1 of 1 sentences could not be translated and count as empty" in capsys.readouterr().err


def test_what_is_read_is_not_overwritten(ckpt, tmp_path, capsys):
    for lang, words in (("de", tiny.GERMAN), ("en", tiny.ENGLISH)):
        write(tmp_path / f"test.{lang}", tiny.sentences(words, 3))
    other = tmp_path / "other.safetensors"
    other.write_bytes(ckpt.read_bytes())
    (tmp_path / "link").symlink_to(ckpt)
    before = {path: path.read_bytes() for path in [ckpt, *tmp_path.iterdir()]}
    common = ["--ckpt", ckpt, "--data", "files", f"data.test={tmp_path / 'test'}", "--device", "cpu", "--save"]
    for name, what in (
        (ckpt, "is the checkpoint"),
        (tmp_path / "link", "is the checkpoint"),
        (other, "is a checkpoint"),
        (tmp_path / "test.de", "is the corpus"),
        (tmp_path / "test.en", "is the corpus"),
    ):
        assert what in refusal(capsys, *common, name)
    assert before == {path: path.read_bytes() for path in [ckpt, *tmp_path.iterdir()]}
    for _ in range(2):
        report(capsys, *common, tmp_path / "out", "--cache", tmp_path / "cache")


def test_files_of_others_are_not_overwritten(ckpt, tmp_path, capsys):
    """A run's file, a side of another corpus and a binary file are kept; an earlier output is overwritten."""
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    for name in ("config.yaml", "test.ref", "checkpoints/notes"):
        (run / name).write_text("of the run\n")
    for lang in ("de", "en"):
        write(tmp_path / f"other.{lang}", ["a line"])
    (tmp_path / "binary").write_bytes(b"\x89PNG\r\n\x1a\n\0")
    write(tmp_path / "alone.en", ["an earlier output"])
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    common = ["--ckpt", ckpt, "--device", "cpu", "--cache", tmp_path / "cache", "--limit", "2", "--save"]
    for name, what in (
        ("run/test.ref", "a file of a run"),
        ("run/config.yaml", "a file of a run"),
        ("run/checkpoints/notes", "a file of a run"),
        ("binary", "is not text"),
        ("other.en", "side of a corpus"),
    ):
        assert what in refusal(capsys, *common, tmp_path / name)
    assert before == {path: path.read_bytes() for path in before}
    for path in (tmp_path / "alone.en", run / "test.beam1"):
        report(capsys, *common, path)
        assert path.read_bytes().count(b"\n") == 2


def test_a_checkpoint_in_its_run_folder_knows_its_data(tmp_path, capsys):
    """runs/<name>/config.yaml has the run's data section, with held-out pairs, and its search."""
    (tmp_path / "checkpoints").mkdir()
    ckpt = tiny.save(tmp_path / "checkpoints", search=SearchSettings(beam_size=1, length_penalty=0.6))
    write(tmp_path / "train.de", tiny.sentences(tiny.GERMAN, 200, seed=6))
    write(tmp_path / "train.en", tiny.sentences(tiny.ENGLISH, 200, seed=7))
    own = {"name": "mine", "src": "de", "tgt": "en", "train": str(tmp_path / "train"), "valid": None, "test": None}
    (tmp_path / "config.yaml").write_text(json.dumps({"data": {**own, "holdout": 20, "clean": {}}, "seed": 1}))
    common = ["--ckpt", ckpt, "--device", "cpu", "--cache", tmp_path / "cache", "--metrics", "bleu"]
    found = report(capsys, *common)
    assert (found["data"], found["lines"]) == ("mine", 20)
    assert (found["beam_size"], found["length_penalty"]) == (1, 0.6)
    assert report(capsys, *common, "--split", "valid", "--data", "holdout=10")["lines"] == 10


def test_a_checkpoint_is_scored_as_its_run_was(tmp_path, capsys):
    """A checkpoint is scored with the tokenizer of its run's validations."""
    payload = tiny.payload()
    payload.meta["tokenize"] = "char"
    checkpoint.save(tmp_path / "char.safetensors", payload)
    for language, words in (("de", tiny.GERMAN), ("en", tiny.ENGLISH)):
        write(tmp_path / f"test.{language}", tiny.sentences(words, 3))
    command = ["--ckpt", tmp_path / "char.safetensors", "--device", "cpu", "--beam-size", "1", "--metrics", "bleu"]
    command += ["--cache", tmp_path / "cache", "--data", "files", f"test={tmp_path / 'test'}"]
    assert "tok:char" in report(capsys, *command)["scores"][0]["signature"]


def test_a_language_of_several_has_its_own_references(tmp_path, capsys):
    """References, tokenizer, convention and report belong to the chosen target language."""
    tokenizer = tiny.tokenizer(symbols=("<2en>", "<2zh>"))
    config = tiny.model_config(tokenizer)
    names = {"src_lang": "de", "tgt_lang": "en", "tokenize": "13a", "data": "files"}
    languages = ("en", "zh")
    entry = describe(model_config=config, tokenizer=tokenizer, tgt_langs=languages, **names)
    ckpt = tmp_path / "several.safetensors"
    checkpoint.save(ckpt, checkpoint.Stored(entry, build_model(config).state_dict()))
    source = tiny.sentences(tiny.GERMAN, 3)
    chinese = Translator.load(ckpt, settings=SearchSettings(beam_size=1), device="cpu", tgt_lang="zh").texts(source)
    for language, lines in (("de", source), ("en", tiny.sentences(tiny.ENGLISH, 3)), ("zh", chinese)):
        write(tmp_path / f"test.{language}", lines)
    data = ["--data", "files", f"test={tmp_path / 'test'}"]
    common = ["--ckpt", ckpt, "--device", "cpu", "--beam-size", "1", "--metrics", "bleu", "--cache", tmp_path, *data]
    found = report(capsys, *common, "--tgt-lang", "zh")
    assert found["direction"] == "de-zh"
    assert found["scores"][0]["value"] == pytest.approx(100)
    assert "tok:zh" in found["scores"][0]["signature"]
    found = report(capsys, *common)
    assert (found["direction"], "tok:13a" in found["scores"][0]["signature"]) == ("de-en", True)
    assert "Moses makes no words of 'zh'" in refusal(capsys, *common, "--tgt-lang", "zh", "--convention", "tokenized")
    message = "translates de to en here; --data tgt=zh does not fit it; choose it by --tgt-lang zh"
    assert message in refusal(capsys, *common, "tgt=zh")


def test_settings_of_a_named_data_set(ckpt, tmp_path):
    """A data set's file is merged with the one it builds on, with the cache, and with what the user changes."""
    meta = {"src_lang": "en", "tgt_lang": "de", "data": "phrasebook"}

    def settings(*words: str) -> DataSettings:
        languages = (meta["src_lang"], meta["tgt_lang"])
        return eval_data.data_settings(words, ckpt=str(ckpt), meta=meta, languages=languages, cache=tmp_path)

    data = settings()
    assert (data.name, data.src, data.tgt) == ("phrasebook", "en", "de")
    assert data.clean
    data = settings("multi30k", "max_tokens=77", "columns={en: x, de: y}")
    assert (data.max_tokens, data.columns, data.test) == (77, {"en": "x", "de": "y"}, "test")
    meta |= {"src_lang": "png"}
    assert settings("drawn_words").test == f"{tmp_path}/drawn_words/test"


def test_files_and_standard_input_need_no_torch(files):
    program = f"""
import sys
from seq2seq import score
def heavy(*names): return [n for n in names if n in sys.modules]
try: score.main(["--help"])
except SystemExit: print("done")
assert not heavy("torch", "numpy", "sacrebleu", "sentencepiece", "datasets", "lightning", "hydra")
assert score.main(["--hypotheses", "-", "--references", {files["good"]!r}, "--metrics", "bleu"]) == 0
assert not heavy("torch", "datasets", "lightning", "hydra"), heavy("torch", "datasets", "lightning", "hydra")
"""
    with open(files["reference"], "rb") as stream:
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, cwd=ROOT, stdin=stream, capture_output=True, text=True, check=True)
    assert done.stdout.split("done\n")[1].startswith("BLEU  ")


def test_a_tokenizer_that_cannot_be_downloaded(files, capsys, monkeypatch):
    """The tokenizer's model comes from the network at the first use, which fails here."""

    def offline(*_: object) -> None:
        raise urllib.error.URLError("no route to the host")

    monkeypatch.setattr("sacrebleu.tokenizers.tokenizer_spm.download_file", offline)
    monkeypatch.setattr("sacrebleu.tokenizers.tokenizer_spm.SACREBLEU_DIR", "/nowhere")
    options = ["--hypotheses", files["good"], "--references", files["reference"], "--tokenize", "flores101"]
    assert "needs a model that sacreBLEU downloads once (no route to the host)" in refusal(capsys, *options)


def test_a_test_set_in_markup_is_scored_by_its_segments(files, tmp_path, capsys):
    """Scoring lines of markup as sentences gave 2 BLEU instead of 17."""
    expected = report(capsys, "--hypotheses", files["good"], "--references", files["reference"])["scores"]
    for name in ("good", "reference"):
        lines = Path(files[name]).read_text().splitlines()
        segments = "".join(f'<seg id="{i}"> {line} </seg>\n' for i, line in enumerate(lines))
        kind = "refset" if name == "reference" else "tstset"
        (tmp_path / f"{name}.sgm").write_text(f'<{kind} setid="x">\n<doc>\n{segments}</doc>\n</{kind}>\n')
    given = ("--hypotheses", tmp_path / "good.sgm", "--references", tmp_path / "reference.sgm")
    assert report(capsys, *given)["scores"] == expected
    (tmp_path / "x.xlf").write_text('<?xml version="1.0"?>\n<xliff/>\n')
    assert score.main(["--hypotheses", files["good"], "--references", str(tmp_path / "x.xlf")]) == 2
    assert "markup is not read" in capsys.readouterr().err


def test_references_in_another_encoding_are_refused_and_what_a_system_wrote_is_warned_of(files, tmp_path, capsys):
    text = Path(files["reference"]).read_text().replace("the", "thé").replace("a", "ä")
    (tmp_path / "latin").write_bytes(text.encode("latin-1"))
    assert score.main(["--hypotheses", files["good"], "--references", str(tmp_path / "latin")]) == 2
    assert "latin: line 1 is not UTF-8, or has U+FFFD" in (error := capsys.readouterr().err)
    assert "iconv" in error
    assert score.main(["--hypotheses", str(tmp_path / "latin"), "--references", files["reference"]]) == 0
    assert "warning: " in (error := capsys.readouterr().err)
    assert "latin: line 1 is not UTF-8" in error


def test_a_shift_against_the_references_is_told(tmp_path, capsys):
    lines = [f"{i} " + "word " * random.Random(i).randrange(3, 40) for i in range(300)]
    write(tmp_path / "ref", lines)
    write(tmp_path / "hyp", [*lines[:100], *lines[101:], "more"])
    assert score.main(["--hypotheses", str(tmp_path / "hyp"), "--references", str(tmp_path / "ref")]) == 0
    assert "ref: from about line 101 on, the second seems to be 1 line behind the first" in capsys.readouterr().err
    write(tmp_path / "hyp", [*lines[:100], *lines[101:]])
    assert score.main(["--hypotheses", str(tmp_path / "hyp"), "--references", str(tmp_path / "ref")]) == 2
    assert "has 299 lines, but" in (error := capsys.readouterr().err)
    assert "from about line 101 on" in error


def test_saved_translations_are_compressed_as_their_name_says(ckpt, tmp_path, capsys):
    for side, words in (("de", tiny.GERMAN), ("en", tiny.ENGLISH)):
        write(tmp_path / f"test.{side}", tiny.sentences(words, 5, seed=1))
    given = ("--ckpt", ckpt, "--data", "files", f"test={tmp_path / 'test'}", "--device", "cpu")
    found = report(capsys, *given, "--save", tmp_path / "out.en.gz")["scores"]
    again = report(capsys, "--hypotheses", tmp_path / "out.en.gz", "--references", tmp_path / "test.en", "--lang", "en")
    assert again["scores"] == found
