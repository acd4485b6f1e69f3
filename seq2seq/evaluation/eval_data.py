"""Find the data that `score --ckpt` translates: by name, by a file of settings, or by the checkpoint's run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

from seq2seq.data.corpus import load_corpus
from seq2seq.data.languages import target_languages
from seq2seq.data.multi_corpus import NamedCorpus, naming, parts_of
from seq2seq.data.raw_pairs import open_split
from seq2seq.data.split_files import find_files, is_address, resolve_path
from seq2seq.data.text_checks import refuse_swapped
from seq2seq.runs.folder import RunFolder
from seq2seq.settings.data import SPLITS, CorpusSettings, DataSettings
from seq2seq.settings.declare import keys, read_section
from seq2seq.settings.dicts import leaves, merged
from seq2seq.settings.values import shown
from seq2seq.system.resources import choices
from seq2seq.system.yaml_file import read_yaml


def data_settings(
    words: Sequence[str], *, ckpt: str, meta: dict[str, Any], languages: tuple[str, str], cache: Path
) -> DataSettings:
    """Return the section `data` for `--data`, in the direction of the translation.

    Args:
        words: A name in conf/data or a YAML file, then settings key=value. Without a name, the data is taken from the
            checkpoint's run, or else from the data set that the checkpoint names.
        meta: The `seq2seq` entry of the checkpoint.
        languages: Source and target language of this translation.
        cache: Folder of prepared data, which contains some data sets.

    Raises:
        ValueError: The data set or a setting is unknown, a value has the wrong type, or the languages differ from the
            translation's.
    """
    name, changes = read_words(words)
    section = _section(name, ckpt, meta, cache)
    _require_known(changes, "--data")
    sides = dict(zip(("src", "tgt"), languages, strict=True))
    # A text that the command names is scored alone, without the run's other corpora
    if not changes.keys().isdisjoint(("valid", "test")):
        section["corpora"] = None
    # Several corpora keep their languages, by which `load_pairs` chooses among them
    several = changes.get("corpora", section.get("corpora"))
    data = {**sides, **section} if several else {**section, **sides}
    # Last, so that a change that contradicts the translation is refused below
    data = merged(data, changes)
    for key, value in leaves(data):
        # An untrusted file could send an environment variable to a host of its choice
        if "${" in str(value):
            raise ValueError(
                f"data.{key}={shown(value)} comes from a file, whose interpolations are not resolved: give "
                f"--data {key.partition('.')[0]}=<value>"
            )
    for side, language in sides.items():
        if side in changes and data[side] != language:
            known = side == "tgt" and data[side] in target_languages(meta)
            remedy = f"; choose it by --tgt-lang {data[side]}" if known else ""
            raise ValueError(
                f"this checkpoint translates {' to '.join(languages)}{' here' if known else ''}; "
                f"--data {side}={data[side]} does not fit it{remedy}"
            )
    data.setdefault("name", name or meta["data"])
    # The run of a later version may have unknown keys
    return read_section(DataSettings, {key: data[key] for key in keys(DataSettings) if key in data}, "data")


def read_words(words: Sequence[str]) -> tuple[str | None, dict[str, Any]]:
    """Return the name and the settings of `--data`; the prefix "data." of a setting is optional.

    Raises:
        ValueError: There are two names, a value is not YAML, or a setting is an option of the command.
    """
    # A word with "=" is a setting
    names = [word for word in words if "=" not in word]
    if len(names) > 1:
        raise ValueError(f"--data takes one name, then settings key=value; it has {', '.join(names)}")
    name = names[0] if names else None
    if len(words) == len(names):
        return name, {}
    # Imported here: the extra `train` installs it
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    changes = OmegaConf.create({})
    for word in words:
        if "=" in word:
            try:
                changes.merge_with_dotlist([word.removeprefix("data.")])
            except (YAMLError, OmegaConfBaseException, RecursionError) as error:
                reason = " ".join(str(error).split())
                raise ValueError(f"--data {word}: the value is not YAML ({reason[:100]})") from None
    # Settings for a run's own test; this command has options for them
    for key in ("tokenize", "convention", "lowercase"):
        if key in changes:
            raise ValueError(f"--data {key} has no effect on this score: leave it out, or give --{key}")
    try:
        # The user's own words may refer to each other and to the environment
        return name, OmegaConf.to_container(changes, resolve=True)  # type: ignore[return-value]
    except OmegaConfBaseException as error:
        raise ValueError(f"--data: {' '.join(str(error).split())[:200]}") from None


def _section(name: str | None, ckpt: str, meta: dict[str, Any], cache: Path) -> dict[str, Any]:
    """Read a section `data` from the run's configuration, a YAML file, or a group in conf/data."""
    run = RunFolder.of_checkpoint(ckpt)
    if name is None and run is not None:
        return _mapping(read_yaml(run.config).get("data"), run.config)
    chosen = name or meta["data"]
    # Only a user may name a file. A run's config.yaml has the section under `data`, possibly with unknown keys of a
    # later version; any other file is the section itself
    if name and chosen.endswith((".yaml", ".yml")):
        loaded = read_yaml(Path(chosen))
        if "data" not in loaded:
            _require_known(loaded, f"{chosen}:")
        return _mapping(loaded.get("data", loaded), chosen)
    # A name: compose its group with the defaults of training
    known = choices("data")
    if chosen not in known:
        hint = "" if name else " (what the checkpoint was trained on); name one with --data"
        raise ValueError(f"there is no data set '{chosen}'{hint}; known are {', '.join(known)}")
    from omegaconf import OmegaConf

    from seq2seq.settings.compose import compose_settings

    config = compose_settings([f"data={chosen}"])
    config["cache"] = str(cache)
    return OmegaConf.to_container(config["data"], resolve=True)  # type: ignore[return-value]


def _require_known(names: Iterable[Any], where: str) -> None:
    """Raise ValueError for the first name that is not a setting of the section `data`."""
    known = keys(DataSettings)
    for name in names:
        if name not in known:
            raise ValueError(f"{where} {name}: there is no such setting; known are {', '.join(known)}")


def _mapping(section: Any, path: object) -> dict[str, Any]:
    """Return a section that was read from a file; raise ValueError if it is not a mapping."""
    if not isinstance(section, dict):
        raise ValueError(f"{path}: its section `data` has no settings; name the data with --data")
    return section


def load_pairs(
    data: DataSettings,
    split: str,
    *,
    languages: tuple[str, str],
    cache: Path,
    limit: int | None = None,
    words: Sequence[str] = (),
    context: int = 0,
) -> tuple[list[str], list[str]]:
    """Read the raw source and reference lines of a split; a split held out of training text is prepared first.

    All corpora of the direction that have the split are read, in the order of a run's own test.

    Args:
        data: The result of `data_settings`.
        languages: Source and target language of the translation.
        cache: Folder of prepared data.
        limit: Number of pairs, from the first (default: all).
        words: The words of `--data`.
        context: Number of sentences before each source in its document that are put in front of it.

    Raises:
        ValueError: The split is empty, no corpus of the direction has it, the settings do not say where it is, or it
            lies at an address that neither `words` nor conf/data names.
    """
    of_languages = [part for part in parts_of(data) if (part.corpus.src, part.corpus.tgt) == languages]
    parts = [part for part in of_languages if split in part.corpus.splits]
    if not parts:
        src, tgt = languages
        raise ValueError(
            f"--data {data.name}: no corpus of {src}-{tgt} has a {split} split; say where the text is, as in "
            f"--data src={src} tgt={tgt} {split}=<path>"
        )
    for part in parts:
        _require_named(part.corpus, split, data.name, words)
    read = (_part_pairs(part, split, data.name, cache, context) for part in parts)
    pairs = list(islice(chain.from_iterable(read), limit))
    if not pairs:
        raise ValueError(f"--data {data.name}: its {split} split is empty")
    sides = [src for src, _ in pairs], [tgt for _, tgt in pairs]
    refuse_swapped((sides[0][:1000], sides[1][:1000]), src=languages[0], tgt=languages[1], where=f"--data {split}")
    return sides


def require_same_test(ckpt: str, data: DataSettings, pairs: Iterable[tuple[str, str]]) -> None:
    """Raise ValueError unless all pairs were in the test set that the checkpoint's run held out of training.

    After a change of the text or of its cleaning, other pairs are held out, and the run may have trained on them.

    Args:
        data: The run's section `data`.
        pairs: Source and reference of each sentence to be scored.
    """
    run = RunFolder.of_checkpoint(ckpt)
    held = any("test" in part.corpus.splits and part.corpus.place("test") is None for part in parts_of(data))
    if run is None or not held:
        return
    sources, references = run.test_lines("src"), run.test_lines("ref")
    # The files are missing before the run's own test
    if not (sources and references):
        return
    own = set(zip(sources, references, strict=False))
    other = sum((src.replace("\n", " "), tgt.replace("\n", " ")) not in own for src, tgt in pairs)
    if other:
        raise ValueError(
            f"{other:,} pairs of the held-out test split were not in the run's test set ({run.test_file('src')}), so "
            "the model may have been trained on them: the text or its cleaning has changed since the run. Name another "
            "test set by --data test=<path>, or score the run's own translations by "
            f"--hypotheses {run.test_file('hyp')} --references {run.test_file('ref')}"
        )


def _require_named(corpus: CorpusSettings, split: str, name: Any, words: Sequence[str]) -> None:
    """Raise ValueError for an address from an untrusted file, whose host would see the request.

    Addresses that `words` or the data set `name` of conf/data contain are trusted.
    """
    # A held-out split requires all splits
    read = SPLITS if corpus.place(split) is None else (split,)
    # Data sets on the hub are addresses, too
    remote = corpus.path and not (corpus.path.startswith("package://") or resolve_path(corpus.path).is_dir())
    places = {"path": corpus.path} if remote else {name: corpus.place(name) for name in read}
    addresses = {str(value): key for key, value in leaves(places) if remote or is_address(str(value))}
    known = read_words(words)[1]
    if addresses and name in choices("data"):
        from omegaconf import OmegaConf

        from seq2seq.settings.compose import compose_settings

        known = {"given": known, "group": OmegaConf.to_container(compose_settings([f"data={name}"])["data"])}
    for address in sorted(addresses.keys() - {str(value) for _, value in leaves(known)}):
        key = str(addresses[address]).partition(".")[0]
        raise ValueError(
            f"data.{key}={shown(address)} in the settings is not on this machine, and the command does not name it: "
            f"give --data files {split}=<path>, or --data {key}=... if you trust this address"
        )


def _part_pairs(part: NamedCorpus, split: str, name: str, cache: Path, context: int) -> Iterator[tuple[str, str]]:
    """Iterate over the pairs of a corpus, read lazily, so that --limit reads little of a large file."""
    corpus = replace(part.corpus, context=context)
    with naming(part.name):
        if corpus.place(split) is not None:
            for block in open_split(split, corpus, cache_dir=cache):
                yield from zip(*block, strict=True)
            return
        # A split without its own files is held out of the training text when the corpus is prepared
        if corpus.train is None:
            raise ValueError(f"{name} does not say where the text is: give --data files {split}=<path>")
        rows = load_corpus(corpus, cache_dir=cache).splits[split][:]
        yield from zip(rows["src"], rows["tgt"], strict=True)


def data_files(data: DataSettings) -> list[str]:
    """List the local files of all corpora and splits."""
    files: list[str] = []
    for corpus in (part.corpus for part in parts_of(data)):
        for split in SPLITS:
            if corpus.path or corpus.place(split) is None:
                continue
            # A missing file is refused when it is read
            with contextlib.suppress(ValueError, OSError):
                files += find_files(split, corpus)[1]
    return files
