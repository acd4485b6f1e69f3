"""Wrong settings of train and prepare: values, keys, choices, syntax and combinations."""

from __future__ import annotations

import dataclasses
import random
import types
import typing
from pathlib import Path
from typing import Any

from benchmarks.hostile.attempts import Attempt
from benchmarks.hostile.processes import Command
from benchmarks.hostile.world import World, check_run
from seq2seq.settings import run as sections
from seq2seq.settings.compose import presets, resolved_settings
from seq2seq.settings.declare import keys
from seq2seq.system.resources import conf_dir

# Values that are wrong for every setting of this type, with quotes for Hydra.
WRONG: dict[type, tuple[str, ...]] = {
    int: (
        *("banana", "1.5", "nan", "-1", "-1000000000000", "true", "[1,2]", "{a:1}", "''", "'1;2'", "１２"),
        *("1_e", "--3", "-inf", "[]", "1.0000001", "'12 '", "3 4", "-1e30", "0x", "häßlich", "[[1]]", "'null'"),
    ),
    float: ("banana", "nan", "-inf", "true", "[0.1]", "{a:1}", "''", "1,5", "0.1.2", "１", "1e", "'0,1'", "false"),
    bool: ("banana", "2", "-1", "1.5", "nan", "[true]", "{}", "''", "null", "truee", "'ja'", "inf"),
    str: ("[a,b]", "{a:b}", "true", "[]", "[[]]"),
}
# Values that are right for some settings and wrong for others.
DOUBTFUL = (
    *("0", "1", "inf", "1e400", "1e308", "1e-300", "1000000000", "1000000000000000000", "1" + "0" * 30, "-0.0"),
    *("null", "''", "'\U0001f600'", "'a b'", "../x", "'" + "x" * 300 + "'", "'???'", "'${nope}'"),
    *("1e3", "/proc", "'\\n'"),
)
# Settings with a few choices.
CHOICES = (
    *("trainer.precision", "trainer.accelerator", "trainer.strategy", "model.norm", "model.tie", "model.activation"),
    *("model.positions", "model.src_positions", "optim.name", "optim.schedule", "data.format", "data.convention"),
    *("tokenizer.type", "tokenizer.normalizer"),
)
# Settings that may be negative.
NEGATIVE = ("search.length_penalty", "mixer.")
# Groups of conf/.
GROUPS = ("mixer", "model", "optim", "data", "tokenizer", "trainer", "logger", "search", "experiment")
# Settings that contradict each other or the tiny corpus, and a word of the message.
CONTRADICTIONS: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("mixer=transformer", "model.num_heads=3"), ("num_heads", "heads")),
    (("resume=nowhere.safetensors",), ("nowhere.safetensors",)),
    (("init_from=nowhere.safetensors",), ("nowhere.safetensors",)),
    (("resume=auto", "init_from=nowhere.safetensors"), ("nowhere", "resume", "init_from")),
    (("model.positions=learned", "model.max_len=4"), ("max_len",)),
    (("data.vocab_size=20",), ("vocab_size",)),
    (("data.vocab_size=5000000",), ("vocab_size",)),
    (("data.src=xx",), ("xx",)),
    (("data.tgt=no",), ("tgt", "no")),
    (("data.train=nowhere.jsonl",), ("nowhere.jsonl",)),
    (("data.valid=nowhere",), ("nowhere",)),
    (("data.train=[a]",), ("data.train", "[")),
    (("data.columns={de:x}",), ("columns", "x", "en")),
    (("data.holdout=100000", "data.valid=null"), ("holdout",)),
    (("data.format=pdf",), ("pdf", "format")),
    (("tokenizer.model=nowhere.model",), ("nowhere.model",)),
    (("tokenizer.src_model=nowhere.model",), ("src_model", "nowhere")),
    (("data.streaming=true", "trainer.max_epochs=2", "trainer.max_steps=null", "trainer.max_time=null"), ("stream",)),
    (("runs=/proc/nope",), ("/proc/nope", "runs")),
    (("runs=/dev/null",), ("/dev/null", "runs")),
    (("cache=/proc/nope",), ("/proc/nope", "cache")),
    (("cache=/dev/null",), ("/dev/null", "cache")),
    (("run=../../x",), ("run", "../x")),
    (("run=/proc/x",), ("run", "/proc/x")),
    (("run=''",), ("run",)),
    (("run=.",), ("run",)),
    (("trainer.max_time=soon",), ("soon", "max_time")),
    (("trainer.max_time=-3s",), ("-3s", "max_time")),
    (("trainer.save_time=1x",), ("1x", "save_time")),
    (("mixer=transformer", "mixer/self@mixer.decoder=nonsense"), ("nonsense",)),
    (("mixer=lightconv", "mixer.encoder.kernel_size=[3,5,7,9,11,13,15,17,19,21,23,25]"), ("kernel_size", "layers")),
    (("mixer.encoder._target_=os.system",), ("os.system",)),
    (("mixer.encoder._target_=seq2seq.corpus.os.getcwd",), ("getcwd",)),
    (("logger=tensorboardd",), ("tensorboardd",)),
    (("search.n_best=9", "search.beam_size=2"), ("n_best", "beam")),
    (("data.max_tokens=auto",), ("max_tokens",)),
    (("data.max_tokens=1",), ("max_tokens",)),
    (("data.tokenize={en:nonsense}",), ("nonsense",)),
    (("data.corpora={a:{train:nowhere}}",), ("nowhere",)),
    (("data.corpora={a:{}}",), ("corpora", "train")),
    (("seed=99999999999999999999999999",), ("seed",)),
    (("seed=-1",), ("seed",)),
    (("seed=1.5",), ("seed",)),
    (("lr=1e-3",), ("lr",)),
    (("batch_size=64",), ("batch_size",)),
    (("epochs=3",), ("epochs",)),
)  # fmt: skip
# Words that Hydra's grammar may refuse.
SYNTAX = (
    *("model.dim", "=5", "model.dim==5", "model.dim=[1", "model.dim={", "model.dim='", "model..dim=3", ".=1", "@=1"),
    *("model.dim=${", "model.dim=${oc.env:NOPE_NOPE}", "model.dim=${model.nope}", "++", "~", "+=1", "model.=1"),
    *("~model", "~model.dimm", "~trainer.max_stepss", "model=5", "model={}", "data=[]", "model@x=tiny", "häßlich=1"),
    *("hydra.run.dir=/proc/x", "hydra/launcher=nope", "model.dim=glob(*)", "optim.lr=choice(a", "model.dim=\t"),
    *("override mixer=gru", "'model.dim'=3", "model.dim=3 4=5", "model[dim]=3", "optim.betas=[0.9]", "--no-such"),
    *("optim.betas=[0.9,2]", "optim.betas=[a,b]", "optim.betas=0.9", "mixer=", "mixer=[gru]", "mixer=null"),
    "data=null",
)


def draw(rng: random.Random, world: World, folder: Path) -> Attempt:
    """Draw a wrong setting of train, or sometimes of prepare."""
    maker = rng.choices((_value, _key, _choice, _doubtful, _contradiction, _syntax), (40, 22, 10, 15, 9, 4))[0]
    module = rng.choices(("seq2seq.train", "seq2seq.prepare"), (8, 1))[0]
    mixer: tuple[str, ...] = ()
    if rng.random() < 0.4:
        # Some presets have values for four layers at most
        mixer = (f"mixer={rng.choice(presets())}", "model.encoder_layers=4", "model.decoder_layers=4")
    what, words, named, must = maker(rng, mixer)
    if module == "seq2seq.prepare" and maker is _contradiction:
        must = "either"
    # The cache is copied only if the command may get that far
    base = (*world.train_words(folder, cache=must != "refuse"), "trainer.max_time=5s")
    work = folder / "work"
    return Attempt(
        what=f"{module.rpartition('.')[2]}: {what}",
        command=Command(module, (*base, *mixer, *words)),
        named=named,
        must=must,
        check=(lambda _: check_run(work)) if module == "seq2seq.train" else None,
        outputs=(work / "runs",),
    )


Drawn = tuple[str, tuple[str, ...], tuple[str, ...], typing.Literal["refuse", "work", "either"]]


def _value(rng: random.Random, mixer: tuple[str, ...]) -> Drawn:
    """Draw a value that the setting's type forbids."""
    types_of = known(mixer)
    key = rng.choice(sorted(types_of))
    kind = types_of[key]
    words = list(WRONG[kind])
    if kind is str and key in CHOICES:
        words += ["banana", "''", "1.5", "-1"]
    value = rng.choice(words)
    must = "refuse"
    # The mixer itself checks these values
    if key.startswith(NEGATIVE) and value not in ("banana", "{a:1}", "nan"):
        must = "either"
    # Null turns a rule off
    if value == "null" and key.startswith("data.clean."):
        must = "either"
    # The rate has two names, optim.lr and optim.peak_lr
    last = key.rpartition(".")[2].removeprefix("peak_")
    return f"{key} of the wrong type", (f"{key}={value}",), (last, value.strip("'${}")), must


def _doubtful(rng: random.Random, mixer: tuple[str, ...]) -> Drawn:
    """Draw a value that may be wrong."""
    key = rng.choice(sorted(known(mixer)))
    value = rng.choice(DOUBTFUL)
    named = (key.rpartition(".")[2].removeprefix("peak_"), value.strip("'${}"))
    return f"{key} of an odd value", (f"{key}={value}",), named, "either"


def _key(rng: random.Random, mixer: tuple[str, ...]) -> Drawn:
    """Draw a key that does not exist, with any prefix."""
    keys_of = sorted(known(mixer))
    key = misspell(rng, rng.choice(keys_of))
    prefix = rng.choice(("", "", "+", "++", "~"))
    if key in keys_of or any(other.startswith(f"{key}.") for other in keys_of):
        key = f"{key}zz"
    value = "" if prefix == "~" else f"={rng.choice(('1', 'true', '0.1', 'abc', 'null', '[1]', '{a:1}'))}"
    return f"{prefix}key that does not exist", (f"{prefix}{key}{value}",), (key, key.rpartition(".")[2]), "refuse"


def _choice(rng: random.Random, mixer: tuple[str, ...]) -> Drawn:
    """Draw a choice that a group does not have."""
    group = rng.choice(GROUPS)
    names = sorted(path.stem for path in (conf_dir() / group).glob("*.yaml"))
    name = misspell(rng, rng.choice(names))
    if name in names:
        name += "zz"
    written = group
    if rng.random() < 0.2:
        written = rng.choice(("mixer/self@mixer.encoder", "mixer/self@mixer.decoder", "mixer/cross@mixer.cross"))
    prefix = rng.choice(("", "", "", "+", "++"))
    return f"{prefix}{written} has no such choice", (f"{prefix}{written}={name}",), (name, written), "refuse"


def _contradiction(rng: random.Random, mixer: tuple[str, ...]) -> Drawn:
    words, named = rng.choice(CONTRADICTIONS)
    return f"contradiction {words[0]}", words, named, "refuse"


def _syntax(rng: random.Random, mixer: tuple[str, ...]) -> Drawn:
    word = rng.choice(SYNTAX)
    return "odd syntax", (word,), (), "either"


def misspell(rng: random.Random, key: str) -> str:
    """Drop, double, swap or replace a letter of the last part of a key."""
    head, dot, last = key.rpartition(".")
    place = rng.randrange(len(last))
    letter = rng.choice("abcdefghijklmnopqrstuvwxyz_é")
    options = (
        last[:place] + last[place + 1 :],
        last[:place] + last[place] + last[place:],
        last[:place] + letter + last[place + 1 :],
        last[: place - 1] + last[place : place + 1] + last[place - 1 : place] + last[place + 1 :] if place else last,
        f"{last}{letter}",
    )
    return f"{head}{dot}{rng.choice(options) or 'zz'}"


def known(mixer: tuple[str, ...]) -> dict[str, type]:
    """Return the type of every setting, from the classes of the sections and the values of the mixer."""
    found: dict[str, type] = {}
    for name, cls in sections.SECTIONS.items():
        found |= _types(cls, f"{name}." if name else "")
    config = resolved_settings(["mixer=identity", *mixer])
    found |= _values(config["mixer"], "mixer.")
    return found


def _types(cls: type, prefix: str) -> dict[str, type]:
    found: dict[str, type] = {}
    hints = typing.get_type_hints(cls)
    for name, field in keys(cls).items():
        hint: Any = hints[name]
        parts = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        plain = [part for part in parts if part in (int, float, bool, str)]
        if dataclasses.is_dataclass(hint):
            found |= _types(hint, f"{prefix}{name}.")  # type: ignore[arg-type]
        # Skip settings with values of several types
        elif len(plain) == 1 and not field.metadata.get("duration"):
            found[f"{prefix}{name}"] = plain[0]
    return found


def _values(section: dict[str, Any], prefix: str) -> dict[str, type]:
    found: dict[str, type] = {}
    for name, value in section.items():
        if isinstance(value, dict):
            found |= _values(value, f"{prefix}{name}.")
        elif type(value) in (int, float, bool):
            found[f"{prefix}{name}"] = type(value)
    return found
