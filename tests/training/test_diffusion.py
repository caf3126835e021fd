"""Diffusion policies in training: chunks, noise, losses, means of weights, resuming, sharing, what comes of it."""

import sys

import numpy as np
import pytest
import torch

from mcnn_ray.certify import certificate_of
from mcnn_ray.config import SweepConfig
from mcnn_ray.core.normalise import ActionScale, Standardiser
from mcnn_ray.errors import ConfigError
from mcnn_ray.member import make_member
from mcnn_ray.policies.diffusion import DiffusionPolicy
from mcnn_ray.sweep.studies import make_study
from mcnn_ray.tasks.catalogue import CATALOGUE
from mcnn_ray.training.chunks import action_places, chunk_rows, episode_bounds, memory_chunks
from mcnn_ray.training.diffusion import DiffusionLearner, learning_rate_at
from mcnn_ray.training.learners import make_pack
from mcnn_ray.training.noise import denoising_table, make_scheduler, vp_betas
from tests.policies.test_diffusion import kept
from tests.training.learning import check_continues_to_the_same_bits, episodes, open_doors
from tests.training.test_pack import KEYS, one_thread, training_data  # noqa: F401  # a fixture for all tests here
from tests.training.workers import shards, trained_together

CHUNKS = {"width": 16, "time_width": 8, "observed": 2, "predicted": 5, "executed": 3}
UNET = {**CHUNKS, "network": "unet", "width": 8, "predicted": 8, "warmup": 7, "ema_power": 0.75, "weight_decay": 0.01}


def member(method="diff", steps=200, **changes):
    options = {**CHUNKS, **changes.pop("options", {})}
    values = {"batch_size": 16, "learning_rate": 1e-3, **changes}
    return make_member(method=method, steps=steps, options=options, **values)


def data(*lengths):
    """Made demonstrations of episodes of these lengths; every third step is a memory, nearest to those around it."""
    made = episodes(*lengths)
    for key in KEYS:
        made.memory_rows[key] = np.arange(sum(lengths)) // 3 * 3
    return made


@pytest.mark.parametrize("schedule", ["vp", "squared-cosine"])
def test_table_holds_the_shares_of_ddpm_and_its_last_step_gives_what_the_network_tells(schedule):
    alpha = kept({"denoising_steps": 50, "schedule": schedule})
    table_S6 = denoising_table(50, schedule)
    assert table_S6[:, 0].tolist() == list(range(49, -1, -1))
    now, before = alpha[:0:-1], alpha[-2::-1]
    beta = 1 - now / before
    expected = [np.sqrt(now), np.sqrt(1 - now), np.sqrt(before) * beta / (1 - now)]
    expected += [np.sqrt(1 - beta) * (1 - before) / (1 - now), np.sqrt(beta * (1 - before) / (1 - now))]
    np.testing.assert_allclose(table_S6[:, 1:], np.stack(expected, 1), rtol=2e-3, atol=2e-6)
    assert table_S6[-1, 3:].tolist() == [1, 0, 0]
    for taken in (1, 5, 25, 50):
        few_S6 = denoising_table(50, schedule, taken)
        assert few_S6[:, 0].tolist() == list(range(49, -1, -50 // taken))
        assert (few_S6[:, 5] == 0).all()
        np.testing.assert_allclose(few_S6[-1, 3:], [1, 0, 0], atol=1e-7)


def test_vp_betas_are_those_of_the_published_formula():
    t = np.arange(1, 6)
    np.testing.assert_allclose(vp_betas(5), 1 - np.exp(-0.1 / 5 - 0.5 * (10 - 0.1) * (2 * t - 1) / 25), rtol=1e-12)


def test_steps_of_the_table_are_those_of_the_scheduler():
    scheduler, x, ours = make_scheduler(20, "squared-cosine"), torch.ones(1, 3), torch.ones(1, 3)
    generator, again = torch.Generator().manual_seed(5), torch.Generator().manual_seed(5)
    for t, _, _, from_clean, from_noisy, fresh in denoising_table(20, "squared-cosine").tolist():
        clean = torch.sin(x + t)
        x = scheduler.step(clean, int(t), x, generator=generator).prev_sample
        ours = from_clean * torch.sin(ours + t) + from_noisy * ours
        ours += fresh * torch.randn(1, 3, generator=again) if fresh else 0.0
    np.testing.assert_allclose(ours, x, atol=1e-5)


def test_chunks_stay_in_their_episodes_and_repeat_its_ends():
    lengths, places = (5, 1, 3), action_places(2, 5)
    assert places.tolist() == [-1, 0, 1, 2, 3]
    first, last = episode_bounds(np.array([0, *np.cumsum(lengths)]))
    rows, inside = chunk_rows(torch.arange(9), *(torch.tensor(x) for x in (first, last, places)))
    start = 0
    for length in lengths:
        for step in range(length):
            wanted = [step + place for place in (-1, 0, 1, 2, 3)]
            assert rows[start + step].tolist() == [start + min(max(i, 0), length - 1) for i in wanted]
            assert inside[start + step].tolist() == [0 <= i < length for i in wanted]
        start += length


@pytest.mark.parametrize("kind", ["expert", "mean"])
def test_memories_chunks_are_the_demonstrated_ones_or_the_mean_of_those_nearest(kind):
    rng, offsets = np.random.default_rng(0), np.array([0, 7, 20, 22])
    actions, rows, nearest = (
        rng.standard_normal((22, 3)).astype(np.float32),
        np.array([9, 3, 21]),
        rng.integers(0, 3, 22),
    )
    found = memory_chunks(actions, offsets, rows, nearest, kind, action_places(3, 6))

    def chunk(row):
        episode = next(e for e in range(3) if row < offsets[e + 1])
        return actions[np.clip(range(row - 2, row + 4), offsets[episode], offsets[episode + 1] - 1)]

    for memory, row in enumerate(rows):
        around = [row] if kind == "expert" else np.flatnonzero(nearest == memory)
        np.testing.assert_allclose(found[memory], np.mean([chunk(one) for one in around], 0), rtol=1e-5, atol=1e-6)


def expected_loss(learner, drawn, time_B, noise_BPA):
    """Chunk by chunk in float64, from what the network tells of each."""
    one, made, network = learner.member, learner.data, learner.networks["network"]
    alpha, first, total, count = kept(dict(one.options))[1:], made.offsets, 0.0, 0
    rows_M, nearest_N = np.unique(made.memory_rows[KEYS[0]], return_inverse=True)
    chunks = memory_chunks(made.actions_NA.numpy(), first, rows_M, nearest_N, "expert", action_places(2, 5))
    for row, time, noise in zip(drawn, time_B.tolist(), noise_BPA.numpy().astype(np.float64), strict=True):
        begin = max(o for o in first if o <= row)
        end = min(o for o in first if o > row)
        obs = made.obs_ND[[max(row - 1, begin), row]]
        clean = np.stack([made.actions_NA[min(max(i, begin), end - 1)].numpy() for i in range(row - 1, row + 4)])
        noisy = np.sqrt(alpha[time]) * clean + np.sqrt(1 - alpha[time]) * noise
        with torch.no_grad():
            step = network.time(torch.tensor([float(time)]))
            told = network(torch.from_numpy(noisy[None]).float(), step, obs[None])[0].numpy().astype(np.float64)
        truth = noise if one.option("prediction") == "noise" else clean
        if one.memory_key is not None:
            e = np.exp(-one.lambda_ * float(made.distances[one.memory_key][row]))
            told = e * chunks[nearest_N[row]] + one.L * (1 - e) * np.clip(told, -1, 1)
        counted = [i for i in range(5) if begin <= row - 1 + i < end]
        total, count = total + ((told - truth) ** 2).mean(1)[counted].sum(), count + len(counted)
    return total / count


@pytest.mark.parametrize(("method", "prediction"), [("diff", "sample"), ("diff", "noise"), ("mcnn+diff", "sample")])
def test_loss_is_the_squared_error_of_all_that_lies_in_the_episodes(method, prediction):
    made = data(7, 3, 1, 9, 2)
    options = {"prediction": prediction, "schedule": "squared-cosine", "denoising_steps": 6}
    blend = {"lambda_": 1.3, "L": 0.7} if method == "mcnn+diff" else {}
    learner = DiffusionLearner(member(method, batch_size=22, options=options, **blend), made)
    learner.networks["network"].layers[-1].weight.data *= 30  # actions beyond the bounds, where they are clipped
    drawn = np.arange(22)
    torch.manual_seed(3)
    expected = expected_loss(learner, drawn, *learner._draws())
    torch.manual_seed(3)
    np.testing.assert_allclose(learner.learn(torch.from_numpy(drawn), 0).item(), expected, rtol=1e-4)


@pytest.mark.parametrize("method", ["diff", "mcnn+diff"])
def test_what_neighbouring_episodes_hold_changes_nothing(method):
    found = []
    for other in (0.0, 0.5):
        made = data(6, 9, 6)
        made.obs_ND[:6] += other
        made.actions_NA[:6] += other
        made.obs_ND[15:] -= other
        made.actions_NA[15:] -= other
        pack = make_pack([member(method, batch_size=9, options=UNET)], made)
        learner = pack._learners[0]
        losses = []
        for step in range(4):
            torch.manual_seed(step)
            losses.append(learner.learn(torch.arange(6, 15), step).item())
        found.append((losses, pack.parameters(0)))
    assert found[0][0] == found[1][0]
    for name, array in found[0][1].items():
        np.testing.assert_array_equal(found[1][1][name], array)


def test_policy_has_the_mean_of_the_weights_with_the_decay_of_its_power():
    learner = DiffusionLearner(member(steps=50, options=UNET), data(40, 30))
    network, mean, expected = learner.networks["network"], learner.networks["mean"].module, None
    for step in range(12):
        learner.take(step, 1)
        weight = network.middle.first.film.weight
        decay = 0.0 if step == 0 else 1 - step**-0.75
        expected = weight.detach().clone() if step == 0 else decay * expected + (1 - decay) * weight.detach()
        np.testing.assert_allclose(mean.middle.first.film.weight, expected, atol=1e-6)
    arrays = learner.policy_arrays()
    np.testing.assert_array_equal(arrays["middle.first.film.weight"], mean.middle.first.film.weight)
    assert np.abs(arrays["middle.first.film.weight"] - weight.detach().numpy()).max() > 1e-5


def test_learning_rate_rises_over_the_warm_up_and_falls_to_nothing_as_a_cosine():
    one = member(steps=20, learning_rate=2.0, options={"warmup": 4})
    assert [learning_rate_at(step, one) for step in range(4)] == [0.5, 1.0, 1.5, 2.0]
    for step in range(4, 20):
        np.testing.assert_allclose(learning_rate_at(step, one), 1 + np.cos(np.pi * (step - 4) / 16))
    assert {learning_rate_at(step, member(learning_rate=2.0)) for step in range(200)} == {2.0}
    learner = DiffusionLearner(one, data(30))
    learner.take(0, 2)
    assert learner.optimisers[0].param_groups[0]["lr"] == 1.0


def test_presets_are_the_published_networks_and_differ_between_the_methods_in_the_blend_alone():
    for preset, parameters in (("paper", 161_356), ("kitchen", 66_942_729)):
        alone, blended = (make_member(method=name, steps=1, preset=preset) for name in ("diff", "mcnn+diff"))
        assert alone.options == blended.options
        assert (alone.learning_rate, alone.batch_size) == (blended.learning_rate, blended.batch_size)
        assert alone.option("prediction") == "sample"
        widths = (39, 28) if preset == "paper" else (60, 9)
        assert DiffusionLearner.cost(alone, *widths).parameters == parameters
    assert (make_member(method="mcnn+diff", steps=1).lambda_, blended.lambda_) == (0.1, 10.0)
    kitchen = dict(blended.options)
    assert [kitchen[key] for key in ("network", "width", "observed", "predicted", "executed")] == [
        "unet",
        256,
        2,
        16,
        8,
    ]
    assert [kitchen[key] for key in ("denoising_steps", "schedule", "warmup")] == [100, "squared-cosine", 500]
    assert make_member(method="diff", steps=1, preset="official-code").option("prediction") == "noise"
    assert make_member(method="mcnn+diff", steps=1, preset="official-code").option("prediction") == "sample"
    assert blended.label == "mcnn+diff kitchen lambda=10 memories=10% seed=0"
    assert alone.label == "diff kitchen seed=0"
    assert make_member(method="diff", steps=1, options={"denoising_steps": 9}).label == "diff denoising_steps=9 seed=0"


@pytest.mark.parametrize(
    ("task", "given", "preset"),
    [
        ("FrankaKitchen-v1@a/b-v0", {}, "kitchen"),
        ("my_robots:FrankaKitchen-v1@a/b-v0", {}, "kitchen"),
        ("FrankaKitchen-v1@a/b-v0", {"preset": "paper"}, "paper"),
        ("door-expert-v1", {}, "paper"),
        ("door-expert-v1", {"preset": "kitchen"}, "kitchen"),
    ],
)
def test_kitchens_preset_is_the_default_of_its_environment_and_of_no_other(task, given, preset):
    config = SweepConfig.parse({"task": task, "method": ["diff", "mcnn+mlp"], **given}, "test")
    diff, mlp = config.members()
    assert diff.option("network") == ("unet" if preset == "kitchen" else "mlp")
    assert mlp == make_member(method="mcnn+mlp", steps=20_000)
    own = SweepConfig.parse({"task": task, "method": "diff", "for_method": {"diff": {"steps": 5}}, **given}, "test")
    assert own.members()[0].option("network") == diff.option("network")


def test_cost_counts_the_products_of_the_layers():
    one = make_member(method="diff", steps=1)
    weights = 83 * 256 + 2 * 256 * 256 + 256 * 28 + 2 * 16 * 32
    cost = DiffusionLearner.cost(one, 39, 28)
    assert cost.flop == 6 * 256 * weights
    assert cost.act_flop == 5 * 2 * weights
    network = DiffusionLearner(member(options=UNET), data(30)).networks["network"]
    cost = DiffusionLearner.cost(member(options=UNET), 7, 4)
    assert cost.parameters == sum(parameter.numel() for parameter in network.parameters())
    assert cost.kept > cost.parameters  # whose mean is kept too


MEMBERS = [member("mcnn+diff", steps=30, lambda_=1.0), member(steps=30, seed=1, options=UNET)]


def test_interrupted_training_continues_to_the_bits_of_an_undisturbed_one(tmp_path):
    check_continues_to_the_same_bits(MEMBERS, lambda: data(40, 3, 60), tmp_path, (10, 20))


@pytest.mark.parametrize("one", MEMBERS, ids=["mlp", "unet"])
def test_shards_of_a_batch_add_up_to_the_whole_with_the_same_noise(one):
    lengths = (20, 2, 1, 3, 9, 9)
    whole = make_pack([one], data(*lengths))
    packs = [make_pack([one], data(*lengths), shard) for shard in shards(2)]

    def draws(pack, seed):
        torch.manual_seed(seed)
        return pack._learners[0]._draws()

    of_whole, of_parts = draws(whole, 0), [draws(pack, 0) for pack in packs]
    for together, parts_of_it in zip(of_whole, zip(*of_parts, strict=True), strict=True):
        torch.testing.assert_close(torch.cat(parts_of_it), together, rtol=0, atol=0)
    # Drawn beforehand, as threads share a generator that processes have each for themselves.
    for pack in (whole, *packs):
        drawn = iter([draws(pack, seed) for seed in range(15)])
        pack._learners[0]._draws = lambda drawn=drawn: next(drawn)
    found = trained_together(packs, 15)
    expected = whole.train(15)
    for losses in found:
        np.testing.assert_allclose(losses, expected, rtol=2e-3)


UNIT = ActionScale(low_A=-np.ones(2, np.float32), high_A=np.ones(2, np.float32))


@pytest.mark.parametrize("prediction", ["sample", "noise"])
def test_keeps_two_ways_where_the_mean_is_neither(prediction):
    """At every observation half the demonstrations go one way, half the other: what a regression averages to 0."""
    made = training_data(rows=600, actions=2)
    ways = torch.randint(0, 2, (600, 1), generator=torch.Generator().manual_seed(0)) * 2.0 - 1.0
    made.actions_NA = ways * torch.tensor([0.8, -0.6]) + 0.02 * made.actions_NA
    made.offsets = np.arange(0, 601, 20)
    one = make_member(
        method="diff",
        steps=600,
        learning_rate=5e-3,
        batch_size=128,
        options={"width": 64, "denoising_steps": 10, "prediction": prediction},
    )
    pack = make_pack([one], made)
    pack.train(600)
    same = Standardiser(mean_D=np.zeros(7, np.float32), scale_D=np.ones(7, np.float32))
    policy = DiffusionPolicy({}, same, UNIT, dict(one.options), pack.parameters(0), None)
    actions, _ = policy.act(made.obs_ND[:500].numpy())
    side = np.sign(actions[:, 0])
    near = np.abs(actions - side[:, None] * np.array([[0.8, -0.6]])).max(1) < 0.3
    assert near.mean() > 0.7
    assert 0.3 < (side > 0).mean() < 0.7
    cloned = make_pack([make_member(method="bc", steps=300, batch_size=128, hidden=(64, 64))], made)
    assert np.sqrt(cloned.train(300)[-50:].mean()) > 0.5  # the distance of both ways from their mean, about


def test_options_that_do_not_go_together_are_refused_where_they_are_asked_for():
    for method, options, message in (
        (
            "mcnn+diff",
            {"prediction": "noise"},
            "memories are actions.*set prediction to sample, or take the method diff",
        ),
        ("diff", {"executed": 2}, "predicted is 1, but a chunk begins.*set predicted to at least 2"),
        ("diff", {"observed": 3, "predicted": 8, "executed": 7}, "set predicted to at least 9"),
        ("diff", {"network": "unet", "predicted": 6}, "halves a chunk 2 times, so set predicted to 8, say"),
        ("diff", {"network": "unet", "predicted": 8, "width": 60}, "normalises 8 groups.*set width to 64, say"),
        ("diff", {"time_width": 7}, "time_width is 7; it must be even"),
        ("diff", {"inference_steps": 6}, "inference_steps is 6, which does not divide the 5 denoising_steps"),
        ("diff", {"inference_steps": 2}, "inference_steps is 2, which does not divide the 5 denoising_steps"),
    ):
        with pytest.raises(ConfigError, match=message):
            SweepConfig.parse({"task": "door-expert-v1", "method": method, "options": options}, "x")


def test_study_refuses_before_anything_starts_what_cannot_be_learned_from(pen_demonstrations, monkeypatch):
    task = CATALOGUE["pen-expert-v1"]
    options = {"network": "unet", "predicted": 104}
    config = SweepConfig.parse({"task": task.id, "method": "diff", "options": options}, "test")
    with pytest.raises(
        ConfigError, match="predicted is 104, but the longest demonstration.* has 100 steps.*at most 100"
    ):
        make_study(config, task, pen_demonstrations)
    config = SweepConfig.parse({"task": task.id, "method": "mcnn+diff"}, "test")
    make_study(config, task, pen_demonstrations)
    for name in [name for name in sys.modules if name.partition(".")[0] == "diffusers"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "diffusers", None)
    with pytest.raises(ConfigError, match="train with the package diffusers.*pip install 'mcnn-ray"):
        make_study(config, task, pen_demonstrations)


def test_episodes_shorter_than_the_chunk_train_beside_longer_ones():
    losses = make_pack([member("mcnn+diff", options=UNET, lambda_=1.0)], data(*[3] * 20, 8)).train(30)
    assert np.isfinite(losses).all()
    assert losses[-10:].mean() < losses[:10].mean()


@pytest.mark.parametrize(
    ("values", "least"),
    [
        ({"method": "diff"}, 6),
        ({"method": "mcnn+diff", "memory_action": "mean", "options": {"predicted": 4, "executed": 2}}, 4),
    ],
)
def test_opens_doors_in_8_episodes_after_25_demonstrations(values, least, door_demonstrations, tmp_path):
    """Of 16 episodes with each of three training seeds, `diff` opened 14 to 16 doors, `mcnn+diff` 15."""
    options = {"width": 96, "warmup": 50, "ema_power": 0.75, **values.get("options", {})}
    values = {"memory_fraction": 0.2, "steps": 600, "learning_rate": 2e-3, **values, "options": options}
    one, policy, rollouts = open_doors(values, door_demonstrations, tmp_path)
    assert sum(rollout.record.success for rollout in rollouts) >= least
    assert (rollouts[0].record.mean_memory_weight is None) == (one.method == "diff")
    if one.method == "mcnn+diff":
        assert certificate_of([policy], door_demonstrations.observations_ND, sample=200).holds
