"""Score translations with COMET: a script that `comet` runs in another Python, with JSON as its input and output.

The script imports nothing from this package, whose requirements conflict with COMET's.
"""

from __future__ import annotations

import importlib
import json
import os
import sys

# The exit status where COMET is not installed.
NO_COMET = 3


def main() -> int:
    """Read {model, rows of src, mt and ref}, and write {scores}; the exit status is 3 if COMET is not installed."""
    request = json.load(sys.stdin)
    # Keep the output of COMET and its libraries out of the answer
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    try:
        comet = importlib.import_module("comet")
        torch = importlib.import_module("torch")
    except ImportError as error:
        print(error, file=sys.stderr)
        return NO_COMET
    name = request["model"]
    path = name if os.path.isfile(name) else comet.download_model(name)
    model = comet.load_from_checkpoint(path)
    gpus = int(torch.cuda.is_available())
    found = model.predict(request["rows"], batch_size=32, gpus=gpus, progress_bar=False)
    json.dump({"scores": [float(score) for score in found.scores]}, answer)
    answer.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
