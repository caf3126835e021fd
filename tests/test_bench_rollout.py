import pytest

from mcnn_ray.bench_inference import bench_inference
from mcnn_ray.bench_rollout import bench_rollout
from mcnn_ray.bench_sweep import bench_sweep
from mcnn_ray.errors import ConfigError


def test_rollouts_are_measured_beside_the_simulator_with_the_same_actions(ray_running):
    seen = []
    found = bench_rollout(
        "pen-expert-v1",
        policies=1,
        episodes=2,
        memories=20,
        actors=1,
        watch=lambda stage, done, total: seen.append(stage),
    )
    assert found["steps"] == 200
    assert found["steps_per_s"] > 0
    assert found["ratio_low"] <= found["ratio"] <= found["ratio_high"]
    assert set(seen) == {"demonstrations", "training, steps", "rollouts and the simulator alone, rounds"}


def test_more_actors_than_processors_are_refused(ray_running):
    with pytest.raises(ConfigError, match="64 actors are asked for, but there are"):
        bench_rollout("pen-expert-v1", policies=1, episodes=1, memories=20, actors=64, watch=lambda *told: None)


@pytest.mark.long
def test_sweep_is_measured_by_trials_and_episodes_that_all_ran(ray_running):
    seen = {}
    found = bench_sweep("pen-expert-v1", trials=3, seed=0, watch=lambda stage, done, total: seen.update({stage: done}))
    assert seen == {"trials": 3, "episodes": 3}
    assert found["seconds_per_trial"] > 0
    assert found["seconds_per_episode"] > 0


def test_sweep_of_no_trials_is_refused():
    with pytest.raises(ConfigError, match="--trials is 0; it must be at least 1"):
        bench_sweep("pen-expert-v1", trials=0, seed=0, watch=lambda *told: None)


def test_inference_tells_the_parts_of_an_action():
    found = bench_inference(50, 8, 300, actions=3, hidden=(16, 16), seed=0)
    assert 0 < found["lookup_median_us"] < found["median_us"] <= found["p99_us"]
    assert found["hidden"] == [16, 16]


@pytest.mark.parametrize("name", ["memories", "dim", "repeats", "actions"])
def test_inference_of_nothing_is_refused(name):
    values = {"memories": 5, "dim": 5, "repeats": 5, "actions": 5, name: 0}
    with pytest.raises(ConfigError, match=f"--{name} is 0; it must be at least 1"):
        bench_inference(**values, hidden=(8,), seed=0)
