"""Measure self mixers and write the atlas: its page, its data and the map."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf

from seq2seq.analysis.atlas import map as atlas_map
from seq2seq.analysis.atlas.properties import SizedSettings
from seq2seq.analysis.atlas.property_table import as_json, markdown
from seq2seq.analysis.atlas.survey import survey
from seq2seq.options.command_line import require_folder, warn
from seq2seq.settings.compose import compose_settings, self_mixers
from seq2seq.settings.values import require_known
from seq2seq.system.canvas import require_matplotlib
from seq2seq.system.files import write_json, write_text
from seq2seq.system.stdio import print_error

# Points that are a setting of a mixer, and no file of conf/mixer/self.
VARIANTS = (
    *("relu_attention+weights=plain_relu", "nonlocal+pairwise=tanh_concatenation", "relative+biases=false"),
    *("postconv_attention+of=scores", "preconv_attention+before=full", "quadratic+padding=zeros"),
    *("conv+dilation=3", "conv+groups=2", "conv+hidden_dim=3", "conv+circular=true"),
    *("lowrank_mlp+mix_channels=true", "pyramid+learned=true", "resolutions+resolutions=[1,3]+kernel_size=5"),
    "relative_bias+multiplied=true",
)


def write_atlas(names: Sequence[str] | None, *, limit: float, figure: bool, out: Path | None, seed: int) -> int:
    """Measure mixers, print the page, and write it to a folder.

    Args:
        names: Self mixers, each with settings after "+", such as "conv+groups=2"; if None, all of conf/mixer/self and
            VARIANTS.
        limit: Maximum seconds for measuring the growth of one mixer; 0 measures no growth.
        figure: Draw the map.
        out: The folder, `inspect/atlas` if None.
        seed: Seed of each mixer's parameters and inputs.

    Returns:
        The exit status: 1 if a mixer's declaration differs from the measurement.

    Raises:
        ValueError: A name is unknown, or a mixer cannot be measured.
    """
    # Fail before measuring, which takes minutes
    if figure:
        require_matplotlib("--figure")
    known = self_mixers()
    names = [*known, *VARIANTS] if names is None else [name.strip() for name in names]
    for name in names:
        require_known(name.split("+")[0], known, "self mixer")
    folder = require_folder(out or Path("inspect") / "atlas", files=("atlas.md", "atlas.json"))
    points = []
    for name in names:
        settings = settings_of(name)
        progress = "measuring ..." if settings else "left out: a stack of several mixers"
        print_error(f"{name}: {progress}")
        # Seed before each mixer, so that its numbers do not depend on the others
        torch.manual_seed(seed)
        if settings:
            points.append(survey(name, settings, limit=limit or None))
    page = markdown(points)
    # Standard output gets the page alone, so that it can be redirected
    print(page, end="", flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "atlas.md", page)
    write_json(folder / "atlas.json", as_json(points))
    if figure:
        atlas_map.draw(points, folder / "map")
    print_error(f"written: {folder}")
    # Warn after writing the files, which show the reasons
    wrong = [line for point in points for line in point.disagreements()]
    for line in wrong:
        warn(line)
    return 1 if wrong else 0


def settings_of(name: str) -> SizedSettings | None:
    """Compose the settings of a self mixer as a function of width, heads and longest sequence.

    Args:
        name: A file of conf/mixer/self, and settings that replace its settings, such as "conv+groups=2".

    Returns:
        None for a stack of several different mixers, which has no place on the map.
    """
    # Self mixers are composed in a slot; any preset has one
    name, *given = name.split("+")
    changes = [f"++mixer.encoder.{each}" for each in given]
    config = compose_settings(["mixer=transformer", f"mixer/self@mixer.encoder={name}", *changes])
    targets = {kind["_target_"] for kind in config.mixer.encoder.get("kinds", {}).values()}
    if len(targets) > 1:
        return None

    # Sizes are set before `${model.dim}` and other references are resolved
    def settings(dim: int, heads: int, max_len: int) -> Mapping[str, Any]:
        config.model.dim = dim
        config.model.num_heads = heads
        config.model.max_len = max_len
        values = OmegaConf.to_container(config.mixer.encoder, resolve=True)
        assert isinstance(values, dict)
        return {str(key): value for key, value in values.items()}

    return settings
