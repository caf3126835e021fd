"""`mcnn memories` as a user meets it: what it prints is what it learned, and it writes where it says."""

import json
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread
from typer.testing import CliRunner

from mcnn_ray import cli
from mcnn_ray.artifacts import verify_manifest
from mcnn_ray.core.codebook import CODEBOOK_METHODS, learn_codebook
from mcnn_ray.core.normalise import Standardiser
from mcnn_ray.report.codebook_pictures import distances_to_memories

TASK = "pen-expert-v1"


pytestmark = pytest.mark.usefixtures("empty_folder")


@pytest.fixture(scope="module")
def obs_ND(pen_demonstrations):
    return Standardiser.fit(pen_demonstrations.observations_ND)(pen_demonstrations.observations_ND)


def test_help_shows_an_example_and_every_method(mcnn):
    status, out, _ = mcnn("memories", "--help")
    assert status == 0
    assert "Example: mcnn memories door-expert-v1 --fraction 0.1" in out
    assert all(method in out for method in CODEBOOK_METHODS)


@pytest.fixture(scope="module")
def learned(pen_dataset, tmp_path_factory):
    """The flags of a run, and what it printed as JSON."""
    storage = tmp_path_factory.mktemp("storage")
    flags = ["--dataset", pen_dataset, "--fraction", "0.05", "--seed", "3", "--lambda", "0.5,1000"]
    flags += ["--storage", str(storage)]
    result = CliRunner().invoke(cli.app, ["memories", TASK, *flags, "--json"])
    assert result.exit_code == 0, result.output
    assert "memories neural-gas 5%: 100 of 100" in result.stderr
    return flags, json.loads(result.stdout), storage


def test_json_tells_the_codebook_that_was_learned(learned, obs_ND):
    _, facts, _ = learned
    book, random = (learn_codebook(obs_ND, 0.05, method=method, seed=3) for method in ("neural-gas", "random"))
    assert (facts["memories"], facts["steps"], facts["edges"]) == (30, 600, len(book.edges_E2))
    assert facts["quantisation_error"] == pytest.approx(book.quantisation_error)
    assert facts["most_isolated_distance"] == pytest.approx(book.most_isolated_distance)
    assert facts["random_quantisation_error"] == pytest.approx(random.quantisation_error)
    assert facts["random_most_isolated_distance"] == pytest.approx(random.most_isolated_distance)
    for weights, lambda_ in zip(facts["weights"], (0.5, 1000.0), strict=True):
        expected = np.exp(-lambda_ * distances_to_memories(book).astype(float))
        assert (weights["lambda"], weights["mean"]) == (lambda_, pytest.approx(expected.mean()))
        assert (weights["p05"], weights["median"], weights["p95"]) == pytest.approx(
            tuple(np.quantile(expected, (0.05, 0.5, 0.95)))
        )


def test_pictures_lie_whole_where_it_says(learned):
    _, facts, storage = learned
    pictures = [Path(path) for path in facts["pictures"]]
    (folder,) = {path.parent for path in pictures}
    assert [path.name for path in pictures] == ["codebook.png", "codebook.svg", "weights.png", "weights.svg"]
    assert list((storage / "memories").iterdir()) == [folder]
    verify_manifest(folder)
    for path in pictures:
        assert path.stat().st_size > 10_000
    assert imread(pictures[0]).shape[:2] == (960, 1200)
    assert imread(pictures[2]).shape[:2] == (750, 1500)


def test_table_says_the_same_and_the_codebook_is_learned_once(learned, mcnn, monkeypatch):
    flags, facts, _ = learned
    monkeypatch.setattr("mcnn_ray.sweep.study.learn_codebook", None)  # would fail if called again
    status, out, err = mcnn("memories", TASK, *flags)
    assert status == 0, err
    rows = {" ".join(line.split()) for line in out.splitlines()}
    expected = {
        f"{TASK}: 6 demonstrations ({facts['dataset']}, 600 steps)",
        "neural-gas random rows",
        "memories 30 30",
        "memory fraction 5% 5%",
        f"quantisation error {facts['quantisation_error']:.4f} {facts['random_quantisation_error']:.4f}",
        f"most isolated distance {facts['most_isolated_distance']:.4f} {facts['random_most_isolated_distance']:.4f}",
        f"edges {facts['edges']} 0",
        "1000 <0.001 <0.001 <0.001 <0.001",
        f"lambda {facts['half_weight_lambda']:.3g} halves the weight at the median distance",
        *(f"picture: {path}" for path in facts["pictures"]),
    }
    assert expected - rows == set()


def test_random_rows_stand_alone_and_a_subset_smaller_than_a_batch_is_enough(mcnn, pen_dataset):
    flags = ["--dataset", pen_dataset, "--method", "random", "--demonstrations", 2, "--lambda", 1]
    status, out, err = mcnn("memories", TASK, *flags)
    assert status == 0, err
    rows = [" ".join(line.split()) for line in out.splitlines()]
    assert "random" in rows
    assert "memories 20" in rows
    assert "edges 0" in rows


@pytest.mark.parametrize(
    ("flags", "status", "message"),
    [
        (["--fraction", "0"], 2, "memory_fraction is 0.0"),
        (["--fraction", "1"], 2, "every demonstration would be a memory at distance 0; use less than 1"),
        (["--fraction", "0.001"], 2, "gives no memory; use at least 0.00167"),
        (["--fraction", "0.1,0.2"], 2, "memory_fraction is '0.1,0.2'"),
        (["--method", "neural-gass"], 2, "unknown way to pick memories 'neural-gass'; did you mean 'neural-gas'?"),
        (["--seed", "-1"], 2, "memory_seed is -1"),
        (["--lambda", "1,x"], 2, "lambda is 'x'"),
        (["--lambda", "-1"], 2, "lambda is -1.0"),
        (["--constant-columns", "keep"], 2, "constant_columns is 'keep'"),
        (["--demonstrations", "7"], 2, "has 6; ask for 1 to 6"),
        (["--min-episodes", "7"], 1, "at least 7 are needed"),
        (["--dataset", "me/none-v0"], 1, "no demonstrations for pen-expert-v1"),
    ],
)
def test_bad_input_ends_in_one_sentence_and_leaves_nothing(mcnn, pen_dataset, tmp_path, flags, status, message):
    dataset = [] if "--dataset" in flags else ["--dataset", pen_dataset]
    found, out, err = mcnn("memories", TASK, *dataset, *flags)
    assert (found, out) == (status, "")
    assert err.startswith("error: ")
    assert message in err
    assert "Traceback" not in err
    # The cache's lock may stay; nothing that anyone would take for a codebook or a picture does.
    assert [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".lock"] == []


def test_unknown_task_names_the_nearest(mcnn):
    status, _, err = mcnn("memories", "pen-exprt-v1")
    assert status == 2
    assert "did you mean 'pen-expert-v1'?" in err


def test_function_class_is_drawn_without_a_task(mcnn, tmp_path, monkeypatch):
    drawn = {}

    def draw(figure, stem):  # in full it takes seconds, and test_function_class does
        drawn[stem.name] = len(figure.axes)
        return [stem.with_suffix(".png")]

    monkeypatch.setattr("mcnn_ray.report.function_class.save_figure", draw)
    status, out, _ = mcnn("memories", "--function-class", "pictures")
    assert status == 0
    assert out.splitlines() == [f"picture: {Path('pictures') / name}.png" for name in drawn]
    assert drawn == {"figure2": 5, "vary_memories": 8, "vary_lambda": 6, "vary_L": 6}


def test_without_a_task_or_a_folder_for_the_function_class_it_says_what_is_missing(mcnn):
    status, _, err = mcnn("memories")
    assert status == 2
    assert "Missing argument" in err
