"""Rollouts of driving tasks: whatever becomes of servers and workers, the table is that of an undisturbed run."""

import contextlib
import json
import os
import queue
import random
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace

import psutil
import pytest

from mcnn_ray.carla.ports import read_records
from mcnn_ray.errors import ConfigError
from mcnn_ray.rollout.pool import RolloutPool
from tests.carla.short import TASK
from tests.carla.test_supervisor import install, ports_are_free


class Pooled:
    """A run of `tests.carla.pooled`, with servers, records and Ray of its own."""

    def __init__(self, folder, servers, episodes, seconds, **environment):
        self.records = folder / f"mcnn-carla-{os.getuid()}"
        self._log = (folder / "log.txt").open("w+")
        variables = {**os.environ, "TMPDIR": str(folder), "RAY_TMPDIR": "/tmp", **environment}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.carla.pooled", str(folder), *map(str, (servers, episodes, seconds))],
            env=variables,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,
        )
        self.blocks = set()
        self._lines = queue.SimpleQueue()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def __enter__(self):
        return self

    def __exit__(self, *ignored):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.reader.join()
        self._log.close()

    def _read(self):
        with self.process.stdout:
            for text in self.process.stdout:
                self._lines.put(json.loads(text))
        self._lines.put(None)

    def line(self):
        return self._lines.get(timeout=250)

    def running(self):
        records = [record for record in read_records(self.records) if record.state == "running" and record.server]
        self.blocks |= {record.port for record in records}
        return records

    def warnings(self):
        self._log.seek(0)
        return self._log.read()

    def check_nothing_is_left(self):
        assert self.process.wait(60) == 0, self.warnings()
        deadline = time.monotonic() + 20
        while [record for record in read_records(self.records) if record.state != "dead"] or self._processes():
            assert time.monotonic() < deadline, (list(read_records(self.records)), self._processes())
            time.sleep(0.1)
        # A process that ends has no environment any more a little before its sockets are closed.
        while not all(map(ports_are_free, self.blocks)):
            assert time.monotonic() < deadline, self.blocks
            time.sleep(0.1)

    def _processes(self):
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("TMPDIR") == str(self.records.parent) and process.status() != "zombie":
                    found.append(" ".join(process.cmdline())[:100])
        return found


def test_table_is_that_of_an_undisturbed_run_though_a_server_is_killed_and_another_stopped(tmp_path):
    with Pooled(tmp_path, 2, 8, 1) as run:
        undisturbed = run.line()
        assert len({row["episode_return"] for row in undisturbed["rows"]}) == 8
        while len(records := run.running()) < 2:
            time.sleep(0.01)
        for record, number in zip(records, (signal.SIGKILL, signal.SIGSTOP), strict=True):
            os.kill(record.server.pid, number)
        assert run.line() == undisturbed
        assert run.warnings().count("run again; CARLA server") >= 1
        run.check_nothing_is_left()


def test_servers_that_never_work_end_the_evaluation_with_their_own_words(tmp_path):
    root = install(tmp_path / "root", "echo cannot find a display; exit 7")
    with Pooled(tmp_path, 1, 2, 0, MCNN_CARLA=str(root)) as run:
        told = run.line()
        assert "no server could be had; no install server at 127.0.0.1:" in told["error"]
        assert "ended with status 7; its last words: cannot find a display" in told["error"]
        run.check_nothing_is_left()


def test_cluster_without_servers_is_told_before_anything_starts(ray_running):
    with pytest.raises(ConfigError, match="needs the resource 'simulator', which no node of the Ray cluster offers"):
        RolloutPool(replace(TASK, server="simulator"), actors=1)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_no_episode_is_lost_or_counted_twice_while_eight_servers_and_their_workers_die_at_random(tmp_path):
    rng, killed, found = random.Random(0), [], []
    with Pooled(tmp_path, 8, 48, 300) as run:
        undisturbed, end = run.line(), time.monotonic() + 300
        while run.process.poll() is None:
            time.sleep(rng.uniform(2, 6))
            if time.monotonic() < end and (records := run.running()):
                kind = rng.choice(["server", "server", "stop", "keeper", "worker"])
                with contextlib.suppress(ProcessLookupError, psutil.Error):
                    strike(kind, rng.choice(records))
                    killed.append(kind)
        run.reader.join()
        while (table := run.line()) is not None:
            found.append(table)
        print(f"{len(found)} tables; struck: { {kind: killed.count(kind) for kind in killed} }")
        assert set(killed) == {"server", "stop", "keeper", "worker"}
        assert found
        assert all(table == undisturbed for table in found)
        run.check_nothing_is_left()


def strike(kind, record):
    """Kill a server, its keeper or its worker, whose number is the last of the keeper's arguments; or stop a server."""
    if kind == "worker":
        os.kill(int(psutil.Process(record.keeper.pid).cmdline()[-1]), signal.SIGKILL)
    elif kind == "keeper":
        os.kill(record.keeper.pid, signal.SIGKILL)
    else:
        os.kill(record.server.pid, signal.SIGSTOP if kind == "stop" else signal.SIGKILL)
