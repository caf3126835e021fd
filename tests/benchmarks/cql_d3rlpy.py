"""d3rlpy's CQL for `compare_cql.py`: its losses from given weights on given batches, or the actor that it trains.

python cql_d3rlpy.py losses|train IN.npz OUT.npz
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import d3rlpy
import numpy as np
import torch


def make(asked: dict[str, Any], dim: int, actions: int) -> Any:
    """Return d3rlpy's algorithm with the hyperparameters asked for, its networks made."""
    encoder = d3rlpy.models.VectorEncoderFactory(asked["hidden"])
    algorithm = d3rlpy.algos.CQLConfig(
        batch_size=asked["batch_size"],
        actor_learning_rate=asked["learning_rate"],
        temp_learning_rate=asked["learning_rate"],
        critic_learning_rate=asked["critic_learning_rate"],
        alpha_learning_rate=asked["critic_learning_rate"] if asked["lagrange"] else 0.0,
        actor_encoder_factory=encoder,
        critic_encoder_factory=encoder,
        initial_alpha=asked["alpha"],
        alpha_threshold=asked["lagrange"],
        conservative_weight=1.0,
        n_action_samples=asked["action_samples"],
    ).create(device="cpu")
    algorithm.create_impl((dim,), actions)
    return algorithm


def load(module: torch.nn.Module, arrays: list[np.ndarray]) -> None:
    """Write arrays into a module's parameters, in their order."""
    for parameter, array in zip(module.parameters(), arrays, strict=True):
        parameter.data.copy_(torch.from_numpy(array))


def losses(asked: dict[str, Any], given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Take steps from given weights on given batches; return each step's losses and the weights at the end."""
    impl = make(asked, given["observations"].shape[2], given["actions"].shape[2]).impl
    modules = impl.modules
    places = {"actor": modules.policy, "critics": modules.q_funcs, "targets": modules.targ_q_funcs}
    for name, module in places.items():
        load(module, [given[f"{name}.{i}"] for i in range(len(list(module.parameters())))])
    alpha_losses: list[float] = []
    update_alpha = impl.update_alpha

    def noted(conservative: torch.Tensor) -> None:
        alpha = next(modules.log_alpha.parameters()).exp().detach().clamp(0, 1e6)
        alpha_losses.append(float(-(alpha * conservative).mean()))
        update_alpha(conservative)

    impl.update_alpha = noted
    rows = []
    for step, seed in enumerate(given["seeds"]):
        obs, action, next_obs, end = (
            torch.from_numpy(given[key][step]) for key in ("observations", "actions", "next_observations", "ends")
        )
        batch = d3rlpy.torch_utility.TorchMiniBatch(
            observations=obs,
            actions=action,
            rewards=end[:, None],
            next_observations=next_obs,
            next_actions=action,
            returns_to_go=end[:, None],
            terminals=end[:, None],
            intervals=torch.ones_like(end)[:, None],
            device="cpu",
        )
        torch.manual_seed(int(seed))
        told = impl.inner_update(batch, step)
        rows.append(
            {
                "td": told["critic_loss"] - told["conservative_loss"],
                "conservative": told["conservative_loss"],
                "temperature": told["temp_loss"],
                "actor": told["actor_loss"],
            }
        )
    found = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    found |= {"alpha": np.array(alpha_losses)} if alpha_losses else {}
    for name, module in places.items():
        found |= {f"{name}.{i}": p.detach().numpy() for i, p in enumerate(module.parameters())}
    return found


def train(asked: dict[str, Any], given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Train on episodes as d3rlpy does; return the layers up to the actor's mean."""
    d3rlpy.seed(asked["seed"])
    dataset = d3rlpy.dataset.MDPDataset(
        given["observations"], given["actions"], given["ends"], given["ends"], given["cut"]
    )
    algorithm = make(asked, given["observations"].shape[1], given["actions"].shape[1])
    quiet = {"logger_adapter": d3rlpy.logging.NoopAdapterFactory(), "show_progress": False}
    algorithm.fit(dataset, n_steps=asked["steps"], n_steps_per_epoch=asked["steps"], **quiet)
    policy = algorithm.impl.modules.policy
    linears = [layer for layer in policy._encoder.modules() if isinstance(layer, torch.nn.Linear)]
    found = {}
    for i, layer in enumerate([*linears, policy._mu]):
        found[f"layers.{i}.weight"] = np.ascontiguousarray(layer.weight.detach().numpy().T)
        found[f"layers.{i}.bias"] = layer.bias.detach().numpy()
    return found


def main() -> None:
    """Do what the command line asks."""
    torch.set_num_threads(1)
    with np.load(sys.argv[2]) as arrays:
        given = dict(arrays)
    asked = json.loads(str(given.pop("asked")))
    np.savez(Path(sys.argv[3]), **{"losses": losses, "train": train}[sys.argv[1]](asked, given))


if __name__ == "__main__":
    main()
