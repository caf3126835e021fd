"""A short drive, and its task, for tests of servers and pools: named `tests.carla.short:ShortLane-v0`."""

import gymnasium as gym

from mcnn_ray.tasks.catalogue import Task

gym.register("ShortLane-v0", "mcnn_ray.carla.environment:DrivingEnv", kwargs={"scenario": "lane"})

TASK = Task(
    id="tests.carla.short:ShortLane-v0@tests/lane/short-v0",
    environment="tests.carla.short:ShortLane-v0",
    datasets=("tests/lane/short-v0",),
    horizon=40,
    server="carla",
)
