"""Rollouts, published numbers and curves of the size of a real report, made up."""

import numpy as np
import pandas as pd

TASKS = ("pen-human-v1", "pen-expert-v1", "door-human-v1", "door-expert-v1")
METHODS = ("bc", "1nn", "vinn", "cql-sparse", "ibc", "bet", "mcnn+bet", "mcnn+mlp")
LEVEL = {**dict(zip(METHODS, (60, 45, 50, 10, 40, 35, 48, 80), strict=True)), "diff": 55}


def rollouts(tasks=TASKS, methods=METHODS, settings=("fixed",), seeds=2, starts=20, steps=20_000):
    rng = np.random.default_rng(0)
    rows = []
    for t, task in enumerate(tasks):
        hardness = rng.normal(0, 12, starts)
        for method in methods:
            for s, setting in enumerate(settings):
                for seed in range(seeds):
                    level = LEVEL[method] - 9 * t + 4 * s + rng.normal(0, 4)
                    for k in range(starts):
                        score = level + hardness[k] + rng.normal(0, 8)
                        rows.append(
                            {
                                "task": task,
                                "method": method,
                                "setting": setting,
                                "training_seed": seed,
                                "episode_seed": 1_000_000 + k,
                                "steps": 0 if method in ("1nn", "vinn") else steps,
                                "return": 30 * score,
                                "score": score,
                                "success": bool(score > 50),
                            }
                        )
    return pd.DataFrame(rows)


def paper(tasks=TASKS, methods=METHODS, settings=("fixed",)):
    rows = [
        {
            "task": task,
            "method": method,
            "setting": setting,
            "metric": metric,
            "mean": scale * (LEVEL.get(method, 30) - 9 * t + 3),
            "std": scale * 4.0 if method != "d4rl-bc" else np.nan,
            "source": "Table 1",
            "note": "",
        }
        for t, task in enumerate(tasks)
        for method in ("d4rl-bc", *methods)
        for setting in settings
        for metric, scale in (("return", 30.0), ("score", 1.0))
    ]
    return pd.DataFrame(rows)


def lacking(*rows):
    return pd.DataFrame(rows, columns=["task", "method", "setting", "reason", "command"])


def learning_curves(tasks=TASKS, methods=("bc", "mcnn+mlp"), seeds=2):
    rng = np.random.default_rng(1)
    return pd.DataFrame(
        [
            {"task": task, "method": method, "setting": "fixed", "training_seed": seed, "step": step, "score": score}
            for task in tasks
            for method in methods
            for seed in range(seeds)
            for step in range(0, 20_001, 2_000)
            for score in [LEVEL[method] * (1 - np.exp(-step / 4000)) + rng.normal(0, 3)]
        ]
    )
