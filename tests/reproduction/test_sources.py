"""Where a reproduction's demonstrations come from, and what is said where they cannot be had."""

import pytest

from mcnn_ray.data.minari_store import dataset_exists, read_minari, write_minari
from mcnn_ray.reproduction.budgets import BUDGETS
from mcnn_ray.reproduction.sources import PAPER_ENCODER, Missing, find_source, make_source
from mcnn_ray.tasks.catalogue import CATALOGUE
from mcnn_ray.tasks.environments import make_environment

SMOKE = BUDGETS["smoke"]


@pytest.fixture(autouse=True)
def empty_store(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))


def write(demonstrations, dataset):
    write_minari(demonstrations, dataset, make_environment(CATALOGUE["pen-expert-v1"]), description="for tests")


@pytest.mark.parametrize(
    ("task", "reason", "command"),
    [
        ("pen-human-v1", "D4RL/pen/human-v2 is not here", "minari download D4RL/pen/human-v2"),
        ("hammer-cloned-v1", "nor are the human demonstrations", "minari download D4RL/hammer/cloned-v2"),
        ("kitchen-relay-v0", "human demonstrations of Relay Policy Learning", "mcnn data import kitchen_demos"),
        ("carla-lane-v0", "no driving demonstrations", "mcnn data import carla_lane_follow_flat-v0.hdf5"),
    ],
)
def test_what_cannot_be_had_here_is_told_with_the_command_that_gets_it(task, reason, command):
    found = find_source(CATALOGUE[task], SMOKE)
    assert isinstance(found, Missing)
    assert reason in found.reason
    assert found.command.startswith(command)


def test_driving_is_compared_with_the_paper_only_in_carla_and_through_its_encoder(
    pen_demonstrations, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    task = CATALOGUE["carla-lane-v0"]
    write(pen_demonstrations, task.datasets[0])
    monkeypatch.setenv("MCNN_CARLA", "lite")
    assert "lite server" in find_source(task, SMOKE).reason
    monkeypatch.setenv("MCNN_CARLA", "127.0.0.1:2000")
    assert find_source(task, SMOKE).command == "mcnn encoder import 660000.pth runs/encoders/cilrs"
    PAPER_ENCODER.mkdir(parents=True)
    assert find_source(task, SMOKE).dataset == task.datasets[0]


def test_an_experts_demonstrations_are_recorded_once():
    task = CATALOGUE["pen-expert-v1"]
    found = find_source(task, SMOKE)
    assert (found.dataset, found.episodes, found.made_by) == ("mcnn/pen/expert-5-v0", 5, "recording")
    stages = []
    make_source(task, found, SMOKE, lambda *told: stages.append(told))
    assert stages[-1] == ("recording pen-expert-v1, episodes", 5, 5)
    assert read_minari(found.dataset).episodes == 5
    again = find_source(task, SMOKE)
    assert (again.dataset, again.made_by) == (found.dataset, "")
    make_source(task, found, SMOKE, lambda *told: pytest.fail("recorded again"))


def test_published_demonstrations_come_first_and_the_budgets_number_is_taken(pen_demonstrations):
    write(pen_demonstrations, "D4RL/pen/expert-v2")
    found = find_source(CATALOGUE["pen-expert-v1"], SMOKE)
    assert (found.dataset, found.episodes, found.take, found.made_by) == ("D4RL/pen/expert-v2", 6, 5, "")
    assert find_source(CATALOGUE["pen-expert-v1"], BUDGETS["standard"]).made_by == "recording"  # 6 are too few


def test_cloned_demonstrations_are_made_of_the_human_ones(pen_demonstrations):
    write(pen_demonstrations.subset(2), "mcnn/pen/human-v0")
    task = CATALOGUE["pen-cloned-v1"]
    found = find_source(task, SMOKE)
    assert (found.made_by, found.origin, found.episodes) == ("cloning", "pen-human-v1", 4)
    make_source(task, found, SMOKE, lambda *told: None)
    assert dataset_exists("mcnn/pen/cloned-smoke-v0")
    assert read_minari(found.dataset).episodes == 4
    assert find_source(task, SMOKE).made_by == ""
