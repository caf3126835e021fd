import pytest

from mcnn_ray.errors import ConfigError
from mcnn_ray.tasks.catalogue import CATALOGUE, find_task


def test_catalogue_holds_the_adroit_tasks_under_the_paper_s_names():
    expected = {f"{n}-{v}-v1" for n in ("pen", "hammer", "door", "relocate") for v in ("human", "expert", "cloned")}
    assert {name for name in CATALOGUE if not name.startswith("kitchen")} == expected
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
