"""Write the model card of an exported folder: the model, its scores and its training."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from typing import Any, NamedTuple

from seq2seq.data.languages import target_languages
from seq2seq.data.moses_bpe import MOSES
from seq2seq.settings.classes import class_names, packages_of
from seq2seq.system.markdown import markdown_table, without_markup

# Sections of a run's settings that the card shows; the others hold paths of the machine.
_RECIPE = ("mixer", "model", "optim", "trainer", "search")
# Settings that only say where a run keeps its files, or how it was started.
_PLACES = ("cache", "runs", "resume", "force")
# The folders of a path that begins with /, ~ or .., alone or in a list or mapping.
_PATH = re.compile(r"""(?<![^=\[{,:\s"'])(?:~[^/,\s]*|\.\.)?/(?!/)(?:[^,\[\]{}"']*/)?(?=[^,\[\]{}"'/])""")
# Metadata in YAML; JSON is YAML, and quotes any name of a language.
_HEADER = """\
---
language: {languages}
# license: choose one, and remove the "# "
library_name: seq2seq-mixers
pipeline_tag: translation
---
"""
_USAGE = """\
## Use

```python
from seq2seq import Translator

translator = Translator.load("this folder, or owner/name on the hub"{trust})
print(translator.texts(["..."]))
```
"""
_MARIAN = """\
The folder `marian` has the same model for Hugging Face's Transformers:

```python
from transformers import MarianMTModel, MarianTokenizer

tokenizer = MarianTokenizer.from_pretrained("this folder/marian")
model = MarianMTModel.from_pretrained("this folder/marian")
batch = tokenizer(["..."], return_tensors="pt", padding=True)
print(tokenizer.batch_decode(model.generate(**batch), skip_special_tokens=True))
```
"""


class Origin(NamedTuple):
    """Record of the run that trained the model: the contents of results.json and config.yaml, {} if missing."""

    results: Mapping[str, Any]
    settings: Mapping[str, Any]


def model_card(meta: Mapping[str, Any], origin: Origin, *, parameters: int, marian: bool) -> str:
    """Return the text of README.md in the form that the Hugging Face hub reads.

    Args:
        meta: The `seq2seq` entry.
        parameters: Number of the model's parameters.
        marian: The folder has a copy for Hugging Face's Marian.
    """
    languages = target_languages(meta)
    classes = class_names(meta["model"]["mixer"])
    mixers = ", ".join(f"{' and '.join(names)} ({slot})" for slot, names in classes.items())
    own = [name for name in packages_of(meta["model"]["mixer"]) if name != "seq2seq"]
    normalizer = meta.get("normalizer", "unnamed")
    program = "" if normalizer == MOSES else " in SentencePiece"
    parts = [
        _HEADER.format(languages=json.dumps(list(dict.fromkeys([meta["src_lang"], *languages])))),
        f"# Translation from {meta['src_lang']} to {', '.join(languages)}\n",
        f"An encoder-decoder of {parameters:,} parameters, whose token mixers are {mixers}. "
        "Its author states the license above.\n",
        _USAGE.format(trust=f", trust={own}" if own else ""),
        _MARIAN if marian else "",
        f"## Data\n\n`{meta['data']}`, text normalized by `{normalizer}`{program}.\n",
        _scores(origin),
    ]
    return "\n".join([without_markup("\n".join(part for part in parts if part)), _recipe(meta, origin)])


def _scores(origin: Origin) -> str:
    """Return the table of validation and test scores with their sentences and sacreBLEU's signatures."""
    rows = []
    for split in ("valid", "test"):
        values = origin.results.get(split)
        if not isinstance(values, Mapping):
            continue
        # A run has signatures of BLEU and chrF, in this order
        signatures = [*(values.get("signatures") or []), "", ""]
        for metric, signature in zip(("bleu", "chrf"), signatures, strict=False):
            if isinstance(values.get(metric), int | float):
                # Earlier versions did not record the number
                count = values.get("sentences", "")
                rows.append([split, metric, f"{values[metric]:.2f}", str(count), f"`{signature}`"])
    if not rows:
        return (
            "## Scores\n\nNone are known of this checkpoint: a run's folder has the scores of its best.safetensors.\n"
        )
    header = ["split", "metric", "score", "sentences", "signature"]
    return "\n".join(["## Scores\n", markdown_table(header, rows, right=["score", "sentences"]), ""])


def _recipe(meta: Mapping[str, Any], origin: Origin) -> str:
    """Return the run's command and settings, or the model's settings if there is no run."""
    settings = {key: origin.settings[key] for key in _RECIPE if key in origin.settings}
    settings = settings or {key: meta["model"][key] for key in ("mixer", "model")}
    parts = ["## Recipe\n"]
    words = shlex.split(str(origin.results.get("command") or ""))
    # Without settings of places, and with the names of files alone in place of their paths
    public = [_PATH.sub("", word) for word in words if word.lstrip("+~").partition("=")[0] not in _PLACES]
    if command := shlex.join(public):
        # Nothing in a block of code is markup, and no text may end the block
        parts.append(f"```bash\n{command.replace('```', '')}\n```\n")
    versions = ", ".join(f"{name} {number}" for name, number in meta["versions"].items())
    parts.append(without_markup(f"Written by {versions}.\n"))
    text = json.dumps(settings, indent=2, ensure_ascii=False, default=str)
    parts.append(f"```json\n{_PATH.sub('', text)}\n```\n")
    return "\n".join(parts)
