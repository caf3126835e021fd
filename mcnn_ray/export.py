"""Exporting a policy as one ONNX graph: raw observations in, raw actions out, its codebook and scales within.

The graph is built node by node, from the operators that ONNX has had since opset 18, so that nothing but the package
`onnx` is needed. The nearest memory is ranked by products in float64 and the best few are measured by subtraction, so
at a memory the distance is exactly 0 and the stored action comes back to the last bit.

Shapes: B observations, D observation numbers, M memories, K candidates, A action numbers.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mcnn_ray.artifacts import write_bytes
from mcnn_ray.errors import ArtifactError, ConfigError
from mcnn_ray.policies.base import Float32Array, Policy
from mcnn_ray.policies.blended import Memories
from mcnn_ray.policies.mlp import MlpPolicy

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, TensorProto

__all__ = ["TOLERANCE", "compare_exported", "export_policy", "probe_observations"]

TOLERANCE = 1e-5  # of actions, in units of half their range
_OPSET, _IR = 18, 8  # of ONNX 1.13, from the beginning of 2023
_CANDIDATES = 16  # measured by subtraction
_LARGEST_BYTES = 2**31 - 2**20  # of one protobuf message, with room for the rest
_PROBES = 1000


def export_policy(policy: Policy, path: Path) -> None:
    """Write a policy as an ONNX file, whole or not at all.

    Its input is `observations` (batch, D) float32, its output `actions` (batch, A) float32; a policy with memories also
    gives `memory_row` (batch,) int64, the row of the demonstrations, and `memory_distance` (batch,) float32. Where the
    policy comes from is in the metadata `mcnn.card`.

    Args:
        policy: `bc`, `mcnn+mlp` or another whose network is an MLP.
        path: of the file.

    Raises:
        ConfigError: the policy is of another kind or sees images, or onnx is not installed.
        ArtifactError: it is too large for one file.
    """
    if not isinstance(policy, MlpPolicy):
        method = policy.card.get("member", {}).get("method", policy.kind)
        own = " with a backbone of your own" if policy.kind == "module" else ""
        raise ConfigError(f"{method}{own} cannot be exported to ONNX; bc, mcnn+mlp and cql-sparse can")
    if policy.encoder is not None:
        raise ConfigError(
            f"the policy sees images through the encoder {policy.encoder.name}, which is not exported to ONNX; take it "
            "as an MLflow model, which answers images"
        )
    if sum(array.nbytes for array in policy.arrays().values()) > _LARGEST_BYTES:
        raise ArtifactError("the policy holds more than 2 GiB, which no ONNX file can; take a smaller memory fraction")
    try:
        import onnx
    except ImportError as error:
        raise ConfigError(
            f"exporting takes the package onnx, which cannot be imported ({error}); install it with "
            "pip install 'mcnn-ray[onnx]'"
        ) from error
    model = _model(policy)
    onnx.checker.check_model(model, full_check=True)
    write_bytes(path, model.SerializeToString())


class _Graph:
    """Nodes and constants of a graph that is being built; a value is known by its name."""

    def __init__(self) -> None:
        self.nodes: list[NodeProto] = []
        self.constants: list[TensorProto] = []

    def constant(self, name: str, array: npt.ArrayLike) -> str:
        from onnx import numpy_helper

        self.constants.append(numpy_helper.from_array(np.asarray(array, order="C"), name))
        return name

    def add(self, operator: str, inputs: list[str], output: str, **attributes: Any) -> str:
        from onnx import helper

        self.nodes.append(helper.make_node(operator, inputs, [output], name=output, **attributes))
        return output


def _model(policy: MlpPolicy) -> ModelProto:
    from onnx import TensorProto, helper

    graph = _Graph()
    mean = graph.constant("observation_mean", policy.standardiser.mean_D)
    scale = graph.constant("observation_scale", policy.standardiser.scale_D)
    centred = graph.add("Sub", ["observations", mean], "centred")
    standardised = graph.add("Div", [centred, scale], "standardised")
    network = _network(graph, policy, standardised)
    outputs = [helper.make_tensor_value_info("actions", TensorProto.FLOAT, ["batch", policy.action_dim])]
    if policy.memories is None:
        _raw(graph, policy, graph.add("Tanh", [network], "units"), "actions")
    else:
        _blend(graph, policy, policy.memories, standardised, network)
        outputs.append(helper.make_tensor_value_info("memory_row", TensorProto.INT64, ["batch"]))
        outputs.append(helper.make_tensor_value_info("memory_distance", TensorProto.FLOAT, ["batch"]))
    inputs = [helper.make_tensor_value_info("observations", TensorProto.FLOAT, ["batch", policy.observation_dim])]
    built = helper.make_graph(graph.nodes, "policy", inputs, outputs, graph.constants)
    model = helper.make_model(
        built, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR, producer_name="mcnn-ray"
    )
    helper.set_model_props(model, {"mcnn.card": json.dumps(policy.card)})
    return model


def _network(graph: _Graph, policy: MlpPolicy, standardised: str) -> str:
    """Add f(x), before any head."""
    hidden = standardised
    for i, (weight, bias) in enumerate(policy.layers):
        names = [graph.constant(f"layers.{i}.weight", weight), graph.constant(f"layers.{i}.bias", bias)]
        hidden = graph.add("Gemm", [hidden, *names], f"layer_{i}")
        if i < len(policy.layers) - 1:
            hidden = graph.add("Relu", [hidden], f"hidden_{i}")
    return hidden


def _raw(graph: _Graph, policy: MlpPolicy, units: str, output: str) -> str:
    """Add the step from units of the action bounds to raw ones, in the order in which `ActionScale` rounds."""
    low_A, high_A = policy.action_scale.low_A, policy.action_scale.high_A
    half = graph.constant("action_half_range", (high_A - low_A) * np.float32(0.5))
    middle = graph.constant("action_middle", (high_A + low_A) * np.float32(0.5))
    return graph.add("Add", [graph.add("Mul", [units, half], "scaled"), middle], output)


def _blend(graph: _Graph, policy: MlpPolicy, memories: Memories, standardised: str, network: str) -> None:
    """Add equation 1: `w a_memory + (1 - w) L sigma(f(x))` with `w = exp(-lambda d)`."""
    index, distance = _nearest(graph, memories.observations_MD, standardised)
    low, high = graph.constant("minus_one", np.float32(-1.0)), graph.constant("one", np.float32(1.0))
    bounded = graph.add("Clip", [network, low, high], "sigma")
    units = graph.add("Mul", [bounded, graph.constant("L", np.float32(memories.L))], "units")
    part = _raw(graph, policy, units, "part")
    rate = graph.constant("minus_lambda", np.float32(-memories.lambda_))
    weight = graph.add("Exp", [graph.add("Mul", [distance, rate], "exponent")], "weight")
    stored = graph.add("Gather", [graph.constant("memory_actions", memories.actions_MA), index], "stored")
    rest = graph.add("Sub", [high, weight], "rest")
    of_memory, of_network = (
        graph.add("Mul", [weight, stored], "of_memory"),
        graph.add("Mul", [rest, part], "of_network"),
    )
    graph.add("Add", [of_memory, of_network], "actions")
    graph.add("Gather", [graph.constant("memory_rows", memories.rows_M.astype(np.int64)), index], "memory_row")
    graph.add("Squeeze", [distance, graph.constant("last", np.array([1]))], "memory_distance")


def _nearest(graph: _Graph, memories_MD: Float32Array, standardised: str) -> tuple[str, str]:
    """Add the search; return (B,) index of the nearest memory, the lowest on ties, and (B, 1) float32 distance."""
    from onnx import TensorProto

    count = len(memories_MD)
    memories_32 = graph.constant("memory_observations", memories_MD)
    memories = graph.add("Cast", [memories_32], "memories", to=TensorProto.DOUBLE)  # done once, when it is loaded
    obs = graph.add("Cast", [standardised], "obs", to=TensorProto.DOUBLE)
    norms = graph.constant("memory_norms", np.square(memories_MD, dtype=np.float64).sum(1))
    ranks = graph.add("Gemm", [obs, memories, norms], "ranks", alpha=-2.0, transB=1)  # |m|^2 - 2 x.m
    few = graph.constant("candidates", np.array([min(_CANDIDATES, count)]))
    graph.nodes.append(_top(ranks, few))
    axis, last = graph.constant("axis", np.array([1])), graph.constant("numbers", np.array([2]))
    near = graph.add("Gather", [memories, "candidate_BK"], "candidate_memories")
    difference = graph.add("Sub", [near, graph.add("Unsqueeze", [obs, axis], "obs_B1D")], "difference")
    squared = graph.add("ReduceSumSquare", [difference, last], "squared", keepdims=0)
    least = graph.add("ReduceMin", [squared, axis], "least", keepdims=1)
    nearest = graph.add("Equal", [squared, least], "is_nearest")
    none = graph.constant("none", np.array(count - 1))
    ties = graph.add("Where", [nearest, "candidate_BK", none], "ties")
    index = graph.add("ReduceMin", [ties, axis], "memory", keepdims=0)
    distance = graph.add("Cast", [graph.add("Sqrt", [least], "distance_64")], "distance", to=TensorProto.FLOAT)
    return index, distance


def _top(ranks: str, few: str) -> NodeProto:
    from onnx import helper

    return helper.make_node("TopK", [ranks, few], ["candidate_ranks", "candidate_BK"], name="candidates_of", largest=0)


def probe_observations(policy: Policy, seed: int = 0) -> Float32Array:
    """Return (B, D) raw observations to compare on: at memories, near them, and at some standard deviations."""
    rng = np.random.default_rng(seed)
    spread = rng.standard_normal((_PROBES, policy.observation_dim)).astype(np.float32) * 3
    parts = [spread]
    if isinstance(policy, MlpPolicy) and policy.memories is not None:
        memories_MD = policy.memories.observations_MD
        chosen_KD = memories_MD[rng.permutation(len(memories_MD))[:_PROBES]]
        parts += [chosen_KD, chosen_KD + rng.standard_normal(chosen_KD.shape).astype(np.float32) * np.float32(0.01)]
    scale_D = np.where(np.isfinite(policy.standardiser.scale_D), policy.standardiser.scale_D, 0)
    observations_BD: Float32Array = np.concatenate(parts) * scale_D + policy.standardiser.mean_D
    return observations_BD.astype(np.float32)


def compare_exported(policy: Policy, path: Path) -> float | None:
    """Run an exported file on observations, and return the largest difference of an action from the policy's.

    Args:
        policy: that was exported.
        path: of the file.

    Returns:
        In units of half an action's range; None where onnxruntime is not installed.
    """
    try:
        import onnxruntime
    except ImportError:
        return None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    observations_BD = probe_observations(policy)
    (actions_BA,) = session.run(["actions"], {"observations": observations_BD})
    half_A = (policy.action_scale.high_A - policy.action_scale.low_A) / 2
    return float((np.abs(actions_BA - policy.act(observations_BD)[0]) / half_A).max())
