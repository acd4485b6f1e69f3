"""Arguments of Lightning's Trainer: those that a run passes on, and why it takes no others."""

from __future__ import annotations

# Arguments that a run passes on: none of them changes the position in the data or the budget.
PASSED_ON = ("detect_anomaly", "deterministic", "enable_model_summary", "inference_mode", "sync_batchnorm")
# Arguments that a run sets by a setting of its own, under another name or in another place.
OWN_SETTINGS = {
    "accelerator": "trainer.accelerator",
    "strategy": "trainer.strategy",
    "devices": "trainer.devices",
    "num_nodes": "trainer.nodes",
    "precision": "trainer.precision",
    "logger": "logger",
    "callbacks": "callbacks",
    "max_epochs": "trainer.max_epochs",
    "max_steps": "trainer.max_steps",
    "max_time": "trainer.max_time",
    "limit_train_batches": "data.limit, which counts pairs",
    "limit_val_batches": "trainer.val_sentences",
    "overfit_batches": "data.limit, which counts pairs",
    "val_check_interval": "trainer.val_steps or trainer.val_time",
    "check_val_every_n_epoch": "trainer.val_steps (null: every epoch)",
    "log_every_n_steps": "trainer.log_steps",
    "accumulate_grad_batches": "trainer.accumulate",
    "gradient_clip_val": "optim.clip_norm",
    "profiler": "trainer.profile",
    "default_root_dir": "runs",
    "fast_dev_run": "trainer.dry_run",
    "num_sanity_val_steps": "trainer.dry_run, which tries validation and test before a run",
}
# Arguments that would break what a run promises.
REFUSED = {
    "min_epochs": "a run ends at the first limit that it reaches",
    "min_steps": "a run ends at the first limit that it reaches",
    "limit_test_batches": "a score is that of a whole test set (a slice such as data.test=test[:100] is a smaller one)",
    "limit_predict_batches": "training predicts nothing; seq2seq.translate does",
    "enable_checkpointing": "resume=auto needs the run's own checkpoints; trainer.keep_last and keep_best keep more",
    "enable_progress_bar": "a run shows its own progress (trainer.line_time, trainer.samples)",
    "gradient_clip_algorithm": "gradients are clipped by their norm, after the division by the tokens of an update",
    "benchmark": "cuDNN would choose algorithms by their time, so that a resumed run could round otherwise",
    "use_distributed_sampler": "the batches know their process; Lightning's sampler would shuffle them anew",
    "barebones": "a run could neither log, validate nor save",
    "plugins": "checkpoints are written whole or not at all by a plugin of the run's own",
    "reload_dataloaders_every_n_epochs": "a run is resumed at its position in the data",
    "enable_autolog_hparams": "loggers get the settings with the final scores",
    "model_registry": "it uploads the files of Lightning's own checkpoint callback",
}


def explain_argument(key: str) -> str | None:
    """Explain a setting of `trainer` or `trainer.lightning` that is an argument of Lightning's Trainer alone.

    Args:
        key: An unknown setting, such as `trainer.gradient_clip_val`.

    Returns:
        Where its own setting is or why there is none; None if Lightning has no such argument either.
    """
    section, _, name = key.rpartition(".")
    if section not in ("trainer", "trainer.lightning"):
        return None
    if name in PASSED_ON and section == "trainer":
        return f"{key}: write trainer.lightning.{name}"
    if name in OWN_SETTINGS:
        return f"{key}: the setting for this is {OWN_SETTINGS[name]}"
    if name in REFUSED:
        return f"{key} cannot be set: {REFUSED[name]}"
    return None
