"""Names that other frameworks have for settings, and where each is here; arguments of Lightning that cannot be set."""

from __future__ import annotations

from collections.abc import Sequence

from seq2seq.settings.values import suggestion

# By setting: the names that others have for it, in lower case and without separators (batch_size, batchSize).
_OTHERS = {
    "optim.lr (model=<size> sets it for optim=muon and optim=anneal, as optim.peak_lr)": "lr learningrate rate maxlr",
    "data.max_tokens, which counts the tokens of a micro-batch": "batch batchsize maxtokensperbatch trainbatchsize "
    "microbatchsize devicebatchsize perdevicetrainbatchsize",
    "data.batch_tokens, which counts the tokens of an update": "globalbatchsize totalbatchsize effectivebatchsize "
    "globalbatchtokens tokensperupdate updatetokens",
    "trainer.max_epochs": "epoch epochs numepochs numtrainepochs",
    "trainer.max_steps": "steps updates maxupdates numsteps trainsteps iterations",
    "trainer.max_time": "time maxhours timelimit",
    "optim.warmup_steps (optim.warmup_share of optim=muon and optim=anneal)": "warmup warmupupdates numwarmupsteps",
    "optim, as in optim=adam": "optimizer opt",
    "optim.schedule, or optim=cosine and the like": "scheduler lrscheduler lrschedule",
    "optim.weight_decay": "wd l2",
    "optim.clip_norm": "clip gradclip clipnorm maxgradnorm gradientclipval",
    "optim.label_smoothing": "smoothing",
    "search.beam_size": "beam beams numbeams beamwidth",
    "search.length_penalty": "lenpen lengthpenaltyalpha",
    "--n-best of seq2seq.translate": "nbest",
    "model.encoder_layers and model.decoder_layers": "layers numlayers nlayers depth",
    "model.dim": "dmodel hiddensize hiddendim width embeddim embsize hidden",
    "model.ffn_dim": "ffn ffndim dff feedforward ffsize intermediatesize",
    "model.num_heads, or mixer.encoder.num_heads for one slot": "heads nhead nheads numattentionheads",
    "mixer.encoder.per_layer.kernel_size": "kernel kernels kernelsize kernelsizes",
    "model.activation": "act activationfn",
    "data.vocab_size": "vocab vocabulary",
    "tokenizer, as in tokenizer=bpe": "bpe spm sentencepiece",
    "data.src": "source srclang sourcelang from",
    "data.tgt": "target tgtlang targetlang to",
    "data, as in data=phrasebook, or data.train, data.valid and data.test with data=files": "dataset corpus datadir",
    "data.num_workers": "workers dataloadernumworkers",
    "trainer.devices": "gpus numgpus ngpus worldsize",
    "trainer.accelerator": "gpu device cuda cpu",
    "trainer.precision": "fp16 bf16 amp dtype",
    "trainer.accumulate": "gradaccum accumulategradbatches gradientaccumulationsteps updatefreq",
    "trainer.patience": "earlystopping earlystop",
    "trainer.val_steps or trainer.val_time": "valcheckinterval checkvaleverynepoch valinterval "
    "evalsteps validinterval validateinterval",
    "trainer.save_time": "savesteps saveinterval",
    "trainer.log_steps": "logeverynsteps loginterval loggingsteps logevery",
    "trainer.dry_run": "numsanityvalsteps debug fastdevrun smoketest",
    "runs, the folder of all runs, and run, the name of one": "defaultrootdir output outputdir savedir outdir logdir",
    "run": "name runname expname",
    "resume, or init_from to start a new run": "ckpt checkpoint resumefrom resumefromcheckpoint",
    "init_from": "pretrained finetune finetunefrom",
    "data.limit, which counts pairs": "limittrainbatches overfitbatches",
    "trainer.val_sentences": "limitvalbatches",
    "trainer.nodes": "numnodes",
    "trainer.profile": "profiler",
    "logger, as in logger=wandb": "wandb tensorboard",
    "mixer, as in mixer=transformer, and model, as in model=base": "arch architecture modeltype modelname",
}
# The setting here, by such a name.
SETTING_OF_NAME = {name: place for place, names in _OTHERS.items() for name in names.split()}
# Arguments of Lightning's Trainer that would break what a run promises.
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


def elsewhere(name: str) -> str:
    """Say where the setting is that others call `name`, or why there is none; "" if nobody has it."""
    if name in REFUSED:
        return f"; it cannot be set: {REFUSED[name]}"
    found = SETTING_OF_NAME.get(name.lower().replace("_", "").replace("-", ""))
    return f"; the setting is {found}" if found else ""


def setting_for(key: str, known: Sequence[str]) -> str:
    """Say where the setting is that somebody may mean by `key`; "" if there is none.

    Args:
        known: The keys of all settings.
    """
    section, _, name = key.rpartition(".")
    if not section and (found := elsewhere(name)):
        return found
    # The same name in another section, as max_epochs or model.beam_size.
    same = [each for each in known if each.rpartition(".")[2] == name and not each.startswith(("hydra.", "mixer."))]
    if same and same != [key]:
        return f"; did you mean {' or '.join(same[:3])}?"
    return elsewhere(name) or suggestion(key, known)
