"""Sweeps on several raylets: joined by RAY_ADDRESS, submitted as jobs, refused where storage is not shared."""

import json
import subprocess
import sys
import time

import psutil
import pytest
import yaml

from mcnn_ray.config import SweepConfig
from mcnn_ray.sweep.runner import run_sweep
from tests.cluster.conftest import BIN, end

SWEEP = {
    "task": "pen-expert-v1",
    "method": ["mcnn+mlp", "bc"],
    "lambda": 1.0,
    "memories": "random",
    "steps": 50,
    "hidden": [16],
    "batch_size": 32,
    "episodes": 2,
}


@pytest.fixture
def sweep_file(pen_dataset, tmp_path):
    path = tmp_path / "sweep.yaml"
    path.write_text(yaml.safe_dump({**SWEEP, "dataset": pen_dataset, "name": "tiny"}))
    return path


@pytest.mark.long
def test_sweep_that_loses_a_node_and_gets_another_ends_in_the_bytes_of_one_on_this_machine(
    two_nodes, pen_dataset, tmp_path, ray_running
):
    values = {**SWEEP, "dataset": pen_dataset, "name": "tiny", "steps": 3000, "hidden": [64], "checkpoint_s": 0}
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(values))
    storage = tmp_path / "cluster"
    command = [sys.executable, "-m", "mcnn_ray", "sweep", str(tmp_path / "sweep.yaml"), "--storage", str(storage)]
    with (tmp_path / "output").open("w") as output:
        sweep = two_nodes.popen(command, stdout=output, stderr=subprocess.STDOUT)
    while len(list(storage.rglob("step-*"))) < 2:  # of two packs, one on each node
        assert sweep.poll() is None, (tmp_path / "output").read_text()
        time.sleep(0.05)
    end(two_nodes.processes[1], at_once=True)
    two_nodes.add_node("127.0.0.3")
    assert sweep.wait(200) == 0, (tmp_path / "output").read_text()
    run_sweep(SweepConfig.parse(values, "test"), tmp_path / "here")
    tables = [(tmp_path / name / "tiny" / "results.csv").read_bytes() for name in ("cluster", "here")]
    assert tables[0] == tables[1]
    assert not list(storage.glob(".shared-*"))
    assert two_nodes.free_cpus() == 2


@pytest.mark.long
def test_submitted_job_runs_the_sweep_script_of_the_folder_it_is_sent_from(two_nodes, pen_dataset, tmp_path):
    flags = [f"--{key.replace('_', '-')}={value}" for key, value in SWEEP.items() if not isinstance(value, list)]
    flags += ["--method=bc,1nn", "--hidden=16", f"--dataset={pen_dataset}", "--name=job", f"--storage={tmp_path}"]
    ended = two_nodes.run(
        [
            *(str(BIN / "ray"), "job", "submit", "--address", f"http://127.0.0.1:{two_nodes.dashboard}"),
            *("--working-dir", ".", "--", str(BIN / "python"), "sweeps/lambda_memory.py", *flags, "--json"),
        ]
    )
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr
    (rows,) = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("[{")]
    assert [row["method"] for row in rows] == ["bc", "1nn"]
    assert (tmp_path / "job" / "results.csv").is_file()


def test_job_without_the_token_is_turned_away(cluster, tmp_path):
    (tmp_path / "other").write_text("0" * 32)
    ended = cluster.run(
        [
            *(str(BIN / "ray"), "job", "submit", "--address", f"http://127.0.0.1:{cluster.dashboard}"),
            *("--", "touch", str(tmp_path / "ran")),
        ],
        RAY_AUTH_TOKEN_PATH=str(tmp_path / "other"),
    )
    assert ended.returncode != 0
    assert "token" in ended.stderr.lower()
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"RAY_ADDRESS": "127.0.0.1:9"}, "at RAY_ADDRESS=127.0.0.1:9 ([Errno 111] Connection refused); is it running"),
        ({"RAY_AUTH_TOKEN_PATH": "/nowhere/token"}, "RAY_AUTH_TOKEN_PATH is set but file cannot be opened"),
    ],
)
def test_cluster_that_cannot_be_joined_is_an_error_of_ours(cluster, changes, said):
    program = """
from mcnn_ray.errors import McnnError
from mcnn_ray.sweep.cluster import ray_session
try:
    with ray_session():
        pass
except McnnError as error:
    print(error)
"""
    ended = cluster.run([sys.executable, "-c", program], **changes)
    assert ended.stdout.startswith("no Ray cluster could be joined at RAY_ADDRESS=")
    assert said in ended.stdout


@pytest.mark.long
def test_storage_that_a_node_does_not_see_is_refused_in_one_sentence(two_nodes, sweep_file, tmp_path):
    """The node lies in a mount namespace of its own, with an empty file system over the storage."""
    storage = tmp_path / "runs"
    storage.mkdir()
    namespace = ["unshare", "--mount", "sh", "-c", f'mount -t tmpfs none {storage} && exec "$@"', "sh"]
    if subprocess.run([*namespace, "true"], capture_output=True).returncode != 0:
        pytest.skip("mount namespaces are not allowed here")
    node = two_nodes.add_node("127.0.0.4", prefix=namespace)
    try:
        ended = two_nodes.run([sys.executable, "-m", "mcnn_ray", "sweep", str(sweep_file), "--storage", str(storage)])
    finally:
        end(node)
    assert ended.returncode == 2
    assert ended.stderr.splitlines()[-1] == (
        f"error: 1 of 3 nodes (127.0.0.4) do not see {storage} as this machine does; mount one file system at the same "
        "path on all nodes and name a folder on it with --storage"
    )
    assert not list(storage.glob(".shared-*"))
    assert not psutil.pid_exists(node.pid)
