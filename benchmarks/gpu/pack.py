"""Make one folder that has what a visit needs: the source tree, the prepared data, and wheels of what may be missing.

FOLDER/run.sh            installs the wheels where Python lacks the packages, and runs `python -m benchmarks.gpu`
FOLDER/headline-data/    what benchmarks.headline prepared: arrays, references, tokenizer, settings of the models
FOLDER/wheels/           for Python 3.12 on Linux
FOLDER/...               the tracked files of the repository
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.gpu.records import ROOT

LIMIT_MIB = 60
# What a machine that has torch, Lightning, SentencePiece, sacreBLEU and pytest lacks.
PACKAGES = ("hydra-core", "omegaconf", "antlr4-python3-runtime", "datasets", "dill", "multiprocess", "sacremoses")
# Packages that are published as sources alone; they are pure Python.
_FROM_SOURCE = ("antlr4-python3-runtime",)
_PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
_PYTHON = ("--python-version=3.12", "--implementation=cp", "--only-binary=:all:")

_SCRIPT = """\
#!/bin/sh
# usage: sh run.sh --out DIR [--budget 540] [...], as of python -m benchmarks.gpu --help
# Installs what is missing beside Python's own packages, and changes nothing of them.
here=$(cd "$(dirname "$0")" && pwd)
site=${SEQ2SEQ_SITE:-$here/.site}
python=${PYTHON:-python3}
install() { "$python" -m pip install --quiet --no-index --no-deps --no-cache-dir --target "$site" "$@"; }
if [ ! -d "$site" ] && ls "$here"/wheels/*.whl >/dev/null 2>&1; then
    install "$here"/wheels/*.whl || for wheel in "$here"/wheels/*.whl; do
        install "$wheel" || echo "goes on without $wheel" >&2
    done
fi
# PYTHONPATH comes before Python's own packages, so what is packed would hide them
PYTHONPATH=$here:$site${PYTHONPATH:+:$PYTHONPATH}
export PYTHONPATH
exec "$python" -m benchmarks.gpu "$@"
"""


def pack(folder: Path, *, data: Path, corpora: Path | None, wheels: Path | None) -> int:
    """Make the folder and return the exit status, 2 if it cannot be made or is too large.

    Args:
        folder: New folder.
        data: The prepared folder; made from `corpora` if it is not there.
        corpora: As for `benchmarks.headline --prepare`.
        wheels: Folder of wheels to take; None downloads them.
    """
    try:
        if folder.exists() and any(folder.iterdir()):
            raise ValueError(f"{folder} is not empty; choose a new folder")
        copy_tree(folder)
        add_data(folder / "headline-data", data, corpora)
        add_wheels(folder / "wheels", wheels)
        (folder / "run.sh").write_text(_SCRIPT, encoding="utf-8")
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 2**20
        print(f"{folder}: {size:.1f} MiB in {sum(path.is_file() for path in folder.rglob('*'))} files")
        if size > LIMIT_MIB:
            raise ValueError(f"{folder} has {size:.1f} MiB, more than {LIMIT_MIB}; prepare fewer corpora")
    except (ValueError, subprocess.CalledProcessError) as error:
        print(f"gpu: {error}", file=sys.stderr)
        return 2
    return 0


def copy_tree(folder: Path) -> None:
    """Copy the tracked files of the repository, as they are now."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        # A file may be tracked and deleted
        if (ROOT / name).is_file():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target)


def add_data(target: Path, data: Path, corpora: Path | None) -> None:
    """Copy the prepared folder, or prepare it."""
    if (data / "headline-data.json").is_file():
        shutil.copytree(data, target)
        return
    if corpora is None:
        raise ValueError(f"{data} holds no headline-data.json; give --data, or --corpora to prepare it from")
    # Needs Hydra and SentencePiece, which only this command does
    from benchmarks.headline.prepare import prepare

    prepare(corpora, target, vocab_size=8000)


def add_wheels(target: Path, wheels: Path | None) -> None:
    """Copy the wheels of a folder, or download those of PACKAGES in the versions of constraints.txt."""
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
