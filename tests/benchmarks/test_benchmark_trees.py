"""The comparison of two versions: its rate, and folders without a version."""

from __future__ import annotations

import pytest

from benchmarks.trees import main, rate


def test_the_rate_is_between_the_first_and_the_last_row(tmp_path):
    lines = ["step,train/seconds,train/cpu_seconds,train/tokens_per_second,val/bleu"]
    # 200 tokens in the second 4 to 5, 900 in 5 to 8, by 4 and 6 CPU-seconds; the start and a validation do not count
    lines += ["5,4.0,10.0,7,", "10,5.0,14.0,200,", "10,,,,3.5", "15,8.0,20.0,300,"]
    table = tmp_path / "metrics.csv"
    table.write_text("\n".join(lines))
    assert rate(table) == pytest.approx(1100 / 10)
    table.write_text("\n".join(lines[:2]))
    with pytest.raises(ValueError, match="max_steps"):
        rate(table)


def test_a_folder_without_the_package_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main([str(tmp_path), str(tmp_path)])
    assert "name a checkout" in capsys.readouterr().err
