"""Make one folder with all that a visit needs besides a checkout: text, and wheels of missing packages.

FOLDER/wheels/           for Python 3.12 on Linux
FOLDER/europarl-it-en/   where CORPORA has it: text of the training command, with a joint vocabulary of 16,000 pieces
FOLDER/multi30k/         where CORPORA has it: text of the fifteen small runs

There, from the root of a checkout:

    python3 -m pip install --no-index --no-deps --target SITE FOLDER/wheels/*.whl
    PYTHONPATH=SITE python3 -m benchmarks.gpu --data FOLDER --out DIR
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.gpu.records import ROOT

# Limit of the folder's size, which leaves room for the checkout below the limit of an upload.
LIMIT_MIB = 45
# Languages and splits of further text, by its folder; the training command reads the first one.
COMMAND_TEXT, SMALL_TEXT = "europarl-it-en", "multi30k"
_TEXTS = {
    COMMAND_TEXT: ("it", "en", ("train", "valid", "test")),
    SMALL_TEXT: ("en", "de", ("train", "valid", "test2016")),
}
_PIECES = 16_000
# Packages besides torch, Lightning, SentencePiece, sacreBLEU and pytest.
PACKAGES = (
    *("hydra-core", "omegaconf", "antlr4-python3-runtime", "datasets", "dill", "multiprocess", "sacremoses", "entmax"),
    *("hydra-submitit-launcher", "submitit"),
)
# Pure Python packages without published wheels.
_FROM_SOURCE = ("antlr4-python3-runtime",)
_PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
_PYTHON = ("--python-version=3.12", "--implementation=cp", "--only-binary=:all:")


def pack(folder: Path, *, corpora: Path | None, wheels: Path | None) -> int:
    """Make the folder and return the exit status, 2 if it cannot be made or is too large.

    Args:
        folder: New folder.
        corpora: The folder with the corpora, each in a folder of its own; None packs no text.
        wheels: Folder of wheels to take; None downloads them.
    """
    try:
        if folder.exists() and any(folder.iterdir()):
            raise ValueError(f"{folder} is not empty; choose a new folder")
        folder.mkdir(parents=True, exist_ok=True)
        add_wheels(folder / "wheels", wheels)
        if corpora is not None:
            add_corpora(folder, corpora)
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 2**20
        print(f"{folder}: {size:.1f} MiB in {sum(path.is_file() for path in folder.rglob('*'))} files")
        if size > LIMIT_MIB:
            raise ValueError(f"{folder} has {size:.1f} MiB, more than {LIMIT_MIB}; give fewer corpora")
    except (ValueError, subprocess.CalledProcessError) as error:
        print(f"gpu: {error}", file=sys.stderr)
        return 2
    return 0


def add_corpora(folder: Path, corpora: Path) -> None:
    """Copy the text of the training command and of the small runs, and train the command's tokenizer."""
    for name, (*languages, splits) in _TEXTS.items():
        sides = [sorted(corpora.glob(f"{name}/{split}.{code}*")) for split in splits for code in languages]
        if not all(sides):
            print(f"{corpora} has no {name}, or only a part of it: left out", file=sys.stderr)
            continue
        (folder / name).mkdir()
        for path, *_ in sides:
            shutil.copy(path, folder / name)
        if name == COMMAND_TEXT:
            (src, *_), (tgt, *_), *_ = sides
            train_joint(folder / name / "joint.model", src, tgt)


def train_joint(path: Path, src: Path, tgt: Path) -> None:
    """Train one SentencePiece model on both sides, and write it."""
    from seq2seq.data.text_files import read_lines
    from seq2seq.data.tokenizer import train_tokenizer
    from seq2seq.settings.tokenizer import TokenizerSettings

    settings = TokenizerSettings(vocab_size=_PIECES, type="bpe")
    tokenizer = train_tokenizer(src_lines=read_lines(src), tgt_lines=read_lines(tgt), settings=settings)
    path.write_bytes(tokenizer.to_state()["src_model"])


def add_wheels(target: Path, wheels: Path | None) -> None:
    """Copy the wheels of a folder, or download PACKAGES in the versions of constraints.txt."""
    if wheels is not None:
        shutil.copytree(wheels, target)
        return
    target.mkdir()
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    constraints = ["-c", str(ROOT / "constraints.txt"), "--no-deps"]
    binary = [name for name in PACKAGES if name not in _FROM_SOURCE]
    platforms = [f"--platform={name}" for name in _PLATFORMS]
    subprocess.run([*pip, "download", *_PYTHON, *platforms, *constraints, "-d", str(target), *binary], check=True)
    subprocess.run([*pip, "wheel", *constraints, "-w", str(target), *_FROM_SOURCE], check=True)
