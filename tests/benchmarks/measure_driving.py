"""What the driving expert, or random actions, earn on a server, why their episodes end, and how fast they run.

Prints one line of JSON: means with 95 % intervals, endings, and steps a second. For example, beside
`mcnn carla serve --lite --map HighwayLoop --port 2000`:

    python tests/benchmarks/measure_driving.py carla-lane-v0 127.0.0.1:2000 --episodes 50
"""

import argparse
import collections
import json
import time
from dataclasses import asdict

import gymnasium as gym
import numpy as np

from mcnn_ray.carla.expert import DrivingExpert
from mcnn_ray.stats import mean_interval, rate_interval
from mcnn_ray.tasks.catalogue import CATALOGUE
from mcnn_ray.tasks.driving import register_driving


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("task", choices=[name for name in CATALOGUE if name.startswith("carla-")])
    parser.add_argument("server")
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--seed", type=int, default=3_000_000)
    parser.add_argument("--random", action="store_true", help="Uniform actions instead of the expert's.")
    parser.add_argument("--no-noise", action="store_true", help="The expert without its noise.")
    flags = parser.parse_args()
    register_driving()
    env = gym.make(CATALOGUE[flags.task].environment, disable_env_checker=True, server=flags.server)
    expert = DrivingExpert(env)
    returns, lengths, successes, endings, braking = [], [], [], collections.Counter(), 0
    env.reset(seed=flags.seed)
    stepping = resetting = cpu = 0.0
    for seed in range(flags.seed, flags.seed + flags.episodes):
        started = time.perf_counter()
        obs, _ = env.reset(seed=seed)
        resetting += time.perf_counter() - started
        rng = np.random.default_rng((seed, 1))
        expert.begin(rng)
        total, length, done, info = 0.0, 0, False, {}
        started, busy = time.perf_counter(), time.process_time()
        while not done:
            action = rng.uniform(-1.0, 1.0, 2) if flags.random else expert.act(obs, None if flags.no_noise else rng)
            braking += bool(action[0] < -0.5)
            obs, reward, terminated, truncated, info = env.step(action)
            total, length, done = total + reward, length + 1, terminated or truncated
        stepping, cpu = stepping + time.perf_counter() - started, cpu + time.process_time() - busy
        returns.append(total)
        lengths.append(length)
        successes.append(info["success"])
        endings[info["ending"] or "horizon"] += 1
    name = env.unwrapped.simulator
    env.close()
    print(
        json.dumps(
            {
                "task": flags.task,
                "simulator": name,
                "driver": "random" if flags.random else "expert",
                "episodes": flags.episodes,
                "seeds": [flags.seed, flags.seed + flags.episodes - 1],
                "return": asdict(mean_interval(np.array([returns]))),
                "return_sd": float(np.std(returns)),
                "success": asdict(rate_interval(sum(successes), len(successes))),
                "endings": dict(endings),
                "mean_length": float(np.mean(lengths)),
                "braking_share": braking / sum(lengths),
                "steps_per_s": sum(lengths) / stepping,
                "client_cpu_ms_a_step": 1e3 * cpu / sum(lengths),
                "reset_s": resetting / flags.episodes,
            }
        )
    )


if __name__ == "__main__":
    main()
