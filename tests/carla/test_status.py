"""`mcnn carla status` and `mcnn doctor`: what a user is told of servers."""

import json
import subprocess
import sys
import time

import pytest

from mcnn_ray import doctor
from mcnn_ray.carla.plan import ServerPlan
from mcnn_ray.carla.ports import private_folder, read_records
from mcnn_ray.carla.processes import group_members
from mcnn_ray.carla.supervisor import Supervisor
from mcnn_ray.cli import main
from tests.carla.test_supervisor import KEEP, install


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for name in ("MCNN_CARLA", "MCNN_CARLA_SERVER", "CARLA_ROOT"):
        monkeypatch.delenv(name, raising=False)
    return private_folder(ServerPlan(kind="lite", maps=("HighwayLoop",)).place)


def told(capsys, *words):
    with pytest.raises(SystemExit) as ended:
        main([*words])
    captured = capsys.readouterr()
    return ended.value.code, captured.out, captured.err


def rows(capsys, *words):
    return json.loads(told(capsys, "carla", "status", "--json", *words)[1])


def test_status_shows_servers_that_are_kept_and_ends_what_is_left_of_those_that_are_not(folder, tmp_path, capsys):
    assert told(capsys, "carla", "status")[1] == "no servers are kept on this machine\n"
    root = install(tmp_path / "root", "sleep 1000 & sleep 1000")
    process = subprocess.Popen([sys.executable, "-c", KEEP, str(root), str(folder)])
    while not any(record.server for record in read_records(folder)):
        time.sleep(0.02)
    (row,) = rows(capsys)
    (record,) = read_records(folder)
    assert (row["kind"], row["state"], row["pid"], row["gpu"]) == ("install", "starting", record.server.pid, 0)
    process.kill()
    process.wait()
    (row,) = rows(capsys)
    assert row["state"] == "starting, supervisor dead: --clean ends it"
    assert rows(capsys, "--clean") == []
    assert not group_members(record.server)


def test_status_shows_ports_left_alone_with_the_reason(folder, tmp_path, capsys):
    root = install(tmp_path / "root", "echo no Vulkan device; exit 3")
    supervisor = Supervisor(ServerPlan(kind="install", maps=("Town04",), root=str(root), tries=1))
    with pytest.raises(Exception, match="no Vulkan device"):
        supervisor.ready()
    supervisor.close()
    (row,) = rows(capsys)
    assert row["state"].startswith("dead, left alone for ")
    assert "no Vulkan device" in row["last_failure"]
    assert "no Vulkan" in told(capsys, "carla", "status")[1]


def findings(capsys):
    return {finding["what"]: finding for finding in json.loads(told(capsys, "doctor", "--json")[1])}


def test_doctor_tries_a_lite_server_and_asks_one_that_runs_for_its_version(folder, capsys, monkeypatch):
    found = findings(capsys)
    assert found["carla client"]["detail"] == "0.9.16"
    assert found["carla servers"]["works"]
    assert "lite server 0.9.16 with Lite/Maps/HighwayLoop works" in found["carla servers"]["detail"]
    for variable, words in (
        ("127.0.0.1:9", "no CARLA server answers at 127.0.0.1:9"),
        ("/opt/none", "names no CARLA servers"),
    ):
        monkeypatch.setenv("MCNN_CARLA", variable)
        _, servers = doctor._driving()
        assert not servers.works
        assert words in servers.detail
