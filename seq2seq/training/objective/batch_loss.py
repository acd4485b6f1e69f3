"""The training objective: the summed losses of a batch."""

from __future__ import annotations

import torch

from seq2seq.data.batching import Batch
from seq2seq.network.model import Seq2Seq
from seq2seq.settings.optim import OptimSettings
from seq2seq.training.objective.loss import LossSums, projected_cross_entropy
from seq2seq.training.objective.r_drop import r_drop_cross_entropy
from seq2seq.training.objective.word_distillation import distilled_cross_entropy


def sum_losses(model: Seq2Seq, batch: Batch, settings: OptimSettings, *, teacher: Seq2Seq | None = None) -> LossSums:
    """Sum the label-smoothed cross entropy of a batch; training adds R-Drop or the predictions of a teacher, if set.

    For R-Drop the batch is concatenated with itself, 2 B rows, and passes through the model once, so that the copies
    have different dropout masks. Static kernels draw one DropConnect mask for both copies, which adds no divergence.

    An idle micro-batch (see `data.updates.IDLE`) has sums of 0.
    """
    smoothing = settings.label_smoothing
    if model.training and settings.r_drop:
        src, src_mask, tgt_in, _, tgt_mask, _ = (torch.cat([part, part]) for part in batch)
        both = model.features(src, src_mask, tgt_in, tgt_mask).unflatten(0, (2, -1))  # (2, B, T, R)
        given = both, model.output, batch.tgt_out, batch.tgt_mask
        sums = r_drop_cross_entropy(*given, smoothing=smoothing, weight=settings.r_drop)
    elif model.training and teacher is not None:
        given = batch.src, batch.src_mask, batch.tgt_in, batch.tgt_mask
        with torch.no_grad():
            known = teacher.features(*given)
        sums = distilled_cross_entropy(
            model.features(*given),
            model.output,
            batch.tgt_out,
            batch.tgt_mask,
            teacher=(known, teacher.output),
            smoothing=smoothing,
            weight=settings.teacher_weight,
        )
    else:
        features = model.features(batch.src, batch.src_mask, batch.tgt_in, batch.tgt_mask)  # (B, T, R)
        # Padding is projected too: oneDNN compiles its kernels for every size. The number of real tokens is new in
        # every batch, while the number of positions takes few values.
        sums = projected_cross_entropy(features, model.output, batch.tgt_out, batch.tgt_mask, smoothing=smoothing)
    # Only a batch of one row may be idle
    return sums if len(batch.index) > 1 else LossSums(*(each * (batch.index[0] >= 0) for each in sums))
