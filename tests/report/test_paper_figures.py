"""The paper's figures: what is drawn is what was measured and published, with its intervals."""

import itertools

import numpy as np
import pandas as pd
import pytest

from mcnn_ray.report.comparison import compare
from mcnn_ray.report.paper_figures import CAPTIONS, figures_of
from tests.report.reports import TASKS, learning_curves, paper, rollouts

SHARES = [f"memories={share}%" for share in (2.5, 10, 80)]


def draw(name, episodes, published, curves=None, note=""):
    table = compare(episodes, published)
    return figures_of(name, table, episodes, curves, note), table


def drawn(axes):
    """Label of each line, bar or error bar that has one, to its (x, y), and the ends of its error bars."""
    found = {}
    for container in axes.containers:
        if hasattr(container, "patches"):
            bars = [(bar.get_x() + bar.get_width() / 2, bar.get_height()) for bar in container.patches]
            found.setdefault(container.get_label(), []).extend(bars)
        elif container.lines[0] is not None:
            ends = [segment for lines in container.lines[2] for segment in lines.get_segments()]
            found[container.get_label()] = (np.stack(container.lines[0].get_data(), 1), np.array(ends))
    return found


def test_line_of_demonstrations_goes_through_our_means_and_intervals_and_the_papers_values():
    settings = [f"demonstrations={count}" for count in (5, 100)]
    figures, table = draw(
        "demonstrations", rollouts(TASKS[:2], ("mcnn+mlp",), settings), paper(TASKS[:1], ("mcnn+mlp",), settings[1:])
    )
    (figure,) = figures.values()
    assert [axes.get_title() for axes in figure.axes] == list(TASKS[:2])
    found = drawn(figure.axes[0])
    own = table[(table["task"] == TASKS[0]) & (table["metric"] == "return") & (table["method"] == "mcnn+mlp")]
    points, ends = found["mcnn+mlp, ours"]
    assert points.tolist() == [[5, own["mean"].iloc[0]], [100, own["mean"].iloc[1]]]
    assert ends[:, 0, 1] == pytest.approx(own["low"].to_numpy(dtype=float))
    assert ends[:, 1, 1] == pytest.approx(own["high"].to_numpy(dtype=float))
    assert found["mcnn+mlp, paper"][0].tolist() == [[100, own["paper_mean"].iloc[1]]]
    assert "mcnn+mlp, paper" not in drawn(figure.axes[1])


def test_labels_of_a_logarithmic_axis_do_not_overlap():
    settings = [f"demonstrations={count}" for count in (5, 100, 4000, 5000)]
    figures, _ = draw("demonstrations", rollouts(TASKS[:1], ("mcnn+mlp",), settings), paper(TASKS[:1], ("mcnn+mlp",)))
    (axes,) = figures["demonstrations"].axes
    figures["demonstrations"].draw_without_rendering()
    labels = [label for label in axes.get_xticklabels() if label.get_text()]
    assert [label.get_text() for label in labels] == ["5", "100", "5000"]
    ends = [(box.x0, box.x1) for box in (label.get_window_extent() for label in labels)]
    assert all(before[1] < after[0] for before, after in itertools.pairwise(ends))


def test_methods_without_memories_stand_beside_shares_of_memories_as_bands():
    episodes = pd.concat([rollouts(TASKS[:1], ("mcnn+mlp",), SHARES), rollouts(TASKS[:1], ("bc",))])
    figures, table = draw("memories", episodes, paper(TASKS[:1], ("bc",)))
    (axes,) = figures["memories"].axes
    assert drawn(axes)["mcnn+mlp, ours"][0][:, 0].tolist() == [2.5, 10, 80]
    (band,) = [line for line in axes.lines if line.get_label() == "bc, ours"]
    own = table[(table["method"] == "bc") & (table["metric"] == "return")]
    assert band.get_ydata()[0] == own["mean"].iloc[0]


def test_bars_of_lambda_and_memories_are_grouped_by_lambda_in_order_of_their_numbers():
    settings = [f"lambda={value} {share}" for value in (10, 0.1) for share in SHARES[::-1]]
    figures, table = draw(
        "lambda-memories", rollouts(TASKS[:1], ("mcnn+mlp",), settings), paper(TASKS[:1], ("mcnn+mlp",), settings[4:5])
    )
    (axes,) = figures["lambda-memories"].axes
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["0.1", "10"]
    assert axes.get_xlabel() == "lambda"
    bars = drawn(axes)
    assert {"memories=2.5%", "memories=10%", "memories=80%"} <= set(bars)
    own = table[(table["metric"] == "return") & (table["method"] == "mcnn+mlp")].set_index("setting")
    for share in SHARES:
        assert [height for _, height in bars[share]] == [
            own.loc[f"lambda={value} {share}", "mean"] for value in (0.1, 10)
        ]
    assert bars["memories=2.5%"][0][0] < bars["memories=10%"][0][0] < bars["memories=80%"][0][0] < 0.5
    paper_points = bars["the paper, ± its standard deviation"][0]
    assert paper_points[:, 0] == pytest.approx([bars["memories=10%"][0][0]])


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("neural-gas", ("neural-gas", "random")),
        ("fixed-tuned", ("fixed", "tuned")),
        ("oversampling", ("oversampling=2",)),
    ],
)
def test_choices_are_bars_beside_the_papers(name, settings):
    methods = ("bc",) if name == "oversampling" else ("mcnn+mlp",)
    figures, table = draw(name, rollouts(TASKS[:1], methods, settings), paper(TASKS[:1], methods, settings[:1]))
    (axes,) = figures[name].axes
    own = table[(table["metric"] == "return") & (table["method"] == methods[0])]
    assert [height for _, height in drawn(axes)[methods[0]]] == own["mean"].tolist()
    assert [tick.get_text() for tick in axes.get_xticklabels()] == [one.rpartition("=")[2] for one in settings]


def test_subtasks_are_shares_in_their_order():
    episodes = rollouts(("kitchen-relay-v0",), ("bet",)).assign(score=np.nan, success=None, p1=1.0, p2=0.0)
    published = paper(("kitchen-relay-v0",), ("bet",)).iloc[[2, 3]].assign(metric=["p1", "p2"], mean=[0.99, 0.93])
    figures, _ = draw("kitchen", episodes, published)
    found = drawn(figures["subtasks"].axes[0])
    assert found["bet, ours"][0][:, 1].tolist() == [1, 0]
    assert found["bet, paper"][0][:, 1].tolist() == [0.99, 0.93]


def test_gain_over_d4rls_cloning_is_the_median_over_tasks_of_each_kind_ours_and_the_papers():
    figures, table = draw("aggregate", rollouts(methods=("mcnn+mlp",)), paper(methods=("mcnn+mlp",)))
    human, expert = figures["aggregate"].axes
    assert human.get_title() == "human: pen-human-v1, door-human-v1"
    assert expert.get_title() == "expert: pen-expert-v1, door-expert-v1"
    rows = table[(table["metric"] == "return") & table["task"].str.contains("human")].set_index(["method", "task"])
    base, own = rows.loc["d4rl-bc", "paper_mean"].astype(float), rows.loc["mcnn+mlp"]
    for column, label in (("mean", None), ("paper_mean", "the paper, same tasks")):
        gain = np.median(100 * (own[column].astype(float) - base) / base.abs())
        if label is None:
            assert human.patches[0].get_width() == pytest.approx(gain)
        else:
            (line,) = [line for line in human.lines if line.get_label() == label]
            assert line.get_xdata().tolist() == pytest.approx([gain])


def test_gain_is_over_our_own_cloning_where_none_is_published():
    figures, _ = draw("aggregate", rollouts(methods=("bc", "mcnn+mlp")), paper().iloc[:0])
    assert "our plain cloning" in figures["aggregate"].axes[0].get_xlabel()
    assert "aggregate" not in draw("aggregate", rollouts(methods=("mcnn+mlp",)), paper().iloc[:0])[0]


def test_tasks_that_nothing_was_run_on_have_no_panel_and_nothing_run_has_no_figure():
    figures, _ = draw("returns", rollouts(TASKS[:1], ("bc",), starts=3), paper())
    assert len(figures["returns"].axes) == 1
    assert draw("returns", rollouts().iloc[:0], paper())[0] == {}


def test_curves_are_drawn_to_the_last_step_and_the_note_stands_in_every_figure():
    curves = learning_curves(TASKS[:1])
    figures, _ = draw("returns", rollouts(TASKS[:1], ("bc",), starts=3), paper(), curves, "SMOKE budget")
    (axes,) = figures["curves"].axes
    lines = {line.get_label(): line for line in axes.lines if not line.get_label().startswith("_")}
    own = curves[curves["method"] == "bc"].groupby("step")["score"].mean()
    assert lines["bc"].get_ydata() == pytest.approx(own.to_numpy())
    assert all("SMOKE budget" in figure.get_suptitle() for figure in figures.values())
    assert set(figures) <= set(CAPTIONS)
