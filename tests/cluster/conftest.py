"""A Ray cluster of several nodes on this machine, started as `ray start` starts one anywhere, with a token."""

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from tests.cluster.checks import ROOT

BIN = Path(sys.executable).parent
SMALL = ["--num-cpus=1", "--object-store-memory=100000000", "--min-worker-port=0", "--max-worker-port=0"]


def free_port():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


def end(process, at_once=False):
    """End a process that was started here, and all below it; at once is without their knowing."""
    below = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
    if at_once:
        for each in [*below, process]:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
    else:
        process.terminate()
    psutil.wait_procs([*below], timeout=10)
    for left in below:
        if left.is_running():
            left.kill()
    process.wait(30)


class LocalCluster:
    """Nodes of one cluster, each a raylet with an address of its own."""

    def __init__(self, folder, minari):
        self.folder = folder
        self.port, self.dashboard = free_port(), free_port()
        (folder / "token").write_text(secrets.token_hex(16))
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("RAY_")},
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(folder / "token"),
            "RAY_USAGE_STATS_ENABLED": "0",
            "MINARI_DATASETS_PATH": str(minari),
        }
        self.processes = []

    def start(self, *flags, prefix=()):
        """Start a node and wait until it has joined."""
        log = self.folder / f"node-{len(self.processes)}.log"
        with log.open("w") as output:
            process = subprocess.Popen(
                [
                    *prefix,
                    str(BIN / "ray"),
                    "start",
                    "--block",
                    "--dashboard-agent-listen-port",
                    str(free_port()),
                    *flags,
                ],
                env=self.environment,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self.processes.append(process)
        until = time.monotonic() + 90
        while "Ray runtime started" not in log.read_text():
            assert process.poll() is None and time.monotonic() < until, log.read_text()
            time.sleep(0.2)
        return process

    def start_head(self):
        self.start(
            "--head",
            f"--port={self.port}",
            f"--dashboard-port={self.dashboard}",
            "--dashboard-host=127.0.0.1",
            "--node-ip-address=127.0.0.1",
            f"--ray-client-server-port={free_port()}",
            f"--temp-dir={self.folder}",
            *SMALL,
        )

    def add_node(self, address, prefix=()):
        # Nodes that share a folder clear each other's jobs away.
        place = [f"--temp-dir={self.folder / str(len(self.processes))}", f"--node-ip-address={address}"]
        return self.start(f"--address=127.0.0.1:{self.port}", *place, *SMALL, prefix=prefix)

    def run(self, command, timeout=150, **changes):
        """Run a command as a user of this cluster would."""
        options = {"capture_output": True, "text": True, "timeout": timeout}
        return subprocess.run(command, env=self.joined(**changes), cwd=ROOT, **options)

    def popen(self, command, **options):
        """Start a command as a user of this cluster would."""
        return subprocess.Popen(command, env=self.joined(), cwd=ROOT, **options)

    def joined(self, **changes):
        return {**self.environment, "RAY_ADDRESS": f"127.0.0.1:{self.port}", **changes}

    def free_cpus(self):
        program = "import ray; ray.init(log_to_driver=False); print(ray.available_resources()['CPU'])"
        return float(self.run([sys.executable, "-c", program]).stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def cluster(minari_store):
    """A head alone."""
    folder = Path(tempfile.mkdtemp(prefix="mcnn-", dir="/tmp"))  # short: Ray's sockets lie in it
    nodes = LocalCluster(folder, minari_store)
    try:
        nodes.start_head()
        yield nodes
    finally:
        for process in reversed(nodes.processes):
            end(process)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def two_nodes(cluster):
    cluster.add_node("127.0.0.2")
    return cluster
