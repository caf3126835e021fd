"""The direction of imports, and what may be imported on a bare GPU machine."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "mcnn_ray"
BARE = ("core", "policies", "encoders", "training", "terminal.py", "errors.py", "artifacts.py", "member.py")
ALLOWED = {"torch", "numpy", "scipy", "pandas", "safetensors", "typer", "rich", "mcnn_ray", *sys.stdlib_module_names}


def imported(path):
    """Top-level modules that a file imports anywhere, inside functions too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.module.split(".")[0]


@pytest.mark.parametrize("part", BARE)
def test_part_imports_only_what_a_bare_machine_has(part):
    path = PACKAGE / part
    for file in [path] if path.is_file() else path.rglob("*.py"):
        schedules = {"diffusers"} if file.name == "noise.py" else set()
        assert set(imported(file)) <= ALLOWED | schedules, file


def test_core_imports_torch_numpy_and_scipy_only():
    for file in (PACKAGE / "core").rglob("*.py"):
        assert set(imported(file)) <= {"torch", "numpy", "scipy", "mcnn_ray", *sys.stdlib_module_names}, file


def test_ray_and_mlflow_are_imported_in_few_places():
    users = {"ray": set(), "mlflow": set()}
    for file in PACKAGE.rglob("*.py"):
        for module in set(imported(file)) & users.keys():
            users[module].add(file.relative_to(PACKAGE).as_posix())
    assert users["mlflow"] == {"policy_model.py", "promotion.py", "registry.py", "served_policy.py", "tracking.py"}
    assert users["ray"] == {
        "bench_rollout.py",
        "rollout/actor.py",
        "rollout/pool.py",
        "sweep/cluster.py",
        "sweep/shared_storage.py",
        "sweep/training.py",
        "sweep/workers.py",
    }


def test_processes_that_roll_out_or_keep_steps_start_without_torch():
    program = "import sys, mcnn_ray.bench_rollout, mcnn_ray.tasks.environments, mcnn_ray.sweep.progress\n"
    program += "sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_environments_are_made_without_what_the_extras_install():
    blocked = ("carla", "msgpack", "numba", "PIL", "diffusers", "onnx", "onnxruntime")
    program = f"import sys; sys.modules.update(dict.fromkeys({blocked!r}))\n"
    program += "import mcnn_ray.tasks.environments, mcnn_ray.carla.scenarios, mcnn_ray.carla.reward\n"
    subprocess.run([sys.executable, "-c", program], check=True)
