"""Make a corpus from a teacher's translations of any text, and train a student on it (knowledge distillation)."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from seq2seq.data.text_files import open_text
from seq2seq.inference.line_formats import LIMITED
from seq2seq.inference.partial_output import identity
from seq2seq.options.command_line import (
    Parser,
    exit_status,
    nonempty,
    require_output,
    run_command,
    warn,
    whole_number,
)
from seq2seq.options.translation import search_range
from seq2seq.system.files import atomic_file, write_json
from seq2seq.system.json_file import read_json_or_none
from seq2seq.system.model_path import checkpoint_file
from seq2seq.system.stdio import print_error

EPILOG = """\
Writes the corpus OUTPUT.<source language> and OUTPUT.<target language>, a pair for each translation. With --n-best or
--samples a source line occurs once for each of its distinct translations. Lines without a translation are left out, and
empty lines too, unless the teacher reads context: there, a blank line ends a document. The command also takes the
options of seq2seq.translate, such as --beam-size 1 or --max-tokens 8000.

Words such as optim.lr=1e-3 are settings of seq2seq.train: with at least one of them, a student is trained on the corpus
(data=files data.train=OUTPUT, the teacher's languages, and resume=auto, unless given). To start
from the teacher and replace a mixer, give init_from=TEACHER mixer/self@mixer.decoder=lightconv.

Repeat an interrupted command to continue it. OUTPUT.json records what the corpus was made from.

Example, from a teacher to a student with another decoder:
  python -m seq2seq.distill --ckpt runs/teacher --input train.de more.de --output distilled --beam-size 4 \\
      init_from=runs/teacher mixer/self@mixer.decoder=lightconv data.valid=valid data.test=test trainer.max_steps=2000

Exit status: 0 done; 2 wrong options or files; 130 interrupted; of the training, as seq2seq.train.

Reference: Kim and Rush 2016, Sequence-Level Knowledge Distillation."""
# Options of seq2seq.translate that this command sets, or whose output it would not use.
_TAKEN = ("--format", "--resume", "--pieces", "--align", "--alignments", "--mbr")
# Options that change the speed alone.
_MACHINE = ("--device", "--threads", "--max-tokens")


def _parser() -> Parser:
    parser = Parser(prog="python -m seq2seq.distill", description=__doc__, epilog=EPILOG)
    add = parser.add_argument
    add("--ckpt", required=True, type=nonempty, metavar="FILE", help="checkpoint of the teacher")
    text = "text in the teacher's source language, line by line; may be compressed"
    add("--input", required=True, nargs="+", type=nonempty, metavar="FILE", help=text)
    add("--output", required=True, type=nonempty, metavar="PREFIX", help="prefix of the corpus to write")
    count = whole_number(*search_range("n_best"))
    several = parser.add_mutually_exclusive_group().add_argument
    several("--n-best", type=count, metavar="N", help="translations of each line, the best of the beam (1)")
    several("--samples", type=count, metavar="N", help="sample N translations of each line instead")
    add("--tgt-lang", type=nonempty, metavar="LANG", help="target language, of a teacher that has several")
    add("--src-lang", type=nonempty, metavar="LANG", help="source language, likewise")
    for name in _MACHINE:
        add(name, type=nonempty, metavar="X", help="as in seq2seq.translate; a command may continue with another one")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    words = sys.argv[1:] if argv is None else list(argv)
    # Settings are not options: a value with an equals sign is written as --option=value
    settings = [word for word in words if word[:1] == "~" or (word[:1] != "-" and "=" in word)]
    parser = _parser()
    options, more = parser.parse_known_args([word for word in words if word not in settings])
    if taken := next((word for word in more if word.partition("=")[0] in _TAKEN), None):
        parser.error(f"{taken} has no use here: leave it out")
    return exit_status(lambda: _run(options, more, settings))


def _run(options: argparse.Namespace, more: list[str], settings: list[str]) -> int:
    """Translate each input, write the corpus, and train the student if settings are given."""
    prefix = Path(options.output)
    if prefix.is_dir():
        raise ValueError(f"--output {prefix} is a folder; name a prefix of files, such as {prefix / 'distilled'}")
    for path in options.input:
        if not Path(path).is_file():
            reason = "is not a regular file, and an interrupted command reads it again"
            raise ValueError(f"--input {path} {reason if Path(path).exists() else 'does not exist'}")
    _check_settings(settings)
    # These import torch
    from seq2seq.checkpoint import read_description
    from seq2seq.data.context import context_size
    from seq2seq.inference.model_files import locate

    teacher = checkpoint_file(locate(options.ckpt))
    meta = read_description(teacher)
    languages = {"src": options.src_lang or str(meta["src_lang"]), "tgt": options.tgt_lang or str(meta["tgt_lang"])}
    if not all(re.fullmatch(r"[\w-]+", language) for language in languages.values()):
        raise ValueError(f"--ckpt {teacher} translates {' to '.join(languages.values())}, which cannot name files")
    several = {
        "--n-best": options.n_best or options.samples,
        "--samples": options.samples,
        "--tgt-lang": options.tgt_lang,
        "--src-lang": options.src_lang,
    }
    search = _words(several) + more
    machine = _words({name: getattr(options, name[2:].replace("-", "_")) for name in _MACHINE})
    inputs = [identity(path) for path in options.input]
    made_by = {"teacher": identity(teacher), "inputs": inputs, "options": search}
    sides = [Path(f"{prefix}.{language}") for language in languages.values()]
    note = Path(f"{prefix}.json")
    parts = [Path(f"{prefix}.{number}.jsonl") for number in range(1, len(inputs) + 1)]
    _require_own(note, [*sides, *parts], made_by, options.input)
    if not all(side.is_file() for side in sides):
        write_json(note, made_by)
        for source, part in zip(options.input, parts, strict=True):
            if not part.is_file():
                given = ["--ckpt", options.ckpt, "--input", source, "--output", str(part), *machine, *search]
                if status := _translate([*given, "--format", "json", "--resume"], part):
                    return status
        _write_corpus(options.input, parts, sides, documents=context_size(meta) > 0)
        for part in parts:
            part.unlink()
    print_error(f"corpus: {sides[0]} and {sides[1]}")
    if settings:
        _train(prefix, languages, settings)
    return 0


def _check_settings(settings: Sequence[str]) -> None:
    """Refuse words that training would refuse, before hours of translation; warn if the student has no real text."""
    if not settings:
        return
    for key in ("data", "data.train"):
        if _sets(settings, key):
            raise ValueError(f"{key}=... is what this command writes: leave it out, or add text by data.corpora")
    # Imports Hydra
    from seq2seq.settings.compose import resolved_settings

    if resolved_settings(["data=files", *settings])["data"]["valid"] is None:
        warn("data.valid is not set: translations of the teacher, held out of the corpus, will validate the student")


def _words(options: Mapping[str, Any]) -> list[str]:
    """Write options that have a value as words of a command line."""
    return [str(word) for name, value in options.items() if value is not None for word in (name, value)]


def _require_own(note: Path, outputs: Sequence[Path], made_by: Mapping[str, Any], inputs: Sequence[str]) -> None:
    """Raise ValueError if the output belongs to another command, or to someone's corpus."""
    before = read_json_or_none(note)
    if before and before.keys() == made_by.keys():
        for key, value in made_by.items():
            if before[key] != value:
                files = " ".join(str(path) for path in (note, *outputs) if path.exists())
                raise ValueError(f"{note}: an earlier command had other {key}; choose another --output, or rm {files}")
        return
    require_output(note, "--output", inputs=inputs)
    for path in (note, *outputs):
        if path.exists():
            raise ValueError(f"--output: {path} exists, and this command did not write it; choose another prefix")


def _translate(words: Sequence[str], output: Path) -> int:
    """Translate one input in a process of its own; return its exit status, 0 if some lines failed."""
    with subprocess.Popen([sys.executable, "-m", "seq2seq.translate", *words]) as child:
        # A terminal interrupts both processes; the child ends by itself, with its translations kept
        before = signal.signal(signal.SIGTERM, lambda *_: child.terminate())
        while True:
            with contextlib.suppress(KeyboardInterrupt):
                status = child.wait()
                break
        signal.signal(signal.SIGTERM, before)
    # Killed by a signal: as shells report it
    status = 128 - status if status < 0 else status
    return 0 if status == 1 and output.is_file() else status


def _write_corpus(inputs: Sequence[str], parts: Sequence[Path], sides: Sequence[Path], *, documents: bool) -> None:
    """Write a pair for each distinct translation of each line, and a blank line after each document if asked to."""
    end = b"\n" if documents else b""
    lines = 0
    pairs = 0
    lacking = 0
    with atomic_file(sides[0]) as sources, atomic_file(sides[1]) as targets:
        for path, part in zip(inputs, parts, strict=True):
            with open_text(path) as source, open(part, encoding="utf-8") as rows:
                # Lines end at \n alone, in the input as in the output
                for line, row in zip(source, rows, strict=True):
                    text = line.decode("utf-8", "replace").removesuffix("\n").removesuffix("\r")
                    lines += 1
                    if not text.strip():
                        sources.write(end)
                        targets.write(end)
                        continue
                    translations = list(_translations(json.loads(row)))
                    for translation in translations:
                        sources.write(f"{text}\n".encode())
                        targets.write(f"{translation}\n".encode())
                    pairs += len(translations)
                    lacking += not translations
            sources.write(end)
            targets.write(end)
    left_out = f"; {lacking:,} lines are left out: no translation, or only ones that a limit of their length ended"
    print_error(f"{pairs:,} pairs from {lines:,} lines{left_out if lacking else ''}")


def _translations(entry: Mapping[str, Any]) -> Iterator[str]:
    """Yield the distinct translations of a line, best first, without those that failed or that a limit has ended."""
    given = (entry, *entry.get("alternatives", ()))
    # A limit usually ends a translation that repeats itself
    found = [each["translation"] for each in given if each["score"] is not None and not each.get(LIMITED)]
    yield from dict.fromkeys(filter(str.strip, found))


def _train(prefix: Path, languages: Mapping[str, str], settings: Sequence[str]) -> None:
    """Replace this process by the training of a student, which so receives all signals."""
    place = str(prefix)
    own = {
        "data": "files",
        "data.name": re.sub(r"[^\w.-]", "-", prefix.name),
        "data.src": languages["src"],
        "data.tgt": languages["tgt"],
        "data.train": place if re.fullmatch(r"[\w./-]+", place) else json.dumps(place, ensure_ascii=False),
        "resume": "auto",
    }
    words = [f"{key}={value}" for key, value in own.items() if not _sets(settings, key)]
    command = [sys.executable, "-m", "seq2seq.train", *words, *settings]
    print_error(f"training: python -m {' '.join(command[2:])}")
    sys.stdout.flush()
    os.execv(sys.executable, command)


def _sets(settings: Sequence[str], key: str) -> bool:
    return any(word.lstrip("+").partition("=")[0] == key for word in settings)


if __name__ == "__main__":
    run_command(main)
