"""Diffusion policies acting: how actions are made out of noise, which are executed, and what memories do to them."""

import pickle
import sys
from itertools import pairwise

import numpy as np
import pytest
import torch

from mcnn_ray.artifacts import read_json, write_directory, write_json
from mcnn_ray.certify import certificate_of
from mcnn_ray.core.normalise import Standardiser
from mcnn_ray.errors import ArtifactError, McnnError
from mcnn_ray.policies.base import episode_generator, save_policy
from mcnn_ray.policies.blended import Memories
from mcnn_ray.policies.denoisers import make_denoiser
from mcnn_ray.policies.diffusion import DiffusionPolicy
from mcnn_ray.policies.loading import load_policy
from mcnn_ray.training.chunks import action_places, memory_chunks
from mcnn_ray.training.noise import denoising_table
from tests.policies.test_policies import ACTIONS, OBS, SCALE
from tests.training.test_pack import one_thread  # noqa: F401  # a fixture for all tests here

CHUNKS = {"network": "mlp", "width": 16, "time_width": 6, "observed": 2, "predicted": 5, "executed": 3}
CHUNKS |= {"denoising_steps": 4, "schedule": "vp", "prediction": "sample", "inference_steps": 0}
ONE = {**CHUNKS, "observed": 1, "predicted": 1, "executed": 1}
UNET = {**CHUNKS, "network": "unet", "width": 8, "predicted": 8, "executed": 4, "schedule": "squared-cosine"}
ROWS, OFFSETS = np.arange(0, 200, 5), np.array([0, 40, 43, 110, 200])
EPISODES = np.random.default_rng(1).standard_normal((3, 9, 7)).astype(np.float32) * 3


def parameters(options, seed=0, scale=0.4):
    """Weights large enough that every input matters."""
    generator = torch.Generator().manual_seed(seed)
    state = make_denoiser(7, 4, options).state_dict()
    for name, tensor in state.items():
        if tensor.dim() > 1 or name.endswith("bias"):
            tensor.copy_(scale * torch.randn(tensor.shape, generator=generator))
    table = denoising_table(options["denoising_steps"], options["schedule"], options["inference_steps"])
    return {**{name: tensor.numpy() for name, tensor in state.items()}, "table": table}


def make(options, lambda_=None, L=1.0, seed=0, scale=0.4, weights=None):
    standardiser, memories, chunks = Standardiser.fit(OBS), None, None
    if lambda_ is not None:
        places = action_places(options["observed"], options["predicted"])
        chunks = memory_chunks(ACTIONS, OFFSETS, ROWS, np.zeros(200, np.int64), "expert", places)
        obs, actions = standardiser(OBS)[ROWS], ACTIONS[ROWS]
        memories = Memories(observations_MD=obs, actions_MA=actions, rows_M=ROWS, lambda_=lambda_, L=L)
    weights = weights or parameters(options, seed, scale)
    return DiffusionPolicy({"task": "t"}, standardiser, SCALE, options, weights, memories, chunks)


def acted(policy, episodes_BTD, seeds):
    """(T, B, A) actions of episodes in step."""
    state, actions = policy.start(seeds), []
    for obs_BD in np.swapaxes(episodes_BTD, 0, 1):
        actions_BA, state = policy.act(obs_BD, state)
        actions.append(actions_BA)
    return np.stack(actions)


def mish(x):
    return x * np.tanh(np.log1p(np.exp(x)))


def told_by_mlp(weights, noisy_PA, step, window_TD):
    """The network of three layers in float64, written out."""
    w = {name: array.astype(np.float64) for name, array in weights.items()}

    def linear(x, name):
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    waves = [step / 10_000 ** (i / 2) for i in range(3)]
    time = linear(mish(linear(np.concatenate([np.sin(waves), np.cos(waves)]), "time_layers.0")), "time_layers.2")
    x = np.concatenate([noisy_PA.ravel(), time, window_TD.ravel()])
    for layer in (0, 2, 4):
        x = mish(linear(x, f"layers.{layer}"))
    return linear(x, "layers.6").reshape(noisy_PA.shape)


def told_by_unet(options, weights):
    network = make_denoiser(7, 4, options)
    network.load_state_dict({name: torch.from_numpy(array) for name, array in weights.items()})
    network.double()

    def told(noisy_PA, step, window_TD):
        time = network.time(torch.tensor([float(step)], dtype=torch.float64))
        with torch.no_grad():
            return network(torch.from_numpy(noisy_PA)[None], time, torch.from_numpy(window_TD)[None])[0].numpy()

    return told


def kept(options):
    """Share of the variance that is the actions', after 0, 1, ... steps of noise."""
    steps = options["denoising_steps"]
    if options["schedule"] == "vp":
        t = np.arange(1, steps + 1)
        beta = 1 - np.exp(-0.1 / steps - 0.5 * 9.9 * (2 * t - 1) / steps**2)
    else:
        cosine = [np.cos((t / steps + 0.008) / 1.008 * np.pi / 2) ** 2 for t in range(steps + 1)]
        beta = np.minimum([1 - after / before for before, after in pairwise(cosine)], 0.999)
    return np.concatenate([[1.0], np.cumprod(1 - beta)])


def sampled(options, told, noise_SPA, window_TD, blended):
    """Ho et al. 2020, algorithm 2, or DDIM (Song et al. 2021, equation 12); in float64, in units."""
    alpha, steps, taken = kept(options), options["denoising_steps"], options["inference_steps"]
    x, times = noise_SPA[0].astype(np.float64), range(steps, 0, -steps // taken if taken else -1)
    for draw, t in enumerate(times, 1):
        now, before = alpha[t], alpha[t - steps // taken if taken else t - 1]
        output = told(x, t - 1, window_TD)
        if options["prediction"] == "noise":
            output = (x - np.sqrt(1 - now) * output) / np.sqrt(now)
        clean = blended(np.clip(output, -1, 1))
        if t == times[-1]:
            break
        if taken:
            x = np.sqrt(before) * clean + np.sqrt(1 - before) * (x - np.sqrt(now) * clean) / np.sqrt(1 - now)
        else:
            beta = 1 - now / before
            mean = np.sqrt(before) * beta * clean + np.sqrt(1 - beta) * (1 - before) * x
            x = mean / (1 - now) + np.sqrt(beta * (1 - before) / (1 - now)) * noise_SPA[draw]
    return clean


@pytest.mark.parametrize("lambda_", [None, 0.3])
@pytest.mark.parametrize(
    "options",
    [
        ONE,
        CHUNKS,
        {**CHUNKS, "prediction": "noise", "schedule": "squared-cosine"},
        {**CHUNKS, "inference_steps": 2},
        UNET,
        {**UNET, "denoising_steps": 6, "inference_steps": 3},
    ],
)
def test_actions_are_those_of_sampling_written_out_for_windows_that_end_at_the_newest_observation(options, lambda_):
    policy, weights = make(options, lambda_, L=0.8, scale=0.25), parameters(options, scale=0.25)
    found_TBA, z_BTD = acted(policy, EPISODES, [7, 8, 9]), policy.standardiser(EPISODES)
    places = action_places(options["observed"], options["predicted"])
    draws = 1 if options["inference_steps"] else options["denoising_steps"]
    told = told_by_unet(options, weights) if options["network"] == "unet" else None
    for episode, seed in enumerate((7, 8, 9)):
        generator = torch.Generator().manual_seed(int(episode_generator(seed).integers(2**63)))
        for t in range(0, 9, options["executed"]):
            noise = torch.empty(draws, options["predicted"], 4).normal_(generator=generator).numpy()
            window = z_BTD[episode][np.maximum(range(t - options["observed"] + 1, t + 1), 0)].astype(np.float64)
            weight, memory = 0.0, 0.0
            if lambda_ is not None:
                distances = np.linalg.norm(window[-1] - policy.memories.observations_MD, axis=1)
                weight, row = np.exp(-lambda_ * distances.min()), ROWS[distances.argmin()]
                first = max(o for o in OFFSETS if o <= row)
                rows = np.clip(row + places, first, min(o for o in OFFSETS if o > row) - 1)
                memory = SCALE.to_unit(ACTIONS[rows]).astype(np.float64)
            bound = 1.0 if lambda_ is None else 0.8
            expected = sampled(
                options,
                told or (lambda *asked: told_by_mlp(weights, *asked)),
                noise,
                window,
                lambda x, w=weight, m=memory, b=bound: w * m + b * (1 - w) * x,
            )[options["observed"] - 1 :][: options["executed"]]
            expected = SCALE.to_raw(expected[: 9 - t])
            np.testing.assert_allclose(found_TBA[t : t + len(expected), episode], expected, atol=2e-3)


def test_convolutions_are_those_of_torch():
    network = make_denoiser(7, 4, UNET)
    convolutions = [module for module in network.modules() if isinstance(module, torch.nn.Conv1d)]
    assert {(c.kernel_size[0], c.stride[0]) for c in convolutions} == {(5, 1), (3, 2), (1, 1)}
    for convolution in convolutions:
        x = torch.randn(3, convolution.in_channels, 8, generator=torch.Generator().manual_seed(0))
        expected = torch.nn.functional.conv1d(
            x, convolution.weight, convolution.bias, convolution.stride, convolution.padding
        )
        torch.testing.assert_close(convolution(x), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("options", [ONE, CHUNKS, UNET, {**UNET, "inference_steps": 1}])
@pytest.mark.parametrize("lambda_", [0.0, 0.1, 1e6])
def test_at_a_memory_the_demonstrated_actions_come_back_to_the_last_bit_whatever_came_before(options, lambda_):
    policy, rows = make(options, lambda_, L=3.0), ROWS[:30]
    state = policy.start(range(30))
    for _ in range(2):
        for step in range(options["executed"]):
            obs = OBS[rows] if step == 0 else OBS[rows] + 1.0  # actions that are planned already are kept to
            actions_BA, state = policy.act(obs, state)
            ends = np.array([min(o for o in OFFSETS if o > row) - 1 for row in rows])
            np.testing.assert_array_equal(actions_BA, ACTIONS[np.minimum(rows + step, ends)])
    far_BA, _ = policy.act(OBS[rows] + 1.0, state)
    assert lambda_ == 0.0 or (far_BA != ACTIONS[rows]).any(1).all()


def test_actions_follow_the_observations_at_which_they_were_planned_and_the_one_before():
    policy = make(CHUNKS)
    before = acted(policy, EPISODES, [7, 8, 9])
    for changed, differs in ((0, range(3)), (1, ()), (2, range(3, 9)), (3, range(3, 9)), (4, ()), (5, range(6, 9))):
        episodes = EPISODES.copy()
        episodes[:, changed] += 1.0
        found_T = np.abs(acted(policy, episodes, [7, 8, 9]) - before).max((1, 2)) > 1e-3
        # The later plans have other noise and observations of their own: only those at their windows matter.
        assert found_T.tolist() == [t in differs and (t < 6 or changed >= 5) for t in range(9)], changed


@pytest.mark.parametrize("options", [CHUNKS, UNET])
def test_bits_of_an_episode_depend_on_its_seed_and_its_row_alone_also_where_others_plan_at_other_times(options):
    policy, executed = make(options, 0.3), options["executed"]
    episodes = np.random.default_rng(2).standard_normal((8, 9, 7))
    found = acted(policy, episodes, range(8))
    assert not np.array_equal(acted(policy, episodes, range(20, 28)), found)
    others = np.random.default_rng(3).standard_normal((8, 9, 7))
    others[3] = episodes[3]
    state = policy.start([50, 51, 52, 3, 54, 55, 56, 57])
    phases = []
    for step in range(9):
        if step in (1, 2):  # others begin anew, so that their chunks end at other steps
            for row in range(step, 8, 3):
                state[row] = policy.start([70 + row])[0] if row != 3 else state[row]
        actions_BA, state = policy.act(others[:, step], state)
        np.testing.assert_array_equal(actions_BA[3], found[step, 3])
        phases.append({len(episode.planned) for episode in state})
    assert any(len(phase) > 1 for phase in phases)
    assert executed > 1


def test_draws_are_not_those_that_an_environment_starts_with_and_follow_from_the_seed():
    policy = make(ONE)
    drawn = [torch.randn(2, generator=policy.start([seed])[0].generator).tolist() for seed in (3, 3, 4)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert drawn[0] != torch.randn(2, generator=torch.Generator().manual_seed(3)).tolist()


@pytest.mark.parametrize("options", [ONE, UNET])
@pytest.mark.parametrize("lambda_", [None, 0.3])
def test_policy_saves_loads_travels_and_replays_identically(options, lambda_, tmp_path):
    policy = make(options, lambda_, L=0.7)
    expected = acted(policy, EPISODES, [4, 5, 6])
    save_policy(policy, tmp_path / "policy")
    for other in (load_policy(tmp_path / "policy"), pickle.loads(pickle.dumps(policy))):  # noqa: S301  # our own
        np.testing.assert_array_equal(acted(other, EPISODES, [4, 5, 6]), expected)
        assert other.settings() == policy.settings()


def test_loading_and_acting_need_no_diffusers(tmp_path, monkeypatch):
    """Its import takes longer than torch's, in every process that rolls out."""
    save_policy(make(UNET, 0.3), tmp_path / "policy")
    for name in [name for name in sys.modules if name.partition(".")[0] == "diffusers"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "diffusers", None)
    load_policy(tmp_path / "policy").act(OBS)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"denoising_steps": 6}, "parts do not fit.*table"),
        ({"inference_steps": 2}, "parts do not fit.*table"),
        (
            {"denoising_steps": 8, "inference_steps": 4},
            "schedule begins at step 3, which is not the last.* 8 denoising",
        ),
        ({"executed": 8}, "predicted is 8, but a chunk begins at the first of 2.*set predicted to at least 9"),
        ({"predicted": 12}, "the memories' chunks have the shape"),
        ({"width": 16}, "parts do not fit.*film.weight"),
        ({"network": "cnn"}, "option network is 'cnn'"),
    ],
)
def test_policy_whose_settings_are_not_those_of_its_arrays_is_refused_in_a_sentence(settings, message, tmp_path):
    save_policy(make(UNET, 0.3), tmp_path / "own")
    description = read_json(tmp_path / "own" / "policy.json")
    description["settings"] |= settings
    with write_directory(tmp_path / "policy") as target:
        write_json(target / "policy.json", description)
        (target / "policy.safetensors").write_bytes((tmp_path / "own" / "policy.safetensors").read_bytes())
    with pytest.raises(ArtifactError, match=message):
        load_policy(tmp_path / "policy")


@pytest.mark.parametrize("options", [ONE, UNET])
def test_certificate_holds_with_the_bound_of_the_network_across_seeds(options):
    policies = [make(options, 0.1, L=0.5, seed=seed, scale=2.0) for seed in (0, 1)]
    certificate = certificate_of(policies, OBS)
    assert certificate.holds
    assert (certificate.L, certificate.inexact_memories) == (0.5, 0)
    assert certificate.checked[0].width > 0.5 * certificate.checked[0].width_bound  # no bound that anything fits
    assert any("one draw of noise" in note for note in certificate.notes)


def test_certificate_of_memories_that_are_not_where_the_chunk_begins_does_not_hold():
    policy = make(CHUNKS, 0.3)
    policy._chunks_MPA = np.roll(policy._chunks_MPA, 1, axis=1)
    assert not certificate_of([policy], OBS).holds


def test_explain_tells_the_newest_observations_memory_and_policies_without_memories_have_no_certificate():
    told = make(CHUNKS, 0.5).explain(OBS[ROWS[:3]])
    assert told.row_B.tolist() == ROWS[:3].tolist()
    assert told.weight_B.tolist() == [1, 1, 1]
    assert make(CHUNKS).explain(OBS) is None
    with pytest.raises(McnnError, match="has no certificate: without memories"):
        certificate_of([make(CHUNKS)], OBS)
