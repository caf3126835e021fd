"""What is wrong with a cluster file: Ray's own checker, and what it lets through."""

import json
import re
from pathlib import Path

import click
import jsonschema
import yaml
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
STORAGE = "/mnt/mcnn"
INSTANCE = {"aws": "InstanceType", "gcp": "machineType"}
SECRET = re.compile(r"(?i)\b\w*(?:password|secret|token|_key)\s*[=:]\s*(?!\s|~|\$|%)(['\"]?[\w+/-]{8,})")


def pinned(name):
    """Return a package's version in constraints.txt."""
    return re.search(rf"^{re.escape(name)}==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)[1]


def every(value, key=None):
    """Yield all (key, value) of a YAML tree's leaves."""
    if isinstance(value, dict):
        for name, below in value.items():
            yield from every(below, name)
    elif isinstance(value, list):
        for below in value:
            yield from every(below, key)
    else:
        yield key, value


def text_of(config):
    return "\n".join(f"{key}: {value}" for key, value in every(config))


def common_problems(config):
    """Yield what is wrong in any file: versions left open, secrets written down."""
    for key, value in every(config):
        if key in ("image", "head_image", "worker_image") and re.search(r":latest$|^[^:]+$", value):
            yield f"image {value} has no version"
    for line in text_of(config).splitlines():
        for part in re.findall(r"pip install ([^&;|]+)", line):
            if "constraint" not in part and "--no-deps" not in part and "==" not in part:
                yield f"pip install {part} leaves versions open"
        if SECRET.search(line):
            yield f"a secret is written down: {line}"


def launcher_problems(config):
    """Yield what is wrong with a file for `ray up`."""
    yield from common_problems(config)
    yield from schema_problems(config)
    text = text_of(config)
    if not config.get("idle_timeout_minutes"):
        yield "idle_timeout_minutes is not set"
    if "RAY_AUTH_MODE=token" not in text:
        yield "Ray's token is not asked for"
    if "auth_token" not in str(config.get("file_mounts")):
        yield "nodes are not given the token"
    starts = " ".join(config.get("head_start_ray_commands") or [])
    if "--dashboard-host=127.0.0.1" not in starts or "0.0.0.0" in text:
        yield "the dashboard is open to the network"
    if config["provider"]["type"] == "aws" and "GroupName" not in str(config["provider"].get("security_group")):
        yield "no security group is named: Ray makes one that is open to ssh from everywhere"
    yield from image_problems(config)
    yield from node_problems(config)


def schema_problems(config):
    try:
        from ray.autoscaler._private.util import prepare_config, validate_config
    except ImportError:
        return  # private: another Ray may have it elsewhere
    try:
        validate_config(prepare_config(json.loads(json.dumps(config))))
    except (jsonschema.ValidationError, ValueError, RuntimeError, click.ClickException) as error:
        yield f"Ray: {str(error).splitlines()[0]}"


def image_problems(config):
    kinds = config.get("available_node_types") or {}
    images = [config.get("docker", {}).get("image")] + [
        kind.get("docker", {}).get("worker_image") for kind in kinds.values()
    ]
    for image in filter(None, images):
        if not image.startswith(f"rayproject/ray:{pinned('ray')}-py311"):
            yield f"image {image} is not of Ray {pinned('ray')} and Python 3.11"
    if config["provider"]["type"] == "local":
        if "make -C ~/mcnn-ray setup" not in config.get("setup_commands", []):
            yield "the package is not installed"
    elif not images[0]:
        yield "no image is named"
    elif "~/mcnn-ray/constraints.txt" not in str(config.get("setup_commands")):
        yield "the package is not installed from constraints.txt"


def node_problems(config):
    for legacy in ("head_node", "worker_nodes"):
        if legacy in config:
            yield f"{legacy} is of an old format, which Ray may drop without a word"
    yield from local_problems(config) if config["provider"]["type"] == "local" else kind_problems(config)


def local_problems(config):
    if not config["provider"].get("worker_ips"):
        yield "there are no workers"
    if f"test -d {STORAGE}" not in config.get("setup_commands", []):
        yield "there is no shared storage"


def kind_problems(config):
    instance = INSTANCE[config["provider"]["type"]]
    kinds = config.get("available_node_types") or {}
    workers = {name: kind for name, kind in kinds.items() if name != config.get("head_node_type")}
    for wanted in ("CPU", "GPU", "carla"):
        if not any(kind["resources"].get(wanted) for kind in workers.values()):
            yield f"no kind of worker offers {wanted}"
    for name, kind in kinds.items():
        if not kind["node_config"].get(instance):
            yield f"{name} has no {instance}"
        commands = kind.get("initialization_commands", config.get("initialization_commands")) or []
        if not any("mount -t nfs" in command and STORAGE in command for command in commands):
            yield f"{name} does not mount the shared storage"
        if name in workers and not kind.get("max_workers"):
            yield f"{name} never has a node"
    if f"--volume {STORAGE}:{STORAGE}" not in config.get("docker", {}).get("run_options", []):
        yield "containers do not see the shared storage"


def rayjob_problems(config):
    """Yield what is wrong with a KubeRay RayJob."""
    yield from common_problems(config)
    schema = json.loads((Path(__file__).parent / "rayjob.schema.json").read_text())
    for error in jsonschema.Draft202012Validator(schema).iter_errors(config):
        yield f"schema: {'.'.join(map(str, error.path))}: {error.message}"
    cluster = config["spec"].get("rayClusterSpec", {})
    if cluster.get("rayVersion") != pinned("ray"):
        yield f"rayVersion is not {pinned('ray')}"
    if cluster.get("authOptions", {}).get("mode") != "token" and "0.0.0.0" in text_of(config):
        yield "the dashboard is open to the network without a token"
    if f"--storage {STORAGE}/" not in config["spec"].get("entrypoint", ""):
        yield "results are not written to the shared storage"
    for group in [cluster.get("headGroupSpec", {}), *cluster.get("workerGroupSpecs", [])]:
        container = group["template"]["spec"]["containers"][0]
        if not re.search(rf"-ray{re.escape(pinned('ray'))}(-gpu)?$", container["image"]):
            yield f"image {container['image']} does not name Ray {pinned('ray')}"
        if STORAGE not in [mount["mountPath"] for mount in container.get("volumeMounts", [])]:
            yield f"{container['name']} does not mount the shared storage"


def mlflow_problems(config):
    """Yield what is wrong with the MLflow server's compose file."""
    yield from common_problems(config)
    for name, service in config["services"].items():
        for port in service.get("ports", []):
            if not str(port).startswith("127.0.0.1:"):
                yield f"{name} opens port {port} to the network"
        for key, value in (service.get("environment") or {}).items():
            if re.search("PASSWORD|SECRET|KEY|STORE_URI", key) and not re.search(r"\$\{\w+:\?\}", str(value)):
                yield f"{name}: {key} is not taken from the environment"
    server = config["services"]["mlflow"]
    if not server["image"].endswith(f":{pinned('mlflow')}"):
        yield f"the image is not of mlflow {pinned('mlflow')}"
    if not re.search(r"--allowed-hosts [^*]+$", server["command"]):
        yield "the server answers to any host name"
    if "s3://" not in server["command"] or "postgresql://" not in str(server["environment"]):
        yield "there is no database or object store"


def containerfile_problems(text):
    """Yield what is wrong with the container file's versions."""
    for package in ("mlflow", "ray"):
        for found in re.findall(rf"(?<![-\w]){package}(?:==|:)(\d[\w.]*)", text):
            if found != pinned(package):
                yield f"{package} {found} is not {pinned(package)}"
    if ":latest" in text or re.search(r"^FROM [^:$\s]+(\s|$)", text, re.MULTILINE):
        yield "a base image has no version"
    for line in text.replace("\\\n", " ").splitlines():
        for part in re.findall(r"pip install ([^&]+)", line):
            if "constraint" not in part and "--no-deps" not in part:
                yield f"pip install {part} leaves versions open"


def ray_range():
    """Return what pyproject.toml asks of Ray."""
    import tomllib

    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    return next(Requirement(line).specifier for line in wanted if line.startswith("ray["))


def read(name):
    return yaml.safe_load((ROOT / "cluster" / name).read_text())
