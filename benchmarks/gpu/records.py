"""Results of a visit on disk: one JSON file, replaced atomically whenever a part adds to it.

results.json    {"began": date, "visits": [seconds], "parts": {name: Record}}
log.txt         the end of every part's output
verdicts.md     the page
parts/          results and output of a running part; removed when it ends
"""

from __future__ import annotations

import datetime
import fcntl
import json
from pathlib import Path
from typing import IO, Any

from seq2seq.system.files import write_text

ROOT = Path(__file__).resolve().parents[2]  # root of the repository
# States of a part: its own time limit stops it; the end of the budget or of the command interrupts it.
DONE, FAILED, STOPPED, INTERRUPTED = "done", "failed", "stopped", "interrupted"
# Exit status of a part that left something out for lack of time.
LEFT_OUT = 3
_LOG_LINES = 150


def file_name(part: str) -> str:
    """Return a part's name as a file name."""
    return part.replace("/", "-")


class Results:
    """The results of all visits so far.

    Args:
        folder: The folder of the results, which may have results of earlier visits.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "results.json"
        self._lock = locked(folder)
        self.data: dict[str, Any] = {"began": _today(), "visits": [], "parts": {}}
        if self.path.is_file():
            self.data = json.loads(self.path.read_text(encoding="utf-8"))
        self._take_leftovers()

    @property
    def parts(self) -> dict[str, dict[str, Any]]:
        """Records by part: state, seconds, error, attempts and result."""
        return self.data["parts"]

    def release(self) -> None:
        """Unlock the folder."""
        self._lock.close()

    def state(self, part: str) -> str | None:
        """Return a part's state, None if it has not run."""
        return self.parts.get(part, {}).get("state")

    def result(self, part: str) -> dict[str, Any]:
        """Return the results of a part, even if it did not end."""
        return self.parts.get(part, {}).get("result") or {}

    def unfinished(self, part: str) -> Path:
        """Return the file that a running part writes."""
        return self.folder / "parts" / f"{file_name(part)}.json"

    def log(self, part: str) -> Path:
        """Return the file of a running part's output."""
        return self.folder / "parts" / f"{file_name(part)}.log"

    def close(self, part: str, state: str, seconds: float, error: str = "", *, whole: bool = False) -> None:
        """Record the end of a part with its results, and save.

        Args:
            whole: Whether the part is complete; if not, an earlier attempt with more results is kept.
        """
        earlier = self.parts.get(part, {})
        before, result = earlier.get("result") or {}, _read(self.unfinished(part)) or {}
        if not whole and _size(result) < _size(before):
            result = before
        self.parts[part] = {
            "state": state,
            "seconds": round(seconds, 1),
            "error": error,
            "attempts": earlier.get("attempts", 0) + 1,
            "date": _today(),
            "result": result,
        }
        self._append_log(part, state)
        self.save()
        self.unfinished(part).unlink(missing_ok=True)

    def save(self) -> None:
        """Write results.json."""
        write_text(self.path, json.dumps(self.data, ensure_ascii=False, indent=1) + "\n")

    def _append_log(self, part: str, state: str) -> None:
        path = self.log(part)
        if not path.is_file():
            return
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()[-_LOG_LINES:]
        with (self.folder / "log.txt").open("a", encoding="utf-8") as log:
            log.write("\n".join([f"==== {part}: {state}", *lines, ""]))
        path.unlink()

    def _take_leftovers(self) -> None:
        """Record the parts that a killed command left in parts/ as interrupted."""
        for path in sorted((self.folder / "parts").glob("*.json")):
            found = _read(path)
            if found and "part" in found:
                self.close(found["part"], INTERRUPTED, 0.0, "the command was killed")


def locked(folder: Path) -> IO[bytes]:
    """Lock a folder until the returned file is closed, so that two commands do not overwrite each other.

    Raises:
        ValueError: Another command has locked it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = (folder / ".lock").open("wb")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise ValueError(f"another command uses {folder}; wait for it, or end it") from None
    return file


def _size(result: dict[str, Any]) -> int:
    """Return the length of a result as text."""
    return len(json.dumps(result, default=str))


def _read(path: Path) -> dict[str, Any] | None:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _today() -> str:
    return datetime.datetime.now(datetime.UTC).date().isoformat()
