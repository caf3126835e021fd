"""What the driving tests do in the process that imports the client: plain values in, plain values out."""

import hashlib
import math
import time

import gymnasium as gym
import numpy as np

from mcnn_ray.carla.environment import DrivingEnv
from mcnn_ray.carla.expert import DrivingExpert
from mcnn_ray.errors import ServerError, SimulationError
from mcnn_ray.tasks.catalogue import CATALOGUE
from mcnn_ray.tasks.driving import register_driving
from mcnn_ray.tasks.environments import normalised_score, simulator_name

FULL, COAST, BRAKE = np.array([1.0, 0.0]), np.array([0.0, 0.0]), np.array([-1.0, 0.0])


def made(task, server):
    register_driving()
    return gym.make(CATALOGUE[task].environment, disable_env_checker=True, server=server)


def digest(env, seed, steps=25):
    """The bytes of an episode's observations and rewards, with random actions, as a hash."""
    rng, hashed = np.random.default_rng(0), hashlib.sha256()
    obs, _ = env.reset(seed=seed)
    for _ in range(steps):
        hashed.update(obs.tobytes())
        obs, reward, *_ = env.step(rng.uniform([0.2, -0.1], [1.0, 0.1]))
        hashed.update(np.float64(reward).tobytes())
    return hashed.hexdigest()


def digests(scenario, server, seeds):
    """Of episodes, the last of them on a new connection."""
    env = DrivingEnv(scenario, server=server)
    found = [digest(env, seed) for seed in seeds[:-1]]
    env.close()
    found.append(digest(env, seeds[-1]))
    env.close()
    return found


def observed(scenario, server):
    env = DrivingEnv(scenario, server=server)
    obs, _ = env.reset(seed=0)
    inside = env.observation_space.contains(obs)
    same = np.array_equal(obs, env.render().reshape(-1).astype(np.float32) / np.float32(255))
    image = env.render()
    env.close()
    return obs.shape, str(obs.dtype), inside, same, image


def watched(scenario, server, seed):
    """The digest of an episode with the camera behind the car, its first view and its last."""
    env = DrivingEnv(scenario, server=server, render_mode="rgb_array")
    env.reset(seed=seed)
    first = env.render()
    hashed = digest(env, seed)
    last = env.render()
    env.close()
    return hashed, first, last


def starts(scenario, server, seeds, strict=False):
    """Poses of the car and of all vehicles, a list a seed."""
    env = DrivingEnv(scenario, server=server, strict=strict)
    found = []
    for seed in seeds:
        env.reset(seed=seed)
        found.append((env.car.pose, [(other.pose, other.extent) for other in env.others]))
    env.close()
    return found


def driven(scenario, server, seed, actions, strict=False):
    """What comes of actions, until the episode ends: states, rewards and infos after the start and after each."""
    env = DrivingEnv(scenario, server=server, strict=strict)
    env.reset(seed=seed)
    steps = [(env.car.pose, env.car.velocity, 0.0, {})]
    for action in actions:
        _, reward, terminated, _, info = env.step(np.asarray(action))
        steps.append((env.car.pose, env.car.velocity, reward, info))
        if terminated:
            break
    env.close()
    return steps


def driven_by_expert(task, server, seeds, steps, noise=True):
    """Return, success, length, ending and whether it braked hard, of the expert's episodes."""
    env = made(task, server)
    expert = DrivingExpert(env)
    found = []
    for seed in seeds:
        obs, _ = env.reset(seed=seed)
        rng = np.random.default_rng((seed, 1))
        expert.begin(rng)
        total, length, braked, over, info = 0.0, 0, 0, False, {}
        while not over and length < steps:
            action = expert.act(obs, rng if noise else None)
            assert env.action_space.contains(action)
            braked += bool(action[0] < -0.5)
            obs, reward, terminated, truncated, info = env.step(action)
            total, length, over = total + reward, length + 1, terminated or truncated
        found.append((total, info["success"], length, info["ending"], braked))
    env.close()
    return found


def crash(server, seeds):
    """Endings, rewards and gaps to the nearest vehicle, of driving on at full throttle where a vehicle is ahead."""
    env = DrivingEnv("lane", server=server)
    found = []
    for seed in seeds:
        env.reset(seed=seed)
        for _ in range(100):
            _, reward, terminated, _, info = env.step(FULL)
            if terminated:
                break
        nearest = min(math.dist(env.car.pose[:2], other.pose[:2]) for other in env.others)
        found.append((info["ending"], reward, nearest))
    env.close()
    return found


def left_behind(server):
    """Of a server's world after an episode: whether it waits for its client, and what is in it."""
    import carla

    env = DrivingEnv("lane", server=server)
    env.reset(seed=0)
    client = carla.Client("127.0.0.1", int(server.split(":")[1]))
    client.set_timeout(5.0)
    world = client.get_world()
    env.step(COAST)  # the other client sees the world at the next frame
    time.sleep(0.2)
    during = world.get_settings().synchronous_mode, len(world.get_actors().filter("vehicle.*"))
    env.close()
    time.sleep(0.2)
    settings, actors = world.get_settings(), world.get_actors()
    return during, (settings.synchronous_mode, len(actors.filter("vehicle.*")) + len(actors.filter("sensor.*")))


def failing(server, steps=60, timeout_s=5.0):
    """An episode's error, how many seconds it took to come, and whether the environment has let go of the server."""
    env = DrivingEnv("lane", server=server, timeout_s=timeout_s)
    started = time.monotonic()
    try:
        env.reset(seed=0)
        for _ in range(steps):
            started = time.monotonic()
            env.step(FULL * 0.3)
    except SimulationError as error:
        took = time.monotonic() - started
        return type(error).__name__, str(error), took, env._connection is None
    return None


def scores(server, task_id, episode_return):
    task = CATALOGUE[task_id]
    env = made(task_id, server)
    env.reset(seed=0)
    found = normalised_score(task, env, episode_return), simulator_name(task, env)
    env.close()
    return found


def failing_then_driving(failing_server, server):
    """Digests of an episode after a failed one, on another server, and on that server alone."""
    env = DrivingEnv("lane", server=failing_server, timeout_s=5.0)
    try:
        digest(env, 5)
        return None
    except ServerError:
        env.server = server
    again = digest(env, 5)
    env.close()
    alone = DrivingEnv("lane", server=server)
    found = again, digest(alone, 5)
    alone.close()
    return found


def replayed(server):
    """The return of the recorded actions of `mcnn/driving/lane-v0`, given again."""
    from mcnn_ray.data.minari_store import read_minari

    recorded = read_minari("mcnn/driving/lane-v0")
    env = made("carla-lane-v0", server)
    obs, _ = env.reset(seed=3)
    rewards = []
    for seen, action in zip(recorded.observations_ND, recorded.actions_NA, strict=True):
        assert np.array_equal(obs, seen)
        obs, reward, *_ = env.step(action)
        rewards.append(np.float32(reward))
    env.close()
    return np.float32(np.sum(rewards, dtype=np.float64))


def rolled_out(server):
    """The record of an episode of a policy that brakes."""
    from mcnn_ray.core.normalise import ActionScale, Standardiser
    from mcnn_ray.policies.nearest import NearestPolicy
    from mcnn_ray.rollout.episode import run_episodes

    env = made("carla-lane-v0", server)
    seen = np.random.default_rng(0).random((2, 6912), dtype=np.float32)
    standardiser, ones = Standardiser.fit(seen), np.ones(2, np.float32)
    brakes = np.array([[-1.0, 0.0]] * 2, np.float32)
    policy = NearestPolicy(
        {"task": "t"}, standardiser, ActionScale(low_A=-ones, high_A=ones), standardiser(seen), brakes
    )
    (rollout,) = run_episodes(policy, CATALOGUE["carla-lane-v0"], [env], [7], "m")
    env.close()
    return rollout.record
