"""Train a translator: `python -m seq2seq.train data=phrasebook mixer=dynamicconv trainer.max_time=10m`."""

from __future__ import annotations

import logging
import os
import signal
import sys

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from seq2seq import distributed
from seq2seq.config.compose import refuse_mistakes
from seq2seq.experiments import folder as runs
from seq2seq.experiments import hydra_callback
from seq2seq.resources import conf_dir
from seq2seq.training.errors import TrainingFault
from seq2seq.training.run import train

# Compiled matrix kernels that oneDNN keeps: its default, 1,024, is too few for the shapes of an epoch times the layers.
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "8192")
# Large tensors in pages of 2 MiB: a step's fresh memory costs few page faults (without, 5 to 20% of a step's time).
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
# The profiler's library writes a line for every stage; 6 is above all its levels.
os.environ.setdefault("KINETO_LOG_LEVEL", "6")


@hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name="train")
def main(config: DictConfig) -> float:
    """Hydra's entry point: the best validation BLEU. A wrong setting is one line on stderr and exit code 2."""
    chosen = HydraConfig.get()
    if not distributed.is_first_process():
        logging.disable(logging.INFO)
    mixer = runs.mixer_label(chosen.runtime.choices["mixer"], chosen.overrides.task)
    try:
        return train(OmegaConf.to_container(config, resolve=True), mixer=mixer)  # type: ignore[arg-type]
    except ValueError as error:
        if os.environ.get("HYDRA_FULL_ERROR") == "1":
            raise
        if hydra_callback.folder():  # whose other jobs go on
            raise hydra_callback.JobError(str(error)) from error
        print(f"train: {error}\n(HYDRA_FULL_ERROR=1 shows where)", file=sys.stderr)
        sys.exit(2)
    except TrainingFault as fault:
        if hydra_callback.folder():
            raise hydra_callback.JobError(str(fault)) from fault
        print(f"train: {fault}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("train: interrupted", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)


if __name__ == "__main__":
    refuse_mistakes("train")
    main()
