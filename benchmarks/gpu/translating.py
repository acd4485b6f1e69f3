"""Time `python -m seq2seq.translate` from the moment its model is loaded: 3,000 sentences of 27 tokens, beam 5.

The weights are random, and every translation has 27 tokens as well, including the end. Models that were trained for a
few seconds would write translations of different lengths, and the time would depend on these.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch

from benchmarks.gpu.command import settings
from seq2seq import checkpoint, translate
from seq2seq.data.preparation import prepare_corpora
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.inference.line_stream import LineStream
from seq2seq.metadata import describe
from seq2seq.network.build import build_model
from seq2seq.settings.compose import resolved_settings
from seq2seq.training.checks import make_data_plan
from seq2seq.training.plan import make_plan

if TYPE_CHECKING:
    from benchmarks.gpu.part import PartJob

# Number of sentences, and of tokens of each, including the end.
_LINES, _LENGTH = 3000, 27


def run(job: PartJob) -> None:
    """Run the command three times: on some sentences, to load kernels, and twice on all."""
    config = resolved_settings(settings(job, "transformer", "16384"))
    data = prepare_corpora(make_data_plan(make_plan(config, mixer="transformer"), None))
    count, length, beam = (_LINES, _LENGTH, 5) if job.on_gpu else (6, 9, 2)
    lines = list(itertools.islice(sentences(data.tokenizer, data.sources("test"), length), count))
    job.save(sentences=count, length=length, beam=beam)
    with tempfile.TemporaryDirectory() as folder:
        ckpt = Path(folder) / "random.safetensors"
        write_checkpoint(ckpt, config, data.tokenizer)
        for name, part in (("some s", lines[: count // 30 + 1]), ("first s", lines), ("again s", lines)):
            job.save(**{name: seconds_of(part, ckpt, length=length, beam=beam, device=job.device)})


def sentences(tokenizer: Tokenizer, texts: Sequence[str], length: int) -> Iterator[str]:
    """Yield lines of `length` tokens including the end, or of a few more tokens if the last word is longer."""
    words = [word for text in texts for word in text.split()]
    line: list[str] = []
    tokens = 1
    # The ids of each word end with the end symbol, too
    for word, ids in itertools.cycle(zip(words, tokenizer.encode_src(words), strict=True)):
        line.append(word)
        tokens += len(ids) - 1
        if tokens >= length:
            yield " ".join(line)
            line = []
            tokens = 1


def write_checkpoint(path: Path, config: dict[str, Any], tokenizer: Tokenizer) -> None:
    """Write a model of random weights as training would."""
    sizes = {"src_vocab_size": tokenizer.src_vocab_size, "tgt_vocab_size": tokenizer.tgt_vocab_size}
    model_config = {"model": config["model"], "mixer": config["mixer"], **sizes}
    model_config |= {"pad_id": tokenizer.pad_id, "joint": tokenizer.joint}
    torch.manual_seed(1)
    weights = build_model(model_config).state_dict()
    data = config["data"]
    entry = describe(
        model_config=model_config,
        tokenizer=tokenizer,
        src_lang=data["src"],
        tgt_lang=data["tgt"],
        tokenize="13a",
        data=data["name"],
    )
    checkpoint.save(path, checkpoint.Stored(entry, weights))


def seconds_of(lines: list[str], ckpt: Path, *, length: int, beam: int, device: str) -> float:
    """Return the seconds from the loaded model to the last line of output.

    Raises:
        RuntimeError: The command fails.
    """
    source, sink = ckpt.with_name("source.txt"), ckpt.with_name("translation.txt")
    source.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    options = [f"--ckpt={ckpt}", f"--input={source}", f"--output={sink}", f"--device={device}", f"--beam-size={beam}"]
    options += ["--max-len-ratio=0", f"--min-len={length - 1}", f"--max-len-extra={length}", "--sentences=keep"]
    took: list[float] = []
    whole = LineStream.run

    def timed(self: LineStream, *streams: Any) -> None:
        began = time.perf_counter()
        whole(self, *streams)
        took.append(time.perf_counter() - began)

    with mock.patch.object(LineStream, "run", timed):
        status = translate.main(options)
    if status or not took:
        raise RuntimeError(f"translate ended with exit status {status}")
    return round(took[0], 3)
