"""Measure one self mixer and compare the result with the declarations of its class."""

from __future__ import annotations

import dataclasses

from seq2seq.analysis.atlas import properties, scaling
from seq2seq.analysis.atlas.properties import Measured, SizedSettings
from seq2seq.analysis.atlas.scaling import Growth
from seq2seq.network.build import build_self_mixer
from seq2seq.network.introspection import MixingProperties

# Sizes of a layer in the published base models.
PARAMETER_SIZES = {"dim": 512, "heads": 8, "max_len": 1024}


@dataclasses.dataclass(frozen=True)
class Point:
    """Declaration and measurements of a self mixer.

    Attributes of the causal form are None for an encoder-only mixer.

    Attributes:
        name: Name of the file in conf/mixer/self, and settings that replace its settings, such as "conv+groups=2".
        declared: Declared `properties` of the bidirectional form, or None.
        declared_causal: Declared `properties` of the causal form.
        bidirectional: Measurement of the bidirectional form.
        causal: Measurement of the causal form.
        state: Measured growth of the decoding state: "linear", "constant" or "other".
        declared_state: Declared `state_growth` of the causal form.
        parameters: Parameters of a layer at PARAMETER_SIZES.
        growth: Seconds and bytes by length, or None.
    """

    name: str
    declared: MixingProperties | None
    declared_causal: MixingProperties | None
    bidirectional: Measured
    causal: Measured | None
    state: str | None
    declared_state: str | None
    parameters: int
    growth: Growth | None

    def disagreements(self) -> list[str]:
        """Describe each difference between declaration and measurement in a sentence."""
        if self.declared is None:
            # The message can be pasted into the class
            seen = ", ".join(f"{key}={value}" for key, value in vars(self.bidirectional.properties).items())
            return [f"{self.name} declares no `properties`: set them in its class (measured: {seen})"]
        wrong = _differences(self.name, self.declared, self.bidirectional)
        if self.declared_causal is not None and self.causal is not None:
            wrong += _differences(f"{self.name}, causal,", self.declared_causal, self.causal)
        if self.state != self.declared_state:
            wrong.append(f"{self.name} declares state_growth {self.declared_state!r}, but measured is {self.state!r}")
        return wrong


def _differences(name: str, declared: MixingProperties, measured: Measured) -> list[str]:
    seen = vars(measured.properties)
    return [
        f"{name} declares {key}={value}, but measured is {key}={seen[key]} "
        f"(window {measured.window}, rank {measured.rank})"
        for key, value in vars(declared).items()
        if value != seen[key]
    ]


def survey(name: str, settings: SizedSettings, *, limit: float | None) -> Point:
    """Measure one mixer.

    Args:
        name: Name of the mixer, for messages; settings after "+" keep their values when it is measured.
        settings: Its settings by width, heads and longest sequence.
        limit: Maximum seconds for measuring the growth of its cost; None measures no growth.

    Raises:
        ValueError: The mixer cannot be built or measured; the message names it.
    """
    try:
        given = [each.partition("=")[0] for each in name.split("+")[1:]]
        values = properties.measured_values(settings, given)
        encoder = build_self_mixer(values, dim=properties.DIM, causal=False)
        bidirectional = properties.measure(encoder)
        try:
            decoder = build_self_mixer(values, dim=properties.DIM, causal=True, where="decoder")
        except ValueError as error:
            if "encoder-only" not in str(error):
                raise
            decoder = None
        return Point(
            name=name,
            # Declarations may depend on settings, so the measured mixers have them
            declared=getattr(encoder, "properties", None),
            declared_causal=getattr(decoder, "properties", None),
            bidirectional=bidirectional,
            causal=None if decoder is None else properties.measure(decoder),
            state=None if decoder is None else properties.state_growth(decoder),
            declared_state=None if decoder is None else decoder.state_growth,
            parameters=properties.parameters(settings, **PARAMETER_SIZES),
            growth=None if limit is None else scaling.measure(settings, limit=limit),
        )
    except ValueError as error:
        raise ValueError(f"mixer/self={name}: {error}") from error
