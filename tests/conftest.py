"""Fixtures shared by all tests: small real demonstrations, a Minari store of their own, one Ray for all."""

import contextlib
import os
import sqlite3
import sys
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("mcnn", deadline=None)  # no timed tests: machines differ
settings.load_profile("mcnn")

# Before Minari, Ray or torch are imported, and for the processes they start: no test touches the user's own store.
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
# Processes that wait for each other's threads on few cores take many times longer.
for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")


@pytest.fixture(scope="session", autouse=True)
def minari_store(tmp_path_factory):
    store = tmp_path_factory.mktemp("minari")
    before = os.environ.get("MINARI_DATASETS_PATH")
    os.environ["MINARI_DATASETS_PATH"] = str(store)
    yield store
    if before is None:
        del os.environ["MINARI_DATASETS_PATH"]
    else:
        os.environ["MINARI_DATASETS_PATH"] = before


@pytest.fixture(scope="session", autouse=True)
def migrated_once():
    """Give each new SQLite store in these processes a copy of the tables that MLflow made for the first one.

    Its migrations take two seconds each time; programs that tests start run them as ever. Nor do the stores wait for
    the disk: no test cuts the power.
    """
    if "mlflow" not in sys.modules:  # importing it takes longer than a test or two without it
        yield
        return
    from mlflow.store.db import utils
    from sqlalchemy import event
    from sqlalchemy.engine import Engine

    migrate = utils._initialize_tables
    tables = sqlite3.connect(":memory:", check_same_thread=False)

    def initialize(engine):
        empty = not tables.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if empty:
            migrate(engine)
        with contextlib.closing(sqlite3.connect(engine.url.database)) as store:
            source, target = (store, tables) if empty else (tables, store)
            source.backup(target)

    event.listen(Engine, "connect", lambda connection, record: connection.execute("PRAGMA synchronous = OFF"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(utils, "_initialize_tables", initialize)
        yield
    tables.close()


@pytest.fixture(scope="session")
def shared_data():
    """The folder of real data beside the project, or a skip."""
    candidates = [os.environ.get("MCNN_SHARED_DATA"), str(Path(__file__).parents[2] / "shared" / "data")]
    for candidate in candidates:
        if candidate and Path(candidate).is_dir():
            return Path(candidate)
    pytest.skip("real data is neither in ../shared/data nor in $MCNN_SHARED_DATA")


@pytest.fixture
def mcnn(capsys):
    """Run the program; give its status, standard output, and standard error in one line."""
    from mcnn_ray import cli

    def run(*arguments):
        with pytest.raises(SystemExit) as ended:
            cli.main([*map(str, arguments)])
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return ended.value.code or 0, captured.out, " ".join(captured.err.split())

    return run


@pytest.fixture
def empty_folder(tmp_path, monkeypatch):
    """Work in an empty folder."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="session")
def pen_demonstrations():
    """Six episodes of the packaged pen expert: 600 steps of real simulation."""
    from mcnn_ray.data.collect import collect_episodes
    from mcnn_ray.tasks.catalogue import CATALOGUE

    return collect_episodes(CATALOGUE["pen-expert-v1"], 6, seed=0)


@pytest.fixture(scope="session")
def door_demonstrations():
    """25 episodes of the packaged door expert."""
    from mcnn_ray.data.collect import collect_episodes
    from mcnn_ray.tasks.catalogue import CATALOGUE

    return collect_episodes(CATALOGUE["door-expert-v1"], 25, seed=0)


@pytest.fixture(scope="session")
def pen_dataset(pen_demonstrations):
    """The same as a Minari dataset; its id."""
    from mcnn_ray.data.minari_store import write_minari
    from mcnn_ray.tasks.catalogue import CATALOGUE
    from mcnn_ray.tasks.environments import make_environment

    env = make_environment(CATALOGUE["pen-expert-v1"])
    write_minari(pen_demonstrations, "mcnn/pen/tests-v0", env, description="for tests")
    return "mcnn/pen/tests-v0"


@pytest.fixture(scope="session")
def ray_running():
    """One Ray for all tests that need it: starting it takes seconds."""
    from mcnn_ray.sweep.cluster import ray_session

    with ray_session():
        yield
