"""`ray up` and `ray submit` of cluster/local.yaml over ssh, to two machines that are namespaces of this one.

They have a network between them and nothing else, and processes, a home and an ssh server each, so that the file's
commands run as they stand, `ray stop` and port 22 included. What is changed: the addresses, the user, the key, and that
the package is found instead of installed.
"""

import getpass
import os
import secrets
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import yaml

from tests.cluster.checks import ROOT, read
from tests.cluster.conftest import BIN

HOSTS = ("10.77.0.1", "10.77.0.2")
SSHD = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
# Run on the head: the worker is started by Ray's own process there, some time after `ray up` has returned.
WAIT = """import ray, time
ray.init(logging_level=50)
any(len(ray.nodes()) > 1 or time.sleep(1) for _ in range(150))
print(sorted(node["NodeManagerAddress"] for node in ray.nodes()))
"""

# A home and a folder of Ray's own; what Python needs of the real home stays.
HOME = r"""
for kept in $KEPT; do mkdir -p "$1/home/$kept"; mount --bind "$HOME/$kept" "$1/home/$kept"; done
mkdir -p /tmp/ray
mount --rbind "$1/home" "$HOME"
mount --bind "$1/tmp" /tmp/ray
"""
MACHINE = f"""set -e
{HOME}
mkdir -p /mnt/mcnn /run/sshd
mount --bind "$1/../shared" /mnt/mcnn
exec "$3" -D -e -f /dev/null -o ListenAddress="$2" -o HostKey="$1/../host_key" -o PidFile=none -o UsePAM=no \\
  -o AuthorizedKeysFile="$1/../user_key.pub" -o StrictModes=no -o PasswordAuthentication=no
"""
LAUNCHER = f"""set -e
{HOME}
shift
exec "$@"
"""


def kept_of_home():
    """Return the names in the home folder that Python and this project lie under."""
    needed = [Path(place).resolve() for place in (sys.base_prefix, BIN, ROOT)]
    return {place.relative_to(Path.home()).parts[0] for place in needed if place.is_relative_to(Path.home())}


def connected(processes):
    """Make a network namespace for each machine and a cable between them; return the prefixes that enter them."""
    networks = [subprocess.Popen(["unshare", "--net", "sleep", "1000"]) for _ in HOSTS]
    processes += networks
    namespaces = [Path(f"/proc/{network.pid}/ns/net") for network in networks]
    while any(namespace.readlink() == Path("/proc/self/ns/net").readlink() for namespace in namespaces):
        time.sleep(0.01)
    entered = [["nsenter", f"--net={namespace}"] for namespace in namespaces]
    cable = f"ip link add cable type veth peer name cable netns {networks[1].pid}"
    subprocess.run([*entered[0], *cable.split()], check=True)
    for enter, host, other in zip(entered, HOSTS, reversed(HOSTS), strict=True):
        # Ray asks for the way to a public address, without going it, to learn its own.
        setup = f"ip link set lo up; ip addr add {host}/24 dev cable; ip link set cable up"
        subprocess.run([*enter, "sh", "-c", f"{setup}; ip route add default via {other}"], check=True)
    return entered


def skip_where_machines_cannot_be_made():
    for tool in ("unshare", "nsenter", "ssh", "ssh-keygen", "rsync", "ip"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not here")
    if SSHD is None:
        pytest.skip("there is no ssh server here (Debian's openssh-server)")
    if subprocess.run(["unshare", "--net", "--mount", "--pid", "--fork", "true"], capture_output=True).returncode != 0:
        pytest.skip("namespaces are not allowed here")


@pytest.fixture(scope="module")
def machines():
    """A folder with one folder a machine, and a prefix that runs a command in the first one's namespaces."""
    skip_where_machines_cannot_be_made()
    folder = Path(tempfile.mkdtemp(prefix="mcnn-", dir="/var/tmp"))
    environment = {**os.environ, "KEPT": " ".join(kept_of_home())}
    processes = []
    try:
        for key in ("host_key", "user_key"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)], check=True)
        (folder / "shared").mkdir()
        entered = connected(processes)
        for enter, host in zip(entered, HOSTS, strict=True):
            for part in ("home/.ray", "tmp"):
                (folder / host / part).mkdir(parents=True)
            unshared = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
            with (folder / f"{host}.log").open("w") as log:
                command = [*enter, *unshared, "sh", "-c", MACHINE, "sh", str(folder / host), host, SSHD]
                processes.append(subprocess.Popen(command, env=environment, stderr=log))
        (folder / HOSTS[0] / "home" / ".ray" / "auth_token").write_text(secrets.token_hex(16))
        # The launching machine is the first one: it shares its network and its home.
        yield folder, [*entered[0], "unshare", "--mount", "sh", "-c", LAUNCHER, "sh", str(folder / HOSTS[0])]
    finally:
        for process in reversed(processes):
            process.kill()  # and with it the namespace of processes that it is the first of
            process.wait(30)
        shutil.rmtree(folder, ignore_errors=True)


def cluster_file(folder):
    config = read("local.yaml")
    config["provider"] |= {"head_ip": HOSTS[0], "worker_ips": [HOSTS[1]]}
    config["auth"] = {"ssh_user": getpass.getuser(), "ssh_private_key": str(folder / "user_key")}
    commands = config["setup_commands"]
    commands[commands.index("make -C ~/mcnn-ray setup")] = f"ln -sfn {BIN.parent} ~/mcnn-ray/.venv"
    commands.append("echo 'export PYTHONPATH=$HOME/mcnn-ray' >> ~/.mcnn-ray")
    path = folder / "local.yaml"
    path.write_text(yaml.safe_dump(config))
    return str(path)


@pytest.mark.long
def test_cluster_goes_up_on_both_machines_over_ssh_and_runs_a_submitted_sweep(machines, pen_dataset, minari_store):
    folder, prefix = machines
    shutil.copytree(minari_store, folder / "shared" / "minari")
    file = cluster_file(folder)

    def ray(*arguments, timeout):
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        return subprocess.run(
            [*prefix, str(BIN / "ray"), *arguments],
            env={
                **environment,
                "KEPT": " ".join(kept_of_home()),
                "PATH": f"{BIN}:{os.environ['PATH']}",
                "RAY_USAGE_STATS_ENABLED": "0",
            },
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
        )

    up = ray("up", "--yes", "--no-config-cache", file, timeout=240)
    assert up.returncode == 0, up.stdout[-4000:]
    waited = ray("exec", "--no-config-cache", file, f"python -c {shlex.quote(WAIT)}", timeout=200)
    assert str(list(HOSTS)) in waited.stdout, waited.stdout[-3000:]
    flags = ["--task=pen-expert-v1", f"--dataset={pen_dataset}", "--method=bc,1nn", "--steps=20", "--hidden=16"]
    flags += ["--batch-size=32", "--episodes=2", "--name=up", "--storage=/mnt/mcnn/runs"]
    sent = ray("submit", "--no-config-cache", file, "sweeps/lambda_memory.py", "--", *flags, timeout=240)
    assert sent.returncode == 0, sent.stdout[-4000:]
    assert (folder / "shared" / "runs" / "up" / "results.csv").is_file(), sent.stdout[-4000:]
    opened = ray(
        "exec", "--no-config-cache", file, "env | grep ^RAY_AUTH_MODE; grep -c . ~/.ray/auth_token", timeout=60
    )
    assert "RAY_AUTH_MODE=token" in opened.stdout
