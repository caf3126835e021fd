import json
import subprocess
import sys

import numpy as np
import pytest

from mcnn_ray.bench import compare_methods, made_toy, made_trajectories

BLOCKED = "diffusers ray mlflow gymnasium gymnasium_robotics minari mujoco h5py pydantic yaml matplotlib sklearn"
COMMANDS = {
    "small": ["memories", "--points", "2000", "--dim", "6", "--memories", "100", "--epochs", "2", "--json"],
    "lists": ["memories", "--points", "400, 800", "--memories", "20,40", "--dim", "4", "--epochs", "1", "--json"],
    "toy": ["memories", "--task", "toy-2d", "--json"],
    "refused": ["inference", "--memories", "0"],
}


@pytest.fixture(scope="module")
def bare():
    """Commands of the program without what a bare machine lacks, by name: status, standard output and error."""
    program = f"""
import contextlib, io, json, runpy, sys
for name in {BLOCKED.split()!r}:
    sys.modules[name] = None
import mcnn_ray.core.codebook, mcnn_ray.policies.loading, mcnn_ray.training.pack, mcnn_ray.training.run, mcnn_ray.bench
del sys.modules["pydantic"]  # which typer takes to read flags
told = {{}}
for name, arguments in {COMMANDS!r}.items():
    sys.argv, out, err = ["bench", *arguments], io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            runpy.run_module("mcnn_ray.bench", run_name="__main__")
            status = 0
        except SystemExit as ended:
            status = ended.code or 0
    told[name] = status, out.getvalue(), err.getvalue()
print(json.dumps(told))
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def json_of(told):
    status, out, err = told
    assert status == 0, err
    (line,) = out.splitlines()
    return json.loads(line)


def test_core_policies_and_packs_import_without_ray_mlflow_or_simulators(bare):
    assert bare.keys() == COMMANDS.keys()


def test_bench_runs_with_what_a_bare_machine_has_and_prints_one_line_of_json(bare):
    found = json_of(bare["small"])
    needed = {"seconds", "peak_rss_gib", "quantisation_error", "random_quantisation_error", "most_isolated_distance"}
    assert needed | {"limit_seconds", "search_median_us"} <= found.keys()
    assert found["quantisation_error"] < found["random_quantisation_error"]


def test_bare_machine_refuses_in_one_sentence_too(bare):
    status, out, err = bare["refused"]
    assert (status, out) == (2, "")
    assert err.strip() == "error: --memories is 0; it must be at least 1"


def test_lists_time_every_pair_of_rows_and_memories(bare):
    rows = json_of(bare["lists"])["results"]
    assert [(row["points"], row["memories"]) for row in rows] == [(400, 20), (400, 40), (800, 20), (800, 40)]
    for row in rows:
        limit = 2 * row["points"] * row["memories"] * 4 / (1e9 * row["product_gflops"])
        assert row["limit_seconds_per_epoch"] == pytest.approx(limit)
        assert row["ratio"] == pytest.approx(row["seconds_per_epoch"] / limit)
        assert row["cpu_seconds_per_epoch"] > 0


def test_toy_is_compared_on_a_bare_machine_the_same_at_every_run(bare, mcnn):
    first = json_of(bare["toy"])
    assert (first["source"], first["steps"], first["held_out_steps"]) == ("toy-2d", 4000, 1000)
    assert [row["method"] for row in first["results"]] == ["neural-gas", "random", "k-means", "k-center"]
    _, out, _ = mcnn("bench", *COMMANDS["toy"])
    again = json.loads(out)["results"][:4]  # without scikit-learn's, where that is installed
    for row in (*first["results"], *again):
        del row["seconds"]
    assert again == first["results"]


def test_toy_runs_through_a_figure_of_eight():
    points = made_toy(40, 0).reshape(40, 100, 2)
    np.testing.assert_array_equal(points, made_toy(40, 0).reshape(40, 100, 2))
    u = 2 * np.pi * np.arange(100) / 100
    np.testing.assert_allclose(points.mean(0), np.stack([np.sin(u), np.sin(2 * u)], 1), atol=0.08)
    offsets = points.mean(1)
    assert 0.07 < offsets.std() < 0.13
    assert np.linalg.norm(np.diff(points, axis=1), axis=2).max() < 0.25


def test_made_trajectories_are_standardised_repeat_and_move_smoothly():
    points = made_trajectories(1000, 5, 0)
    np.testing.assert_array_equal(points, made_trajectories(1000, 5, 0))
    np.testing.assert_allclose(points.mean(0), 0, atol=1e-3)
    np.testing.assert_allclose(points.std(0), 1, atol=0.05)
    steps = np.linalg.norm(np.diff(points[:200], axis=0), axis=1).mean()
    assert steps < 0.5 * np.linalg.norm(points[:500] - points[500:], axis=1).mean()


def test_compared_methods_are_measured_on_the_same_rows():
    rows = compare_methods(made_trajectories(600, 4, 0), made_trajectories(200, 4, 1), 0.1)
    names = [row["method"] for row in rows]
    assert names[:4] == ["neural-gas", "random", "k-means", "k-center"]
    assert {row["memories"] for row in rows} == {60}
    by = {row["method"]: row for row in rows}
    assert by["neural-gas"]["quantisation_error"] < by["random"]["quantisation_error"]
    assert by["k-center"]["most_isolated_distance"] < by["random"]["most_isolated_distance"]
    assert all(row["held_out_quantisation_error"] > 0 for row in rows)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--device", "tpu"], "device 'tpu' is not here"),
        (["--points", "10", "--memories", "20"], "20 memories asked of 10"),
        (["--points", "30,10", "--memories", "20"], "20 memories asked of 10"),
        (["--points", "10,many"], "--points has 'many'; give a whole number above 0"),
        (["--memories", "0"], "--memories has '0'; give a whole number above 0"),
    ],
)
def test_bench_refuses_what_it_cannot_measure(mcnn, flags, message):
    status, out, err = mcnn("bench", "memories", *flags)
    assert (status, out) == (2, "")
    assert message in err
