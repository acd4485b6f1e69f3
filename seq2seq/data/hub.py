"""Data sets of the hub: copies on this machine, and a quick answer where the hub cannot be reached."""

from __future__ import annotations

import contextlib
import os
import queue
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

from seq2seq.data.split_files import HUB_FILE
from seq2seq.system.errors import first_line

# Seconds for one question to the hub, names and connection included; `datasets` itself tries for most of a minute.
PATIENCE = 6.0
_ADDRESS = re.compile(r"hf://datasets/(?P<name>[^/@]+/[^/@]+)(@(?P<revision>[^/]+))?/(?P<files>.+)")
_SHARD = re.compile(r"-(\d{5})-of-(\d{5})")
# Names of splits' files, as `datasets` recognizes them.
_SPLIT_WORDS = {
    "train": ("train",),
    "validation": ("valid", "dev", "val"),
    "test": ("test", "eval"),
}


class Repository(NamedTuple):
    """Data set of the hub at a revision.

    Args:
        files: Pattern of the files that are read; a folder of them, or everything.
    """

    name: str
    revision: str | None = None
    files: str | None = None

    @classmethod
    def of_address(cls, address: str) -> Repository | None:
        """Parse hf://datasets/<owner>/<name>@<revision>/<files>; None for another address."""
        match = _ADDRESS.fullmatch(address)
        return cls(match["name"], unquote(match["revision"] or "") or None, match["files"]) if match else None

    def snapshot(self) -> Path | None:
        """Find the folder of this revision in the hub's cache (HF_HUB_CACHE, HF_HOME)."""
        folder = _cache_folder() / f"datasets--{self.name.replace('/', '--')}"
        revision = self.revision or "main"
        reference = folder / "refs" / revision
        commit = reference.read_text().strip() if reference.is_file() else revision
        found = folder / "snapshots" / commit
        return found if found.is_dir() else None

    def copies(self) -> list[str]:
        """List the files of `files`, a pattern, in the hub's cache; none unless they are complete."""
        folder = self.snapshot()
        found = sorted(folder.glob(self.files or "*")) if folder else []
        return [] if missing_files(found) else [str(path) for path in found]

    def copy_of(self, split: str) -> Path | None:
        """Return the snapshot if it has the files of a split, in the folder `files` where there is one."""
        folder = self.snapshot()
        if folder is None:
            return None
        # The files of other subsets may lie beside it, or be missing
        subset = folder / self.files if self.files and (folder / self.files).is_dir() else folder
        found = [path for path in sorted(subset.rglob("*")) if HUB_FILE.search(path.name)]
        words = _SPLIT_WORDS.get(split, (split,))
        relative = [path.relative_to(folder).as_posix().lower() for path in found]
        if missing_files(found) or not any(word in name for word in words for name in relative):
            return None
        return folder

    def converted(self) -> bool:
        """Return True if `datasets` has converted a version of it to files of its own."""
        from huggingface_hub import constants

        # As `datasets` finds it, whose import takes a second
        folder = os.environ.get("HF_DATASETS_CACHE") or Path(constants.HF_HOME) / "datasets"
        return (Path(folder).expanduser() / self.name.replace("/", "___")).is_dir()

    def advice(self, reason: str) -> ValueError:
        """Return the error of a data set that is neither cached on this machine nor reachable on the hub."""
        files = self.files if not self.files or "*" in self.files else f"{self.files}/*"
        include = f" --include README.md --include '{files}'" if files else ""
        revision = f" --revision {self.revision}" if self.revision else ""
        folder = self.snapshot()
        found = sorted(folder.rglob("*")) if folder else []
        lacking = next(iter(missing_files(found)), "files of this corpus")
        state = f"the copy in {folder} lacks {lacking}" if folder else f"no copy is in {_cache_folder()}"
        return ValueError(
            f"{self.name}: {reason}, and {state}; where there is a network, with the same HF_HOME, run: hf download "
            f"{self.name} --repo-type dataset{revision}{include} (or set data.path=<folder>, or data=files: see "
            "data/README.md)"
        )

    def unreachable(self) -> str | None:
        """Ask the hub for this data set once; return why it cannot be had from there, or None.

        Raises:
            ValueError: The hub answers that there is no such data set or revision, or that access is refused.
        """
        from huggingface_hub import HfApi, constants
        from huggingface_hub.errors import HfHubHTTPError

        if constants.HF_HUB_OFFLINE:
            return "HF_HUB_OFFLINE is set"
        answers: queue.Queue[Exception | None] = queue.Queue()

        def ask() -> None:
            try:
                HfApi().dataset_info(self.name, revision=self.revision, timeout=PATIENCE - 1)
                answers.put(None)
            except Exception as error:  # judged below, in the thread that asked
                answers.put(error)

        # In a thread, since looking up a name has no time limit of its own
        threading.Thread(target=ask, daemon=True).start()
        try:
            error = answers.get(timeout=PATIENCE)
        except queue.Empty:
            return f"the hub did not answer within {PATIENCE:.0f} s"
        status = getattr(getattr(error, "response", None), "status_code", None)
        if isinstance(error, HfHubHTTPError) and status and status < 500:
            raise ValueError(f"{self.name}: the hub answers: {first_line(error)}") from error
        return f"the hub cannot be reached ({first_line(error)})" if error else None


def missing_files(files: list[Path]) -> list[str]:
    """List what a set of files lacks: contents behind dangling links, and shards (-00001-of-00003)."""
    missing = [path.name for path in files if not path.exists()]
    present = {str(path) for path in files}
    for path in files:
        if shard := _SHARD.search(path.name):
            names = (path.name.replace(shard[0], f"-{i:05d}-of-{shard[2]}") for i in range(int(shard[2])))
            missing += [name for name in names if str(path.with_name(name)) not in present]
    return list(dict.fromkeys(missing))


@contextlib.contextmanager
def no_network() -> Iterator[None]:
    """Make `datasets` and the hub's client fail at once instead of trying for a minute."""
    import datasets.config
    from huggingface_hub import constants

    places: list[Any] = [datasets.config, constants]
    before = [place.HF_HUB_OFFLINE for place in places]
    for place in places:
        place.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        for place, value in zip(places, before, strict=True):
            place.HF_HUB_OFFLINE = value


def _cache_folder() -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)
