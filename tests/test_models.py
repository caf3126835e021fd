"""Policies as MLflow models: filed from code, promoted, read back by our own loader, served by MLflow's."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import mlflow
import numpy as np
import pytest

from mcnn_ray.artifacts import write_json
from mcnn_ray.errors import ArtifactError, ConfigError, TrackingError
from mcnn_ray.policies.base import save_policy
from mcnn_ray.policies.loading import load_policy
from mcnn_ray.promotion import promote
from mcnn_ray.registry import find_policy
from mcnn_ray.tracking import MemberResult, Tracker, tracking_uri
from tests.chaos.test_mlflow_away import Server
from tests.policies.test_policies import OBS, make

QUERIES = (OBS[:70] + 0.1).astype(np.float32)


def filed(folder, members, *, name="sweep", closed=True, **parameters):
    """File a sweep whose members have (kind, seed, return, return on the seeds for choosing or None)."""
    tracker = Tracker(folder, "task@me/x-v0")
    parent = tracker.open_sweep(f"{name}1d", name, parameters)
    for kind, seed, mean, selected in members:
        policy = folder / f"{name}-{kind}-{seed}"
        save_policy(make(kind), policy)
        curves = {} if selected is None else {"on_the_way/return": [(50, 0.0), (100, selected)]}
        result = MemberResult(
            identity=f"{kind}{seed}",
            label=f"{kind} seed={seed}",
            parameters={"method": kind, "seed": seed, "steps": 100},
            metrics={"return": mean, "return_low": mean - 1, "return_high": mean + 1},
            step=100,
            curves=curves,
            policy=policy,
            unreported="not chosen" if kind == "vinn" else None,
        )
        tracker.log_member(parent, result)
    if closed:
        tracker.close_sweep(parent, [], [])
    return parent


@pytest.fixture(scope="module")
def storage(tmp_path_factory):
    """Four settings: `mcnn` is the best by what is reported, `bc` on the seeds for choosing, `vinn` was not chosen."""
    folder = tmp_path_factory.mktemp("runs")
    before = os.environ.pop("MLFLOW_TRACKING_URI", None)
    members = [("mcnn", 0, 4.0, 1.0), ("mcnn", 1, 6.0, 2.0), ("bc", 0, 3.0, 5.0), ("bc", 1, 2.0, 4.0)]
    filed(folder, [*members, ("vinn", 0, 9.0, 9.0)], name="plain")
    filed(folder, [*members, ("1nn", 0, 9.0, None), ("vinn", 0, 9.0, 9.0)], name="searched", search="optuna")
    filed(folder, [(kind, seed, mean, None) for kind, seed, mean, _ in members], name="reported")
    filed(folder, members[:1], name="open", closed=False)
    yield folder
    if before is not None:
        os.environ["MLFLOW_TRACKING_URI"] = before


@pytest.fixture
def client(storage):
    return mlflow.MlflowClient(tracking_uri(storage), registry_uri=tracking_uri(storage))


@pytest.fixture
def as_default(storage):
    """MLflow's own functions on this store, as where a user has exported MLFLOW_TRACKING_URI."""
    mlflow.set_tracking_uri(tracking_uri(storage))
    yield
    mlflow.set_tracking_uri(None)


def test_model_holds_the_policy_and_code_but_no_pickle(storage, client):
    models = client.search_logged_models([client.get_experiment_by_name("task@me/x-v0").experiment_id])
    assert {model.status for model in models} == {"READY"}
    folder = Path(models[0].artifact_location.removeprefix("file://"))
    assert {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()} == {
        "MLmodel",
        "served_policy.py",
        "requirements.txt",
        "conda.yaml",
        "python_env.yaml",
        "input_example.json",
        "serving_input_example.json",
        "artifacts/policy/policy.json",
        "artifacts/policy/policy.safetensors",
        "artifacts/policy/manifest.json",
    }
    assert [line.split("==")[0] for line in (folder / "requirements.txt").read_text().split()] == [
        "mcnn-ray",
        "mlflow",
        "numpy",
        "scipy",
        "torch",
    ]
    info = mlflow.models.Model.load(str(folder))
    assert str(info.signature.inputs) == "[Tensor('float32', (-1, 7))]"
    assert str(info.signature.outputs) == "[Tensor('float32', (-1, 4))]"


def test_results_stand_with_the_model(storage, client):
    promotion = promote("reported", storage)
    assert promotion.model == "models:/task-me-x-v0@champion"
    experiment = client.get_experiment_by_name("task@me/x-v0").experiment_id
    (model,) = client.search_logged_models([experiment], f"source_run_id = '{promotion.run_id}'")
    metrics = {metric.key: metric.value for metric in model.metrics}
    assert metrics == promotion.results == {"return": 6.0, "return_low": 5.0, "return_high": 7.0}


@pytest.mark.parametrize("kind", ["bc", "mcnn", "1nn"])
def test_loaded_model_predicts_the_actions_of_the_policy_to_the_last_bit(kind, storage, client, as_default):
    policy = load_policy(storage / f"searched-{kind}-0")
    experiment = client.get_experiment_by_name("task@me/x-v0").experiment_id
    parent = client.search_runs([experiment], "tags.`mcnn.sweep` = 'searched1d'")[0].info.run_id
    condition = f"tags.`mcnn.member` = '{kind}0' and tags.`mlflow.parentRunId` = '{parent}'"
    run_id = client.search_runs([experiment], condition)[0].info.run_id
    (output,) = client.get_run(run_id).outputs.model_outputs
    loaded = mlflow.pyfunc.load_model(f"models:/{output.model_id}")
    copied = load_policy(find_policy(f"models:/{output.model_id}", storage))
    np.testing.assert_array_equal(load_policy(find_policy(run_id, storage)).act(QUERIES)[0], copied.act(QUERIES)[0])
    for batch in (QUERIES[:1], QUERIES[:5], QUERIES):
        np.testing.assert_array_equal(loaded.predict(batch), policy.act(batch)[0])
        assert loaded.predict(batch).dtype == np.float32
    with pytest.raises(mlflow.MlflowException, match="does not match expected shape"):
        loaded.predict(np.zeros((2, 8), np.float32))


def test_sweep_that_chose_is_promoted_by_the_seeds_for_choosing(storage):
    promotion = promote("searched", storage, name="searched")
    assert promotion.member == "bc seed=0"
    assert "2 settings" in promotion.chosen and "from 2000000 on" in promotion.chosen
    assert promotion.notes == ("took no part, without episodes on those seeds: 1nn seed=0",)


def test_sweep_without_choice_is_promoted_by_what_is_reported_and_says_so(storage):
    promotion = promote("reported", storage, name="reported")
    assert promotion.member == "mcnn seed=1"
    assert "from 1000000 on" in promotion.chosen
    assert promotion.intervals() == {"return": "6 [5, 7]"}
    (note,) = promotion.notes
    assert "flatter" in note and "mcnn evaluate models:/reported@champion" in note


def test_evaluations_of_finished_policies_are_chosen_by(storage):
    assert promote("plain", storage, name="plain").member == "bc seed=0"


def test_promoting_again_changes_nothing_and_another_member_takes_the_alias(storage, client):
    first, again = (promote("reported", storage, name="again") for _ in range(2))
    assert (first.version, again.version, again.replaces) == ("1", "1", None)
    assert len(client.search_model_versions("name = 'again'")) == 1
    experiment = client.get_experiment_by_name("task@me/x-v0").experiment_id
    other = client.search_runs([experiment], "tags.`mcnn.member` = 'bc1'")[0].info.run_id
    taken = promote(other, storage, name="again")
    assert (taken.version, taken.replaces, taken.chosen, taken.notes) == ("2", "1", "named by its run", ())


def test_sweep_is_found_by_name_folder_and_run(storage, tmp_path):
    folder = tmp_path / "elsewhere"
    write_json(folder / "sweep.json", {"id": "reported1d"})
    runs = {promote(what, storage, name="found").run_id for what in ("reported", str(folder))}
    assert len(runs) == 1


@pytest.mark.parametrize(
    ("what", "name", "alias", "kind", "message"),
    [
        ("reportd", None, "champion", ArtifactError, "did you mean 'reported'"),
        ("open", None, "champion", ArtifactError, "not finished but RUNNING"),
        ("0" * 32, None, "champion", ArtifactError, "has no run 0000"),
        ("reported", "a/b", "champion", ConfigError, "cannot name a model"),
        ("reported", "a'b", "champion", ConfigError, "cannot name a model"),
        ("reported", None, "latest", ConfigError, "cannot be an alias"),
        ("reported", None, "v3", ConfigError, "cannot be an alias"),
    ],
)
def test_what_cannot_be_promoted_is_told_in_a_sentence(storage, what, name, alias, kind, message):
    with pytest.raises(kind, match=message):
        promote(what, storage, name, alias)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("models:/knwn@champion", "no registered model 'knwn'; did you mean 'known'"),
        ("models:/known@champio", "no alias 'champio'; did you mean 'champion'"),
        ("models:/known/7", "no version '7'"),
        ("models:/m-nothing", "no model with the id m-nothing"),
        ("models:/", "no "),
    ],
)
def test_models_that_are_not_there_are_told_with_the_nearest(storage, model, message):
    promote("reported", storage, name="known")
    with pytest.raises(ArtifactError, match=message):
        find_policy(model, storage)


def test_model_of_another_program_is_no_policy(storage, client):
    client.create_registered_model("foreign")
    model = client.create_logged_model(client.get_experiment_by_name("task@me/x-v0").experiment_id, "foreign")
    client.create_model_version("foreign", model.artifact_location, model_id=model.model_id, run_id="0" * 32)
    with pytest.raises(ArtifactError, match="holds no policy of mcnn's"):
        find_policy("models:/foreign/1", storage)


def test_server_that_is_away_is_one_sentence(storage, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:secret@127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    for look in (lambda: promote("reported", storage), lambda: find_policy("models:/known@champion", storage)):
        with pytest.raises(TrackingError, match="127.0.0.1:9 cannot be used") as caught:
            look()
        assert "secret" not in str(caught.value)


def test_code_of_a_registered_model_is_not_run_by_our_loader(storage, client, tmp_path):
    promote("reported", storage, name="hostile")
    witness = tmp_path / "ran"
    files = client.get_model_version_download_uri("hostile", "1").removeprefix("file://")
    code = Path(files, "served_policy.py")
    before = code.read_text()
    code.write_text(f"{before}\nopen({str(witness)!r}, 'w')\n")
    try:
        load_policy(find_policy("models:/hostile@champion", storage))
        assert not witness.exists()
        mlflow.pyfunc.load_model(files)
        assert witness.exists()  # by MLflow's own it is
    finally:
        code.write_text(before)


def test_export_and_promote_on_the_command_line(storage, tmp_path, mcnn):
    def run(*arguments):
        return mcnn(*arguments, "--storage", storage)

    status, out, err = run("promote", "reported", "--name", "cli")
    assert status == 0
    assert "models:/cli@champion: version 1" in out and "results: return 6 [5, 7]" in out
    assert "flatter" in err
    assert json.loads(run("promote", "reported", "--name", "cli", "--json")[1])["version"] == "1"
    status, out, err = run("export", "models:/cli@champion", tmp_path / "policy.txt")
    assert (status, out) == (2, "") and "does not end in .onnx" in err


@pytest.mark.long
def test_served_model_answers_with_the_actions_of_the_policy(storage):
    promote("reported", storage, name="served")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "models", "serve", "-m", "models:/served@champion"]
    command += ["--env-manager", "local", "--host", "127.0.0.1", "--port", str(port)]
    environment = {**os.environ, "MLFLOW_TRACKING_URI": tracking_uri(storage)}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"  # it starts uvicorn by its name
    server = subprocess.Popen(command, env=environment, start_new_session=True)
    try:
        while True:
            assert server.poll() is None
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/ping", timeout=1).close()
                break
            except OSError:
                time.sleep(0.2)
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/invocations",
            json.dumps({"inputs": QUERIES[:3].tolist()}).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            actions = np.array(json.load(answer)["predictions"], dtype=np.float32)
    finally:
        os.killpg(server.pid, 15)
        server.wait(30)
    np.testing.assert_array_equal(
        actions, load_policy(find_policy("models:/served@champion", storage)).act(QUERIES[:3])[0]
    )


@pytest.mark.long
def test_model_on_a_server_is_filed_promoted_and_fetched(tmp_path, monkeypatch):
    server = Server(tmp_path)
    try:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", server.uri)
        filed(tmp_path, [("mcnn", 0, 4.0, None)])
        assert [promote("sweep", tmp_path).version for _ in range(2)] == ["1", "1"]
        fetched = load_policy(find_policy("models:/task-me-x-v0@champion", tmp_path))
        expected = load_policy(tmp_path / "sweep-mcnn-0").act(QUERIES)[0]
        np.testing.assert_array_equal(fetched.act(QUERIES)[0], expected)
        with pytest.raises(ArtifactError, match="no alias 'other'"):
            find_policy("models:/task-me-x-v0@other", tmp_path)
    finally:
        server.kill()
