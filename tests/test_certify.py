"""Certifying policies: over which states, for which policies, and the command as a user meets it."""

import dataclasses
import functools
import itertools
import json

import numpy as np
import pytest

from mcnn_ray.certified_states import held_out_states, random_states, rollout_isolation
from mcnn_ray.certify import certificate_of, certify_directories
from mcnn_ray.core.certificate import Isolation
from mcnn_ray.core.codebook import learn_codebook
from mcnn_ray.core.normalise import ActionScale, Standardiser
from mcnn_ray.data.minari_store import write_minari
from mcnn_ray.errors import ArtifactError, ConfigError, DatasetError, McnnError
from mcnn_ray.policies.base import save_policy
from mcnn_ray.policies.mlp import Memories, MlpPolicy
from mcnn_ray.policies.nearest import NearestPolicy
from mcnn_ray.rollout.episode import EpisodeRecord, Rollout
from mcnn_ray.rollout.records import write_rollouts
from mcnn_ray.tasks.catalogue import CATALOGUE
from mcnn_ray.tasks.environments import make_environment

SCALE = ActionScale(low_A=np.full(24, -1, np.float32), high_A=np.full(24, 1, np.float32))


def card_of(data, source):
    dataset = {"source": source, "sha256": data.sha256, "episodes": data.episodes, "steps": data.steps}
    return {"task": "pen-expert-v1", "dataset": dataset}


def layers(seed, gain=1.0):
    rng = np.random.default_rng(seed)
    return [
        ((gain * rng.standard_normal((a, b)) / a**0.5).astype(np.float32), rng.standard_normal(b).astype(np.float32))
        for a, b in itertools.pairwise((45, 32, 24))
    ]


def mcnn_policy(data, source="nobody/knows-v0", *, lambda_=1.0, L=1.0, seed=0, gain=3.0, kind=MlpPolicy):
    standardiser = Standardiser.fit(data.observations_ND)
    obs_ND = standardiser(data.observations_ND)
    rows_M = np.arange(0, data.steps, 10)
    memories = Memories(
        observations_MD=obs_ND[rows_M], actions_MA=data.actions_NA[rows_M], rows_M=rows_M, lambda_=lambda_, L=L
    )
    return kind(card_of(data, source), standardiser, SCALE, layers(seed, gain), memories)


def bc_policy(data):
    return MlpPolicy({"task": "pen-expert-v1"}, Standardiser.fit(data.observations_ND), SCALE, layers(0), None)


def nearest_policy(data, source="nobody/knows-v0"):
    standardiser = Standardiser.fit(data.observations_ND)
    return NearestPolicy(
        card_of(data, source), standardiser, SCALE, standardiser(data.observations_ND), data.actions_NA
    )


@pytest.fixture
def certified(tmp_path):
    """Save policies and certify their directories."""

    def run(*policies, **options):
        directories = [tmp_path / f"policy{i}" for i in range(len(policies))]
        for policy, directory in zip(policies, directories, strict=True):
            save_policy(policy, directory)
        return certify_directories(directories, **{"states": 200, **options})

    return run


def names(certificate):
    return [found.name for found in certificate.checked]


@pytest.mark.parametrize("lambda_", [0.0, 0.1, 10.0])
def test_certificate_of_members_that_differ_in_seed_holds_with_a_width_within_its_bound(pen_demonstrations, lambda_):
    members = [mcnn_policy(pen_demonstrations, lambda_=lambda_, L=0.7, seed=seed) for seed in range(3)]
    found = certificate_of(members, pen_demonstrations.observations_ND)
    (over,) = found.checked
    assert found.holds
    assert (found.functions, found.memories, found.lambda_, found.L) == (3, 60, lambda_, 0.7)
    assert (over.name, over.states) == ("demonstrations", 600)
    assert over.width <= over.width_bound + 2 * over.cone_tolerance
    assert (over.width > 0) == (lambda_ > 0)
    assert found.expert_distance == over.most_isolated_distance
    assert found.horizon == 100


def test_most_isolated_distance_is_the_codebook_s(pen_demonstrations):
    policy = mcnn_policy(pen_demonstrations)
    book = learn_codebook(policy.standardiser(pen_demonstrations.observations_ND), 0.1, method="random")
    obs_MD = policy.standardiser(pen_demonstrations.observations_ND)[book.rows_M]
    policy.memories = dataclasses.replace(policy.memories, observations_MD=obs_MD, rows_M=book.rows_M)
    found = certificate_of([policy], pen_demonstrations.observations_ND)
    assert found.expert_distance == book.most_isolated_distance


class ChangedBit(MlpPolicy):
    """Acts on a memory whose action has its last bit changed, and shows the right one."""

    def _actions(self, obs_BD, state):
        right = self.memories
        changed_MA = right.actions_MA.copy()
        changed_MA.view(np.uint32)[7, 3] ^= 1
        self.memories = dataclasses.replace(right, actions_MA=changed_MA)
        try:
            return super()._actions(obs_BD, state)
        finally:
            self.memories = right


class BeyondL(MlpPolicy):
    """Its network's part is a tenth larger than it says."""

    def __init__(self, *parts):
        super().__init__(*parts)
        self._L = np.float32(1.1 * self._L)


class Softened(MlpPolicy):
    """Its memories lose weight faster than it says."""

    def _weight(self, distance_B):
        return super()._weight(1.2 * distance_B)


@pytest.mark.parametrize(("kind", "inexact"), [(ChangedBit, 1), (BeyondL, 0), (Softened, 0)])
def test_policy_that_acts_otherwise_than_it_says_breaks_the_certificate(pen_demonstrations, kind, inexact):
    assert certificate_of([mcnn_policy(pen_demonstrations)], pen_demonstrations.observations_ND).holds
    found = certificate_of([mcnn_policy(pen_demonstrations, kind=kind)], pen_demonstrations.observations_ND)
    assert not found.holds
    assert found.inexact_memories == inexact
    assert (found.checked[0].cone_violation > 1e-3) == (inexact == 0)


def test_all_of_the_demonstrations_and_random_states_are_checked(certified, pen_demonstrations, pen_dataset):
    found = certified(mcnn_policy(pen_demonstrations, pen_dataset))
    assert found.holds
    assert names(found) == ["demonstrations", "uniform", "around memories"]
    assert [over.states for over in found.checked] == [600, 200, 200]
    assert found.notes[0] == f"none of {pen_dataset} was held out"


def test_episodes_held_out_are_checked_apart(certified, pen_demonstrations, pen_dataset):
    learned = pen_demonstrations.subset(4)
    found = certified(mcnn_policy(learned, pen_dataset))
    assert found.holds
    assert names(found)[:2] == ["demonstrations", "held-out demonstrations"]
    assert [over.states for over in found.checked[:2]] == [400, 200]
    assert found.checked[1].most_isolated_distance > 0
    assert found.expert_distance == max(over.most_isolated_distance for over in found.checked[:2])


def test_demonstrations_whose_actions_were_clipped_are_known_again(certified, pen_demonstrations):
    wide = dataclasses.replace(pen_demonstrations, actions_NA=pen_demonstrations.actions_NA * 2)
    write_minari(wide, "mcnn/pen/wide-v0", make_environment(CATALOGUE["pen-expert-v1"]), description="t")
    clipped = wide.check_actions(SCALE.low_A, SCALE.high_A, clip=True)
    found = certified(mcnn_policy(clipped.subset(3), "mcnn/pen/wide-v0"))
    assert [over.states for over in found.checked[:2]] == [300, 300]


@pytest.mark.parametrize("what", ["missing", "changed", "unnamed"])
def test_without_its_demonstrations_memories_and_random_states_are_checked(
    certified, pen_demonstrations, pen_dataset, what
):
    policy = mcnn_policy(pen_demonstrations, pen_dataset)
    if what == "missing":
        policy.card["dataset"]["source"] = "me/none-v0"
    elif what == "changed":
        policy.card["dataset"]["sha256"] = "0" * 64
    else:
        del policy.card["dataset"]
    found = certified(policy)
    assert found.holds
    assert names(found) == ["uniform", "around memories"]
    assert found.expert_distance is None
    note, _ = found.notes
    assert "only memories and random states were checked" in note
    expected = {"missing": "me/none-v0 is not on this machine", "changed": "then 000000000000", "unnamed": "not name"}
    assert expected[what] in note


def test_rollouts_are_checked_and_refused_where_they_do_not_fit(certified, pen_demonstrations):
    policy, seen = mcnn_policy(pen_demonstrations), pen_demonstrations.observations_ND[:50] + 0.1
    found = certified(policy, rollouts_ND=seen)
    assert (found.checked[0].name, found.checked[0].states) == ("rollouts", 50)
    with pytest.raises(DatasetError, match=r"shape \(50, 44\), expected one or more rows of 45"):
        certified(policy, rollouts_ND=seen[:, 1:])
    with pytest.raises(DatasetError, match="NaN or infinite"):
        certified(policy, rollouts_ND=np.full((2, 45), np.nan))


def test_nearest_neighbour_is_exact_with_the_bounds_of_lambda_zero(certified, pen_demonstrations, pen_dataset):
    found = certified(nearest_policy(pen_demonstrations, pen_dataset))
    assert found.holds
    assert (found.lambda_, found.memories, found.repeated_memories) == (0.0, 600, 0)
    assert found.checked[0].most_isolated_distance == 0
    assert {over.width_bound for over in found.checked} == {0.0}


def test_nearest_neighbour_of_repeated_observations_is_exact_at_the_first(certified, pen_demonstrations):
    obs_ND = pen_demonstrations.observations_ND.copy()
    obs_ND[10] = obs_ND[5]
    found = certified(nearest_policy(dataclasses.replace(pen_demonstrations, observations_ND=obs_ND)))
    assert found.holds
    assert found.repeated_memories == 1


def test_plain_behaviour_cloning_has_no_certificate(certified, pen_demonstrations):
    with pytest.raises(McnnError, match="no certificate: without memories"):
        certified(bc_policy(pen_demonstrations))


def record(seed, distance, length=100, member="m"):
    fields = dict.fromkeys(field.name for field in dataclasses.fields(EpisodeRecord))
    told = {"member": member, "episode_seed": seed, "length": length, "most_isolated_distance": distance}
    return EpisodeRecord(**{**fields, **told, "versions": {}})


def write_records(folder, *records):
    write_rollouts(
        folder / "episodes.parquet", [Rollout(record=one, actions_TA=np.zeros((1, 24), np.float32)) for one in records]
    )


def test_rollouts_are_as_isolated_as_their_most_isolated_state():
    (found,) = rollout_isolation([record(0, 1.5), record(1, 4.0, length=7), record(0, 2.0, member="other")])
    assert found == Isolation(name="rollouts", episodes=3, states=207, most_isolated_distance=4.0)
    assert rollout_isolation([record(0, None)]) == rollout_isolation([]) == []


def test_records_beside_a_policy_tell_how_far_its_rollouts_went(certified, pen_demonstrations, tmp_path):
    policy = mcnn_policy(pen_demonstrations)
    found = certified(policy)
    assert found.isolation == ()
    assert "no episode records lie beside the policy: no rollouts were looked at" in found.notes
    write_records(tmp_path, record(0, 3.0), record(1, 5.0))
    found = certified(policy)
    assert found.isolation == (Isolation(name="rollouts", episodes=2, states=200, most_isolated_distance=5.0),)
    assert found.expert_distance is None  # the expert was nowhere near these rollouts
    (tmp_path / "episodes.parquet").write_bytes(b"damaged")
    found = certified(policy)
    assert found.isolation == ()
    assert "episodes.parquet is not a readable Parquet file" in found.notes[1]


def test_held_out_states_are_those_of_episodes_not_learned_from(pen_demonstrations):
    learned = pen_demonstrations.subset(4)
    held_out = held_out_states(pen_demonstrations, learned)
    assert held_out.shape == (200, 45)
    both = np.concatenate([learned.observations_ND, held_out])
    np.testing.assert_array_equal(np.unique(both, axis=0), np.unique(pen_demonstrations.observations_ND, axis=0))
    clipped = dataclasses.replace(learned, actions_NA=np.zeros_like(learned.actions_NA))
    np.testing.assert_array_equal(held_out_states(pen_demonstrations, clipped), held_out)
    assert held_out_states(pen_demonstrations, pen_demonstrations).shape == (0, 45)


def test_sample_of_the_states_is_told_from_all_of_them(pen_demonstrations):
    learned = pen_demonstrations.subset(4)
    found = certificate_of(
        [mcnn_policy(learned)],
        learned.observations_ND,
        held_out_ND=held_out_states(pen_demonstrations, learned),
        sample=50,
        isolation=[Isolation(name="all demonstrations", episodes=4, states=400, most_isolated_distance=99.0)],
    )
    assert [(over.name, over.states, over.drawn_from) for over in found.checked] == [
        ("demonstrations", 50, 400),
        ("held-out demonstrations", 50, 200),
    ]
    assert found.expert_distance == 99.0


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"lambda_": 2.0}, "lambda"),
        ({"L": 2.0}, "L"),
        ({"actions_MA": np.zeros((60, 24), np.float32)}, "the actions of their memories"),
    ],
)
def test_policies_that_do_not_belong_together_are_refused(pen_demonstrations, change, what):
    one, other = mcnn_policy(pen_demonstrations), mcnn_policy(pen_demonstrations, seed=1)
    other.memories = dataclasses.replace(other.memories, **change)
    with pytest.raises(ConfigError, match=f"policy 0 of pen-expert-v1 and policy 1 of pen-expert-v1 differ in {what};"):
        certificate_of([one, other], pen_demonstrations.observations_ND)


def test_policies_of_other_demonstrations_are_refused(pen_demonstrations):
    policies = [mcnn_policy(pen_demonstrations), mcnn_policy(pen_demonstrations.subset(3))]
    with pytest.raises(ConfigError, match="differ in the scale of observations"):
        certificate_of(policies, pen_demonstrations.observations_ND)


@pytest.mark.parametrize("change", [{"lambda_": -1.0}, {"lambda_": np.nan}, {"L": 0.0}])
def test_lambda_and_L_that_cannot_be_are_refused(certified, pen_demonstrations, change):
    with pytest.raises(ArtifactError, match="expected at least 0 and above 0"):
        certified(mcnn_policy(pen_demonstrations, **change))


def test_memories_that_are_not_numbers_are_refused(certified, pen_demonstrations):
    policy = mcnn_policy(pen_demonstrations)
    policy.memories.observations_MD[3, 4] = np.nan
    with pytest.raises(ArtifactError, match="holds NaN or infinity"):
        certified(policy)


def test_random_states_fill_the_widened_box_and_surround_the_memories():
    rng = np.random.default_rng(0)
    box = rng.uniform([-1, 0, 5], [1, 4, 5], (500, 3)).astype(np.float32)
    memories, ignored = box[:5], np.array([False, False, True])
    drawn = random_states(memories, box, ignored, 4000, seed=1)
    low, high = drawn["uniform"].min(0), drawn["uniform"].max(0)
    np.testing.assert_allclose(low, [-1.5, -1, 5], atol=0.05)
    np.testing.assert_allclose(high, [1.5, 5, 5], atol=0.05)
    around = drawn["around memories"]
    distance = np.linalg.norm(around[:, None] - memories[None], axis=2).min(1)
    assert distance.min() < 1e-3
    assert distance.max() > 10
    assert (around[:, 2] == 5).all()
    again, other = (random_states(memories, box, ignored, 4000, seed=seed) for seed in (1, 2))
    for name, states in drawn.items():
        np.testing.assert_array_equal(again[name], states)
        assert (other[name] != states).any()


@pytest.fixture
def certify(mcnn, empty_folder):
    """Run `mcnn certify` in an empty folder; as the fixture `mcnn`."""
    return functools.partial(mcnn, "certify")


def test_command_prints_a_table_and_ends_with_0_when_the_certificate_holds(
    certify, tmp_path, pen_demonstrations, pen_dataset
):
    for seed in (0, 1):
        save_policy(mcnn_policy(pen_demonstrations.subset(4), pen_dataset, seed=seed), tmp_path / f"p{seed}")
    status, out, _ = certify("p0", "p1", "--states", 100)
    assert status == 0
    for part in (
        "The certificate holds",
        "held-out demonstrations",
        "2 policies returned the stored action at 80 of 80",
        "sub-optimality bound: not applicable, actions are continuous",
    ):
        assert part in out


def test_command_prints_one_line_of_json(certify, tmp_path, pen_demonstrations):
    save_policy(mcnn_policy(pen_demonstrations), tmp_path / "p")
    status, out, _ = certify("p", "--json", "--states", 100, "--seed", 3)
    values = json.loads(out)
    assert status == 0
    assert out.count("\n") == 1
    assert (values["policies"], values["holds"], values["memories"]) == (["p"], True, 60)
    assert certify("p", "--json", "--states", 100, "--seed", 3)[1] == out
    assert certify("p", "--json", "--states", 100, "--seed", 4)[1] != out


def test_command_shows_the_rollouts_that_a_sweep_recorded(certify, tmp_path, pen_demonstrations):
    save_policy(mcnn_policy(pen_demonstrations), tmp_path / "p")
    write_records(tmp_path, record(0, 3.0), record(1, 5.25))
    status, out, _ = certify("p", "--states", 100)
    assert status == 0
    (row,) = (line.split() for line in out.splitlines() if "rollouts" in line)
    assert row == ["rollouts,", "2", "episodes", "200", "5.25", "-", "-", "1.99", "-"]


def test_command_ends_with_1_when_the_certificate_does_not_hold(certify, tmp_path, pen_demonstrations):
    policy = mcnn_policy(pen_demonstrations)
    policy.layers[0][0][:] = np.nan
    save_policy(policy, tmp_path / "p")
    status, out, _ = certify("p", "--states", 100)
    assert status == 1
    assert "DOES NOT HOLD" in out
    assert "0 of 60" in out
    status, out, _ = certify("p", "--states", 100, "--json")
    assert status == 1
    assert json.loads(out)["holds"] is False


def test_command_refuses_in_a_sentence_what_it_cannot_certify(certify, pen_demonstrations, tmp_path):
    save_policy(bc_policy(pen_demonstrations), tmp_path / "bc")
    save_policy(mcnn_policy(pen_demonstrations), tmp_path / "damaged")
    save_policy(mcnn_policy(pen_demonstrations), tmp_path / "one")
    save_policy(mcnn_policy(pen_demonstrations, lambda_=2.0), tmp_path / "two")
    weights = tmp_path / "damaged" / "policy.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    (tmp_path / "empty").mkdir()
    for arguments, expected, message in (
        (["nowhere"], 1, "error: nowhere is not a policy directory: it has no policy.json"),
        (["empty"], 1, "error: empty is not a policy directory: it has no policy.json"),
        (["damaged/policy.json"], 1, "is not a policy directory"),
        (["bc"], 1, "error: bc has no certificate: without memories"),
        (["damaged"], 1, "policy.safetensors is damaged"),
        (["one", "two"], 2, "error: one and two differ in lambda; policies certified together share memories"),
        (["one", "--states", "0"], 2, "Invalid value for '--states'"),
        ([], 2, "Missing argument"),
    ):
        status, out, err = certify(*arguments)
        assert (status, out) == (expected, ""), arguments
        assert message in err


def test_command_shows_an_example(certify):
    status, out, _ = certify("--help")
    assert status == 0
    assert "Example: mcnn certify runs/" in out
