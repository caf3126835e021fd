"""A small reproduction end to end: interrupted, continued, shared between names, beside the paper's numbers."""

import functools
import json
from dataclasses import replace

import mlflow
import pandas as pd
import pytest

from mcnn_ray.errors import ConfigError, SimulationError
from mcnn_ray.report.published import published
from mcnn_ray.reproduction import budgets, runner
from mcnn_ray.reproduction.budgets import BUDGETS
from mcnn_ray.rollout.episode import EVALUATION_SEED, SELECTION_SEED
from mcnn_ray.tracking import tracking_uri

TINY = replace(
    BUDGETS["smoke"],
    name="tiny",
    steps=40,
    choosing=2,
    demonstrations=3,
    counts=(2, 3),
    keys={"batch_size": 32, "hidden": (16,)},
    for_method={"mcnn+mlp": {"lambda": (0.1, 1.0), "memory_fraction": (0.1,)}},
)
CHOICE = {"tasks": ["pen-expert-v1", "hammer-human-v1"], "methods": ["bc", "mcnn+mlp"]}


class Watch:
    def __init__(self, interrupt=""):
        self.stages, self._interrupt = {}, interrupt

    def __call__(self, stage, done, total):
        self.stages[stage] = (done, total)
        if self._interrupt and self._interrupt in stage:
            raise KeyboardInterrupt

    def of(self, words):
        return [told for stage, told in self.stages.items() if words in stage]


@pytest.fixture(scope="module")
def storage(tmp_path_factory, ray_running):
    """What two starts of one reproduction leave, the first of them interrupted in its rollouts."""
    storage, first, second = tmp_path_factory.mktemp("runs"), Watch("rollouts, episodes"), Watch()
    with pytest.raises(KeyboardInterrupt):
        runner.reproduce("returns", TINY, storage, **CHOICE, watch=first)
    killed = report_run(storage).info.status
    waiting = comparison_of(storage)["missing"].tolist()
    found = runner.reproduce("returns", TINY, storage, **CHOICE, watch=second)
    return {"storage": storage, "first": first, "second": second, "killed": killed, "found": found, "waiting": waiting}


def report_run(storage):
    client = mlflow.MlflowClient(tracking_uri(storage))
    (run,) = client.search_runs([client.get_experiment_by_name("reproduction").experiment_id])
    return run


def comparison_of(storage, name="returns"):
    return pd.read_csv(storage / "reproduce" / f"{name}-tiny" / "comparison.csv", keep_default_na=False)


def test_an_interrupted_start_leaves_a_report_and_the_next_goes_on(storage):
    assert storage["killed"] == "KILLED"
    assert any("not run yet" in reason for reason in storage["waiting"])
    assert storage["first"].of("training, member-steps") == [(120, 120)]
    assert not storage["second"].of("training")  # all was trained
    assert storage["second"].of("rollouts, episodes") == [(6, 6)]


def test_rows_stand_beside_the_papers_with_intervals(storage):
    table = storage["found"].comparison
    theirs = published("returns")
    for method, setting in (("bc", "fixed"), ("mcnn+mlp", "fixed"), ("mcnn+mlp", "tuned")):
        own = table[(table.task == "pen-expert-v1") & (table.method == method) & (table.setting == setting)]
        (row,) = own[own.metric == "return"].to_dict("records")
        (paper,) = theirs[
            (theirs.task == "pen-expert-v1") & (theirs.method == method) & (theirs.setting == setting)
            & (theirs.metric == "return")
        ].to_dict("records")  # fmt: skip
        assert row["paper_mean"] == paper["mean"]
        assert row["difference"] == pytest.approx(row["mean"] - paper["mean"])
        assert row["low"] <= row["mean"] <= row["high"]
        assert (row["n"], int(row["steps"])) == (2, 40)
        assert row["episode_seeds"] == f"{EVALUATION_SEED} to {EVALUATION_SEED + 1}"
    assert (published("returns").method == "d4rl-bc").any()


def test_tuned_rows_are_chosen_on_seeds_that_are_not_reported(storage):
    members = storage["storage"] / "reproduce-tiny-pen-expert-v1-methods" / "members"
    points = [json.loads(path.read_text())["evaluations"] for path in members.glob("*/evaluations.json")]
    assert [[point["step"] for point in found] for found in points] == [[40], [40]]  # of both lambdas, not of bc
    page = storage["found"].page.read_text()
    assert "(best of 2 settings)" in page
    assert f"{SELECTION_SEED} to {SELECTION_SEED + 1}" in page
    curves = pd.read_csv(storage["found"].page.with_name("curves.csv"))
    assert set(curves.n) == {2}
    assert (curves.return_low <= curves["return"]).all()
    assert (curves.score <= curves.score_high).all()


def test_rows_without_data_say_what_is_missing_and_what_gets_it(storage):
    table = storage["found"].comparison
    rows = table[(table.task == "hammer-human-v1") & (table.method == "mcnn+mlp") & (table.metric == "return")]
    assert set(rows.setting) == {"fixed", "tuned"}
    assert set(rows.missing) == {"D4RL/hammer/human-v2 is not here"}
    assert set(rows.command) == {"minari download D4RL/hammer/human-v2"}
    page = storage["found"].page.read_text()
    assert "minari download D4RL/hammer/human-v2" in page
    assert "SMOKE" in page


def test_methods_that_were_not_asked_for_say_the_command_that_runs_them(storage):
    table = storage["found"].comparison
    rows = table[(table.task == "pen-expert-v1") & (table.method == "vinn")]
    assert set(rows.missing) == {"not run yet"}
    assert all("mcnn reproduce returns --budget tiny --tasks pen-expert-v1" in command for command in rows.command)


def test_the_report_is_filed_in_one_finished_run(storage):
    run = report_run(storage["storage"])
    assert (run.info.status, run.info.run_id) == ("FINISHED", storage["found"].run_id)
    files = {
        file.path for file in mlflow.MlflowClient(tracking_uri(storage["storage"])).list_artifacts(run.info.run_id)
    }
    assert {"index.html", "comparison.csv", "sweeps.json", "results.json"} <= files
    assert any(name.endswith(".svg") for name in files)
    sweeps = json.loads((storage["found"].page.parent / "sweeps.json").read_text())
    sweep = mlflow.MlflowClient(tracking_uri(storage["storage"])).get_run(
        sweeps["reproduce-tiny-pen-expert-v1-methods"]
    )
    assert sweep.info.status == "FINISHED"


def test_the_same_start_again_runs_nothing_and_another_name_runs_only_what_is_its_own(storage):
    again = Watch()
    found = runner.reproduce("neural-gas", TINY, storage["storage"], tasks=["pen-expert-v1"], watch=again)
    assert again.of("training, member-steps") == [(40, 40)]  # one member of random memories
    rows = found.comparison[(found.comparison.metric == "return")].set_index("setting")
    first = storage["found"].comparison
    fixed = first[(first.method == "mcnn+mlp") & (first.setting == "fixed") & (first.metric == "return")]
    assert rows.loc["neural-gas", "mean"] == fixed.iloc[0]["mean"]
    assert rows.loc["random", "n"] == 2
    again = Watch()
    runner.reproduce("neural-gas", TINY, storage["storage"], tasks=["pen-expert-v1"], watch=again)
    assert again.stages == {}


def test_a_sweep_that_fails_is_a_row_that_says_why(storage, monkeypatch):
    def fails(*arguments):
        raise SimulationError("the simulator went away")

    monkeypatch.setattr(runner, "run_sweep", fails)  # no simulator here can be made to fail on demand
    found = runner.reproduce("memories", TINY, storage["storage"], tasks=["pen-expert-v1"], methods=["mcnn+mlp"])
    rows = found.comparison.set_index("setting")
    assert rows.loc["memories=80%", "missing"] == "failed: the simulator went away"
    assert found.failures == {("pen-expert-v1", "memories"): "the simulator went away"}
    assert rows.loc["memories=10%", "missing"].iloc[0] == ""  # as run before


@pytest.fixture
def reproduce(mcnn, monkeypatch):
    """Run `mcnn reproduce`, which also knows the tiny budget; as the fixture `mcnn`."""
    monkeypatch.setattr(budgets, "BUDGETS", {**BUDGETS, "tiny": TINY})
    monkeypatch.setenv("COLUMNS", "160")
    return functools.partial(mcnn, "reproduce")


def test_without_a_name_all_are_listed_with_what_they_take(reproduce, tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "none"))
    status, out, err = reproduce("--budget", "smoke", "--storage", tmp_path, "--json")
    assert status == 0, err
    rows = {row["name"]: row for row in json.loads(out)}
    assert rows["kitchen"]["missing"]["kitchen-relay-v0"].startswith("mcnn data import")
    assert rows["returns"]["members"] > rows["neural-gas"]["members"] > 0 == rows["function-class"]["members"]


def test_plan_says_what_it_will_take_and_runs_nothing(reproduce, tmp_path, storage):
    asked = ("returns", "--budget", "tiny", "--tasks", "pen-expert-v1", "--methods", "bc,mcnn+mlp", "--plan")
    status, out, err = reproduce(*asked, "--storage", tmp_path, "--json")
    assert status == 0, err
    (sweep,) = json.loads(out)["sweeps"]
    assert (sweep["to_train"], sweep["rollouts"], sweep["finished"]) == (3, 10, False)  # four of them for choosing
    assert list(tmp_path.iterdir()) == []
    (sweep,) = json.loads(reproduce(*asked, "--storage", storage["storage"], "--json")[1])["sweeps"]
    assert (sweep["to_train"], sweep["finished"]) == (0, True)


def test_the_command_shows_the_table_and_what_is_missing(reproduce, storage):
    asked = ("neural-gas", "--budget", "tiny", "--tasks", "pen-expert-v1,hammer-human-v1")
    status, out, err = reproduce(*asked, "--storage", storage["storage"])
    assert status == 0, err
    assert "SMOKE" in out
    assert "minari download D4RL/hammer/human-v2" in out
    assert str(runner.report_folder(storage["storage"], "neural-gas", TINY) / "index.html") in out
    status, out, _ = reproduce(*asked, "--storage", storage["storage"], "--json")
    (told,) = json.loads(out)
    assert {row["setting"] for row in told["rows"] if row["mean"] is not None} == {"neural-gas", "random"}


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (("returs",), "did you mean 'returns'"),
        (("returns", "--tasks", "pen-exprt-v1"), "did you mean 'pen-expert-v1'"),
        (("returns", "--methods", "lstm-gmm"), "has none of the methods"),
        (("kitchen", "--tasks", "pen-expert-v1"), "has none of the tasks"),
        (("returns", "--budget", "papr"), "did you mean 'paper'"),
    ],
)
def test_what_is_asked_wrongly_is_told(reproduce, tmp_path, asked, message):
    status, _, err = reproduce(*asked, "--storage", tmp_path)
    assert status == 2
    assert message in " ".join(err.split())


def test_unknown_name_is_a_config_error(tmp_path):
    with pytest.raises(ConfigError, match="nothing of the paper"):
        runner.reproduce("figure", TINY, tmp_path)
