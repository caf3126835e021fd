"""The command line as a user meets it: exit status, one clear sentence, no traceback, nothing half-written."""

import json
import runpy
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from mcnn_ray.cli import main
from mcnn_ray.data.minari_store import read_minari, write_minari
from mcnn_ray.errors import ConfigError
from mcnn_ray.tasks.catalogue import CATALOGUE
from mcnn_ray.tasks.environments import make_environment

pytestmark = pytest.mark.usefixtures("empty_folder")


@pytest.fixture
def refused(mcnn, tmp_path):
    """Run a command that must fail: its status and its one sentence, with nothing left behind."""

    def run(*arguments):
        before = sorted(tmp_path.rglob("*"))
        status, out, err = mcnn(*arguments)
        assert out == ""
        assert sorted(tmp_path.rglob("*")) == before
        return status, err

    return run


def test_help_shows_an_example_for_every_command(mcnn):
    for command in (
        "quickstart",
        "doctor",
        "tasks",
        "train",
        "sweep",
        "evaluate",
        "memories",
        "certify",
        "ui",
        "replay",
        "promote",
        "export",
        "bench memories",
        "bench train",
        "bench rollout",
        "bench inference",
        "bench sweep",
        "data collect",
        "data import",
        "data info",
        "encoder train",
        "encoder import",
        "encoder info",
    ):
        status, out, _ = mcnn(*command.split(), "--help")
        assert status == 0
        assert f"Example: mcnn {command}" in out


def test_tasks_lists_the_catalogue_with_what_is_here(mcnn, pen_dataset):
    status, out, _ = mcnn("tasks", "--json")
    rows = json.loads(out)
    assert status == 0
    assert [row["task"] for row in rows] == list(CATALOGUE)
    assert {row["demonstrations"] for row in rows if row["task"].startswith("hammer")} == {None}
    assert "door-human-v1" in mcnn("tasks")[1]


def test_doctor_finds_this_machine_in_order(mcnn, pen_dataset):
    status, out, _ = mcnn("doctor", "--json")
    found = {finding["what"]: finding for finding in json.loads(out)}
    assert status == 0
    assert all(finding["works"] for what, finding in found.items() if what != "demonstrations")
    assert "sign of its reward corrected" in found["simulator door"]["detail"]
    assert "corrected" not in found["simulator pen"]["detail"]


def test_doctor_hides_the_password_of_a_tracking_server(mcnn, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://me:secret@mlflow.example:5000")
    _, out, _ = mcnn("doctor", "--json")
    assert "secret" not in out
    assert "mlflow.example:5000" in out


def test_collect_records_a_dataset_and_info_shows_it(mcnn):
    status, out, _ = mcnn(
        "data", "collect", "pen-expert-v1", "--episodes", 2, "--dataset", "mcnn/pen/cli-v0", "--no-noise"
    )
    assert status == 0
    assert "mcnn/pen/cli-v0" in out
    facts = json.loads(mcnn("data", "info", "mcnn/pen/cli-v0", "--json")[1])
    assert (facts["episodes"], facts["steps"], facts["provenance"]["noise"]) == (2, 200, False)
    status, _, err = mcnn("data", "collect", "pen-expert-v1", "--dataset", "mcnn/pen/cli-v0")
    assert status == 2
    assert "exists already" in err


def write_npz(path, **changes):
    rng = np.random.default_rng(0)
    arrays = {
        "observations": rng.standard_normal((60, 45)).astype(np.float32),
        "actions": rng.uniform(-1, 1, (60, 24)).astype(np.float32),
        "rewards": np.zeros(60),
        "episode_lengths": np.array([30, 30]),
    }
    np.savez(path, **{**arrays, **changes})


NAN = np.full((60, 45), np.nan, np.float32)


@pytest.mark.parametrize(
    ("changes", "status", "message"),
    [
        ({"observations": np.zeros((60, 39))}, 1, "39 observation numbers, the environment 45"),
        ({"actions": np.zeros((60, 28))}, 1, "28 action numbers, the environment 24"),
        (
            {"observations": NAN},
            1,
            "60 of 60 steps have NaN or infinite observations, the first in episode 0 at step 0",
        ),
        ({"actions": np.full((60, 24), 1.37)}, 1, "60 of 60 actions lie outside the environment's bounds [-1, 1]"),
        (
            {
                "observations": np.zeros((0, 45)),
                "actions": np.zeros((0, 24)),
                "rewards": np.zeros(0),
                "episode_lengths": [],
            },
            1,
            "is empty",
        ),
    ],
)
def test_files_that_cannot_be_imported_are_refused(refused, tmp_path, changes, status, message):
    write_npz(tmp_path / "d.npz", **changes)
    found, err = refused("data", "import", tmp_path / "d.npz", "mcnn/pen/bad-v0", "--task", "pen-human-v1")
    assert found == status
    assert message in err
    with pytest.raises(Exception, match="not on this machine"):
        read_minari("mcnn/pen/bad-v0")


def test_truncated_and_foreign_files_are_refused(refused, tmp_path):
    write_npz(tmp_path / "d.npz")
    (tmp_path / "cut.npz").write_bytes((tmp_path / "d.npz").read_bytes()[:1000])
    (tmp_path / "foreign.hdf5").write_text("hello")
    for name in ("cut.npz", "foreign.hdf5"):
        status, err = refused("data", "import", tmp_path / name, "mcnn/pen/bad-v0", "--task", "pen-human-v1")
        assert status == 1
        assert f"{name} cannot be read" in err


@pytest.fixture(scope="module")
def datasets(pen_demonstrations):
    """Datasets with one fault each, written as valid Minari datasets."""
    import dataclasses

    env = make_environment(CATALOGUE["pen-expert-v1"])
    constant = pen_demonstrations.observations_ND.copy()
    constant[:, 3] = 1.0
    variants = {
        "constant": dataclasses.replace(pen_demonstrations, observations_ND=constant),
        "one": pen_demonstrations.subset(1),
        "outside": dataclasses.replace(pen_demonstrations, actions_NA=pen_demonstrations.actions_NA * 2),
    }
    for name, data in variants.items():
        write_minari(data, f"mcnn/pen/{name}-v0", env, description="t")


@pytest.mark.parametrize(
    ("flags", "status", "message"),
    [
        (["--task", "pen-humn-v1"], 2, "did you mean 'pen-human-v1'?"),
        (["--method", "bcc"], 2, "unknown method 'bcc'; did you mean 'bc'?"),
        (["--memory-fraction", "0"], 2, "memory_fraction is 0.0"),
        (["--memory-fraction", "1.2"], 2, "memory_fraction is 1.2"),
        (["--memory-fraction", "0.001"], 2, "gives no memory; use at least 0.00167"),
        (["--steps", "0"], 2, "steps is 0"),
        (["--lambda", "a,b"], 2, "lambda is 'a'"),
        (["--dataset", "mcnn/pen/constant-v0"], 1, "1 of 45 observation columns never change (3)"),
        (["--dataset", "mcnn/pen/one-v0"], 1, "has 1 episode, at least 2 are needed"),
        (["--dataset", "mcnn/pen/outside-v0"], 1, "actions lie outside the environment's bounds"),
        (["--task", "door-expert-v1"], 1, "45 observation numbers, the environment of door-expert-v1 has 39"),
        (["--dataset", "me/none-v0"], 1, "no demonstrations for pen-expert-v1"),
        (["--demonstrations", "7"], 2, "has 6; ask for 1 to 6"),
        (["--batch-size", "601"], 2, "batch size 601 is larger than the 600 demonstration steps"),
        (["none.yaml"], 2, "cannot read none.yaml"),
        (["--encoder", "no/where"], 2, "no encoder 'no/where': it is neither"),
        (["--encoder", "random-small"], 2, "has 45 numbers; leave --encoder out"),
    ],
)
def test_sweeps_that_cannot_run_are_refused(refused, datasets, pen_dataset, flags, status, message):
    base = {"--task": "pen-expert-v1", "--dataset": pen_dataset}
    given = [part for flag, value in base.items() if flag not in flags for part in (flag, value)]
    found, err = refused("sweep", *given, *flags)
    assert found == status
    assert message in err


def test_unknown_key_in_a_sweep_file_names_the_nearest(mcnn, tmp_path):
    (tmp_path / "s.yaml").write_text("task: pen-expert-v1\nmemory_fractoin: 0.1\n")
    status, _, err = mcnn("sweep", "s.yaml")
    assert status == 2
    assert "s.yaml: unknown key 'memory_fractoin'; did you mean 'memory_fraction'?" in err


def test_missing_demonstrations_say_how_to_get_them(refused):
    status, err = refused("train", "relocate-human-v1")
    assert status == 1
    assert "minari download D4RL/relocate/human-v2" in err


def test_train_refuses_lists(refused, pen_dataset):
    status, err = refused("train", "pen-expert-v1", "--dataset", pen_dataset, "--lambda", "1,2")
    assert status == 2
    assert "ask for 2 members" in err


def test_what_is_no_policy_cannot_be_evaluated(refused):
    assert refused("evaluate", "nowhere") == (
        1,
        "error: nowhere is neither a policy directory, the id of an MLflow run nor a model such as models:/NAME@ALIAS",
    )


def test_ui_without_results_says_what_to_do(refused):
    status, err = refused("ui")
    assert status == 1
    assert "holds no results yet; run mcnn quickstart" in err


def test_storage_that_cannot_be_written_is_one_sentence(mcnn, tmp_path, pen_dataset):
    (tmp_path / "file").write_text("")
    status, _, err = mcnn("train", "pen-expert-v1", "--dataset", pen_dataset, "--steps", 1, "--storage", "file")
    assert status == 1
    assert err.startswith("error: ")
    assert "file" in err
    assert "Traceback" not in err
    assert "Traceback" not in err


@pytest.mark.long
def test_trained_policy_evaluates_to_the_same_numbers_for_any_number_of_actors(mcnn, pen_dataset, ray_running):
    flags = ["--steps", 200, "--hidden", "32", "--episodes", 3, "--memory-fraction", 0.2, "--lambda", 1, "--json"]
    status, out, err = mcnn("train", "pen-expert-v1", "--dataset", pen_dataset, *flags)
    assert status == 0, err
    trained = json.loads(out)
    results = []
    for actors in (1, 2):
        status, out, _ = mcnn("evaluate", trained["policy"], "--episodes", 3, "--actors", actors, "--json")
        found = json.loads(out)
        results.append([{**episode, "wall_s": 0} for episode in found["episodes"]])
        assert status == 0
        assert found["return"] == trained["return"]
    assert results[0] == results[1]
    assert "mcnn+mlp" in mcnn("evaluate", trained["policy"], "--episodes", 3)[1]


def test_policy_of_an_mlflow_run_evaluates(mcnn, pen_dataset, ray_running, tmp_path):
    import mlflow

    flags = ["--method", "1nn", "--dataset", pen_dataset, "--episodes", 2, "--json"]
    trained = json.loads(mcnn("train", "pen-expert-v1", *flags)[1])
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path}/runs/mlflow.db")
    experiment = client.get_experiment_by_name("pen-expert-v1")
    (run,) = [r for r in client.search_runs([experiment.experiment_id]) if "mcnn.member" in r.data.tags]
    status, out, err = mcnn("evaluate", run.info.run_id, "--episodes", 2, "--json")
    assert status == 0, err
    assert json.loads(out)["return"] == trained["return"]
    status, _, err = mcnn("evaluate", "0" * 32)
    assert status == 1
    assert "has no run 0000" in err


def test_sweep_script_takes_the_flags_of_mcnn_sweep(monkeypatch, capsys, tmp_path, pen_dataset, ray_running):
    monkeypatch.chdir(tmp_path)
    flags = ["--method", "mcnn+mlp", "--memory-fraction", "0.1,0.8", "--memories", "random", "--seed", "0"]
    flags += ["--steps", "100", "--hidden", "16", "--episodes", "1", "--name", "script"]
    monkeypatch.setattr(sys, "argv", ["memories.py", *flags])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(Path(__file__).parents[1] / "sweeps" / "memories.py"), run_name="__main__")
    assert not ended.value.code
    assert "door-expert-v1: 10 demonstrations" in capsys.readouterr().out
    assert (tmp_path / "runs" / "script" / "scores.png").is_file()
    table = pd.read_csv(tmp_path / "runs" / "script" / "results.csv")
    assert table["memory_fraction"].tolist() == [0.1, 0.8]


def test_human_door_demonstrations_import_and_sweep_to_a_table(mcnn, shared_data, ray_running):
    file, dataset = shared_data / "adroit_door_human.npz", "mcnn/door/human-v0"
    status, _, err = mcnn("data", "import", file, dataset, "--task", "door-human-v1")
    assert status == 1
    assert "largest magnitude 1.37" in err
    status, out, err = mcnn("data", "import", file, dataset, "--task", "door-human-v1", "--clip-actions")
    assert status == 0, err
    assert "25" in out
    flags = ["--memory-fraction", 0.025, "--steps", 200, "--hidden", "32", "--episodes", 2, "--json"]
    status, out, err = mcnn("sweep", "--task", "door-human-v1", *flags)
    assert status == 0, err
    rows = json.loads(out)
    assert [row["method"] for row in rows] == ["mcnn+mlp", "bc", "1nn"]
    assert all(np.isfinite(row["score"]) for row in rows)


def test_debug_shows_the_traceback_wherever_it_stands(capsys, monkeypatch):
    for arguments in (["--debug", "train", "nothing"], ["train", "nothing", "--debug"]):
        monkeypatch.setattr(sys, "argv", ["mcnn", *arguments])
        with pytest.raises(ConfigError, match="unknown task 'nothing'"):
            main()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--name", "mlflow.db"], "the name 'mlflow.db' is kept for the store itself"),
        (["--seed", "99999999999999999999999999"], "seed is"),
        (["--lambda", "1e39"], "lambda is 1e+39"),
        (["--dataset", ""], "dataset is ''"),
        (["--memory-action", "median"], "unknown memory action 'median'"),
    ],
)
def test_values_that_would_break_later_are_refused_before(refused, pen_dataset, flags, message):
    status, err = refused("sweep", "--task", "pen-expert-v1", *flags)
    assert status == 2
    assert message in err


def test_info_of_an_unknown_name_names_the_nearest_task(refused):
    status, err = refused("data", "info", "door-humn-v1")
    assert status == 2
    assert "did you mean 'door-human-v1'?" in err


def test_dead_tracking_server_is_one_sentence(mcnn, pen_dataset, monkeypatch, ray_running):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    status, out, err = mcnn("train", "pen-expert-v1", "--dataset", pen_dataset, "--method", "1nn", "--episodes", 1)
    assert (status, out) == (1, "")
    assert "error: MLflow at http://127.0.0.1:9 cannot be used" in err
    assert mcnn("doctor", "--json")[0] == 1
