"""Run folders: their names, and the small files inside."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import logging
import os
import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from seq2seq.settings.dicts import flat, without
from seq2seq.settings.run import changed_values
from seq2seq.settings.values import written
from seq2seq.system.files import read_file, reserved, write_text
from seq2seq.system.json_file import read_json_or_none
from seq2seq.system.model_path import BEST, LAST, PREVIOUS

log = logging.getLogger(__name__)

# Settings that change neither the data, the model nor the course of training.
_HARMLESS_TRAINER = (
    "accelerator", "devices", "nodes", "threads", "strategy", "checkpoint_activations", "max_skipped", "profile",
    "log_steps", "line_time", "samples", "save_time", "test", "dry_run", "keep_last", "keep_best", "median_stop",
    "graphs",
)  # fmt: skip
HARMLESS = (
    *("resume", "force", "runs", "run", "cache", "logger", "data.num_workers", "data.num_proc"),
    *(f"trainer.{key}" for key in _HARMLESS_TRAINER),
    *(f"trainer.lightning.{key}" for key in ("detect_anomaly", "enable_model_summary", "inference_mode")),
)
# Settings that bound a run: they are part of its name, but a run may be resumed with other bounds.
BUDGETS = ("trainer.max_steps", "trainer.max_epochs", "trainer.max_time", "trainer.patience")
# Settings that change the rounding of sums, as another machine does; a run may be resumed with other values.
ROUNDING = ("trainer.fused", "trainer.bf16_residual")
# Settings that count the micro-batches of an update on each process.
PER_PROCESS = ("trainer.accumulate", "trainer.accumulate_start")
# Key of the entry that `SaveLast` adds to last.ckpt: the settings, and the fingerprint of the corpus.
ORIGIN = "run"
# The files of the test set.
SIDES = ("src", "ref", "hyp")


class RunFolder:
    """Paths inside one run's folder, which does not exist before `create`.

    Attributes:
        config: The settings, as they were composed.
        results: Scores, times and versions; written when the run ends.
        best: Checkpoint with the best validation score, for use.
        last: State of the training, from which the run is resumed.
        previous: The state before `last`, in case `last` is damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.yaml"
        self.results = path / "results.json"
        self.best = path / BEST
        self.last = path / LAST
        self.previous = path / PREVIOUS

    @classmethod
    def of_checkpoint(cls, path: str | os.PathLike[str]) -> RunFolder | None:
        """Return the run's folder, given its own path or the path of a checkpoint in it; None if there is no run."""
        # The working directory may be the run's folder or its folder of checkpoints
        whole = Path(os.path.abspath(path))
        run = cls(whole if whole.is_dir() else whole.parent.parent)
        inside = whole == run.path or whole.parent == run.last.parent
        return run if inside and run.config.is_file() else None

    @contextlib.contextmanager
    def reserved(self) -> Iterator[None]:
        """Keep other runs out of the folder in this block.

        Raises:
            ValueError: Another run is in it, or the folder cannot be made.
        """
        otherwise = "wait until it has ended (resume=auto then continues it), or start another with run=<name>"
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(reserved(self.path, otherwise=otherwise))
            except OSError as error:
                raise ValueError(
                    f"the run's folder {self.path} cannot be written ({error.strerror or error}): set runs=<folder> to "
                    "one that can"
                ) from error
            yield

    def version(self) -> int | None:
        """Return a number that changes whenever last.ckpt is written; None if there is no last.ckpt."""
        try:
            return self.last.stat().st_mtime_ns
        except OSError:
            return None

    @property
    def states(self) -> list[Path]:
        """States of the training that exist, the newest first."""
        # Broken links are included, so that reading one reports the problem; otherwise a new run would replace it
        return [path for path in (self.last, self.previous) if os.path.lexists(path)]

    @property
    def used(self) -> bool:
        """True if an earlier run left results or checkpoints."""
        return self.results.exists() or any(self.best.parent.glob("[!.]*"))

    def require_unused(self, resume: str = "null", *, force: bool = False) -> None:
        """Raise ValueError if a new run would replace an earlier one.

        Args:
            resume: The setting, for the message.
            force: An earlier run that has lost its states may be replaced.
        """
        if not self.used or (force and not self.states):
            return
        if self.states:
            raise ValueError(
                f"{self.path} holds an earlier run: continue it with resume=auto, if its settings are the same, or "
                "start another next to it with run=<name> (or delete the folder, if no training writes to it)"
            )
        weights = f" from its weights with init_from={self.path} run=<name>" if self.best.exists() else ""
        raise ValueError(
            f"resume={resume}: {self.path} holds an earlier run that has lost its last.ckpt: begin another"
            f"{weights or ' with run=<name>'}, or move the folder away (force=true replaces it)"
        )

    def create(self, config_yaml: str) -> None:
        """Make the folder, delete unfinished files of a killed run, and write config.yaml unless there is one."""
        self.best.parent.mkdir(parents=True, exist_ok=True)
        # The temporary files of `files.atomic_file`
        for unfinished in (*self.path.glob(".*.tmp"), *self.best.parent.glob(".*.tmp")):
            unfinished.unlink(missing_ok=True)
        # An existing config.yaml belongs to the weights in the folder, until training continues
        if not self.config.exists():
            write_text(self.config, config_yaml)

    def train_from(self, step: int, config_yaml: str) -> None:
        """Set aside the results, which further training outdates, and write config.yaml.

        Args:
            step: Update from which training continues; results move to `before-<step>/`.
            config_yaml: The settings of the training to come.
        """
        # Also <set>.hyp of further test sets
        files = {self.results, *map(self.test_file, SIDES), *self.path.glob("*.hyp")}
        outdated = [path for path in files if path.exists()]
        if outdated:
            aside = self.path / f"before-{step}"
            aside.mkdir(exist_ok=True)
            # Copied, not moved: a folder without config.yaml is not recognized as a run
            write_text(aside / self.config.name, self.config.read_text(encoding="utf-8"))
            for path in outdated:
                path.replace(aside / path.name)
            log.info("training continues: the results so far are in %s", aside)
        write_text(self.config, config_yaml)

    def read_results(self) -> dict[str, Any]:
        """Read results.json; empty if it cannot be read."""
        return read_json_or_none(self.results) or {}

    def test_file(self, side: str) -> Path:
        """Return the path of the test set's `src`, `ref` or `hyp` (translations), one sentence a line."""
        return self.path / f"test.{side}"

    def test_lines(self, side: str) -> list[str]:
        """Return the lines of `src`, `ref` or `hyp` of the test set; empty if the run saved none.

        Raises:
            ValueError: The file is not UTF-8.
        """
        path = self.test_file(side)
        try:
            # At \n alone: splitlines would also split inside a sentence, at U+2028 for example
            return read_file(path, 1 << 28).decode("utf-8").split("\n")[:-1] if path.is_file() else []
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is not UTF-8 ({error.reason} at byte {error.start:,})") from None

    def save_test(self, *, src: Sequence[str], ref: Sequence[str], hyp: Sequence[str]) -> None:
        """Write the test set and its translations; line i of each belongs together."""
        for side, lines in zip(SIDES, (src, ref, hyp), strict=True):
            # A table's field may hold a line break
            write_text(self.test_file(side), "".join(line.replace("\n", " ") + "\n" for line in lines))


def folder_of(config: Mapping[str, Any], mixer: str) -> Path:
    """Return the folder of a new run: `run`, or `<data>-<mixer>-<hash>` with the hash of resolved settings."""
    # A name may look like a number: run=2024
    name = str(config["run"] or "")
    if not name:
        # Names of data sets have slashes (org/name); \w keeps letters of any script
        data = re.sub(r"[^\w.+-]+", "_", str(config["data"]["name"]))
        name = f"{data}-{re.sub(r'[^0-9A-Za-z_.+-]+', '_', mixer)}-{config_hash(config)}"
    return Path(str(config["runs"])) / name


def config_hash(config: Mapping[str, Any]) -> str:
    """Hash every setting that differs from its default, except HARMLESS ones, to eight hexadecimal digits.

    A setting that a later version adds therefore renames no run.
    """
    from seq2seq.network.make_mixer import default_arguments

    config = without(with_window(config), HARMLESS)
    changed, mixers = changed_values(config), config.get("mixer", {})
    known = default_arguments(mixers)
    arguments = {f"mixer.{key}": value for key, value in flat(mixers).items()}
    changed |= {key: value for key, value in arguments.items() if key not in known or value != known[key]}
    # `written`, so that 1e3 and 1000 are the same
    text = json.dumps({key: written(value) for key, value in changed.items()}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def with_window(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of `config` whose trainer.accumulate and accumulate_start count micro-batches over all ranks.

    One device with 8 micro-batches and 4 devices with 2 make the same updates, so they share a name and a group. If
    data.batch_tokens sizes updates, the size of micro-batches depends on the machine and is left out.
    """
    result = copy.deepcopy(dict(config))
    trainer, data = result.get("trainer", {}), result.get("data", {})
    if data.get("batch_tokens"):
        data["max_tokens"] = None
        return result
    for key in (each.partition(".")[2] for each in PER_PROCESS):
        if trainer.get(key):
            trainer[key] *= trainer.get("devices", 1) * trainer.get("nodes", 1)
    return result


def mixer_label(choice: str, overrides: Sequence[str]) -> str:
    """Return the chosen preset, with `+<slot>.<value>` for every slot that was replaced from the command line.

    The cross mixer's slot is not named: `mixer/cross=additive` is `+additive`.
    """
    labels = []
    for override in overrides:
        # `mixer/self@mixer.decoder=dynamicconv` replaces a slot; `mixer=transformer` is the preset
        if match := re.match(r"\+*mixer/[^@=]+@?([^=]*)=(.*)", override):
            slot = match[1].removeprefix("mixer.")
            prefix = "" if slot in ("", "cross") else f"{slot}."
            labels.append(prefix + match[2].split("/")[-1])
    # Sorted, as the order of a command's settings changes no model
    return "+".join([choice, *sorted(labels)])


def git_revision() -> str | None:
    """Return the revision of this package's checkout, with `+` if the package or conf/ differs; None outside git."""
    here = Path(__file__).resolve().parents[1]

    def ask(*words: str) -> str:
        # 10 seconds, in case the file system is slow
        command = ["git", "-C", str(here), *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()

    try:
        # --exclude=* ignores tags, so that every revision reads as a hash
        revision = ask("describe", "--always", "--abbrev=12", "--exclude=*")
        # A new mixer has untracked files in both
        changes = ask("status", "--porcelain", "--untracked-files=normal", ".", "../conf")
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{revision}+" if changes else revision


def translate_command(checkpoint: str | os.PathLike[str], *options: str, trust: Sequence[str] = ()) -> str:
    """Return the command that translates with `checkpoint`.

    Args:
        trust: Packages of the checkpoint's mixers; the command names all but this package.
    """
    trusted = [part for package in trust if package != "seq2seq" for part in ("--trust", package)]
    return shlex.join(["python", "-m", "seq2seq.translate", "--ckpt", str(checkpoint), *trusted, *options])
