"""Serve translations of a checkpoint over HTTP: an interface for programs, and a page for people."""

from __future__ import annotations

import argparse
import asyncio
import functools
import os
import signal
import threading
from collections.abc import Sequence
from typing import Any

from seq2seq.inference.service.settings import ServiceSettings
from seq2seq.options.command_line import Parser, exit_status, fail, nonempty, option_name, run_command
from seq2seq.options.translation import add_model_options, load_translator, value_of
from seq2seq.settings.declare import keys
from seq2seq.system.cores import Cores
from seq2seq.system.errors import first_line
from seq2seq.system.stdio import print_error

EPILOG = """\
Examples:
  python -m seq2seq.serve --ckpt runs/demo                 # then open http://127.0.0.1:8000
  python -m seq2seq.serve --ckpt runs/de-en runs/en-de --memory 8
  curl -H 'Content-Type: application/json' -d '{"text": "Guten Morgen."}' http://127.0.0.1:8000/translate

POST /translate takes {"text": "..."} or {"text": ["...", ...]} and options with the names of translate's; GET /health
and GET /metrics (Prometheus) monitor the service. SIGTERM or Ctrl-C stops it: accepted requests are answered, new ones
refused; a second signal stops it at once. SIGUSR1 loads the model again, while requests are answered.

Exit status: 0 stopped, everything accepted was answered; 1 stopped, some requests were not answered within --grace;
2 wrong options or files; 128 + the signal's number after a second signal."""


def _parser() -> Parser:
    parser = Parser(prog="python -m seq2seq.serve", description=__doc__, epilog=EPILOG)
    text = "checkpoint to translate with; a request chooses one of several by languages or name"
    how = {"nargs": "+", "action": "extend", "type": nonempty, "metavar": "[NAME=]FILE"}
    parser.add_argument("--ckpt", required=True, help=text, **how)
    add = parser.add_argument_group("address and limits").add_argument
    for name, field in keys(ServiceSettings).items():
        # Settings without a range are addresses, but one
        bounded = "most" in field.metadata
        metavar = "FILE" if name == "api_key_file" else "ADDRESS"
        kind = value_of(ServiceSettings, name) if bounded else {"type": nonempty, "metavar": metavar}
        default = "" if field.default is None else f" ({field.default})"
        add(option_name(name), default=field.default, help=f"{field.metadata['help']}{default}", **kind)
    add_model_options(parser.add_argument_group("translation"))
    return parser


def _named(options: argparse.Namespace) -> dict[str, str]:
    """Return the path of each model by its name: NAME of NAME=FILE, else the file's or folder's own."""
    paths: dict[str, str] = {}
    for given in options.ckpt:
        name, equals, path = given.partition("=")
        if not equals or not name or "/" in name or os.path.lexists(given):
            name, path = os.path.basename(os.path.abspath(given)).removesuffix(".safetensors"), given
        if name in paths:
            raise ValueError(f"--ckpt {given}: there is a model '{name}' already; choose another by --ckpt NAME=FILE")
        paths[name] = path
    for option in ("ensemble", "shortlist", "glossary", "src_lang", "tgt_lang"):
        if len(paths) > 1 and getattr(options, option):
            raise ValueError(
                f"{option_name(option)} works with a single model; leave it out, or start one service per model"
            )
    return paths


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    options = _parser().parse_args(argv)
    return exit_status(lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    """Bind the address, load the model, and serve until a signal."""
    # The signal that loads models again would end a process that is still starting; imports take seconds
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    limits = ServiceSettings(**{name: getattr(options, name) for name in keys(ServiceSettings)})
    paths = _named(options)
    from seq2seq.inference.service.access import Access
    from seq2seq.inference.service.server import bound_socket, run, url_of

    # Loading takes long: wrong entries are reported before it
    access = Access(limits)
    # Bind first, so that a port in use is reported before the model is loaded
    with bound_socket(limits) as bound:
        cores = Cores()
        import torch

        from seq2seq.inference.model_files import locate, runs_on_cpu_alone

        # Each thread that computes has a team of helper threads, and two teams would compete for the cores. So the
        # thread that translates has a team, and this thread has none (a batch of one text: 75 instead of 340 ms on two
        # cores)
        threads = options.threads or cores.threads(torch.get_num_threads())
        # ONNX graphs have helpers of their own, as many as torch has threads when they are loaded
        graphs = any(runs_on_cpu_alone(locate(path)) for path in (*paths.values(), *options.ensemble))
        options.threads = threads if graphs else 1
        from seq2seq.inference.service.app import Service
        from seq2seq.inference.service.loaded_models import Models

        def load(path: str) -> Any:
            try:
                return load_translator(argparse.Namespace(**{**vars(options), "ckpt": path}))
            finally:
                # Loading has set the number for all threads
                torch.set_num_threads(1 if threading.current_thread() is threading.main_thread() else threads)

        most = float("inf") if limits.memory is None else limits.memory * 1e9
        models = Models({name: functools.partial(load, path) for name, path in paths.items()}, most=most)
        service = Service(models, access, begin=lambda: torch.set_num_threads(threads))

        def announce() -> None:
            pairs = (f"{', '.join(each.sources)} to {', '.join(each.languages)}" for each in models.by_name.values())
            print_error(f"translating {'; '.join(pairs)} on {url_of(bound)} (Ctrl-C stops)")

        loading = threading.Lock()

        def reload() -> None:
            with loading:
                whole = True
                for name in (None, *paths):
                    try:
                        models.load(name) if name else service.access.read_keys()
                    # Errors of any type: the service must survive a file that is replaced at this moment
                    except Exception as error:
                        print_error(
                            f"error: {first_line(error)}; {name or 'keys'}: the version loaded before stays in use"
                        )
                        whole = False
                service.metrics.reloads.labels("loaded" if whole else "failed").inc()
                if whole:
                    announce()

        status = asyncio.run(run(service, bound, ready=announce, reload=reload))
    if status == 1:
        fail(f"some requests were not answered within --grace {limits.grace:g}")
    if service.batcher.thread.is_alive() or loading.locked():
        # A thread that computes while the interpreter ends can crash it, and change the status
        os._exit(status)
    return status


if __name__ == "__main__":
    run_command(main)
