"""`mcnn doctor --security` on set-ups that are open, each as a user would have it; and how `mcnn ui` is opened."""

import json
import os
import pickle
import socket
import subprocess
import sys
import time

import mlflow
import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from mcnn_ray.cli import main
from mcnn_ray.errors import ArtifactError
from mcnn_ray.policies.loading import load_policy
from mcnn_ray.registry import find_policy
from mcnn_ray.security import examine_security, is_loopback
from mcnn_ray.tracking import Tracker, tracking_uri

UNSAFE = [
    "MLFLOW_TRACKING_URI",
    "MLFLOW_TRACKING_PASSWORD",
    "MLFLOW_TRACKING_TOKEN",
    "MLFLOW_ALLOW_PICKLE_DESERIALIZATION",
    "MLFLOW_SERVER_ALLOWED_HOSTS",
    "RAY_ADDRESS",
    "RAY_AUTH_MODE",
    "RAY_AUTH_TOKEN_PATH",
]


@pytest.fixture
def examined(tmp_path, monkeypatch):
    """Look at a storage folder; give the findings on this test's own doing by name."""
    for name in UNSAFE:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    storage = tmp_path / "runs"
    storage.mkdir(mode=0o755)

    def look():
        return {finding.what: finding for finding in examine_security(storage)}

    look.storage = storage
    return look


def opened(folder):
    """Let others pass through the folders that pytest keeps to itself, up to the system's."""
    for path in (folder, *folder.parents):
        if path.name.startswith(("test_", "pytest-", "popen-")):
            path.chmod(0o711)


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def test_quiet_set_up_has_no_findings_beside_servers(examined):
    (examined.storage / "results.json").write_text('{"score": 1}')
    assert all(finding.works for what, finding in examined().items() if not what.startswith("server "))


def test_mlflow_s_server_is_found_where_it_listens_to_others(examined, tmp_path):
    port = free_port()
    command = [sys.executable, "-m", "mlflow", "server", "--host", "0.0.0.0", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{tmp_path / 'server.db'}"]
    server = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        ended = time.monotonic() + 120
        while time.monotonic() < ended:
            with socket.socket() as client:
                if client.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.5)
        found = examined()["server MLflow"]
    finally:
        server.terminate()
        server.wait(60)
    assert not found.works
    assert f"0.0.0.0:{port}" in found.detail
    assert "--host 127.0.0.1" in found.mend


def test_ray_that_was_started_with_its_token_is_found_and_passes(ray_running, tmp_path):
    found = [finding for finding in examine_security(tmp_path) if finding.what.startswith("server Ray")]
    assert any("asks for a token" in finding.detail for finding in found)


@pytest.mark.parametrize(
    ("variables", "what"),
    [
        ({"MLFLOW_TRACKING_URI": "http://me:pass-word@mlflow.example:5000"}, "MLFLOW_TRACKING_URI"),
        (
            {"MLFLOW_TRACKING_URI": "http://192.0.2.1:5000", "MLFLOW_TRACKING_PASSWORD": "pass-word"},
            "MLFLOW_TRACKING_URI",
        ),
        ({"RAY_ADDRESS": "http://me:pass-word@head.example:8265"}, "RAY_ADDRESS"),
        ({"MLFLOW_TRACKING_URI": "http://[::1"}, "MLFLOW_TRACKING_URI"),
        ({"MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "True"}, "MLFLOW_ALLOW_PICKLE_DESERIALIZATION"),
        ({"MLFLOW_SERVER_ALLOWED_HOSTS": "a.example,*"}, "MLFLOW_SERVER_ALLOWED_HOSTS"),
        ({"RAY_AUTH_MODE": "disabled"}, "Ray's token"),
    ],
)
def test_variables_that_open_the_set_up_are_found_and_their_passwords_not_shown(examined, monkeypatch, variables, what):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    found = examined()
    assert not found[what].works
    assert found[what].mend
    assert "pass-word" not in str(found)


@pytest.mark.parametrize(
    "uri", ["https://me:pass-word@mlflow.example", "http://me:pass-word@127.0.0.1:5000", "http://mlflow.example:5000"]
)
def test_addresses_that_send_no_password_in_the_clear_pass(examined, monkeypatch, uri):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    assert examined()["MLFLOW_TRACKING_URI"].works


def test_token_that_others_can_read_is_found(examined, tmp_path, monkeypatch):
    token = tmp_path / "token"
    token.write_text("x" * 32)
    token.chmod(0o644)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(token))
    opened(tmp_path)
    assert examined()["Ray's token"].mend == f"chmod 600 {token}"
    token.chmod(0o600)
    assert examined()["Ray's token"].works


@pytest.mark.parametrize("name", ["members/a/card.json", "results.csv", "sweep.yaml", "mlflow.db"])
@pytest.mark.parametrize("value", ["hunter2-hunter2", 'quo"ted-ä-secret'])
def test_secret_in_the_storage_is_found_by_its_name_alone(examined, monkeypatch, name, value):
    monkeypatch.setenv("MY_SERVICE_TOKEN", value)
    path = examined.storage / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if name == "mlflow.db":
        Tracker(examined.storage, "task").open_sweep("id", "name", {"note": f"with {value} in it"})
        for file in examined.storage.rglob("sweep.json"):
            file.unlink()  # the store alone
    else:
        path.write_text(json.dumps({"note": value}))
    found = examined()["secrets"]
    assert not found.works
    assert "MY_SERVICE_TOKEN in" in found.detail
    assert name in found.detail
    assert value not in found.detail


def test_password_of_the_tracking_address_is_looked_for(examined, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://me:pass%2Dword@mlflow.example")
    (examined.storage / "a.json").write_text('{"uri": "pass-word"}')
    assert "MLFLOW_TRACKING_URI in" in examined()["secrets"].detail


def test_store_that_is_none_is_told(examined, monkeypatch):
    monkeypatch.setenv("MY_SERVICE_TOKEN", "hunter2-hunter2")
    (examined.storage / "mlflow.db").write_text("no database" * 100)
    assert "cannot be searched" in examined()["secrets"].detail


def test_pickles_are_found_whatever_their_name_but_ray_s_own_scratch_is_named_as_that(examined):
    scratch = examined.storage / "sweep" / "tune" / "trial"
    scratch.mkdir(parents=True)
    (scratch / "state.pkl").write_bytes(pickle.dumps([1]))
    save_file({"a": np.zeros(3, np.float32)}, examined.storage / "sweep" / "policy.safetensors")
    found = examined()["pickles"]
    assert found.works
    assert "1 are Ray's own" in found.detail
    torch.save({"a": 1}, examined.storage / "sweep" / "weights.pt")
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        (examined.storage / f"notes-{protocol}.txt").write_bytes(pickle.dumps({"a": [1.5]}, protocol))
    found = examined()["pickles"]
    assert not found.works
    assert "notes-2.txt" in found.detail
    assert "and 2 more" in found.detail


def test_storage_that_others_can_write_to_is_found(examined, tmp_path):
    examined.storage.chmod(0o777)
    opened(tmp_path)
    found = examined()["storage"]
    assert not found.works
    assert found.mend == f"chmod -R o-w {examined.storage}"


def test_command_ends_with_status_1_where_something_is_open(examined, monkeypatch, capsys):
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "--security", "--json", "--storage", str(examined.storage)])
    assert ended.value.code == 1
    found = {finding["what"]: finding for finding in json.loads(capsys.readouterr().out)}
    assert found["Ray's token"]["mend"] == "export RAY_AUTH_MODE=token"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.0.1", "::1", "localhost", "::ffff:127.0.0.1"])
def test_addresses_of_this_machine_alone_are_told_apart(host):
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org", "localhost.example.org", ""])
def test_addresses_that_others_reach_are_told_apart(host):
    assert not is_loopback(host)


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_ui_on_another_address_says_what_it_exposes(tmp_path, monkeypatch, capsys, host):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    Tracker(tmp_path, "task")
    started = []
    monkeypatch.setattr(os, "execv", lambda program, command: started.append(command))
    with pytest.raises(SystemExit):
        main(["ui", "--storage", str(tmp_path), "--host", host])
    told = " ".join(capsys.readouterr().err.split())
    assert ("can read, change and delete all runs" in told) is (host == "0.0.0.0")
    assert started[0][started[0].index("--host") + 1] == host


def test_policy_of_a_run_whose_artifacts_are_pickles_does_not_run(tmp_path, payload, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    run_id = Tracker(tmp_path, "task").open_sweep("id", "name", {})
    client = mlflow.MlflowClient(tracking_uri(tmp_path))
    folder = tmp_path / "hostile"
    folder.mkdir()
    for name in ("policy.json", "policy.safetensors", "python_model.pkl", "MLmodel", "manifest.json"):
        (folder / name).write_bytes(payload.pickled())
    client.log_artifacts(run_id, str(folder), "policy")
    with pytest.raises(ArtifactError):
        load_policy(find_policy(run_id, tmp_path))
