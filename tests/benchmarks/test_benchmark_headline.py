"""The headline benchmark on a CPU: with tiny models, in seconds, and without the packages a GPU machine may lack."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tiny

from benchmarks.headline import __main__ as headline
from benchmarks.headline.data import Prepared
from benchmarks.headline.parts import IN_BFLOAT16
from benchmarks.headline.prepare import TESTS, TRAIN

ROOT = Path(__file__).resolve().parents[2]
QUICK = (
    *("--device=cpu", "--seconds=0.3", "--synthetic-seconds=0.1", "--no-compile", "--max-tokens=400"),
    *("--synthetic-tokens=60", "--lengths=5", "--beam-size=2", "--mixers", "dynamicconv", "bahdanau"),
)


def write_corpora(corpora: Path) -> None:
    """Write corpora of a few dozen sentences."""
    for seed, place in enumerate((*TRAIN, *TESTS.values())):
        path = corpora / place
        path.parent.mkdir(parents=True, exist_ok=True)
        count = 60 if place in TRAIN else 4
        for language, words in (("de", tiny.GERMAN), ("en", tiny.ENGLISH)):
            lines = tiny.sentences(words, count, seed=seed + 100)
            Path(f"{path}.{language}").write_text("".join(line + "\n" for line in lines), encoding="utf-8")


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """Prepare the data from corpora of a few dozen sentences."""
    corpora, folder = tmp_path_factory.mktemp("corpora"), tmp_path_factory.mktemp("data")
    write_corpora(corpora)
    status = headline.main([f"--prepare={corpora}", f"--data={folder}", "--vocab-size=300", "--tiny"])
    assert status == 0
    return folder


@pytest.mark.slow
def test_prepared_arrays_decode_to_the_text(data):
    from seq2seq.data.tokenizer import Tokenizer

    prepared = Prepared(data)
    tokenizer = Tokenizer(src_model=(data / "tokenizer.model").read_bytes())
    _, tgt = prepared.split("newstest2013")
    lines = tokenizer.decode([tgt.row(i) for i in range(len(tgt.lengths))])
    assert lines == prepared.references("newstest2013")
    src, _ = prepared.split("train")
    assert len(src.lengths) == prepared.description["pairs"] > 300
    assert np.all(src.ids[src.starts + src.lengths - 1] == prepared.ids["eos"])


@pytest.mark.slow
def test_budget_stops_and_the_same_command_continues(data, tmp_path, capsys):
    """After a command that its budget stops, the same without a budget does not repeat finished parts."""
    command = [f"--data={data}", f"--out={tmp_path}", *QUICK]
    assert headline.main([*command, "--sections", "quality", "--budget=0"]) == headline.UNFINISHED
    first = json.loads((tmp_path / "headline.json").read_text())["parts"]
    assert list(first) == ["quality/dynamicconv"]
    capsys.readouterr()
    assert headline.main(command) == 0
    result = json.loads((tmp_path / "headline.json").read_text())
    parts = result["parts"]
    assert len(parts) == 2 + 2 * 2
    assert parts["quality/dynamicconv"]["steps"] == first["quality/dynamicconv"]["steps"]
    for name, part in parts.items():
        assert part["target_tokens_per_second"] > 0, name
        # A share of what this CPU was measured to do, which other processes make too little: it may exceed 1
        assert part["mfu"] > 0, name
        assert (part["padding"] == 0) == name.startswith("speed/")
    translations = parts["quality/dynamicconv"]["translations"]
    assert set(translations) == {f"{name}{dtype}" for name in TESTS for dtype in ("", IN_BFLOAT16)}
    assert [len(each["ids"]) for each in translations.values()] == [4] * 6
    assert all(0 <= each["scores"][0]["value"] <= 100 for each in translations.values())
    table = capsys.readouterr().out
    assert "| mixer | BLEU tatoeba | BLEU multi30k | BLEU newstest2013 | BLEU tatoeba in bfloat16 |" in table
    assert "| big bahdanau 5 |" in table


@pytest.mark.slow
def test_a_gpu_machine_may_lack_all_but_torch_and_numpy(data, tmp_path):
    """Run where nothing else can be imported, merged and scored here."""
    blocker = (
        "import sys\n"
        "names = 'lightning hydra omegaconf datasets sentencepiece sacrebleu pyarrow rich tensorboard yaml'\n"
        "sys.modules.update(dict.fromkeys(names.split()))\n"
        "from benchmarks.headline.__main__ import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    there, here = tmp_path / "there", tmp_path / "here"
    given = [f"--data={data}", f"--out={there}", *QUICK, "--sections", "quality", "--mixers", "lightconv"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", blocker, *given], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "run again with --score" in done.stdout
    assert "not scored" in (there / "headline.md").read_text()
    assert headline.main([f"--data={data}", f"--out={here}", "--merge", str(there), "--score"]) == 0
    assert "not scored" not in (here / "headline.md").read_text()


@pytest.mark.exhaustive
def test_missing_data_is_named(data, tmp_path, capsys):
    assert headline.main([f"--data={tmp_path}", f"--out={tmp_path}", *QUICK]) == 2
    assert "holds no headline-data.json" in capsys.readouterr().err
    assert headline.main([f"--prepare={tmp_path}", f"--data={tmp_path}"]) == 2
    assert "there is no" in capsys.readouterr().err


@pytest.mark.exhaustive
def test_results_of_two_machines_make_no_table(data, tmp_path, capsys):
    device = {"name": "NVIDIA H200", "torch": "2.11", "date": "2026-01-01"}
    (tmp_path / "headline.json").write_text(json.dumps({"device": device, "parts": {"speed/big/gru/27": {}}}))
    assert headline.main([f"--data={data}", f"--out={tmp_path}", *QUICK]) == 2
    assert "figures of NVIDIA H200 and of" in capsys.readouterr().err
