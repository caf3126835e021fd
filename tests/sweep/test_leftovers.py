import os

from mcnn_ray.config import SweepConfig
from mcnn_ray.sweep.runner import run_sweep


def test_start_of_a_sweep_removes_what_killed_writers_left(pen_dataset, ray_running, tmp_path):
    values = {"task": "pen-expert-v1", "dataset": pen_dataset, "method": "1nn", "episodes": 1, "name": "s"}
    config = SweepConfig.parse(values, "tests")
    young, own = tmp_path / "cache" / ".c.0123abcd.tmp", tmp_path / "s" / "members" / ".m.0123abcd.tmp"
    old = tmp_path / "cache" / ".d.0123abcd.tmp"
    for path in (young, own, old):
        path.mkdir(parents=True)
    os.utime(old, (0, 0))
    run_sweep(config, tmp_path)
    assert young.exists()
    assert not own.exists()
    assert not old.exists()
