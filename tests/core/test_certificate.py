import dataclasses
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcnn_ray.core.blend import blend, sigma_beta
from mcnn_ray.core.certificate import GAP_ASSUMPTIONS, Certificate, Isolation, sub_optimality_bound, width_bound
from mcnn_ray.core.consistency import MemoryFunction, check_states, inexact_memories, most_isolated_distance
from mcnn_ray.core.normalise import ActionScale
from mcnn_ray.core.search import MemorySearch

DIM, ACTIONS = 5, 3


def consistent(seed, lambda_, L, *, memories=20, low=-1.0, high=1.0, network_seed=0, gain=3.0, grid=False):
    """A memory-consistent function of random memories and a random network, as a policy computes it in float32."""
    rng = np.random.default_rng(seed)
    scale = ActionScale(low_A=np.full(ACTIONS, low, np.float32), high_A=np.full(ACTIONS, high, np.float32))
    draw = rng.integers(-2, 3, (memories, DIM)) if grid else rng.standard_normal((memories, DIM))
    memories_MD = np.unique(draw.astype(np.float32), axis=0)
    actions_MA = rng.uniform(low, high, (len(memories_MD), ACTIONS)).astype(np.float32)
    weights = (gain * np.random.default_rng(network_seed).standard_normal((DIM, ACTIONS))).astype(np.float32)
    search = MemorySearch(memories_MD)

    def act(obs_BD):
        index_B, distance_B = search(obs_BD)
        weight_B1 = np.exp(np.float32(-lambda_) * distance_B)[:, None]
        return blend(weight_B1, actions_MA[index_B], scale.to_raw(L * sigma_beta(obs_BD @ weights, 0.0)), 1.0)

    return MemoryFunction(
        act=act, memories_MD=memories_MD, actions_MA=actions_MA, action_scale=scale, lambda_=lambda_, L=L
    )


def states(seed=1, count=300, spread=3.0):
    rng = np.random.default_rng(seed)
    return (spread * 10.0 ** rng.uniform(-3, 0, (count, 1)) * rng.standard_normal((count, DIM))).astype(np.float32)


def certificate(*functions, obs=None):
    found = check_states(functions, "some", states() if obs is None else obs)
    inexact = [inexact_memories(function) for function in functions]
    return Certificate(
        functions=len(functions),
        memories=len(functions[0].memories_MD),
        repeated_memories=inexact[0][1],
        lambda_=functions[0].lambda_,
        L=functions[0].L,
        inexact_memories=sum(count for count, _ in inexact),
        checked=(found,),
    )


seeds = st.integers(0, 2**32 - 1)
lambdas = st.one_of(st.just(0.0), st.floats(1e-4, 1e6))
bounds = st.sampled_from([(-1.0, 1.0), (-2.0, 5.0), (0.1, 0.3), (1000.0, 1001.0)])


@settings(max_examples=60)
@given(seeds, lambdas, st.floats(0.01, 100.0), bounds, st.booleans())
def test_certificate_holds_for_any_network_lambda_and_L(seed, lambda_, L, limits, grid):
    low, high = limits
    function = consistent(seed, lambda_, L, low=low, high=high, network_seed=seed, grid=grid)
    near = function.memories_MD.repeat(5, 0) + states(seed, 5 * len(function.memories_MD), 1.0)
    found = certificate(function, obs=near.astype(np.float32))
    assert found.holds, found


def test_tolerance_is_a_few_roundings_and_no_more():
    found = check_states([consistent(0, 1.0, 1.0)], "some", states())
    assert found.cone_violation == 0
    assert 0 <= found.cone_excess < found.cone_tolerance <= 32 * 2.0**-24


def test_either_of_two_equally_near_memories_may_be_followed():
    function = consistent(0, 1.0, 1.0)
    memories_MD = np.zeros((2, DIM), np.float32)
    memories_MD[:, 0] = -1, 1
    actions_MA = np.array([[-1.0] * ACTIONS, [1.0] * ACTIONS], np.float32)
    for followed in (0, 1):
        part = np.float32(math.exp(-1.0)) * actions_MA[[followed]]
        tied = dataclasses.replace(
            function,
            act=lambda obs, part=part: part.repeat(len(obs), 0),
            memories_MD=memories_MD,
            actions_MA=actions_MA,
        )
        assert check_states([tied], "between", np.zeros((1, DIM), np.float32)).cone_violation == 0
        off = np.full((1, DIM), 1e-3, np.float32)
        assert (check_states([tied], "nearer to the second", off).cone_violation > 0) == (followed == 0)


@settings(max_examples=30)
@given(seeds, st.integers(0, 19), st.integers(0, ACTIONS - 1), st.integers(0, 31))
def test_one_changed_bit_of_a_stored_action_is_found(seed, memory, number, bit):
    function = consistent(seed, 1.0, 1.0)
    changed_MA = function.actions_MA.copy()
    changed_MA.view(np.uint32)[memory, number] ^= np.uint32(1 << bit)
    tampered = dataclasses.replace(function, actions_MA=changed_MA)
    assert inexact_memories(function) == (0, 0)
    assert inexact_memories(tampered) == (1, 0)
    assert not certificate(tampered, obs=function.memories_MD[:1]).holds


def test_sign_of_a_stored_zero_is_not_counted():
    function = consistent(0, 1.0, 1.0)
    positive_MA, negative_MA = np.zeros_like(function.actions_MA), np.full_like(function.actions_MA, -0.0)
    returned = dataclasses.replace(function, act=lambda obs: positive_MA[: len(obs)], actions_MA=negative_MA)
    assert inexact_memories(returned) == (0, 0)


def test_memories_at_one_place_count_once_and_the_first_is_the_one():
    function = consistent(0, 1.0, 1.0)
    twice = dataclasses.replace(
        function,
        memories_MD=np.concatenate([function.memories_MD, function.memories_MD[3:5]]),
        actions_MA=np.concatenate([function.actions_MA, function.actions_MA[3:5] / 2]),
    )
    assert inexact_memories(twice) == (0, 2)


def tampered_act(function, change):
    """The function with its weight and its network's part changed."""
    search = MemorySearch(function.memories_MD)
    weights = (3 * np.random.default_rng(0).standard_normal((DIM, ACTIONS))).astype(np.float32)

    def act(obs_BD):
        index_B, distance_B = search(obs_BD)
        weight_B1 = np.exp(-function.lambda_ * distance_B)[:, None]
        weight_B1, network_BA = change(weight_B1, sigma_beta(obs_BD @ weights, 0.0))
        return blend(weight_B1, function.actions_MA[index_B], network_BA, function.L).astype(np.float32)

    return dataclasses.replace(function, act=act)


@pytest.mark.parametrize(
    ("change", "exact"),
    [
        (lambda w, n: (w, 1.001 * n), True),  # the network's part beyond L
        (lambda w, n: (w * w, n), True),  # a weight that falls faster than lambda says
        (lambda w, n: (0.999 * w, n), False),  # a weight that is not 1 at a memory
        (lambda w, n: (w, n + 3.0 * (w < 0.1)), True),  # an additional jump far away
    ],
)
def test_blend_that_breaks_equation_one_leaves_the_cones(change, exact):
    function = consistent(0, 1.0, 1.0)
    assert certificate(tampered_act(function, lambda w, n: (w, n))).holds
    tampered = tampered_act(function, change)
    found = certificate(tampered)
    assert found.checked[0].cone_violation > 1e-4
    assert not found.holds
    assert (inexact_memories(tampered) == (0, 0)) == exact


def test_weight_that_falls_slower_leaves_the_cones_where_memories_exceed_L():
    slower = (lambda w, n: (np.sqrt(w), n),)
    assert check_states([tampered_act(consistent(0, 1.0, 1.0), *slower)], "some", states()).cone_violation == 0
    assert check_states([tampered_act(consistent(0, 1.0, 0.1), *slower)], "some", states()).cone_violation > 0.01


def test_actions_that_are_not_finite_break_the_certificate_and_leave_json_finite():
    function = consistent(0, 1.0, 1.0)
    for value in (np.nan, np.inf):
        broken = dataclasses.replace(function, act=lambda obs, value=value: np.full((len(obs), ACTIONS), value))
        found = certificate(broken)
        assert found.checked[0].not_finite == 300
        assert not found.holds
        json.dumps(found.to_json(), allow_nan=False)


def test_one_number_that_is_not_finite_is_counted_and_the_other_states_are_still_checked():
    function = consistent(0, 1.0, 1.0)

    def act(obs_BD):
        actions_BA = function.act(obs_BD)
        actions_BA[7, 1] = np.nan
        return actions_BA

    found, whole = (check_states([f], "some", states()) for f in (dataclasses.replace(function, act=act), function))
    assert (found.not_finite, found.holds, whole.holds) == (1, False, True)
    assert found.cone_violation == 0
    assert found.cone_excess == pytest.approx(whole.cone_excess, abs=found.cone_tolerance)


@settings(max_examples=100)
@given(seeds, st.integers(1, 60), st.integers(1, 12), st.sampled_from([0.0, 100.0]), st.data())
def test_more_memories_never_make_the_most_isolated_state_farther(seed, count, dim, offset, data):
    rng = np.random.default_rng(seed)
    obs = (offset + rng.standard_normal((80, dim))).astype(np.float32)
    memories = obs[rng.permutation(80)[:count]]
    sizes = sorted(data.draw(st.lists(st.integers(1, count), min_size=2, max_size=5)))
    distances = [most_isolated_distance(obs, memories[:size]) for size in sizes]
    assert distances == sorted(distances, reverse=True)


def test_most_isolated_distance_is_the_paper_s_definition():
    obs, memories = states(3, 200), states(4, 15)
    expected = max(min(np.linalg.norm(s - m) for m in memories.astype(np.float64)) for s in obs.astype(np.float64))
    assert most_isolated_distance(obs, memories) == pytest.approx(expected, rel=1e-6)
    assert most_isolated_distance(obs, obs) == 0
    assert check_states([consistent(0, 1.0, 1.0)], "s", obs).most_isolated_distance == most_isolated_distance(
        obs, consistent(0, 1.0, 1.0).memories_MD
    )


@settings(max_examples=20)
@given(seeds, st.floats(1e-3, 100.0), st.floats(0.1, 10.0), st.floats(0.1, 100.0))
def test_width_between_networks_is_above_zero_and_within_the_bound(seed, lambda_, L, gain):
    members = [consistent(seed, lambda_, L, network_seed=k, gain=gain) for k in range(3)]
    found = check_states(members, "some", states(seed))
    assert 0 < found.width <= found.width_bound + 2 * found.cone_tolerance
    assert found.width_violation == 0
    assert certificate(*members).holds


def test_width_approaches_its_bound_where_networks_saturate():
    members = [consistent(0, 1.0, 1.0, network_seed=k, gain=1000.0) for k in range(4)]
    found = check_states(members, "some", states())
    assert 0.98 * found.width_bound < found.width <= found.width_bound + 2 * found.cone_tolerance


def test_members_that_differ_by_more_than_the_bound_break_the_certificate():
    one, other = consistent(0, 0.1, 1.0), consistent(0, 0.1, 1.0, network_seed=1)
    wide = dataclasses.replace(other, act=lambda obs: other.act(obs) + 1.0)
    assert certificate(one, other).holds
    found = certificate(one, wide)
    assert found.checked[0].width_violation > 0
    assert not found.holds


def test_lambda_zero_gives_width_zero():
    found = check_states([consistent(0, 0.0, 1.0, network_seed=k) for k in range(2)], "some", states())
    assert (found.width, found.width_bound, found.cone_excess) == (0, 0, 0)


def test_single_function_has_no_measured_width():
    found = check_states([consistent(0, 1.0, 1.0)], "some", states())
    assert found.width is None
    assert found.width_bound > 0


@given(st.floats(0, 100), st.floats(0.01, 10), st.floats(0, 100))
def test_width_bound_is_the_lemma_s_formula(lambda_, L, distance):
    assert width_bound(lambda_, L, distance) == pytest.approx(2 * L * (1 - math.exp(-lambda_ * distance)), abs=1e-12)


@given(st.floats(0, 100), st.floats(0.01, 10), st.floats(0, 100), st.integers(1, 1000), st.integers(1, 50))
def test_sub_optimality_bound_is_the_theorem_s_capped_at_the_horizon(lambda_, L, distance, horizon, actions):
    found = sub_optimality_bound(lambda_, L, distance, horizon, actions)
    formula = horizon**2 * actions * L * (1 - math.exp(-lambda_ * distance))
    assert found == pytest.approx(min(horizon, formula), rel=1e-9, abs=1e-6)
    assert 0 <= found <= horizon
    assert sub_optimality_bound(0.0, L, distance, horizon, actions) == 0


def test_theorem_applies_to_discrete_actions_alone():
    found = certificate(consistent(0, 1.0, 1.0))
    continuous = dataclasses.replace(found, horizon=200, expert_distance=1.0)
    assert continuous.gap_bound is None
    assert "continuous" in continuous.gap_unknown
    discrete = dataclasses.replace(continuous, discrete_actions=4)
    assert (discrete.gap_bound, discrete.gap_unknown) == (200.0, "")
    assert dataclasses.replace(discrete, expert_distance=0.0).gap_bound == 0
    assert dataclasses.replace(discrete, horizon=None).gap_unknown == "the task's horizon is unknown"
    assert [assumption.split(":")[0] for assumption in GAP_ASSUMPTIONS] == [
        "discrete actions",
        "realizability",
        "bounded total variation risk",
        "rewards in [0, 1] at each of H steps",
    ]


def test_certificate_becomes_json_with_everything_in_it():
    found = certificate(consistent(0, 1.0, 1.0), consistent(0, 1.0, 1.0, network_seed=1))
    values = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert values["holds"] is True
    assert (values["lambda"], values["L"], values["functions"], values["memories"]) == (1.0, 1.0, 2, 20)
    assert values["checked"][0]["width"] == found.checked[0].width
    assert (values["checked"][0]["states"], values["checked"][0]["drawn_from"]) == (300, 300)
    assert values["gap_bound"] is None
    assert len(values["gap_assumptions"]) == 4


def test_sets_of_which_only_distances_are_known_have_a_width_bound_and_no_part_in_whether_it_holds():
    rollouts = Isolation(name="rollouts", episodes=4, states=400, most_isolated_distance=2.0)
    found = dataclasses.replace(certificate(consistent(0, 0.5, 1.5)), isolation=(rollouts,))
    values = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert found.holds
    assert values["isolation"] == [
        {
            "name": "rollouts",
            "episodes": 4,
            "states": 400,
            "most_isolated_distance": 2.0,
            "width_bound": pytest.approx(2 * 1.5 * (1 - math.exp(-1.0))),
        }
    ]


def test_certificate_says_over_which_sets_each_part_was_checked():
    rollouts = Isolation(name="rollouts", episodes=4, states=400, most_isolated_distance=2.0)
    single = dataclasses.replace(certificate(consistent(0, 1.0, 1.0)), isolation=(rollouts,))
    assert single.covers == {
        "stored_action": ["memories"],
        "cones": ["some"],
        "width": [],
        "most_isolated_distance": ["some", "rollouts"],
    }
    several = certificate(consistent(0, 1.0, 1.0), consistent(0, 1.0, 1.0, network_seed=1))
    assert several.covers["width"] == ["some"]
