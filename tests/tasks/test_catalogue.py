import pytest

from mcnn_ray.errors import ConfigError
from mcnn_ray.tasks.catalogue import CATALOGUE, find_task
from mcnn_ray.tasks.environments import make_environment


def test_catalogue_holds_the_adroit_tasks_under_the_paper_s_names():
    expected = {f"{n}-{v}-v1" for n in ("pen", "hammer", "door", "relocate") for v in ("human", "expert", "cloned")}
    assert {name for name in CATALOGUE if not name.startswith(("kitchen", "carla"))} == expected
    assert all(CATALOGUE[name].horizon == (100 if "pen" in name else 200) for name in expected)
    assert CATALOGUE["pen-human-v1"].datasets[0] == "D4RL/pen/human-v2"


def test_score_is_d4rl_s():
    # Paper, main table: pen-human MLP-BC 1845 is 58.68 normalised.
    assert CATALOGUE["pen-human-v1"].normalised_score(1845) == pytest.approx(58.67, abs=0.02)
    assert find_task("Pendulum-v1@me/p-v0").normalised_score(-100) is None


def test_unknown_task_names_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'door-human-v1'"):
        find_task("door-humn-v1")
    for name in ("@", "Pendulum-v1@", "@me/p-v0", ""):
        with pytest.raises(ConfigError, match="ENVIRONMENT@DATASET"):
            find_task(name)


def test_driving_tasks_keep_d4rls_horizons_and_references():
    for suffix in ("", "-strict"):
        lane, town = CATALOGUE[f"carla-lane{suffix}-v0"], CATALOGUE[f"carla-town{suffix}-v0"]
        assert (lane.horizon, town.horizon) == (250, 1000)
        assert lane.normalised_score(1023.5784385429523) == town.normalised_score(2440.1772022247314) == 100.0
        assert lane.normalised_score(-0.8503839912088142) == town.normalised_score(-114.81579500772153) == 0.0
        assert make_environment(lane).spec.max_episode_steps == 250  # no server is needed to make one
