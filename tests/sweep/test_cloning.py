import numpy as np
import pytest

from mcnn_ray.cli import main
from mcnn_ray.config import SweepConfig
from mcnn_ray.data.minari_store import read_minari
from mcnn_ray.errors import ConfigError
from mcnn_ray.sweep.cloning import clone_demonstrations


def config(pen_dataset, **values):
    return SweepConfig.parse(
        {"task": "pen-expert-v1", "dataset": pen_dataset, "method": "bc", "steps": 300, **values}, "test"
    )


def test_cloned_demonstrations_are_half_copies_and_half_rollouts(pen_dataset, pen_demonstrations):
    cloned = clone_demonstrations(config(pen_dataset, demonstrations=3), 5, lambda *told: None)
    shown = pen_demonstrations.subset(3)
    assert cloned.episodes == 10 and (cloned.lengths == 100).all()
    copies = cloned.take(np.arange(5))
    np.testing.assert_array_equal(copies.observations_ND[:300], shown.observations_ND)
    np.testing.assert_array_equal(copies.actions_NA[300:], shown.actions_NA[:200])
    rollouts = cloned.take(np.arange(5, 10))
    assert np.abs(rollouts.actions_NA).max() <= 1
    # It imitates: closer to what is shown at the start than actions of other moments are.
    errors = np.square(rollouts.actions_NA[::100] - shown.actions_NA[::100].mean(0)).mean()
    assert errors < 0.5 * np.square(shown.actions_NA - shown.actions_NA[::100].mean(0)).mean()
    assert cloned.provenance["cloned_from"]["episodes"] == 3
    assert cloned.successes_E is not None and cloned.final_observations_ED is not None


def test_fewer_rollouts_than_demonstrations_are_refused(pen_dataset):
    with pytest.raises(ConfigError, match="4 rollouts would be fewer than the 6 demonstrations"):
        clone_demonstrations(config(pen_dataset), 4, lambda *told: None)


def test_command_writes_the_task_s_cloned_variant(pen_dataset, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["data", "clone", "pen-expert-v1", "--source", pen_dataset, "--steps", "100", "--demonstrations", "3"])
    assert ended.value.code == 0
    assert read_minari("mcnn/pen/cloned-v0").episodes == 6
    assert "mcnn/pen/cloned-v0" in capsys.readouterr().out
