"""Progress in the log."""

from __future__ import annotations

import logging
import time

from seq2seq.data import pace
from seq2seq.data.pace import Pace


def test_progress_tells_rate_and_share(monkeypatch, caplog):
    monkeypatch.setattr(pace, "PACE_SECONDS", 0.0)
    with caplog.at_level(logging.INFO):
        progress = Pace("encoding", total=200)
        time.sleep(0.01)
        progress.add(50)
        progress.add(100)
    assert "encoding: 50 of 200 (25%) pairs, " in caplog.text
    assert "150 of 200 (75%)" in caplog.text
