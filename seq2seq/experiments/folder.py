"""A run's folder: its name, what it is refused for, and the small files in it."""

from __future__ import annotations

import copy
import hashlib
import json
import logging
import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from seq2seq.config.dicts import differences, without
from seq2seq.config.trainer import bounded
from seq2seq.files import write_text

log = logging.getLogger(__name__)

# Settings that change neither the data, the model nor the course of training.
_HARMLESS_TRAINER = (
    "accelerator", "devices", "nodes", "threads", "strategy", "checkpoint_activations", "max_skipped", "profile",
    "log_steps", "line_time", "samples", "save_time", "test", "keep_last", "keep_best", "median_stop",
)  # fmt: skip
HARMLESS = (
    "resume",
    "force",
    "runs",
    "run",
    "cache",
    "logger",
    "data.num_workers",
    "data.num_proc",
    *(f"trainer.{key}" for key in _HARMLESS_TRAINER),
)
# Settings that only bound a run: they count for its name, but a run may be continued with others.
BUDGETS = ("trainer.max_steps", "trainer.max_epochs", "trainer.max_time", "trainer.patience")
# Key of what `SaveLast` adds to a training checkpoint: the settings, and the fingerprint of the corpus.
ORIGIN = "run"


# What is kept of the test set.
SIDES = ("src", "ref", "hyp")


class RunFolder:
    """Paths inside one run's folder; nothing is created before `create`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.yaml"
        self.results = path / "results.json"
        self.best = path / "checkpoints" / "best.ckpt"
        self.last = path / "checkpoints" / "last.ckpt"

    def create(self, config_yaml: str) -> None:
        """Make the folder, clear away what a killed run was writing, and write config.yaml unless there is one."""
        self.best.parent.mkdir(parents=True, exist_ok=True)
        for unfinished in (*self.path.glob(".*.tmp"), *self.best.parent.glob(".*.tmp")):
            unfinished.unlink(missing_ok=True)
        if not self.config.exists():  # else it is that of the weights that are there, until training goes on
            write_text(self.config, config_yaml)

    def train_from(self, step: int, config_yaml: str) -> None:
        """Move results, which training from update `step` on will outdate, to `before-<step>/`; write config.yaml."""
        outdated = [path for path in (self.results, *map(self.test_file, SIDES)) if path.exists()]
        if outdated:
            aside = self.path / f"before-{step}"
            aside.mkdir(exist_ok=True)
            write_text(aside / self.config.name, self.config.read_text(encoding="utf-8"))
            for path in outdated:
                path.replace(aside / path.name)
            log.info("training goes on: the results so far are in %s", aside)
        write_text(self.config, config_yaml)

    def read_results(self) -> dict[str, Any]:
        """What results.json says; nothing where it cannot be read."""
        try:
            found = json.loads(self.results.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def test_file(self, side: str) -> Path:
        """Where the `src`, `ref` or `hyp` (translations) of the test set is, one sentence a line."""
        return self.path / f"test.{side}"

    def save_test(self, *, src: Sequence[str], ref: Sequence[str], hyp: Sequence[str]) -> None:
        """Write the test set and its translations; line i of each belongs together."""
        for side, lines in zip(SIDES, (src, ref, hyp), strict=True):
            # a table's field may hold a line break
            write_text(self.test_file(side), "".join(line.replace("\n", " ") + "\n" for line in lines))

    def refuse_existing(self) -> None:
        """ValueError, naming the remedies, if an earlier run left a checkpoint here."""
        if self.best.exists() or self.last.exists():
            raise ValueError(
                f"{self.path} holds an earlier run of these settings: continue it with resume=auto, "
                "or start another beside it with run=<name> (or delete the folder)"
            )


def run_name(config: Mapping[str, Any], mixer: str) -> str:
    """`<data>-<mixer>-<hash>`, the hash being that of the resolved configuration without its harmless settings."""
    data = re.sub(r"[^\w.+-]+", "_", str(config["data"]["name"]))
    return f"{data}-{re.sub(r'[^0-9A-Za-z_.+-]+', '_', mixer)}-{config_hash(config)}"


def folder_of(config: Mapping[str, Any], mixer: str) -> Path:
    """The folder of a new run with these settings."""
    return Path(config["runs"]) / (config["run"] or run_name(config, mixer))


def config_hash(config: Mapping[str, Any]) -> str:
    """Eight hexadecimal digits that depend on every setting but the HARMLESS ones, whatever the order of keys."""
    config = {**config, "trainer": bounded(config["trainer"])}
    text = json.dumps(without(with_window(config), HARMLESS), sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def with_window(config: Mapping[str, Any]) -> dict[str, Any]:
    """`config` with the micro-batches of an update over all processes for `trainer.accumulate`: the same weights."""
    found = copy.deepcopy(dict(config))
    trainer = found.get("trainer", {})
    if "accumulate" in trainer:
        trainer["accumulate"] *= trainer.get("devices", 1) * trainer.get("nodes", 1)
    return found


def _decided(config: dict[str, Any], max_tokens: int | None) -> dict[str, Any]:
    """`config` with what data.max_tokens=auto came to, if that is known."""
    data = config.get("data", {})
    auto = max_tokens is not None and data.get("max_tokens") == "auto"
    return {**config, "data": {**data, "max_tokens": max_tokens}} if auto else config


def mixer_label(choice: str, overrides: Sequence[str]) -> str:
    """The chosen preset, with `+<value>` for every slot that was replaced from the command line."""
    slots = [o.split("=", 1) for o in overrides if re.match(r"\+*mixer/[^=]+=", o)]
    return "+".join([choice, *(value.split("/")[-1] for _, value in slots)])


def resolve_resume(resume: str | None, folder: RunFolder) -> tuple[RunFolder, Path | None]:
    """The folder to run in and the checkpoint to continue from, None for a fresh start.

    A checkpoint named by path continues in its own folder. Raises ValueError for a path that is no file, and for an
    existing run without `resume`.
    """
    if resume is None:
        folder.refuse_existing()
        return folder, None
    if resume == "auto":
        if folder.last.exists():
            return folder, folder.last
        log.info(
            "resume=auto: %s holds no run yet, so a new one starts (every setting, budgets too, counts for this name: "
            "continue a run under others with run=<name> or resume=<folder>/checkpoints/last.ckpt)", folder.path
        )  # fmt: skip
        return folder, None
    checkpoint = Path(resume)
    if not checkpoint.is_file():
        raise ValueError(f"resume={resume}: no such file; name a last.ckpt, or use resume=auto")
    owner = RunFolder(checkpoint.parent.parent)
    return (owner if owner.config.exists() else folder), checkpoint


class Resumed(NamedTuple):
    """A training checkpoint to continue from: its update, and what text, pieces and budget it was trained on."""

    path: Path
    step: int
    corpus: str
    tokenizer: dict[str, Any]
    max_tokens: int | None = None  # what data.max_tokens=auto came to
    threads: int | None = None  # of a run on a CPU

    @classmethod
    def open(cls, path: Path, config: Mapping[str, Any]) -> Resumed:
        """Read `path`; ValueError unless it holds training state that was reached under the settings `config`.

        HARMLESS settings and BUDGETS may have changed; the budgets are told.
        """
        from seq2seq import checkpoint

        payload = checkpoint.read(path)
        if "optimizer_states" not in payload or ORIGIN not in payload:
            raise ValueError(
                f"resume={path}: it holds no training state (best.ckpt has weights alone); name a last.ckpt, or start "
                f"a new run from these weights with init_from={path}"
            )
        free, budget = (*HARMLESS, *BUDGETS), payload[ORIGIN].get("max_tokens")
        before, now = (
            without(_decided(with_window(each), budget), free) for each in (payload[ORIGIN]["settings"], config)
        )
        over = {"trainer.accumulate": "trainer.accumulate (times all processes)"}
        changed = [f"{over.get(key, key)} was {a} and is now {b}" for key, a, b in differences(before, now)]
        if changed and not config["force"]:
            raise _another_run(path, "; ".join(changed))
        for what in changed:
            log.warning("force=true: %s", what)
        budgets = [each for each in differences(payload[ORIGIN]["settings"], config) if each[0] in BUDGETS]
        if budgets:
            told = "; ".join(f"{key} was {a} and is now {b}" for key, a, b in budgets)
            log.info("the run goes on under another budget: %s", told)
        tokenizer = payload[checkpoint.KEY]["tokenizer"]
        return cls(
            path, payload["global_step"], payload[ORIGIN]["corpus"], tokenizer, budget, payload[ORIGIN].get("threads")
        )

    def require_same_text(self, corpus: str, tokenizer: Mapping[str, Any], *, force: bool = False) -> None:
        """ValueError unless the corpus has this fingerprint, or `force`, and the tokenizer this state."""
        if self.corpus != corpus and force:
            log.warning("force=true: the text of the corpus, or how it is cleaned, has changed since")
        elif self.corpus != corpus:
            raise _another_run(self.path, "the text of the corpus, or how it is cleaned, has changed since")
        if self.tokenizer != tokenizer:
            raise _another_run(self.path, "the tokenizer has changed since")


def _another_run(path: Path, what: str) -> ValueError:
    return ValueError(
        f"{path} cannot be continued: {what}; resume it with the settings and text it was trained on, "
        "or start another run with resume=null run=<name> (force=true continues all the same)"
    )


def git_revision() -> str | None:
    """The revision of the checkout that this package lies in, `+` when files were changed; None outside git."""
    here = Path(__file__).resolve().parents[1]
    try:
        ask = ["git", "-C", str(here), "describe", "--always", "--abbrev=12", "--dirty=+", "--exclude=*"]
        return subprocess.run(ask, capture_output=True, text=True, timeout=10, check=True).stdout.strip() or None
    except (OSError, subprocess.SubprocessError):
        return None


def translate_command(checkpoint: Path) -> str:
    """The command that translates with `checkpoint`, which knows how its run decodes."""
    return shlex.join(["python", "-m", "seq2seq.translate", "--ckpt", str(checkpoint)])
