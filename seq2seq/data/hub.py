"""Data sets of the hub, their copies on this machine, and local folders in the hub's layout."""

from __future__ import annotations

import contextlib
import csv
import logging
import os
import queue
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

from seq2seq.data.cleaning import Pairs
from seq2seq.data.delimited import csv_pairs, tsv_pairs
from seq2seq.data.json_text import json_pairs
from seq2seq.data.readers import LanguageColumns, arrow_tables, parquet_pairs, table_pairs
from seq2seq.data.split_files import HUB_FILE, TABULAR, resolve_path
from seq2seq.data.tmx import tmx_pairs
from seq2seq.settings.data import CorpusSettings
from seq2seq.settings.dicts import leaves
from seq2seq.settings.values import shown
from seq2seq.system.errors import first_line, machine_fault
from seq2seq.system.files import scratch_folder, uncompressed

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

# Readers of files with both sides, by type.
READERS = {"csv": csv_pairs, "json": json_pairs, "parquet": parquet_pairs, "tmx": tmx_pairs, "tsv": tsv_pairs}

# Most seconds for one request to the hub, including name lookup and connection; `datasets` itself keeps trying for
# most of a minute.
PATIENCE = 6.0
_ADDRESS = re.compile(r"hf://datasets/(?P<name>[^/@]+/[^/@]+)(@(?P<revision>[^/]+))?/(?P<files>.+)")
_SHARD = re.compile(r"-(\d{5})-of-(\d{5})")
# Words in the names of a split's files, as `datasets` recognizes them.
_SPLIT_WORDS = {"train": ("train",), "validation": ("valid", "dev", "val"), "test": ("test", "eval")}


class Repository(NamedTuple):
    """Data set of the hub at a revision.

    Args:
        files: The files that are read: a pattern, a folder, or None for all.
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
        from huggingface_hub import constants

        folder = Path(constants.HF_HUB_CACHE) / f"datasets--{self.name.replace('/', '--')}"
        revision = self.revision or "main"
        reference = folder / "refs" / revision
        commit = reference.read_text().strip() if reference.is_file() else revision
        found = folder / "snapshots" / commit
        return found if found.is_dir() else None

    def copies(self) -> list[str]:
        """List the files of the pattern `files` in the hub's cache; none unless they are complete."""
        folder = self.snapshot()
        found = sorted(folder.glob(self.files or "*")) if folder else []
        return [] if missing_files(found) else [str(path) for path in found]

    def copy_of(self, place: str) -> Path | None:
        """Return the snapshot if it has all files of the splits of a place, in the folder `files` if there is one."""
        folder = self.snapshot()
        if folder is None:
            return None
        # Files of other subsets may be present or missing
        subset = folder / self.files if self.files and (folder / self.files).is_dir() else folder
        found = [path for path in sorted(subset.rglob("*")) if HUB_FILE.search(path.name)]
        relative = [path.relative_to(folder).as_posix().lower() for path in found]
        for split in splits_of(place):
            words = _SPLIT_WORDS.get(split, (split,))
            if not any(word in name for word in words for name in relative):
                return None
        return None if missing_files(found) else folder

    def advice(self, reason: str) -> ValueError:
        """Return the error of a data set that is neither on this machine nor reachable on the hub."""
        from huggingface_hub import constants

        files = self.files if not self.files or "*" in self.files else f"{self.files}/*"
        include = f" --include README.md --include '{files}'" if files else ""
        revision = f" --revision {self.revision}" if self.revision else ""
        state = f"no copy is in {constants.HF_HUB_CACHE}"
        if folder := self.snapshot():
            lacking = next(iter(missing_files(sorted(folder.rglob("*")))), "files of this corpus")
            state = f"the copy in {folder} lacks {lacking}"
        return ValueError(
            f"{self.name}: {reason}, and {state}; where there is a network, with the same HF_HOME, run: hf download "
            f"{self.name} --repo-type dataset{revision}{include} (or set data.path=<folder>, or data=files: see "
            "data/README.md)"
        )

    def unreachable(self) -> str | None:
        """Ask the hub for this data set once; return why the hub cannot be reached, or None.

        Raises:
            ValueError: The hub answers that there is no such data set or revision, or refuses access.
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
            except Exception as error:  # handled below, in the calling thread
                answers.put(error)

        # Ask in a thread, since the lookup of a host name has no time limit
        threading.Thread(target=ask, daemon=True).start()
        try:
            error = answers.get(timeout=PATIENCE)
        except queue.Empty:
            return f"the hub did not answer within {PATIENCE:.0f} s"
        status = getattr(getattr(error, "response", None), "status_code", None)
        if isinstance(error, HfHubHTTPError) and status and status < 500:
            raise ValueError(f"{self.name}: the hub answers: {first_line(error)}") from error
        return f"the hub cannot be reached ({first_line(error)})" if error else None


def splits_of(place: str) -> list[str]:
    """List the names of the splits that a place names, as in train[:1000]+validation."""
    return list(dict.fromkeys(part.partition("[")[0].strip() for part in place.split("+")))


def repository_of(split: str, settings: CorpusSettings) -> Repository | None:
    """Return the data set of the hub that holds a split; None for local files and other addresses."""
    place = settings.place(split)
    if place is None:
        return None
    if settings.path:
        local = str(settings.path).startswith("package://") or resolve_path(settings.path).is_dir()
        files = settings.data_dir or settings.config
        return None if local else Repository(settings.path, settings.revision, files)
    return Repository.of_address(place) if isinstance(place, str) else None


def require_remote(settings: CorpusSettings) -> None:
    """Raise ValueError if a split is on the hub, but the hub cannot be reached and no copy is on this machine."""
    from huggingface_hub import constants

    asked = set()
    for split in settings.splits:
        repository = repository_of(split, settings)
        if repository is None or repository[:2] in asked:
            continue
        place = str(settings.place(split))
        if repository.copy_of(place) if settings.path else repository.copies():
            continue
        asked.add(repository[:2])
        # A copy that `datasets` has converted also serves; importing the constant for its folder would take a second
        converted = Path(os.environ.get("HF_DATASETS_CACHE") or Path(constants.HF_HOME) / "datasets").expanduser()
        known = bool(settings.path) and (converted / repository.name.replace("/", "___")).is_dir()
        if (reason := repository.unreachable()) and not known:
            raise repository.advice(reason)


def missing_files(files: list[Path]) -> list[str]:
    """List missing files: targets of dangling links, and missing shards (-00001-of-00003)."""
    missing = [path.name for path in files if not path.exists()]
    present = {str(path) for path in files}
    for path in files:
        if shard := _SHARD.search(path.name):
            names = (path.name.replace(shard[0], f"-{i:05d}-of-{shard[2]}") for i in range(int(shard[2])))
            missing += [name for name in names if str(path.with_name(name)) not in present]
    return list(dict.fromkeys(missing))


def remote_pairs(
    kind: str, address: str, columns: LanguageColumns, *, cache_dir: Path, streaming: bool
) -> Iterator[Pairs]:
    """Read JSON or parquet files at an address."""
    if kind not in ("json", "parquet"):
        raise ValueError(f"{address}: {kind} is read from this machine only; download the file")
    # `datasets` calls the split of files without splits "train"; downloads are kept for the next run
    options: dict[str, Any] = {
        "data_files": {"train": [address]},
        "split": "train",
        "cache_dir": str(cache_dir / "hub"),
        "streaming": streaming,
    }
    # Our own readers also replace invalid bytes
    options |= {"encoding_errors": "replace"} if kind == "json" else {}
    return table_pairs(_remote_tables(kind, options, Repository.of_address(address)), columns, address)


def hub_pairs(
    split: str, settings: CorpusSettings, columns: LanguageColumns, *, cache_dir: Path, streaming: bool
) -> Iterator[Pairs]:
    """Read a split of `data.path`: a data set on the hub, or a folder in the hub's layout."""
    path = str(settings.path)
    place = str(settings.place(split))
    options = {"name": settings.config, "data_dir": settings.data_dir, "split": place}
    repository = repository_of(split, settings)
    # A folder on this machine is read without a revision and without the hub's cache
    if repository is None:
        return _local_pairs(path, options, columns, cache_dir=cache_dir, where=path)
    if copy := repository.copy_of(place):
        log.info("%s: reading the copy in %s", path, copy)
        if not (copy / "README.md").is_file():
            # The README names subsets; without a README, a subset is a folder
            options |= {"name": None, "data_dir": repository.files}
        return _local_pairs(str(copy), options, columns, cache_dir=cache_dir, where=path)
    options |= {"streaming": streaming, "revision": settings.revision}
    return table_pairs(_remote_tables(repository.name, options, repository), columns, f"{path} ({place})")


def _remote_tables(path: str, options: dict[str, Any], repository: Repository | None) -> Iterator[pa.Table]:
    """Load Arrow tables from the hub or another address, without the network if the hub cannot be reached."""
    reason = repository.unreachable() if repository else None
    if repository is None or reason is None:
        yield from _tables(path, options, remote=True)
        return
    try:
        # `datasets` may have its own converted copy (HF_DATASETS_CACHE)
        with _no_network():
            yield from _tables(path, options, remote=True)
    except ValueError as error:
        raise repository.advice(reason) from error


@contextlib.contextmanager
def _no_network() -> Iterator[None]:
    """Make `datasets` and the hub's client fail at once instead of trying for a minute."""
    import datasets.config
    from huggingface_hub import constants

    before = datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE
    datasets.config.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE = before


def _local_pairs(
    path: str, options: dict[str, Any], columns: LanguageColumns, *, cache_dir: Path, where: str
) -> Iterator[Pairs]:
    """Read a folder in the hub's layout, by our readers, or by `datasets` if they do not know the format."""
    folder = str(resolve_path(path))
    # `datasets` would read the name as a pattern or a chain of addresses
    if any(mark in folder for mark in ("[", "]", "::")):
        raise ValueError(f"{folder} has [, ] or :: in its name, which `datasets` cannot open: rename the folder")
    split = str(options["split"])
    names = splits_of(split)
    with scratch_folder(cache_dir) as scratch:
        options = {**options, "cache_dir": str(scratch)}
        with _one_error(path, remote=False):
            _refuse_addresses(Path(folder))
            config = _config(folder, options)
            files: Any = config.data_files or {}
        # Our readers know whole splits, and parts of one
        known = set(names) <= set(files) and (len(names) == 1 or "[" not in split)
        tables = [Path(str(file)) for name in names for file in files[name]] if known else []
        kinds = [TABULAR.get(uncompressed(file).suffix.lower(), "") for file in tables]
        # A field of JSON objects, and files in archives, are read by `datasets` alone
        if not tables or not set(kinds) <= set(READERS) or getattr(config, "field", None):
            # A part of a split, as in train[:1000], cannot be streamed
            options["streaming"] = "[" not in split
            read = _tables(folder, options | _as_written(config), remote=False, name=path)
            yield from table_pairs(read, columns, f"{where} ({split})")
            return

    def opened() -> Iterator[Pairs]:
        return documents(READERS[kind](file, columns) for kind, file in zip(kinds, tables, strict=True))

    yield from _part(opened, split)


def documents(files: Iterable[Iterator[Pairs]]) -> Iterator[Pairs]:
    """Read files one after another; an empty block ends the document of each."""
    for blocks in files:
        yield from blocks
        yield [], []


def _part(opened: Callable[[], Iterator[Pairs]], split: str) -> Iterator[Pairs]:
    """Choose the pairs of a part of a split, as in train[:1000] or train[10%:], from blocks that `opened` reads."""
    if "[" not in split:
        yield from opened()
        return
    import datasets

    # Read twice, since a share needs the number of pairs
    size = sum(len(src) for src, _ in opened())
    instruction: Any = datasets.ReadInstruction.from_spec(split)  # type: ignore[attr-defined]
    for part in instruction.to_absolute({splits_of(split)[0]: size}):
        first = 0
        for src, tgt in opened():
            inside = slice(max(0, part.from_ - first), max(0, part.to - first))
            yield src[inside], tgt[inside]
            first += len(src)
            if first >= part.to:
                break


def _refuse_addresses(folder: Path) -> None:
    """Raise ValueError if the settings inside a folder name an address: the user named a folder, not the network."""
    import datasets.config
    import yaml
    from huggingface_hub import DatasetCard

    # The two files that `datasets` reads
    card = folder / datasets.config.REPOCARD_FILENAME
    settings = folder / datasets.config.REPOYAML_FILENAME
    read = [DatasetCard.load(card).data.to_dict()] if card.is_file() else []
    read += [yaml.safe_load(settings.read_text("utf-8"))] if settings.is_file() else []
    for value in (each.get("configs") for each in read if isinstance(each, dict)):
        if found := next((text for _, text in leaves(value) if "://" in str(text)), None):
            raise ValueError(f"its settings name the address {shown(found)}: download that file, and name the copy")


def _tables(path: str, options: dict[str, Any], *, remote: bool, name: str | None = None) -> Iterator[pa.Table]:
    """Load Arrow tables with `datasets`."""
    import datasets

    # Only a download takes long enough for a progress bar
    if remote:
        datasets.enable_progress_bars()
    else:
        datasets.disable_progress_bars()
    with _one_error(name or path, remote=remote):
        if remote:
            options = options | _as_written(_config(path, options))
        # The iteration is inside the block, since a streamed data set raises errors while it is read
        yield from arrow_tables(datasets.load_dataset(path, **options))


def _config(path: str, options: dict[str, Any]) -> Any:
    """Return how `datasets` would read a data set."""
    import datasets

    given = {key: value for key, value in options.items() if key not in ("split", "streaming")}
    return datasets.load_dataset_builder(path, **given).config


def _as_written(config: Any) -> dict[str, Any]:
    """Return options that read CSV as it is written; pandas takes "NA" for missing, and quotes in TSV for marks."""
    if not hasattr(config, "keep_default_na"):
        return {}
    return {"keep_default_na": False, **({"quoting": csv.QUOTE_NONE} if config.sep == "\t" else {})}


@contextlib.contextmanager
def _one_error(name: str, *, remote: bool) -> Iterator[None]:
    """Turn the many errors of `datasets` into one ValueError with a remedy."""
    import datasets

    # Our one-line error tells a user more than the library's warnings
    datasets.utils.logging.set_verbosity_error()
    for logger in ("huggingface_hub.repocard", "datasets.packaged_modules.json.json"):
        logging.getLogger(logger).setLevel(logging.CRITICAL)
    try:
        yield
    except Exception as error:  # errors of the files, Arrow, the network or the hub: there are dozens
        # A full disk or memory is not a fault of the corpus
        if fault := machine_fault(error):
            raise fault from error
        hint = (
            "; a copy on this machine works too: data.path=<folder>, or data=files (data/README.md)" if remote else ""
        )
        raise ValueError(f"{name} could not be loaded: {first_line(error)}{hint}") from error
