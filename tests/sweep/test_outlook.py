"""What a sweep says it will take, before it starts."""

import shutil
from types import SimpleNamespace

import pytest

from mcnn_ray.config import SweepConfig
from mcnn_ray.errors import ConfigError
from mcnn_ray.member import make_member
from mcnn_ray.sweep.capacity import measure_capacity, step_cost
from mcnn_ray.sweep.outlook import look_ahead
from mcnn_ray.sweep.plan import EarlierStart, make_plan
from mcnn_ray.sweep.studies import open_studies


@pytest.fixture
def look(pen_dataset, tmp_path, ray_running):
    def look(**changes):
        values = {"task": "pen-expert-v1", "dataset": pen_dataset, "method": ["mcnn+mlp", "bc", "1nn"], "seed": [0, 1]}
        config = SweepConfig.parse({**values, "steps": 10_000, "episodes": 4, **changes}, "test")
        studies, capacity = open_studies(config), measure_capacity(config)
        plan = make_plan(tmp_path, config.members(), studies, EarlierStart(id="s", packs={}, selection=None), 2)
        return plan, lambda: look_ahead(plan, studies, config, capacity)

    return look


def test_members_packs_and_episodes_are_counted(look):
    found = look()[1]()
    assert (found.members, found.packs, found.episodes) == (5, (2, 2), 20)
    assert str(found).startswith("plan: 5 members; 4 to train in 2 packs, ")
    assert "20 episodes to roll out, about " in str(found)


def test_finished_members_are_not_counted_again(look):
    plan, ahead = look(method="1nn")
    for identity in plan.members:
        plan.episodes(identity).parent.mkdir(parents=True)
        plan.episodes(identity).touch()
    found = ahead()
    assert (found.packs, found.episodes, found.rollout_s) == ((), 0, None)
    assert str(found) == "plan: 1 member; about 1 MiB of disk"


def test_time_of_training_grows_with_the_steps_and_the_width(look):
    short, long, wide = (look(**changes)[1]() for changes in ({}, {"steps": 100_000}, {"hidden": [512, 512]}))
    assert long.training_s > 3 * short.training_s
    assert wide.training_s > 1.5 * short.training_s
    assert wide.disk_bytes > 2 * short.disk_bytes
    assert wide.memory_bytes > short.memory_bytes


@pytest.mark.parametrize("method", ["bc", "bet", "diff", "ibc", "lstm-gmm"])
def test_time_of_training_is_that_of_products_and_what_comes_with_them(look, monkeypatch, method):
    monkeypatch.setattr("mcnn_ray.sweep.outlook.product_rate", lambda: 1e10)
    plan, ahead = look(method=method)
    cost = step_cost(next(iter(plan.members.values())), (45, 24))
    assert ahead().training_s == pytest.approx(10_000 * cost.flop / cost.share / 1e10)  # two members, on two CPUs
    assert 0.2 < cost.share < 1.0
    assert (cost.act_flop > 0) == (method != "bc")


def test_small_u_nets_are_told_to_be_further_from_the_limit_than_large_ones():
    small, large = (
        make_member(method="diff", seed=0, steps=10, preset="kitchen", options={"width": width}) for width in (16, 256)
    )
    assert step_cost(small, (59, 9)).share < 0.5 * step_cost(large, (59, 9)).share


def test_time_of_rollouts_grows_with_the_actions_that_ibc_compares(look):
    few, many = (
        look(method="ibc", hidden=[256, 256], options={"inference_samples": samples})[1]() for samples in (16, 4096)
    )
    assert many.rollout_s > 5 * few.rollout_s


def test_disk_that_is_too_full_is_refused_with_both_numbers(look, monkeypatch):
    _, ahead = look()
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=2 * 2**20))
    with pytest.raises(ConfigError, match=r"has 2 MiB of disk left, and the sweep will take about \d+ MiB; make room"):
        ahead()
