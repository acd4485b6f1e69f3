"""Parts that all figures share."""

from __future__ import annotations

import pytest

from seq2seq.system.canvas import add_legend, add_title, draw_means, look, new_figure


@pytest.mark.parametrize(("length", "count"), [(4, 6), (20, 5), (45, 3), (300, 2)])
def test_a_legend_is_as_wide_as_the_figure_at_most(length, count):
    pytest.importorskip("matplotlib")
    figure = new_figure(6, 4)
    axes = figure.subplots()
    labels = [f"{number:0{length}d}" for number in range(count)]
    handles = [axes.plot([0, 1], [0, number])[0] for number in range(count)]
    add_legend(figure, handles, labels)
    figure.draw_without_rendering()
    (legend,) = figure.legends
    columns = {round(text.get_window_extent().x0) for text in legend.get_texts()}
    assert len(columns) == {4: 4, 20: 2, 45: 1, 300: 1}[length]
    # One column is the minimum
    assert length == 300 or legend.get_window_extent().width <= figure.bbox.width
    assert [text.get_text() for text in legend.get_texts()] == labels


def test_labels_that_are_longer_than_the_figure_are_broken_at_spaces():
    pytest.importorskip("matplotlib")
    figure = new_figure(6, 4)
    axes = figure.subplots()
    labels = ["transformer " + "optim.peak_lr=0.001 model.dropout=0.1 " * 5 + "seed=1", "lightconv"]
    add_legend(figure, [axes.plot([0, 1])[0] for _ in labels], labels)
    figure.draw_without_rendering()
    (legend,) = figure.legends
    assert legend.get_window_extent().x0 >= 0
    assert legend.get_window_extent().x1 <= figure.bbox.width
    assert [text.get_text().replace("\n", " ") for text in legend.get_texts()] == labels
    assert legend.get_window_extent().y1 < axes.get_tightbbox().y0


@pytest.mark.parametrize("title", ["a title", "toy de-en, 60 sentences, " * 9, "data.test=/a/long/path" * 9])
def test_a_title_is_as_wide_as_the_figure_at_most(title):
    pytest.importorskip("matplotlib")
    figure = new_figure(6, 4)
    axes = figure.subplots()
    add_title(figure, title, size=10)
    figure.draw_without_rendering()
    text = figure._suptitle
    assert text is not None
    assert "".join(text.get_text().split()) == "".join(title.split())
    extent = text.get_window_extent()
    assert (extent.x0 >= 0, extent.x1 <= figure.bbox.width, extent.y1 <= figure.bbox.height) == (True, True, True)
    assert extent.y0 > axes.get_tightbbox().y1
    assert axes.get_window_extent().height / figure.dpi > 3.2


def test_forty_curves_and_points_differ():
    looks = [look(index) for index in range(40)]
    assert len({(each["color"], each["marker"]) for each in looks}) == 40


@pytest.mark.parametrize(("count", "name"), [(4, "mixer"), (40, "mixer"), (3, "a mixer with many settings " * 3)])
def test_panels_keep_their_size_beside_a_large_legend(count, name):
    pytest.importorskip("matplotlib")
    figure = new_figure(6, 4.2)
    axes = figure.subplots()
    draw_means(figure, axes, {f"{name} {number}": [(0, [1.0]), (1, [float(number)])] for number in range(count)})
    axes.set_xlabel("length")
    figure.draw_without_rendering()
    assert axes.get_window_extent().height / figure.dpi > 3.4
    assert axes.get_window_extent().width / figure.dpi > 5
    (legend,) = figure.legends
    assert legend.get_window_extent().y0 >= 0
    assert legend.get_window_extent().y1 < axes.get_tightbbox().y0
