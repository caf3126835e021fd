"""Networks of a user's own, named by the dotted name of their class, e.g. `my_nets.Deep`.

The class is a `torch.nn.Module` made as `Deep(observation_dim, action_dim)`, which maps (B, D) standardised
observations to (B, A) outputs before any head, all float32. It always runs in evaluation mode, also in training, so
dropout does nothing. What it holds is parameters; one with `requires_grad=False` stays as it was made.

Shapes: B observations, D observation numbers, A action numbers.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import torch

from mcnn_ray.errors import ConfigError, did_you_mean

__all__ = ["backbone_size", "make_backbone"]


def make_backbone(name: str, observation_dim: int, action_dim: int, seed: int = 0) -> torch.nn.Module:
    """Import a user's class and make a network of it, in evaluation mode, on the CPU. This runs the user's code.

    Args:
        name: dotted name of the class.
        observation_dim: D.
        action_dim: A.
        seed: of torch's random numbers while the network is made, in [0, 2**63).

    Raises:
        ConfigError: there is no such class, it cannot be made, or it does not keep to what this module says.
    """
    kind = _find(name)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # of the CPU's alone, which is what the fork gives back
        try:
            network = kind(observation_dim, action_dim)
        except Exception as error:
            raise ConfigError(
                f"backbone {name} cannot be made as {kind.__name__}({observation_dim}, {action_dim}): "
                f"{_told(error)}; its constructor takes the number of observation numbers and that of action numbers"
            ) from error
        network.eval()
        # Also has lazy layers make their parameters, so it comes before these are looked at.
        for batch in (1, 3):
            _check_output(name, network, torch.zeros(batch, observation_dim), action_dim)
    _check_parts(name, network)
    return network


def backbone_size(name: str, observation_dim: int, action_dim: int) -> tuple[int, int]:
    """Count what a user's network holds; see `make_backbone` for arguments and errors.

    Returns:
        Numbers in its parameters; numbers that its layers give for each observation, which training keeps.
    """
    network = make_backbone(name, observation_dim, action_dim)
    given = 0

    def count(module: torch.nn.Module, inputs: Any, output: Any) -> None:
        nonlocal given
        given += output.numel() if isinstance(output, torch.Tensor) else 0

    for module in network.modules():
        module.register_forward_hook(count)
    with torch.no_grad():
        network(torch.zeros(1, observation_dim))
    return sum(parameter.numel() for parameter in network.parameters()), given


def _find(name: str) -> type[torch.nn.Module]:
    place, _, attribute = name.rpartition(".")
    if not place or not all(part.isidentifier() for part in name.split(".")):
        raise ConfigError(f"backbone '{name}' does not name a class; write module.Class, e.g. my_nets.Deep")
    try:
        module = importlib.import_module(place)
    except Exception as error:
        raise ConfigError(
            f"backbone {name}: {place} cannot be imported ({_told(error)}); run mcnn in the folder that holds it, or "
            "install it"
        ) from error
    found = getattr(module, attribute, None)
    if found is None:
        raise ConfigError(f"backbone {name}: {place} has no '{attribute}'; {_classes(module, attribute)}")
    if not (isinstance(found, type) and issubclass(found, torch.nn.Module)):
        raise ConfigError(f"backbone {name} is no torch.nn.Module class but {found!r}; derive it from torch.nn.Module")
    return found


def _classes(module: ModuleType, attribute: str) -> str:
    names = [key for key, value in vars(module).items() if isinstance(value, type) and key[0] != "_"]
    return did_you_mean(attribute, names) if names else "it defines no class"


def _check_output(name: str, network: torch.nn.Module, obs_BD: torch.Tensor, action_dim: int) -> None:
    try:
        with torch.no_grad():
            output = network(obs_BD)
    except Exception as error:
        raise ConfigError(
            f"backbone {name} fails on observations of shape {tuple(obs_BD.shape)}: {_told(error)}; it takes "
            "(batch, observation numbers), whatever the batch"
        ) from error
    if not isinstance(output, torch.Tensor) or output.dtype != torch.float32:
        kind = output.dtype if isinstance(output, torch.Tensor) else type(output).__name__
        raise ConfigError(f"backbone {name} gives {kind}; it must give one torch.float32 tensor")
    expected = (len(obs_BD), action_dim)
    if output.shape != expected:
        raise ConfigError(
            f"backbone {name} gives outputs of shape {tuple(output.shape)} for observations of shape "
            f"{tuple(obs_BD.shape)}; expected {expected}, (batch, action numbers)"
        )


def _check_parts(name: str, network: torch.nn.Module) -> None:
    buffers = [key for key, _ in network.named_buffers()]
    if buffers:
        raise ConfigError(
            f"backbone {name} has buffers ({', '.join(buffers[:3])}), which members trained together cannot have; use "
            "torch.nn.LayerNorm instead of batch normalisation, and for constants a torch.nn.Parameter with "
            "requires_grad=False"
        )
    if not any(parameter.requires_grad for parameter in network.parameters()):
        raise ConfigError(
            f"backbone {name} has no parameters to train; assign its layers to attributes, or keep them in a "
            "torch.nn.Sequential or torch.nn.ModuleList"
        )
    for key, parameter in network.named_parameters():
        if parameter.dtype != torch.float32:
            raise ConfigError(f"backbone {name}: its parameter {key} is {parameter.dtype}; use torch.float32")


def _told(error: Exception) -> str:
    """Return an error in one line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
