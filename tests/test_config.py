from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcnn_ray.config import SweepConfig
from mcnn_ray.config_file import read_sweep_file
from mcnn_ray.errors import ConfigError
from mcnn_ray.member import Member, make_member
from mcnn_ray.methods import METHODS


def parse(**values):
    return SweepConfig.parse({"task": "door-human-v1", **values}, "sweep.yaml")


def test_members_are_every_combination_each_method_with_what_it_uses():
    config = parse(
        **{"method": ["mcnn+mlp", "bc", "1nn"], "lambda": [0.1, 1], "memory_fraction": [0.1, 0.2], "seed": [0, 1]}
    )
    members = config.members()
    counts = Counter(member.method for member in members)
    assert counts == {"mcnn+mlp": 8, "bc": 2, "1nn": 1}
    assert len(set(members)) == len(members)
    assert all(member.lambda_ is None for member in members if member.method != "mcnn+mlp")


def test_single_values_stand_for_lists_of_one_and_text_for_numbers():
    assert parse(**{"lambda": 1, "seed": "3"}) == parse(**{"lambda": ["1"], "seed": [3]})


def test_defaults_are_the_paper_s():
    (member,) = parse(method="mcnn+mlp").members()
    assert (member.lambda_, member.L, member.memory_fraction, member.memories) == (0.1, 1.0, 0.1, "neural-gas")
    assert (member.learning_rate, member.batch_size, member.hidden) == (3e-4, 256, (256, 256))


def test_official_code_has_ten_times_the_lambda_of_its_flag_and_beta_in_stairs():
    (member,) = parse(method="mcnn+mlp", preset="official-code").members()
    assert (member.lambda_, member.beta_schedule, member.memory_fraction) == (10.0, "official-code", 0.1)
    assert parse(method="mcnn+mlp", preset="official-code", **{"lambda": 2}).members()[0].lambda_ == 2.0


def test_a_method_may_have_keys_of_its_own():
    config = parse(method=["bc", "mcnn+mlp"], steps=9, for_method={"bc": {"steps": 5, "learning_rate": [1e-4, 1e-3]}})
    assert [(member.method, member.steps, member.learning_rate) for member in config.members()] == [
        ("bc", 5, 1e-4),
        ("bc", 5, 1e-3),
        ("mcnn+mlp", 9, 3e-4),
    ]


def test_options_are_combined_for_the_methods_that_have_them():
    members = parse(method=["bc", "vinn"], options={"neighbours": [5, "10"], "oversampling": 2}).members()
    assert [member.method_label for member in members] == ["bc oversampling=2", "vinn neighbours=5", "vinn"]
    assert members[0].codebook_key == ("neural-gas", 0.1, 0)
    assert parse(method="bc").members()[0].codebook_key is None


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"task": "door-humn-v1"}, "unknown task 'door-humn-v1': did you mean 'door-human-v1'"),
        ({"method": "mcnn+mpl"}, r"unknown method 'mcnn\+mpl'; did you mean 'mcnn\+mlp'"),
        ({"lamda": 1}, "sweep.yaml: unknown key 'lamda'; did you mean 'lambda'"),
        ({"memories": "neural-gass"}, "did you mean 'neural-gas'"),
        ({"memory_fraction": 0}, "memory_fraction is 0.0; it must be above 0"),
        ({"memory_fraction": 1.5}, "memory_fraction is 1.5"),
        ({"lambda": -1}, "lambda is -1.0"),
        ({"lambda": "inf"}, "lambda is inf"),
        ({"lambda": "x"}, "lambda is 'x': input should be a valid number"),
        ({"lambda": []}, "lambda is"),
        ({"L": 0}, "L is 0.0"),
        ({"steps": 0}, "steps is 0"),
        ({"steps": 1.5}, "steps is 1.5"),
        ({"learning_rate": "nan"}, "learning_rate is nan"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"hidden": [0]}, r"hidden is \[0\]"),
        ({"seed": -1}, "seed is -1"),
        ({"episodes": 0}, "episodes is 0"),
        ({"preset": "papr"}, "unknown preset 'papr'; did you mean 'paper'"),
        ({"distance": "eucl"}, "unknown distance 'eucl'; did you mean 'euclidean'"),
        ({"options": {"neighbors": 5}, "method": "vinn"}, "unknown option 'neighbors'; did you mean 'neighbours'"),
        ({"options": {"neighbours": 5}}, "option neighbours belongs to vinn, but the methods are mcnn\\+mlp, bc, 1nn"),
        (
            {"options": {"neighbours": 2.5}, "method": "vinn"},
            "option neighbours is 2.5; it must be a whole number of at",
        ),
        ({"options": {"neighbours": 0}, "method": "vinn"}, "option neighbours is 0; it must be a whole number of at"),
        ({"options": {"neighbours": "x"}, "method": "vinn"}, "option neighbours is x; it must be a whole number of at"),
        ({"options": {"observations": "rwa"}, "method": "1nn"}, "option observations is 'rwa'; did you mean 'raw'"),
        ({"for_method": {"bcc": {}}}, "unknown method 'bcc'; did you mean 'bc'"),
        ({"for_method": {"bc": {"seed": 1}}}, "for_method bc: key 'seed'; "),
        ({"for_method": {"bc": {"steps": "x"}}}, "for_method bc: steps is 'x': input should be a valid integer"),
        ({"for_method": {"bc": {"steps": 5}}, "lambda": [1, 2], "halving": 2}, "compares all at the same steps"),
        ({"constant_columns": "drop"}, "constant_columns is 'drop'"),
        ({"lambda": "0.1..10"}, "lambda is a range, from which only a search draws; add search: optuna"),
        ({"memory_fraction": "0.1..1", "halving": 2}, "memory_fraction is a range, from which only a search draws"),
        ({"lambda": "10..0.1", "search": "optuna"}, "a range goes from a lower number to a higher one, not from 10 to"),
        ({"lambda": "0..1:log", "search": "optuna"}, "a range with log starts above 0, not at 0"),
        ({"lambda": "..", "search": "optuna"}, "a range is written LOW..HIGH or LOW..HIGH:log"),
        ({"lambda": {"low": 1, "hihg": 2}, "search": "optuna"}, "high: Field required"),
        ({"lambda": "-1..1", "search": "optuna"}, "lambda is -1.0"),
        ({"memory_fraction": "0.1..2", "search": "optuna"}, "memory_fraction is 2.0"),
        ({"search": "optuna"}, "search is optuna, but mcnn.mlp, bc, 1nn with these values leaves nothing to search"),
        ({"search": "optuna", "method": "1nn", "lambda": "0..1"}, "1nn with these values leaves nothing to search"),
        ({"search": "optuna", "lambda": "0..1", "trials": 0}, "trials is 0"),
        ({"search": "optuna", "lambda": "0..1", "halving": 2}, "search and halving are two ways to choose"),
        ({"search": "tpe", "lambda": "0..1"}, "search is 'tpe'"),
        ({"trials": 10}, "trials is 10, but a grid has no trials"),
        ({"halving": 1, "lambda": [1, 2]}, "halving is 1"),
        ({"halving": 2}, "halving is 2, but no method has several settings"),
        ({"name": "../escape"}, "name '../escape' cannot name a folder"),
        ({"name": "a/b"}, "cannot name a folder"),
        ({"name": ".."}, "cannot name a folder"),
    ],
)
def test_values_that_cannot_be_used_are_refused_by_key(values, message):
    with pytest.raises(ConfigError, match=message) as caught:
        parse(**values)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)


def test_missing_task_is_named():
    with pytest.raises(ConfigError, match="the key 'task' is missing"):
        SweepConfig.parse({}, "sweep.yaml")


@pytest.mark.parametrize("text", ["", "- a\n", "a: [1", "1: 2\n", "\x00"])
def test_files_that_are_no_mapping_are_refused(tmp_path, text):
    (tmp_path / "sweep.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"sweep\.yaml"):
        read_sweep_file(tmp_path / "sweep.yaml")
    with pytest.raises(ConfigError, match="cannot read"):
        read_sweep_file(tmp_path / "none.yaml")


def test_yaml_cannot_make_python_objects(tmp_path):
    (tmp_path / "sweep.yaml").write_text("task: !!python/object/apply:os.getcwd []\n")
    with pytest.raises(ConfigError, match="is not YAML"):
        read_sweep_file(tmp_path / "sweep.yaml")


def test_sweep_name_follows_what_is_asked_for():
    assert parse().sweep_name == parse().sweep_name
    assert parse().sweep_name != parse(steps=5).sweep_name
    assert parse(name="mine").sweep_name == "mine"
    own = SweepConfig.parse({"task": "Pendulum-v1@me/pendulum/x-v0"}, "flags")
    assert own.sweep_name.startswith("Pendulum-v1-me-pendulum-x-v0-")


def test_range_is_written_as_keys_or_as_text():
    spelled = [{"low": 0.01, "high": 100, "log": True}, "0.01..100:log", ["0.01..100:log"]]
    (found,) = {parse(**{"lambda": text, "search": "optuna"}).lambda_ for text in spelled}
    assert (found.low, found.high, found.log) == (0.01, 100.0, True)
    assert found.rounded(0.0123456) == 0.0123


def test_what_a_method_does_not_use_is_not_searched():
    config = parse(**{"search": "optuna", "lambda": "0.1..10", "learning_rate": [1e-4, 1e-3], "memories": "random"})
    searched = {contest.method[0]: list(contest.searched()) for contest in config.contests()}
    assert searched == {"mcnn+mlp": ["lambda_", "learning_rate"], "bc": ["learning_rate"], "1nn": []}


def test_seeds_for_choosing_name_a_sweep_only_where_something_is_chosen():
    assert parse(curve_episodes=3).sweep_name == parse().sweep_name
    chosen = {"lambda": [1, 2], "halving": 2}
    assert parse(**chosen, curve_episodes=3).sweep_name != parse(**chosen).sweep_name


@given(
    st.sampled_from(sorted(METHODS)),
    st.integers(0, 9),
    st.floats(0, 1e3),
    st.floats(1e-3, 1),
    st.lists(st.integers(1, 64), min_size=1),
)
def test_member_parameters_rebuild_the_member(method, seed, lambda_, fraction, hidden):
    member = make_member(
        method=method, seed=seed, steps=10, lambda_=lambda_, memory_fraction=fraction, hidden=tuple(hidden)
    )
    rebuilt = Member.from_parameters(member.parameters())
    assert rebuilt == member
    assert rebuilt.identity("t", "d") == member.identity("t", "d")
    assert member.identity("t", "d") != member.identity("t", "other")


@pytest.mark.parametrize("parameters", [{}, {"method": "bcc"}, {"method": ["bc"]}])
def test_member_of_no_known_method_is_not_built(parameters):
    with pytest.raises(TypeError, match="unknown method"):
        Member.from_parameters(parameters)
