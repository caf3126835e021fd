"""The cluster files hold what they promise; each promise is broken once in a copy, which is then refused."""

import copy

import pytest

from tests.cluster.checks import (
    ROOT,
    containerfile_problems,
    launcher_problems,
    mlflow_problems,
    pinned,
    ray_range,
    rayjob_problems,
    read,
)

LAUNCHERS = ("aws.yaml", "gcp.yaml", "local.yaml")


@pytest.mark.parametrize("name", LAUNCHERS)
def test_launcher_files_have_no_fault(name):
    assert list(launcher_problems(read(name))) == []


def test_rayjob_has_no_fault():
    assert list(rayjob_problems(read("rayjob.yaml"))) == []


def test_tracking_server_has_no_fault():
    assert list(mlflow_problems(read("mlflow.yaml"))) == []


def test_container_file_has_no_fault():
    assert list(containerfile_problems((ROOT / "cluster" / "Containerfile").read_text())) == []


def test_pinned_ray_is_in_the_range_of_the_package_and_the_one_that_runs_here():
    import ray

    assert ray_range().contains(pinned("ray"))
    assert ray.__version__ == pinned("ray")


def broken(name, path, value):
    """Return a file's content with one value set, or taken out when it is None."""
    config = copy.deepcopy(read(name))  # without the aliases of YAML
    place = config
    for part in path[:-1]:
        place[part] = copy.deepcopy(place[part])
        place = place[part]
    if value is None:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return config


KINDS = "available_node_types"


@pytest.mark.parametrize(
    ("name", "path", "value", "said"),
    [
        ("aws.yaml", ["idle_timeout_minute"], 5, "Ray: Additional properties are not allowed"),
        ("aws.yaml", [KINDS, "training", "resources", "GPU"], 0.5, "Ray: 0.5 is not of type 'integer'"),
        ("gcp.yaml", ["head_node_type"], "boss", "Ray: `head_node_type` must be one of"),
        ("gcp.yaml", [KINDS, "rollout", "min_workers"], 99, "Ray: The specified global `max_workers` is smaller"),
        ("aws.yaml", [KINDS, "rollout", "node_config"], {"InstanceTyp": "zz"}, "rollout has no InstanceType"),
        ("gcp.yaml", [KINDS, "head", "node_config", "machineType"], "", "head has no machineType"),
        ("aws.yaml", ["docker", "image"], "rayproject/ray:2.59.0-py311-cpu", "is not of Ray 2.60.0 and Python 3.11"),
        ("aws.yaml", ["docker", "image"], "rayproject/ray:2.60.0-py312-cpu", "is not of Ray 2.60.0 and Python 3.11"),
        ("gcp.yaml", ["docker", "image"], "rayproject/ray:latest", "image rayproject/ray:latest has no version"),
        ("gcp.yaml", [KINDS, "training", "docker", "worker_image"], "rayproject/ray:2.9.0-gpu", "is not of Ray 2.60.0"),
        ("gcp.yaml", ["docker"], {"run_options": ["--volume /mnt/mcnn:/mnt/mcnn"]}, "no image is named"),
        ("aws.yaml", ["setup_commands"], ["pip install mcnn-ray"], "pip install mcnn-ray leaves versions open"),
        ("local.yaml", ["setup_commands"], ["test -d /mnt/mcnn"], "the package is not installed"),
        ("aws.yaml", ["head_start_ray_commands"], ["ray start --head --dashboard-host=0.0.0.0"], "dashboard is open"),
        ("local.yaml", ["head_start_ray_commands"], ["ray start --head"], "the dashboard is open to the network"),
        ("gcp.yaml", ["docker", "run_options"], ["--volume /mnt/mcnn:/mnt/mcnn"], "Ray's token is not asked for"),
        ("aws.yaml", ["file_mounts"], {"~/mcnn-ray": "."}, "nodes are not given the token"),
        ("aws.yaml", ["provider", "security_group"], None, "open to ssh from everywhere"),
        ("aws.yaml", ["docker", "head_run_options"], ["--env RAY_AUTH_TOKEN=0123456789abcdef"], "a secret is written"),
        ("aws.yaml", ["idle_timeout_minutes"], None, "idle_timeout_minutes is not set"),
        ("aws.yaml", ["initialization_commands"], ["true"], "training does not mount the shared storage"),
        ("gcp.yaml", [KINDS, "driving", "initialization_commands"], ["true"], "driving does not mount the shared"),
        ("gcp.yaml", ["docker", "run_options"], ["--env RAY_AUTH_MODE=token"], "containers do not see the shared"),
        ("local.yaml", ["setup_commands"], ["make -C ~/mcnn-ray setup"], "there is no shared storage"),
        ("aws.yaml", [KINDS, "rollout", "max_workers"], 0, "rollout never has a node"),
        ("aws.yaml", ["worker_nodes"], {}, "worker_nodes is of an old format"),
        ("local.yaml", ["provider", "worker_ips"], [], "there are no workers"),
        ("local.yaml", ["available_node_types"], {"head": {}}, "Ray: The field available_node_types"),
        ("gcp.yaml", [KINDS, "driving", "resources"], {"CPU": 8}, "no kind of worker offers carla"),
        ("gcp.yaml", [KINDS, "training", "resources"], {"CPU": 8}, "no kind of worker offers GPU"),
    ],
)
def test_launcher_file_with_a_fault_is_refused(name, path, value, said):
    assert any(said in problem for problem in launcher_problems(broken(name, path, value)))


CLUSTER = ["spec", "rayClusterSpec"]
CONTAINER = [*CLUSTER, "workerGroupSpecs", 1, "template", "spec", "containers", 0]


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (["apiVersion"], "ray.io/v1alpha1", "'ray.io/v1' was expected"),
        (["spec", "shutdownAfterJobFinished"], True, "'shutdownAfterJobFinished' was unexpected"),
        (["spec", "shutdownAfterJobFinishes"], None, "'shutdownAfterJobFinishes' is a required property"),
        (["spec", "activeDeadlineSeconds"], 0, "0 is less than the minimum of 1"),
        (["spec", "submissionMode"], "Job", "'Job' is not one of"),
        (["spec", "entrypoint"], "mcnn sweep --storage runs", "not written to the shared storage"),
        ([*CLUSTER, "rayVersion"], "2.59.0", "rayVersion is not 2.60.0"),
        ([*CLUSTER, "authOptions", "mode"], "disabled", "open to the network without a token"),
        ([*CLUSTER, "autoscalerOptions"], {}, "'idleTimeoutSeconds' is a required property"),
        ([*CLUSTER, "workerGroupSpecs"], [], "should be non-empty"),
        ([*CLUSTER, "headGroupSpec", "serviceType"], "LoadBalancer", "'ClusterIP' was expected"),
        ([*CLUSTER, "headGroupSpec", "rayStartParams", "num-cpus"], 0, "0 is not of type 'string'"),
        ([*CONTAINER, "image"], "mcnn-ray:latest", "does not name Ray 2.60.0"),
        ([*CONTAINER, "resources", "limits", "nvidia.com/gpu"], "0.5", "'0.5' does not match"),
        ([*CONTAINER, "volumeMounts"], [], "ray-worker does not mount the shared storage"),
        ([*CONTAINER, "imagePolicy"], "Always", "'imagePolicy' was unexpected"),
    ],
)
def test_rayjob_with_a_fault_is_refused(path, value, said):
    assert any(said in problem for problem in rayjob_problems(broken("rayjob.yaml", path, value)))


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (["services", "mlflow", "ports"], ["5000:5000"], "mlflow opens port 5000:5000 to the network"),
        (["services", "postgres", "ports"], ["0.0.0.0:5432:5432"], "postgres opens port"),
        (["services", "postgres", "environment", "POSTGRES_PASSWORD"], "mlflow", "not taken from the environment"),
        (["services", "mlflow", "image"], "mcnn-ray-mlflow:3.16.0", "the image is not of mlflow 3.17.2"),
        (["services", "objects", "image"], "rustfs/rustfs:latest", "image rustfs/rustfs:latest has no version"),
        (["services", "mlflow", "command"], "mlflow server --allowed-hosts *", "answers to any host name"),
        (["services", "mlflow", "command"], "mlflow server --allowed-hosts x", "no database or object store"),
    ],
)
def test_tracking_server_with_a_fault_is_refused(path, value, said):
    assert any(said in problem for problem in mlflow_problems(broken("mlflow.yaml", path, value)))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("FROM python", "a base image has no version"),
        ("FROM rayproject/ray:2.59.0-py311", "ray 2.59.0 is not 2.60.0"),
        ("RUN pip install --constraint c.txt mlflow==3.1.0", "mlflow 3.1.0 is not 3.17.2"),
        ("RUN pip install boto3", "leaves versions open"),
    ],
)
def test_container_file_with_a_fault_is_refused(line, said):
    assert any(said in problem for problem in containerfile_problems(line + "\n"))
