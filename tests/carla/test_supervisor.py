"""What a supervisor promises of its server, against lite servers with faults and programs that stand for real ones."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from mcnn_ray.carla import ports
from mcnn_ray.carla.plan import ServerPlan, check_attached, find_plan
from mcnn_ray.carla.ports import BLOCK_PORTS, lease_block, private_folder, read_records
from mcnn_ray.carla.processes import group_members
from mcnn_ray.carla.servers import remove_leftovers
from mcnn_ray.carla.supervisor import Supervisor
from mcnn_ray.data.collect import collect_episodes
from mcnn_ray.errors import ConfigError, ServerError, SimulationError
from mcnn_ray.tasks.catalogue import find_task

QUICK = {"tries": 1, "backoff_s": 0.1, "answer_limit_s": 2.0, "start_limit_s": 60.0}


def lite(folder, *arguments, **values):
    return ServerPlan(
        kind="lite", maps=("HighwayLoop",), folder=str(folder), arguments=arguments, **{**QUICK, **values}
    )


@contextlib.contextmanager
def supervising(plan):
    supervisor = Supervisor(plan)
    try:
        yield supervisor
    finally:
        supervisor.close()


def ports_are_free(first):
    for port in range(first, first + BLOCK_PORTS):
        with socket.socket() as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                trial.bind(("", port))
            except OSError:
                return False
    return True


def install(folder, script):
    """A folder like that of an installed CARLA, whose program is a shell script."""
    program = folder / "CarlaUE4/Binaries/Linux/CarlaUE4-Linux-Shipping"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/bash\n{script}\n")
    program.chmod(0o755)
    return folder


def real(folder, script, **values):
    root = install(folder / "root", script)
    return ServerPlan(kind="install", maps=("SmallTown",), root=str(root), folder=str(folder), **{**QUICK, **values})


def test_server_is_ready_once_a_client_has_driven_and_ends_without_a_trace(tmp_path):
    with supervising(lite(tmp_path)) as supervisor:
        supervisor.ready()
        record = supervisor.record
        assert (record.state, record.map_name, record.version) == ("ready", "Lite/Maps/HighwayLoop", "0.9.16")
        server = record.server
        assert [found.server for found in read_records(tmp_path)] == [server]
        assert 0.02 < supervisor.memory_gib() < 1
        assert supervisor.fault() is None
        os.kill(server.pid, signal.SIGKILL)
        while supervisor.death() is None:
            time.sleep(0.01)
        assert "ended with SIGKILL" in supervisor.fault()
    assert not group_members(server)
    assert ports_are_free(record.port)
    assert not list(read_records(tmp_path))


@pytest.mark.parametrize("limit", [{"episodes": 2}, {"memory_gib": 0.06}], ids=str)
def test_server_is_started_anew_after_so_many_episodes_or_so_much_memory(tmp_path, limit):
    with supervising(lite(tmp_path, **limit)) as supervisor:
        supervisor.ready()
        server = supervisor.record.server
        if "episodes" in limit:
            supervisor.begin()
            supervisor.end_episode()
            supervisor.ready()
            assert (supervisor.record.server, supervisor.record.starts) == (server, 1)
        assert group_members(server)
        supervisor.begin()
        supervisor.end_episode()
        assert not group_members(server)
        assert supervisor.record.state == "dead"  # and what is dead is started by `ready`


@pytest.mark.parametrize(
    ("fault", "told", "kind"),
    [
        ("silent", "time-out", ServerError),
        ("hang-in-tick:1", "failed at a tick: time-out|time-out of 2000ms", ServerError),
        ("crash-in-tick:1", "ended with SIGSEGV", ServerError),
        ("garbage:1", "the client that tried it ended with SIGABRT", ServerError),
        ("error-replies:spawn_actor", "failed at spawning a camera", ServerError),
        ("drop-frames:1", "sent no image", ServerError),
        ("slow-start:30", "it does not listen after 3 s", ServerError),
        ("wrong-version", "is CARLA 0.9.15 and the carla client 0.9.16", ConfigError),
    ],
)
def test_server_with_a_fault_is_never_driven_with(tmp_path, fault, told, kind):
    limit = 3.0 if fault.startswith("slow-start") else 60.0
    with supervising(lite(tmp_path, "--fault", fault, start_limit_s=limit)) as supervisor:
        with pytest.raises(kind, match=told):
            supervisor.ready()
        assert supervisor.record.server is None
    assert ports_are_free(supervisor.record.port)


def test_map_that_is_not_there_is_told_at_once(tmp_path):
    with (
        supervising(lite(tmp_path, map_file=str(tmp_path / "none.xodr"), tries=3, backoff_s=60)) as supervisor,
        pytest.raises(ConfigError, match="none.xodr"),
    ):
        supervisor.ready()


def test_server_that_starts_slowly_is_waited_for(tmp_path):
    with supervising(lite(tmp_path, "--fault", "slow-start:2")) as supervisor:
        supervisor.ready()
        assert supervisor.record.starts == 1


def test_server_that_fails_is_tried_with_growing_pauses_and_then_its_ports_are_left_alone(tmp_path):
    pauses = []
    plan = real(tmp_path, "echo no Vulkan device >&2; exit 3", tries=3, backoff_s=1.0)
    first = Supervisor(plan, pauses.append)
    with pytest.raises(ServerError, match="in 3 tries: .* ended with status 3; its last words: no Vulkan device"):
        first.ready()
    first.close()
    assert [pause for pause in pauses if pause >= 1.0] == [1.0, 2.0]
    with supervising(plan) as second:
        assert second.record.port != first.record.port
    (known,) = read_records(tmp_path)
    assert (known.port, known.failures, known.state) == (first.record.port, 3, "dead")


LAUNCHER = "for flag; do case $flag in -carla-rpc-port=*) port=${flag#*=};; esac; done; " + (
    f"{sys.executable} -m mcnn_ray carla serve --lite --port $port --map HighwayLoop & wait"
)


def test_installed_server_is_started_by_its_program_shown_its_map_and_ended_with_its_children(tmp_path):
    with supervising(real(tmp_path, LAUNCHER)) as supervisor:
        supervisor.ready()
        record = supervisor.record
        assert (record.map_name, record.gpu) == ("Lite/Maps/SmallTown", 0)
        server = record.server
        assert len(group_members(server)) == 2
    assert not group_members(server)


KEEP = """
import sys
from mcnn_ray.carla.plan import ServerPlan
from mcnn_ray.carla.supervisor import Supervisor
Supervisor(ServerPlan(kind="install", maps=("Town04",), root=sys.argv[1], folder=sys.argv[2])).ready()
"""


def test_what_a_killed_supervisor_leaves_is_ended_by_the_next(tmp_path):
    root = install(tmp_path / "root", "sleep 1000 & sleep 1000")
    process = subprocess.Popen([sys.executable, "-c", KEEP, str(root), str(tmp_path)])
    while not (servers := [record.server for record in read_records(tmp_path) if record.server is not None]):
        time.sleep(0.02)
    while len(members := group_members(servers[0])) < 3:
        time.sleep(0.02)
    process.kill()
    process.wait()
    deadline = time.monotonic() + 5
    while psutil.pid_exists(servers[0].pid) and servers[0].alive():  # dies with its parent
        assert time.monotonic() < deadline
        time.sleep(0.02)
    left = group_members(servers[0])
    assert left  # which the kernel does not end
    with lease_block(tmp_path).locks[0]:
        pass
    assert [record.state for record in remove_leftovers(tmp_path)] == ["dead"]
    assert not list(read_records(tmp_path))  # its block may stay unused
    assert not group_members(servers[0])
    assert not any(psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie" for pid in members)


def test_blocks_of_ports_are_leased_to_one_until_all_who_hold_them_are_gone(tmp_path):
    first, second = lease_block(tmp_path), lease_block(tmp_path / "of another user")
    assert abs(first.port - second.port) >= BLOCK_PORTS
    child = subprocess.Popen(["sleep", "1000"], pass_fds=first.descriptors)
    first.release()
    third = lease_block(tmp_path)
    assert third.port not in (first.port, second.port)
    third.release()
    child.kill()
    child.wait()
    again = lease_block(tmp_path)
    assert again.port == first.port
    again.release()
    with socket.create_server(("127.0.0.1", first.port + 5)):
        other = lease_block(tmp_path)
        assert other.port not in (first.port, second.port)
        other.release()
    second.release()


def test_server_whose_port_another_program_took_meanwhile_is_not_mistaken_for_it(tmp_path):
    with (
        supervising(real(tmp_path, "sleep 1000", start_limit_s=1.0)) as supervisor,
        socket.create_server(("127.0.0.1", supervisor.record.port)),
        pytest.raises(ServerError, match="it does not listen after 1 s"),
    ):
        supervisor.ready()


def test_folder_that_others_can_write_to_is_refused(tmp_path):
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(SimulationError, match="not this user's alone"):
        private_folder(folder)


def test_attached_server_has_one_driver_and_is_found_again_when_it_was_started_anew(tmp_path):
    port = lease_block(private_folder(tmp_path / "ports")).port
    command = [sys.executable, "-m", "mcnn_ray", "carla", "serve", "--lite", "--port", str(port)]
    plan = ServerPlan(
        kind="attach", maps=("HighwayLoop",), addresses=(f"127.0.0.1:{port}",), folder=str(tmp_path), **QUICK
    )
    server = subprocess.Popen(command)
    try:
        with supervising(plan) as supervisor:
            supervisor.ready()
            assert supervisor.record.server is None
            with pytest.raises(ServerError, match="in use by other processes"):
                Supervisor(plan)
            server.kill()
            server.wait()
            assert supervisor.fault() == f"nothing listens at 127.0.0.1:{port}"
            server = subprocess.Popen(command)
            supervisor.ready()
        assert server.poll() is None  # not ours to end
    finally:
        server.kill()
        server.wait()


def test_variables_choose_the_servers(tmp_path):
    install(tmp_path, "true")
    assert find_plan("Town04", "HighwayLoop", {}).kind == "lite"
    assert find_plan("Town04", "HighwayLoop", {"CARLA_ROOT": str(tmp_path)}).maps == ("Town04",)
    attached = find_plan("Town04", "HighwayLoop", {"MCNN_CARLA": "a:2000,b:2000", "CARLA_ROOT": str(tmp_path)})
    assert (attached.kind, attached.addresses) == ("attach", ("a:2000", "b:2000"))
    chosen = find_plan(
        "Town04", "HighwayLoop", {"MCNN_CARLA": "lite:own.xodr", "MCNN_CARLA_ARGUMENTS": "--fault silent"}
    )
    assert (chosen.kind, chosen.maps, chosen.map_file, chosen.arguments) == (
        "lite",
        ("own",),
        "own.xodr",
        ("--fault", "silent"),
    )
    with pytest.raises(ConfigError, match="'/opt/none' names no CARLA servers"):
        find_plan("Town04", "HighwayLoop", {"CARLA_ROOT": "/opt/none"})


@pytest.fixture
def leases_of_its_own(monkeypatch):
    """Names and ports that no other test's servers have: theirs would count too."""
    monkeypatch.setattr(ports, "_PREFIX", f"mcnn-ray-test-{os.getpid()}-")
    monkeypatch.setattr(ports, "FIRST_PORT", ports.FIRST_PORT + BLOCK_PORTS * ports._BLOCKS)


def test_servers_are_spread_over_the_gpus(tmp_path, leases_of_its_own):
    plan = real(tmp_path, "exit 0", gpus=2)
    with supervising(plan) as first, supervising(plan) as second:
        cards = [first.record.gpu, second.record.gpu]
        blocks = [first.record.port, second.record.port]
    with (
        supervising(plan) as alone,
        lease_block(tmp_path).locks[0],
        supervising(plan) as beyond,
    ):  # a block between them
        assert sorted([alone.record.gpu, beyond.record.gpu]) == [0, 1]
    assert sorted(cards) == [0, 1]
    for port, card in zip(blocks, cards, strict=True):
        assert {f"-graphicsadapter={card}", f"-carla-rpc-port={port}"} <= set(plan.command(port, card))


def test_next_server_goes_on_the_gpu_with_the_fewest_whatever_ended_before(tmp_path, leases_of_its_own):
    plan = real(tmp_path, "exit 0", gpus=3)
    with contextlib.ExitStack() as stack:
        supervisors = [stack.enter_context(supervising(plan)) for _ in range(6)]
        assert sorted(supervisor.record.gpu for supervisor in supervisors) == [0, 0, 1, 1, 2, 2]
        for supervisor in supervisors:
            if supervisor.record.gpu == 1:
                supervisor.close()
        assert [stack.enter_context(supervising(plan)).record.gpu for _ in range(2)] == [1, 1]


def test_installed_server_of_another_version_is_refused(tmp_path):
    plan = real(tmp_path, "exit 0")
    (tmp_path / "root/VERSION").write_text("0.9.15\n")
    with supervising(plan) as supervisor, pytest.raises(ConfigError, match="holds CARLA 0.9.15"):
        supervisor.ready()


def test_container_is_reached_from_this_machine_alone_and_ended_by_name():
    command = ServerPlan(kind="docker", maps=("Town04",)).command(21000, 1)
    assert command[:6] == ["docker", "run", "--rm", "--name", "mcnn-carla-21000", "--gpus"]
    assert "127.0.0.1:21000-21002:21000-21002" in command
    assert Path(command[0]).name == "docker"


def test_addresses_where_nothing_listens_are_refused_before_anything_runs(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as open_port, socket.create_server(("127.0.0.1", 0)) as other:
        listening = f"127.0.0.1:{open_port.getsockname()[1]}"
        closed = f"127.0.0.1:{other.getsockname()[1]}"
        other.close()
        monkeypatch.setenv("MCNN_CARLA", f"{closed},{listening}")
        check_attached()
        monkeypatch.setenv("MCNN_CARLA", closed)
        with pytest.raises(ConfigError, match=f"nothing listens at {closed}"):
            check_attached()
        with pytest.raises(ConfigError, match=f"nothing listens at {closed}"):
            collect_episodes(find_task("carla-lane-v0"), 1)
    monkeypatch.setenv("MCNN_CARLA", "lite")
    check_attached()
