"""The definitions: what they name exists, they cover what the paper publishes, and they share what they share."""

import functools

import pytest

from mcnn_ray.methods import METHODS
from mcnn_ray.report.published import D4RL_BC, published
from mcnn_ray.reproduction.budgets import BUDGETS
from mcnn_ray.reproduction.definitions import PARTS, REPRODUCTIONS
from mcnn_ray.reproduction.sources import Source
from mcnn_ray.reproduction.sweeps import make_sweep, methods_on, setting_of, shows
from mcnn_ray.tasks.catalogue import CATALOGUE

WHOLE = Source(dataset="D4RL/some/dataset-v2", episodes=5000)


def sweeps_of(name, task, budget):
    definition = REPRODUCTIONS[name]
    for part in definition.parts:
        yield part, make_sweep(definition, part, task, methods_on(definition, part, task, None), budget, WHOLE)


@functools.cache
def rows_of(name, budget):
    return set(all_rows(name, BUDGETS[budget]))


def all_rows(name, budget):
    for task in REPRODUCTIONS[name].tasks:
        for part, config in sweeps_of(name, task, budget):
            for member in config.members():
                for rows in REPRODUCTIONS[name].rows:
                    if rows.part == part and shows(rows, member):
                        yield task, member.method, setting_of(rows, member)


def test_every_name_has_published_numbers_and_the_other_way_round():
    for name in REPRODUCTIONS:
        assert published(name).empty == (name == "function-class")
    assert set(REPRODUCTIONS["returns"].tasks) == set(published("returns")["task"])


@pytest.mark.parametrize("name", REPRODUCTIONS)
def test_tasks_and_methods_are_known_and_every_sweep_can_be_made(name):
    definition = REPRODUCTIONS[name]
    assert set(definition.tasks) <= set(CATALOGUE)
    for rows in definition.rows:
        assert set(rows.methods) <= set(PARTS[rows.part].methods) <= set(METHODS)
    for task in definition.tasks:
        for _, config in sweeps_of(name, task, BUDGETS["smoke"]):
            assert config.members()


@pytest.mark.parametrize("name", REPRODUCTIONS)
def test_every_number_of_the_paper_has_a_row_of_ours(name):
    rows = rows_of(name, "paper")
    theirs = published(name)
    theirs = theirs[theirs["method"] != D4RL_BC]
    assert set(zip(theirs["task"], theirs["method"], theirs["setting"], strict=True)) <= rows


@pytest.mark.parametrize("budget", ["smoke", "standard"])
@pytest.mark.parametrize("name", ["returns", "kitchen", "memories"])
def test_small_budgets_fill_the_rows_of_the_papers(name, budget):
    assert rows_of(name, budget) == rows_of(name, "paper")


def test_the_papers_budget_is_the_papers():
    budget = BUDGETS["paper"]
    assert (budget.steps, len(budget.seeds), budget.episodes, budget.demonstrations) == (1_000_000, 3, 20, 5000)
    (_, config), *_ = sweeps_of("returns", "pen-expert-v1", budget)
    for member in config.members():
        assert member.steps in (0, 1_000_000)
        preset = METHODS[member.method].preset("paper")
        assert all(value == preset.get(key, value) for key, value in member.parameters().items() if key in PAPERS)


PAPERS = ("learning_rate", "batch_size", "window", "clusters", "layers", "heads", "width", "memories", "L")


def test_names_share_the_members_that_they_have_in_common():
    budget, task = BUDGETS["standard"], "door-expert-v1"
    (_, whole), *_ = sweeps_of("returns", task, budget)
    for name in ("memories", "neural-gas", "oversampling", "fixed-tuned", "lambda-memories", "aggregate"):
        (part, config), *_ = sweeps_of(name, task, budget)
        assert part == "methods"
        assert config.sweep_name == whole.sweep_name
        assert set(config.members()) <= set(whole.members()), name


def test_a_figure_trains_only_what_it_shows():
    budget = BUDGETS["standard"]
    (_, config), (_, random) = sweeps_of("neural-gas", "door-expert-v1", budget)
    kinds = {(m.lambda_, m.memory_fraction, m.memories) for m in (*config.members(), *random.members())}
    assert kinds == {(0.1, 0.1, "neural-gas"), (0.1, 0.1, "random")}


def test_no_member_lies_in_two_sweeps_of_a_task():
    for task in ("door-expert-v1", "door-human-v1"):
        configs = {part: config for name in REPRODUCTIONS if task in REPRODUCTIONS[name].tasks
                   for part, config in sweeps_of(name, task, BUDGETS["standard"])}  # fmt: skip
        configs.pop("demonstrations")  # of subsets: the same members by name, of other data
        members = [member for config in configs.values() for member in config.members()]
        assert len(members) == len(set(members))
