"""Names of settings in other frameworks, and the settings of this project that they stand for."""

from __future__ import annotations

from collections.abc import Sequence

from seq2seq.settings.values import suggestion

# Settings of this project, each with its names in other frameworks. The names are in lower case and without separators:
# "batchsize" stands for batch_size and batchSize.
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
# The settings of this project by their names in other frameworks.
SETTING_OF_NAME = {name: place for place, names in _OTHERS.items() for name in names.split()}


def elsewhere(name: str) -> str:
    """Return a hint at this project's setting that other frameworks call `name`; "" for an unknown name."""
    found = SETTING_OF_NAME.get(name.lower().replace("_", "").replace("-", ""))
    return f"; the setting is {found}" if found else ""


def setting_for(key: str, known: Sequence[str]) -> str:
    """Return a hint at the setting that a user may mean by `key`; "" if no name is similar.

    Args:
        known: The keys of all settings.
    """
    section, _, name = key.rpartition(".")
    if not section and (found := elsewhere(name)):
        return found
    # The setting may be in another section: max_epochs is in `trainer`, and beam_size is in `search`, not in `model`.
    same = [each for each in known if each.rpartition(".")[2] == name and not each.startswith(("hydra.", "mixer."))]
    if same and same != [key]:
        return f"; did you mean {' or '.join(same[:3])}?"
    return elsewhere(name) or suggestion(key, known)
