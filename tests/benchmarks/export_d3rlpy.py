"""Hold a Minari dataset as d3rlpy reads it against the same dataset as plain Minari gives it.

python export_d3rlpy.py DATASET [STEPS]

DATASET is one that `mcnn data export`, `collect` or `import` wrote; MINARI_DATASETS_PATH names its store. Runs without
mcnn-ray, where d3rlpy 2.8.1 (which pins gymnasium 1.0.0), minari and gymnasium-robotics are installed. Prints a line of
JSON; with STEPS it also clones for so many steps. The exit status is 1 where the episodes differ.

Minari stores one observation more than actions: the one after the last action. An `MDPDataset` has as many as actions,
so the last is left out here. d3rlpy's own `get_minari` joins all observations to all actions instead, which moves those
of episode e by e rows: `get_minari_rows_moved` counts the rows where it so gives an action another observation.
"""

import json
import sys
import warnings

import d3rlpy
import gymnasium
import gymnasium_robotics
import minari
import numpy as np


def read(dataset: str) -> tuple["minari.MinariDataset", d3rlpy.dataset.MDPDataset]:
    """Return the dataset of plain Minari, and as d3rlpy takes it."""
    plain = minari.load_dataset(dataset)
    episodes = list(plain.iterate_episodes())
    joined = {
        "observations": np.concatenate([episode.observations[:-1] for episode in episodes]),
        "actions": np.concatenate([episode.actions for episode in episodes]),
        "rewards": np.concatenate([episode.rewards for episode in episodes]),
        "terminals": np.concatenate([episode.terminations for episode in episodes]),
        "timeouts": np.concatenate([episode.truncations for episode in episodes]),
    }
    return plain, d3rlpy.dataset.MDPDataset(**joined)


def differences(plain: "minari.MinariDataset", taken: d3rlpy.dataset.MDPDataset) -> list[str]:
    """Return what differs between the episodes of both."""
    found = [] if len(taken.episodes) == plain.total_episodes else ["number of episodes"]
    for episode, other in zip(plain.iterate_episodes(), taken.episodes, strict=False):
        same = {
            "observations": np.array_equal(episode.observations[:-1], other.observations),
            "actions": np.array_equal(episode.actions, other.actions),
            "rewards": np.array_equal(episode.rewards, other.rewards.ravel()),
            "terminated": bool(episode.terminations[-1]) == bool(other.terminated),
        }
        found += [f"episode {episode.id}: {name}" for name, equal in same.items() if not equal]
    return found


def rows_moved(dataset: str, taken: d3rlpy.dataset.MDPDataset) -> int:
    """Return in how many rows d3rlpy's own reader gives an action another observation."""
    joined = np.concatenate([episode.observations for episode in taken.episodes])
    moved = np.concatenate([episode.observations for episode in d3rlpy.datasets.get_minari(dataset)[0].episodes])
    return int((joined != moved[: len(joined)]).any(1).sum())


def main() -> int:
    """Compare, and clone where asked."""
    warnings.simplefilter("ignore")
    gymnasium.register_envs(gymnasium_robotics)
    dataset = sys.argv[1]
    plain, taken = read(dataset)
    found = differences(plain, taken)
    facts = {
        "episodes": len(taken.episodes),
        "transitions": int(taken.transition_count),
        "environment": str(plain.recover_environment().unwrapped.spec.id),
        "provenance": sorted(plain.storage.metadata["mcnn_provenance"]),
        "differences": found,
        "get_minari_rows_moved": rows_moved(dataset, taken),
        "versions": {module.__name__: module.__version__ for module in (d3rlpy, gymnasium, minari)},
    }
    if len(sys.argv) > 2:
        cloning = d3rlpy.algos.BCConfig().create()
        quiet = {"logger_adapter": d3rlpy.logging.NoopAdapterFactory(), "show_progress": False}
        steps = int(sys.argv[2])
        ((_, metrics),) = cloning.fit(taken, n_steps=steps, n_steps_per_epoch=steps, **quiet)
        facts["cloning_loss"] = metrics["loss"]
    print(json.dumps(facts))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
