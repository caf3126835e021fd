"""Sequential stopping: the rule on simulated returns, and a real sweep that stops, starts again and is completed."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcnn_ray.config import SweepConfig
from mcnn_ray.rollout.episode import EVALUATION_SEED, LOCKSTEP
from mcnn_ray.rollout.records import read_records, read_rollouts
from mcnn_ray.stats import sign_flip_p
from mcnn_ray.sweep.runner import run_sweep
from mcnn_ray.sweep.stopping import looks, settled


def test_looks_come_after_whole_blocks_and_before_the_end():
    assert looks(LOCKSTEP) == []
    assert looks(20) == [8, 16]
    assert looks(100) == [8, 16, 32, 64]


def test_p_value_is_the_share_of_sign_patterns_that_reach_the_sum():
    # Of the 8 patterns of +-1, +-2, +-4 the sum 7 is reached by one, the sum 5 (-1 + 2 + 4) by two; all reach -7.
    signs = np.array([[1, 1, 1], [-1, 1, 1], [-1, -1, -1]]).T
    np.testing.assert_array_equal(sign_flip_p(signs * np.array([[1.0], [2.0], [4.0]])), [1 / 8, 2 / 8, 1.0])


def test_p_value_of_drawn_patterns_agrees_with_the_exact_one():
    differences_NS = np.random.default_rng(0).normal(0.3, 1, (17, 4))
    exact_S = sign_flip_p(differences_NS)
    drawn_S = sign_flip_p(np.vstack([differences_NS, np.zeros((1, 4))]))  # a zero changes no sum
    np.testing.assert_allclose(drawn_S, exact_S, atol=0.006)


DRAWS = {
    "normal": lambda rng, shape: rng.normal(0, 1, shape) + rng.normal(0, 1, (shape[0], 1)),
    "half succeed": lambda rng, shape: 3000.0 * (rng.random(shape) < 0.5) + rng.normal(0, 20, shape),
    "heavy tail": lambda rng, shape: np.exp(rng.normal(0, 1.5, shape)),
    "unequal spread": lambda rng, shape: rng.normal(0, 1, shape) * np.arange(1, shape[1] + 1),
}


@pytest.mark.parametrize(("draw", "settings_count"), [*((name, 6) for name in DRAWS), ("normal", 2)])
def test_given_one_of_equal_settings_is_stopped_in_fewer_than_5_of_100_sweeps(draw, settings_count):
    rng, sweeps, lost = np.random.default_rng(1), 300, 0
    stops = looks(16 + 1)  # two looks, both by exact p-values
    for _ in range(sweeps):
        table = DRAWS[draw](rng, (16, settings_count))
        going = set(range(settings_count))
        for stop in stops:
            returns = {place: dict(enumerate(table[:stop, place])) for place in sorted(going)}
            going -= settled(returns, len(stops) * (settings_count - 1))
        lost += 0 not in going
    # Three standard errors of a share of 5 % in so many sweeps: more would be evidence against the promise.
    assert lost / sweeps <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / sweeps)


tables = st.integers(1, 12).flatmap(
    lambda starts: st.lists(
        st.lists(st.integers(-5, 5).map(float), min_size=starts, max_size=starts), min_size=1, max_size=4
    )
)


@given(rows=tables, comparisons=st.integers(1, 50), scale=st.sampled_from([0.25, 4.0]))
def test_best_is_never_stopped_and_scores_decide_like_returns(rows, comparisons, scale):
    returns = {place: dict(enumerate(row)) for place, row in enumerate(rows)}
    out = settled(returns, comparisons)
    means = [sum(row) / len(row) for row in rows]
    assert all(means[place] < max(means) for place in out)
    scores = {place: {seed: scale * value - 8 for seed, value in found.items()} for place, found in returns.items()}
    assert settled(scores, comparisons) == out


def test_clear_difference_is_settled_though_starts_differ_more_than_settings():
    hard = np.random.default_rng(0).normal(0, 1000, 16)
    returns = {name: dict(enumerate(hard + gain)) for name, gain in (("best", 10), ("equal", 10), ("worse", 0))}
    assert settled(returns, 4) == {"worse"}


def test_lost_episode_is_left_out_for_all():
    whole = dict.fromkeys(range(9), 1.0)
    lacking = dict.fromkeys(range(1, 9), 0.0)
    assert settled({"a": whole, "b": lacking}, 1) == {"b"}
    assert settled({"a": whole, "b": {}}, 1) == set()


SWEEP = {"task": "pen-expert-v1", "method": ["bc", "1nn"], "steps": 1, "hidden": [4], "batch_size": 8, "name": "early"}


@pytest.fixture(scope="module")
def stopped(pen_dataset, tmp_path_factory, ray_running):
    """A policy of one training step beside copies of an expert's episodes."""
    storage = tmp_path_factory.mktemp("runs")
    config = SweepConfig.parse({**SWEEP, "dataset": pen_dataset, "episodes": 18, "stop_early": True}, "test")
    stages = []
    return storage, config, run_sweep(config, storage, lambda *told: stages.append(told)), stages


def episode_files(result):
    return {path.parent.name: path for path in Path(result.folder, "members").glob("*/episodes.parquet")}


def test_settled_setting_ends_after_a_whole_block_and_tells_so_everywhere(stopped):
    from rich.console import Console

    from mcnn_ray.report.tables import results_table

    _, _, result, stages = stopped
    rows = {row.member.method: row for row in result.rows}
    assert not rows["1nn"].stopped_early
    assert rows["1nn"].episode_return.n == 18
    assert rows["bc"].stopped_early
    assert rows["bc"].episode_return.n in (8, 16)
    table = pd.read_csv(result.folder / "results.csv").set_index("method")
    assert table["stopped_early"].to_dict() == {"bc": True, "1nn": False}
    assert {len(read_records(path)) for path in episode_files(result).values()} == {18, rows["bc"].episode_return.n}
    console = Console(width=200)
    with console.capture() as shown:
        console.print(results_table(result.rows, "t"))
    assert f"{rows['bc'].episode_return.n}*" in shown.get()
    assert "stopped early" in shown.get()
    last = [told for told in stages if told[0] == "rollouts, episodes"][-1]
    assert last[1] == last[2] == 18 + rows["bc"].episode_return.n


def test_same_command_again_runs_nothing_and_stops_the_same(stopped):
    storage, config, result, _ = stopped
    before = {path: path.stat().st_mtime_ns for path in episode_files(result).values()}
    stages = []
    again = run_sweep(config, storage, lambda *told: stages.append(told[0]))
    assert again.rows == result.rows
    assert "rollouts, episodes" not in stages
    assert {path: path.stat().st_mtime_ns for path in before} == before


@pytest.mark.long
def test_without_the_flag_only_what_was_stopped_runs_on_to_the_bits_of_a_whole_evaluation(stopped, tmp_path):
    storage, config, result, _ = stopped
    had = {row.member.method: row.episode_return.n for row in result.rows}
    stages = []
    completed = run_sweep(config.model_copy(update={"stop_early": False}), storage, lambda *t: stages.append(t))
    assert [told for told in stages if told[0] == "rollouts, episodes"][-1][1:] == (18 - had["bc"],) * 2
    assert not any(row.stopped_early for row in completed.rows)
    whole = run_sweep(config.model_copy(update={"stop_early": False}), tmp_path)
    for identity, path in episode_files(completed).items():
        ours, theirs = read_rollouts(path), read_rollouts(episode_files(whole)[identity])
        assert [rollout.record.episode_seed for rollout in ours] == [EVALUATION_SEED + k for k in range(18)]
        assert [rollout.record.episode_return for rollout in ours] == [r.record.episode_return for r in theirs]
        assert all(a.actions_TA.tobytes() == b.actions_TA.tobytes() for a, b in zip(ours, theirs, strict=True))


def test_flag_does_not_name_another_sweep(pen_dataset):
    names = {
        SweepConfig.parse({"task": "pen-expert-v1", "dataset": pen_dataset, "stop_early": flag}, "t").sweep_name
        for flag in (False, True)
    }
    assert len(names) == 1
