"""Sweeps as a user's command, disturbed from outside, and what must hold of them afterwards."""

import os
import random
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import mlflow
import psutil
import yaml

from mcnn_ray.tracking import tracking_uri

_MARK = "MCNN_CHAOS"  # in the environment of a command and of all that it starts
_LEFT_S = 90.0  # Ray's agents look for their parent now and then only
# Then they try to tell a dead head of it, by default for a minute.
_IMPATIENT = {"RAY_gcs_rpc_server_reconnect_timeout_s": "10"}


class Command:
    """`mcnn sweep` of a file, started as often as need be.

    Args:
        values: of the sweep file, with a name.
        folder: for the file and the results.
    """

    def __init__(self, values: dict, folder: Path):
        self.storage, self._file, self._mark = folder / "runs", folder / "sweep.yaml", uuid.uuid4().hex
        self._results = self.storage / values["name"] / "results.csv"
        self.storage.mkdir(parents=True, exist_ok=True)
        mlflow.MlflowClient(tracking_uri(self.storage)).search_experiments()  # made here, where it takes no migrations
        self._file.write_text(yaml.safe_dump(values))
        self.process = None

    def start(self):
        """Give the command; its output goes to a file each time."""
        self.output = self._file.with_name(f"output-{uuid.uuid4().hex[:6]}.txt")
        with self.output.open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "mcnn_ray", "sweep", str(self._file), "--storage", str(self.storage)],
                env={**os.environ, **_IMPATIENT, _MARK: self._mark},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def told(self) -> str:
        """Return what the last start printed."""
        return self.output.read_text()

    def checkpoints(self) -> list[Path]:
        return [path for path in self.storage.rglob("step-*") if path.parent.name == "checkpoints"]

    def wait_for(self, what):
        """Wait until something is there, while the command runs."""
        while not what():
            assert self.process.poll() is None, self.told()
            time.sleep(0.05)

    def workers(self) -> list[psutil.Process]:
        """Return the processes that train or roll out."""
        return [process for process in self.processes() if _is_worker(process)]

    def processes(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(_MARK) == self._mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return found

    def kill(self):
        """Kill the driver, and wait until what it started has noticed."""
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.check_nothing_is_left()

    def check_nothing_is_left(self):
        end = time.monotonic() + _LEFT_S
        while left := self.processes():
            assert time.monotonic() < end, [" ".join(process.cmdline())[:80] for process in left]
            time.sleep(0.2)

    def table(self) -> bytes:
        return self._results.read_bytes()

    def finished(self) -> bool:
        return self._results.exists()

    def check_runs(self, members: int, status: str = "FINISHED"):
        """Hold MLflow against one ended run a member and one for the sweep, each with its points once and in order."""
        client = mlflow.MlflowClient(tracking_uri(self.storage))
        runs = client.search_runs([experiment.experiment_id for experiment in client.search_experiments()])
        assert {run.info.status for run in runs} == {status}
        assert len(runs) == members + 1
        assert len({run.data.tags.get("mcnn.member") for run in runs}) == members + 1
        for run in runs:
            steps = [point.step for point in client.get_metric_history(run.info.run_id, "train_loss")]
            assert steps == sorted(set(steps))


def _is_worker(process: psutil.Process) -> bool:
    try:
        name = process.cmdline()[0]
    except (psutil.NoSuchProcess, IndexError):
        return False
    # Those that only start look idle: where that takes longer than the pause between kills, nothing would ever run.
    return name.startswith("ray::") and "Agent" not in name and "IDLE" not in name


def run_under_fire(command: Command, seed: int, pauses: tuple[float, float], kills: int) -> list[str]:
    """Give a command until it ends well, killing one of its processes every few seconds.

    The driver is hit once it has got as far as a checkpoint, for which one kill is kept, and by one in six of the other
    kills; those left hit whoever trains or rolls out.

    Args:
        command: to be given.
        seed: of who is killed when.
        pauses: least and most seconds between kills.
        kills: at most; then it is left in peace, since a slow machine would never get to its end.

    Returns:
        Names of the processes killed.
    """
    rng, killed = random.Random(seed), []
    command.start()
    while True:
        try:
            status = command.process.wait(rng.uniform(*pauses))
        except subprocess.TimeoutExpired:
            workers, spare = command.workers(), kills - len(killed)
            if not spare:
                continue
            if command.checkpoints() and ("driver" not in killed or rng.random() < 1 / 6):
                command.kill()
                killed.append("driver")
                command.start()
            elif workers and (spare > 1 or "driver" in killed):
                victim = rng.choice(sorted(workers, key=lambda process: process.pid))
                try:
                    name = victim.cmdline()[0]
                    victim.kill()
                    killed.append(name)
                except (psutil.NoSuchProcess, IndexError):
                    pass
            continue
        assert status == 0, command.told()
        return killed
