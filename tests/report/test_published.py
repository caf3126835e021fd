"""The shipped numbers against the paper's tables as transcribed, and what is corrected in them."""

import functools
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from mcnn_ray.errors import ConfigError
from mcnn_ray.methods import METHODS
from mcnn_ray.report.published import COLUMNS, D4RL_BC, published
from mcnn_ray.tasks.catalogue import CATALOGUE

NAMES = {
    "D4RL BC": D4RL_BC,
    "MLP-BC": "bc",
    "BeT-BC": "bet",
    "1-NN": "1nn",
    "VINN": "vinn",
    "Diff-BC": "diff",
    "CQL-Sparse": "cql-sparse",
    "Implicit BC": "ibc",
    "LSTM-GMM": "lstm-gmm",
    **{f"MCNN+{name}": f"mcnn+{name.lower()}" for name in ("MLP", "BeT", "Diff")},
}
ALL = (
    *("returns", "kitchen", "oversampling", "demonstrations", "memories", "lambda-memories", "neural-gas"),
    *("fixed-tuned", "function-class", "aggregate"),
)


@pytest.fixture
def paper(shared_data):
    folder = Path(shared_data).parent / "paper"
    if not folder.is_dir():
        pytest.skip("the paper's tables are not beside the real data")
    return folder


read = functools.cache(published)


def value(name, task, method, setting, metric="return"):
    table = read(name)
    keys = {"task": task, "method": method, "setting": setting, "metric": metric}
    (row,) = table[np.logical_and.reduce([table[key] == wanted for key, wanted in keys.items()])].to_dict("records")
    return row


@pytest.mark.parametrize("name", ALL)
def test_every_row_is_of_a_known_task_and_method_and_stands_once(name):
    table = published(name)
    assert tuple(table.columns) == COLUMNS
    assert set(table["task"]) <= set(CATALOGUE)
    assert set(table["method"]) <= {*METHODS, D4RL_BC}
    assert not table.duplicated(["task", "method", "setting", "metric"]).any()
    assert table["mean"].notna().all()
    assert table["source"].str.startswith("Table of").all()


def test_returns_and_scores_are_the_papers(paper):
    theirs = pd.read_csv(paper / "table_returns.csv")
    assert len(published("returns")) == len(theirs)
    for row in theirs.itertuples():
        method, setting = re.fullmatch(r"(.+?)(?: \((fixed|tuned)\))?", row.method).groups()
        metric = "score" if row.metric == "normalized_score" else row.metric
        ours = value("returns", row.task, NAMES[method], setting or "fixed", metric)
        np.testing.assert_equal([ours["mean"], ours["std"]], [row.mean, row.std])


def test_kitchen_and_oversampling_are_the_papers(paper):
    for row in pd.read_csv(paper / "table_kitchen.csv").to_dict("records"):
        for share in ("p1", "p2", "p3", "p4", "p5"):
            ours = value("kitchen", "kitchen-relay-v0", NAMES[row["method"]], "fixed", share)
            assert ours["mean"] == row[share]
    for row in pd.read_csv(paper / "table_oversampling.csv").to_dict("records"):
        times = re.sub(r"MLP-BC ?(\d?)x?", r"\1", row["method"]) or "1"
        assert value("oversampling", row["task"], "bc", f"oversampling={times}")["mean"] == row["return"]


def test_demonstrations_are_the_papers_with_pen_and_door_swapped(paper):
    swapped = {"pen-expert-v1": "door-expert-v1", "door-expert-v1": "pen-expert-v1"}
    for row in pd.read_csv(paper / "table_demonstrations.csv").to_dict("records"):
        task, setting = swapped.get(row["task"], row["task"]), f"demonstrations={row['demonstrations']}"
        ours = value("demonstrations", task, "mcnn+mlp", setting)
        assert (ours["mean"], ours["std"]) == (row["return_mean"], row["return_std"])
        assert ours["note"].startswith("corrected") == (row["task"] in swapped)


@pytest.mark.parametrize("task", ["pen-expert-v1", "door-expert-v1"])
def test_swapped_rows_end_where_the_main_table_does(task):
    full = value("demonstrations", task, "mcnn+mlp", "demonstrations=5000")
    assert full["mean"] == value("returns", task, "mcnn+mlp", "tuned")["mean"]
    theirs = value("demonstrations", task, D4RL_BC, "demonstrations=5000")
    assert theirs["mean"] == value("returns", task, D4RL_BC, "fixed")["mean"]
    assert theirs["note"].startswith("corrected")


def test_both_standard_deviations_of_door_human_are_told():
    for name, setting in (("returns", "fixed"), ("oversampling", "oversampling=1")):
        note = value(name, "door-human-v1", "bc", setting)["note"]
        assert {"2.3", "23"} == set(re.findall(r"[\d.]+", note))


def test_d4rls_cloning_and_the_papers_are_two_rows():
    assert value("returns", "door-expert-v1", D4RL_BC, "fixed")["mean"] == 969
    assert value("returns", "door-expert-v1", "bc", "fixed")["mean"] == 2798


def test_figures_carry_the_fixed_setting_under_their_own_name():
    fixed = value("returns", "door-human-v1", "mcnn+mlp", "fixed")["mean"]
    for name, setting in (
        ("memories", "memories=10%"),
        ("lambda-memories", "lambda=0.1 memories=10%"),
        ("neural-gas", "neural-gas"),
        ("fixed-tuned", "fixed"),
        ("aggregate", "fixed"),
    ):
        assert value(name, "door-human-v1", "mcnn+mlp", setting)["mean"] == fixed
    assert published("function-class").empty


def test_unknown_name_is_told_with_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'returns'"):
        published("return")
