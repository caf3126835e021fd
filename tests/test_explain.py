import json
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from mcnn_ray.core.normalise import ActionScale, Standardiser
from mcnn_ray.data.minari_store import read_minari, write_minari
from mcnn_ray.errors import ConfigError, SimulationError
from mcnn_ray.explain import explain_rollout, run_as_evaluated
from mcnn_ray.explain_frames import frames_of
from mcnn_ray.monitor import Monitor
from mcnn_ray.policies.base import save_policy
from mcnn_ray.policies.blended import Memories
from mcnn_ray.policies.denoisers import make_denoiser
from mcnn_ray.policies.diffusion import DiffusionPolicy
from mcnn_ray.policies.loading import load_policy
from mcnn_ray.policies.mlp import MlpPolicy
from mcnn_ray.report.explain_page import explanation_json, explanation_page
from mcnn_ray.rollout.episode import EVALUATION_SEED, run_episodes
from mcnn_ray.rollout.records import write_rollouts
from mcnn_ray.rollout.replay import see_again
from mcnn_ray.tasks.adroit import observation_names
from mcnn_ray.tasks.catalogue import ADROIT_NAMES, CATALOGUE
from mcnn_ray.tasks.environments import make_environment
from mcnn_ray.training.chunks import action_places, memory_chunks
from mcnn_ray.training.noise import denoising_table
from tests.policies.test_diffusion import CHUNKS

DOOR = CATALOGUE["door-expert-v1"]
DATASET = "tests/door/explained-v0"
LEARNED = 10
ROWS = np.arange(0, 2000, 10)
SEEDS = [EVALUATION_SEED, EVALUATION_SEED + 1, EVALUATION_SEED + 2]


@pytest.fixture(scope="module")
def door(door_demonstrations):
    """25 real episodes in the store, of which policies learn from ten."""
    write_minari(door_demonstrations, DATASET, make_environment(DOOR), description="for tests")
    return read_minari(DATASET)


def make_policy(door, method, identity):
    """A random network, alone or with every tenth demonstrated step as a memory of much weight."""
    learned, rng = door.subset(LEARNED), np.random.default_rng(0)
    standardiser, ones = Standardiser.fit(learned.observations_ND), np.ones(28, np.float32)
    layers = [(rng.normal(0, 0.1, (39, 28)).astype(np.float32), np.zeros(28, np.float32))]
    memories = Memories(
        observations_MD=standardiser(learned.observations_ND)[ROWS],
        actions_MA=learned.actions_NA[ROWS],
        rows_M=ROWS,
        lambda_=0.01,
        L=1.0,
    )
    card = {"task": DOOR.id, "identity": identity, "member": {"method": method, "seed": 0}}
    card["dataset"] = {"source": DATASET, "sha256": learned.sha256, "episodes": LEARNED, "steps": learned.steps}
    scale = ActionScale(low_A=-ones, high_A=ones)
    return MlpPolicy(card, standardiser, scale, layers, memories if method != "bc" else None)


@pytest.fixture(scope="module")
def policy(door):
    return make_policy(door, "mcnn+mlp", "0123456789ab")


@pytest.fixture(scope="module")
def rollouts(policy):
    return run_episodes(policy, DOOR, [make_environment(DOOR) for _ in SEEDS], SEEDS, "0123456789ab")


@pytest.fixture(scope="module")
def folder(policy, rollouts, door, tmp_path_factory):
    """What a sweep leaves of a member, and a policy without memories."""
    folder = tmp_path_factory.mktemp("member")
    save_policy(policy, folder / "policy")
    write_rollouts(folder / "episodes.parquet", rollouts)
    save_policy(make_policy(door, "bc", "ba9876543210"), folder / "bc")
    return folder


@pytest.fixture(scope="module")
def shown(policy, rollouts):
    return explain_rollout(policy, rollouts[1], DOOR)


def test_episode_is_the_one_that_an_evaluation_of_the_same_seed_runs(policy, rollouts):
    for rollout, seed in zip(rollouts, SEEDS, strict=True):
        again = run_as_evaluated(policy, DOOR, seed)
        assert np.array_equal(again.actions_TA, rollout.actions_TA)
        assert again.record.episode_return == rollout.record.episode_return


def test_each_action_is_explained_by_the_memory_that_it_was_blended_with(policy, shown, rollouts):
    nearest, learned = shown.nearest, read_minari(DATASET).subset(LEARNED)
    assert nearest.distance_T.max() == rollouts[1].record.most_isolated_distance
    assert nearest.weight_T.mean() == np.float32(rollouts[1].record.mean_memory_weight)
    obs_TD = policy.standardiser(shown.observations_TD)
    apart_TM = np.linalg.norm(obs_TD[:, None] - policy.memories.observations_MD[None], axis=2)
    assert np.array_equal(nearest.index_T, apart_TM.argmin(1))
    assert np.allclose(np.linalg.norm(nearest.differences_TD, axis=1), nearest.distance_T, atol=1e-4)
    assert np.array_equal(nearest.observations_TD, learned.observations_ND[ROWS[nearest.index_T]])
    # lambda is small: the action is the memory's but for what the network weighs.
    bound_T = (1 - nearest.weight_T) * 2 + 1e-5
    assert (nearest.departure_T <= bound_T).all()


def test_memory_is_found_again_in_the_dataset_by_episode_and_step(shown, door):
    for t in (0, 77, 199):
        episode, step = shown.nearest.places_T[t]
        assert np.array_equal(door.observations_of(episode)[step], shown.nearest.observations_TD[t])


def test_held_out_demonstrations_are_those_that_were_not_learned_from(shown, policy, door):
    spread, learned = shown.nearest.spread, door.subset(LEARNED)
    assert (spread.held_out, spread.episodes, len(spread.distance_N)) == (True, 15, 3000)
    assert spread.distance_N[0] > 0
    everything = policy.explain(door.observations_ND).distance_B
    own = policy.explain(learned.observations_ND).distance_B
    assert spread.distance_N.astype(np.float64).sum() == pytest.approx(everything.sum() - own.sum(), rel=1e-4)
    assert spread.percentiles(np.array([0.0, np.median(spread.distance_N), 1e9], np.float32)) == pytest.approx(
        [0, 50, 100], abs=0.1
    )


def test_memory_is_drawn_in_the_state_that_it_was_recorded_in(shown, door):
    try:
        frames = frames_of(shown, 3)
    except SimulationError as error:
        pytest.skip(f"nothing can be drawn here: {error}")
    assert frames.steps == [0, 100, 199]
    assert frames.note == ""
    assert all(frame.shape == (480, 480, 3) and frame.std() > 20 for frame in [*frames.now, *frames.memory])
    # The first state of a demonstration is the first of a reset with its seed; a later one is not.
    env = make_environment(DOOR, render_mode="rgb_array")
    episode, step = shown.nearest.places_T[0]
    env.reset(seed=episode)
    for action_A in door.actions_NA[door.offsets[episode] :][:step]:
        env.step(action_A)
    assert np.abs(env.render().astype(int) - frames.memory[0]).mean() < 1
    assert np.abs(frames.memory[0].astype(int) - frames.memory[2]).mean() > 1
    page = explanation_page(shown, frames)
    assert page.count("data:image/jpeg;base64,") == 6
    assert len(page) < 1_000_000


def test_demonstration_that_does_not_repeat_itself_is_not_drawn(shown):
    whole = shown.learned.whole
    moved = replace(whole, provenance={**whole.provenance, "seed": whole.provenance["seed"] + 1})
    other = replace(shown, learned=replace(shown.learned, whole=moved))
    try:
        frames = frames_of(other, 1)
    except SimulationError as error:
        pytest.skip(f"nothing can be drawn here: {error}")
    assert frames.memory == [None]
    assert "cannot be drawn: their demonstration does not repeat itself" in frames.note
    seedless = replace(whole, provenance={})
    frames = frames_of(replace(shown, learned=replace(shown.learned, whole=seedless)), 1)
    assert frames.memory == [None]
    assert "does not tell from which seeds" in frames.note


class Page(HTMLParser):
    """What a browser makes of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.scripts, self._inside = [], [], False
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag == "script":
            self.scripts.append("")
        self._inside = tag == "script"

    def handle_data(self, data):
        if self._inside:
            self.scripts[-1] += data

    def handle_endtag(self, tag):
        self._inside = False


def test_page_holds_all_that_it_shows_and_asks_no_server(shown):
    page = Page(explanation_page(shown, None))
    assert json.loads(page.scripts[0]) == json.loads(json.dumps({**explanation_json(shown), "frames": None}))
    assert not [attributes for _, attributes in page.tags if {"src", "href", "srcset", "action"} & attributes.keys()]
    assert "default-src 'none'" in str(page.tags)
    assert not re.search(r"fetch\(|XMLHttpRequest|import\(|url\(|innerHTML|document\.write", page.scripts[1])
    assert re.findall(r"https?://[^\"' ]+", " ".join(page.scripts)) == ["http://www.w3.org/2000/svg"]


def test_what_a_file_says_cannot_leave_its_place_in_the_page(shown):
    evil = "</script><script>alert(1)</script><img src=x onerror=alert(2)>&lt;"
    record = replace(shown.rollout.record, member=evil, task=evil)
    evil_shown = replace(shown, method=evil, notes=(evil,), rollout=replace(shown.rollout, record=record))
    page = Page(explanation_page(evil_shown, None))
    assert [tag for tag, _ in page.tags].count("script") == 2
    assert "img" not in [tag for tag, _ in page.tags]
    found = json.loads(page.scripts[0])
    assert (found["method"], found["member"], found["notes"]) == (evil, evil, [evil])


@pytest.mark.skipif(shutil.which("chromium") is None, reason="no chromium here")
@pytest.mark.parametrize("kind", ["memories", "none"])
def test_browser_draws_the_page_without_an_error(shown, tmp_path, kind):
    bare = replace(shown, nearest=None, notes=("no memories",))
    (tmp_path / "page.html").write_text(explanation_page(shown if kind == "memories" else bare, None))
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    command += ["--virtual-time-budget=2000", "--enable-logging=stderr", "--dump-dom"]
    ran = subprocess.run(
        [*command, f"file://{tmp_path}/page.html#step=42"], capture_output=True, text=True, timeout=120
    )
    assert "CONSOLE" not in ran.stderr
    assert ">step 42</output>" in ran.stdout
    if kind == "memories":
        place = shown.nearest.places_T[42]
        assert f"memory {shown.nearest.index_T[42]} of 200: demonstration {place[0]}, step {place[1]}" in ran.stdout
        assert ran.stdout.count("<polyline") == 2
    else:
        assert "no memories" in ran.stdout


def test_command_explains_a_policy_and_a_record_of_it_alike(folder, mcnn, shown, tmp_path):
    seed = SEEDS[1]
    found = [
        mcnn(
            "explain",
            folder / name,
            "--episode-seed",
            seed,
            "--json",
            "--html",
            tmp_path / "new" / "p.html",
            "--frames",
            0,
        )
        for name in ("policy", "episodes.parquet")
    ]
    assert [status for status, *_ in found] == [0, 0]
    assert found[0][1] == found[1][1]
    assert {**json.loads(found[0][1]), "html": None} == {
        **json.loads(json.dumps(explanation_json(shown))),
        "html": None,
    }
    assert "DOCTYPE" in (tmp_path / "new" / "p.html").read_text()


def test_terminal_tells_the_memories_used_most(folder, mcnn, shown):
    status, out, _ = mcnn("explain", folder / "policy", "--episode-seed", SEEDS[1])
    most = np.bincount(shown.nearest.index_T).max()
    assert status == 0
    assert "of 200 used" in out
    assert f": {most} of 200 steps, first at" in out
    assert "15 held-out demonstrations of tests/door/explained-v0" in out
    assert "what differs most at step" in out


def test_method_without_memories_says_so_and_shows_the_nearest_demonstrated_step(folder, mcnn, door):
    status, out, _ = mcnn("explain", folder / "bc", "--json")
    found = json.loads(out)
    assert status == 0
    assert "bc has no memories, so none drove its actions; beside each state" in found["notes"][0]
    assert (found["nearest"]["what"], found["nearest"]["known"]) == ("demonstrated step", 2000)
    assert found["nearest"]["weight"] is None
    assert "bc has no memories" in mcnn("explain", folder / "bc")[1]


def test_policy_whose_demonstrations_are_away_is_explained_by_its_memories_alone(policy, rollouts):
    alone = make_policy(read_minari(DATASET), "mcnn+mlp", "0123456789ab")
    alone.card["dataset"] = {**alone.card["dataset"], "source": "tests/none-v0"}
    found = explain_rollout(alone, rollouts[1], DOOR)
    here = explain_rollout(policy, rollouts[1], DOOR)
    assert "tests/none-v0 is not on this machine" in found.notes[0]
    assert np.array_equal(found.nearest.index_T, here.nearest.index_T)
    assert np.allclose(found.nearest.observations_TD, here.nearest.observations_TD, atol=1e-4)
    assert (found.nearest.places_T, found.nearest.spread) == (None, None)
    assert json.loads(json.dumps(explanation_json(found)))["nearest"]["percentile"] is None


def test_policy_that_plans_several_actions_says_which_steps_have_a_memory_of_their_own(policy, door, shown):
    learned = door.subset(LEARNED)
    weights = {name: tensor.numpy() for name, tensor in make_denoiser(39, 28, CHUNKS).state_dict().items()}
    weights["table"] = denoising_table(CHUNKS["denoising_steps"], CHUNKS["schedule"], CHUNKS["inference_steps"])
    places = action_places(CHUNKS["observed"], CHUNKS["predicted"])
    nearest_N = np.zeros(learned.steps, np.int64)
    chunks = memory_chunks(learned.actions_NA, learned.offsets, ROWS, nearest_N, "expert", places)
    scales = (policy.standardiser, policy.action_scale)
    planning = DiffusionPolicy(policy.card, *scales, CHUNKS, weights, policy.memories, chunks)
    notes = explain_rollout(planning, run_as_evaluated(planning, DOOR, SEEDS[0]), DOOR).notes
    assert "plans 3 actions at a time" in notes[0]
    assert shown.notes == ()


def test_episode_of_another_policy_and_a_record_alone_are_refused(folder, mcnn, tmp_path):
    status, _, err = mcnn("explain", folder / "episodes.parquet", "--episode-seed", SEEDS[0], "--policy", folder / "bc")
    assert (status, "not of ba9876543210" in err) == (2, True)
    shutil.copy(folder / "episodes.parquet", tmp_path)
    status, _, err = mcnn("explain", tmp_path / "episodes.parquet", "--episode-seed", SEEDS[0])
    assert (status, "no policy lies beside" in err) == (2, True)


@pytest.mark.parametrize("command", ["explain", "monitor"])
def test_policies_are_named_as_elsewhere(mcnn, tmp_path, command):
    status, _, err = mcnn(command, "models:/none@champion", "--storage", tmp_path)
    assert (status, f"{tmp_path} holds no MLflow store to look models:/none@champion up in" in err) == (1, True)
    status, _, err = mcnn(command, tmp_path / "nothing")
    assert (status, "nothing is neither a policy directory, the id of an MLflow run nor a model" in err) == (1, True)


def test_names_of_observation_numbers_are_those_of_the_simulator():
    for name in ADROIT_NAMES:
        task = CATALOGUE[f"{name}-expert-v1"]
        env = make_environment(task)
        obs, _ = env.reset(seed=0)
        obs, *_ = env.step(env.action_space.sample())
        names, inner = observation_names(task.environment), env.unwrapped
        assert len(names) == len(set(names)) == len(obs)
        joints = [
            (value, label.removeprefix("joint "))
            for value, label in zip(obs, names, strict=True)
            if label[:6] == "joint "
        ]
        assert len(joints) >= 24
        for value, joint in joints:
            assert value == inner.data.joint(joint).qpos[0]
    assert observation_names("FrankaKitchen-v1") is None


def test_monitored_policy_acts_as_it_would_and_flags_what_is_beyond_the_calibrated_range(policy, door, rollouts):
    held_out = door.take(np.array([e for e in range(25) if e not in set(shown_episodes(door))]))
    monitor = Monitor.calibrate(policy, held_out, alpha=0.2)
    flagged = [monitor.first_flag(held_out.observations_of(e)) is not None for e in range(held_out.episodes)]
    assert sum(flagged) == 2  # the threshold is the 13-th of 15: ceil(16 x 0.8)
    env = make_environment(DOOR)
    seen = see_again(rollouts[0], env).observations_TD[:-1]
    actions_BA, state, reading = monitor.act(seen)
    assert np.array_equal(actions_BA, policy.act(seen)[0])
    assert state is None
    assert np.array_equal(reading.outside_B, policy.explain(seen).distance_B > monitor.threshold)
    first = monitor.first_flag(seen)
    assert first == reading.outside_B.argmax()
    assert not reading.outside_B[:first].any()


def shown_episodes(door):
    return np.sort(np.random.default_rng(0).permutation(25)[:LEARNED]).tolist()


def test_monitor_command_measures_false_alarms_and_failures_on_the_real_task(folder, mcnn):
    status, out, _ = mcnn("monitor", folder / "policy", "--alpha", 0.2, "--calibration", 9, "--json")
    found = json.loads(out)
    assert (status, found["calibration"], found["false_alarms"]["n"], found["against"]) == (0, 9, 6, "memories")
    assert found["failures"]["n"] + (found["successes"] or {"n": 0})["n"] == len(SEEDS)
    for one in found["rollouts"]:
        assert (one["first_flag"] is not None) == (one["largest_distance"] > found["threshold"])
    # A random network fails, and is led away from what was demonstrated.
    assert found["failures"]["mean"] == 1.0
    assert found["lead_steps"]["mean"] == np.mean([200 - one["first_flag"] for one in found["rollouts"]])


def test_monitor_of_a_policy_without_memories_goes_by_its_demonstrations(folder, mcnn):
    command = ["monitor", folder / "bc", "--rollouts", folder / "episodes.parquet"]
    status, _, err = mcnn(*command)
    assert (status, "not of ba9876543210" in err) == (2, True)
    status, _, err = mcnn("monitor", folder / "bc", "--alpha", 0.01)
    assert (status, "at least 1 / alpha - 1, 99, are needed" in err) == (2, True)
    with pytest.raises(ConfigError, match="without memories has nothing to measure distances to"):
        Monitor(load_policy(folder / "bc"), 1.0)


def test_held_out_demonstrations_that_are_none_or_of_another_task_are_refused(folder, mcnn, pen_dataset):
    status, _, err = mcnn("monitor", folder / "policy", "--held-out", pen_dataset, "--alpha", 0.5)
    assert (status, "takes 39 observation numbers, got an array of shape (100, 45)" in err) == (1, True)
    status, _, err = mcnn("monitor", folder / "policy", "--least-return", 1e9, "--json", "--held-out", "tests/none-v0")
    assert (status, "tests/none-v0" in err) == (1, True)
