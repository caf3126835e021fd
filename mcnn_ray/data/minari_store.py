"""Demonstrations in Minari's local store (`~/.minari/datasets`, or MINARI_DATASETS_PATH)."""

from __future__ import annotations

import os
import shutil
import uuid
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import h5py
import minari
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from minari.data_collector import EpisodeBuffer
from minari.dataset.minari_dataset import parse_dataset_id
from minari.namespace import create_namespace, list_local_namespaces
from minari.storage import get_dataset_path

from mcnn_ray.artifacts import check_fits_memory, read_json, replace_directory
from mcnn_ray.data.demonstrations import Demonstrations
from mcnn_ray.data.hdf5 import check_whole_file
from mcnn_ray.errors import ArtifactError, ConfigError, DatasetError
from mcnn_ray.tasks.catalogue import Task

__all__ = ["check_free", "dataset_exists", "read_minari", "task_demonstrations", "write_minari"]

_PROVENANCE_KEY = "mcnn_provenance"
_BYTES_KEY = "mcnn_observations_in_255ths"  # images in [0, 1], stored as whole numbers: a quarter of the size
_BLOCK_ROWS = 1024
_FAULTS = (
    *(OSError, ValueError, TypeError, AttributeError, AssertionError, EOFError, LookupError, NotImplementedError),
    *(ArtifactError, MemoryError, OverflowError, RecursionError),
)


def dataset_exists(dataset_id: str) -> bool:
    """Tell whether the local store has a dataset under this id."""
    return _inside_store(dataset_id) and bool((get_dataset_path(dataset_id) / "data").is_dir())


def _inside_store(dataset_id: str) -> bool:
    return not any(part in ("", ".", "..") for part in dataset_id.split("/"))


def _check_inside_store(dataset_id: str) -> None:
    if not _inside_store(dataset_id):
        raise ConfigError(f"'{dataset_id}' would leave Minari's store; write a dataset id as me/door/expert-v0")


def task_demonstrations(task: Task) -> Demonstrations:
    """Read a task's demonstrations from the first of its datasets that is here.

    Raises:
        DatasetError: none is here (the message says how to get one), or the one found cannot be used.
        ConfigError: an id would leave Minari's store.
    """
    for dataset_id in task.datasets:
        _check_inside_store(dataset_id)
        if dataset_exists(dataset_id):
            return read_minari(dataset_id, task.observation_key)
    raise DatasetError(f"no demonstrations for {task.id} on this machine; {_how_to_get(task)}")


def _how_to_get(task: Task) -> str:
    first = task.datasets[0]
    ways = [f"download: minari download {first}"] if first.startswith("D4RL/") else []
    if task.expert is not None:
        ways.append(f"record: mcnn data collect {task.id} --episodes 25")
    ways.append(f"import a file: mcnn data import FILE {task.datasets[-1]} --task {task.id}")
    return "; or ".join(ways)


def read_minari(dataset_id: str, observation_key: str | None = None) -> Demonstrations:
    """Read a Minari dataset into memory.

    Args:
        dataset_id: e.g. `D4RL/door/human-v2`. Nested observation spaces are flattened as Gymnasium flattens them.
        observation_key: the part of Dict observations that is taken; None takes all.

    Raises:
        DatasetError: not here, damaged, without Box actions, or with what leads out of it.
        ConfigError: the id would leave Minari's store.
    """
    _check_inside_store(dataset_id)
    if not dataset_exists(dataset_id):
        raise DatasetError(
            f"Minari dataset '{dataset_id}' is not on this machine; get it with: minari download {dataset_id}"
        )
    try:
        return _read(dataset_id, observation_key)
    except _FAULTS as error:
        raise DatasetError(
            f"Minari dataset '{dataset_id}' in {get_dataset_path(dataset_id)} is damaged ({error!r}); "
            "delete that folder and get it again"
        ) from error


def _read(dataset_id: str, observation_key: str | None) -> Demonstrations:
    _check_contents(get_dataset_path(dataset_id) / "data")
    dataset = minari.load_dataset(dataset_id)
    observation_space, action_space = dataset.observation_space, dataset.action_space
    if not isinstance(action_space, spaces.Box):
        raise DatasetError(f"Minari dataset '{dataset_id}' has actions of {action_space}; a Box is needed")
    episodes = [episode for episode in dataset.iterate_episodes() if len(episode.actions) > 0]
    if not episodes:
        raise DatasetError(
            f"Minari dataset '{dataset_id}' is empty: no episode with a step; record some: mcnn data collect"
        )
    lengths = [len(episode.actions) for episode in episodes]
    seen = [episode.observations for episode in episodes]
    if observation_key is not None and isinstance(observation_space, spaces.Dict):
        if observation_key not in observation_space.spaces:
            raise DatasetError(
                f"Minari dataset '{dataset_id}' has observations of {', '.join(observation_space.spaces)}, not of "
                f"'{observation_key}'; it was recorded for another task"
            )
        seen, observation_space = [obs[observation_key] for obs in seen], observation_space[observation_key]
    observations = [_flatten(observation_space, obs, dataset_id) for obs in seen]
    if dataset.storage.metadata.get(_BYTES_KEY):
        for obs in observations:
            obs /= np.float32(255.0)
    return Demonstrations(
        observations_ND=np.concatenate([obs[:n] for obs, n in zip(observations, lengths, strict=True)]),
        actions_NA=np.concatenate(
            [np.asarray(e.actions, dtype=np.float32).reshape(len(e.actions), -1) for e in episodes]
        ),
        rewards_N=np.concatenate([np.asarray(e.rewards, dtype=np.float32) for e in episodes]),
        offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        final_observations_ED=np.stack([obs[-1] for obs in observations]),
        successes_E=_successes(episodes),
        terminated_E=np.array([bool(episode.terminations[-1]) for episode in episodes]),
        source=dataset_id,
        provenance=dict(dataset.storage.metadata.get(_PROVENANCE_KEY, {})),
    )


def _successes(episodes: Sequence[Any]) -> npt.NDArray[np.bool_] | None:
    """Return whether each episode reported success at any step; None where not all tell."""
    told = [episode.infos.get("success") if isinstance(episode.infos, dict) else None for episode in episodes]
    if any(values is None for values in told):
        return None
    return np.array([bool(np.asarray(values, dtype=np.float64).any()) for values in told])


def _check_contents(data: Path) -> None:
    """Refuse what would have Minari run code, read other files, or fill the memory.

    Raises:
        ArtifactError: its description is damaged.
        ValueError: it is refused.
    """
    description = read_json(data / "metadata.json")
    if not all(isinstance(description.get(name), str) for name in ("observation_space", "action_space")):
        # Minari would make the environment that it names, by importing and calling whatever stands there.
        raise ValueError("its metadata does not describe its observation and action spaces")
    main = data / "main_data.hdf5"
    if main.exists():
        with h5py.File(main, "r") as file:
            # Episodes, and the arrays that they are joined to; bytes are also turned into numbers four times as long.
            check_fits_memory((9 if description.get(_BYTES_KEY) else 2) * check_whole_file(file))


def _flatten(space: gym.Space[Any], value: Any, dataset_id: str) -> npt.NDArray[np.float32]:
    """Flatten (T, ...) observations of a space to (T, D) float32, in Gymnasium's order of keys."""
    if isinstance(space, spaces.Box):
        array = np.asarray(value, dtype=np.float32)
        return array.reshape(len(array), -1)
    if isinstance(space, spaces.Dict):
        return np.concatenate([_flatten(part, value[key], dataset_id) for key, part in space.spaces.items()], axis=1)
    if isinstance(space, spaces.Tuple):
        return np.concatenate(
            [_flatten(part, item, dataset_id) for part, item in zip(space.spaces, value, strict=True)], axis=1
        )
    raise DatasetError(
        f"Minari dataset '{dataset_id}' has observations of {space}; Boxes, or Dicts and Tuples of them, work"
    )


def write_minari(
    demonstrations: Demonstrations,
    dataset_id: str,
    env: gym.Env[Any, Any],
    *,
    description: str,
    overwrite: bool = False,
) -> None:
    """Write demonstrations as a Minari dataset that appears whole or not at all.

    Args:
        demonstrations: what to write.
        dataset_id: e.g. `mcnn/door/expert-v0`.
        env: the environment they belong to: its spaces and specification are stored.
        description: a sentence for the dataset's card.
        overwrite: replace a dataset of that id.

    Raises:
        ConfigError: the id is not a Minari id, or is taken and overwrite is false.
        DatasetError: the demonstrations do not fit the environment.
    """
    check_free(dataset_id, overwrite)
    target = get_dataset_path(dataset_id)
    width = int(np.prod(env.observation_space.shape or (0,)))
    if demonstrations.observations_ND.shape[1] != width:
        raise DatasetError(
            f"{demonstrations.source} has {demonstrations.observations_ND.shape[1]} observation numbers, the "
            f"environment {width}; it was recorded for another task"
        )
    in_bytes, facts = _in_bytes(demonstrations.observations_ND, env.observation_space), demonstrations.provenance
    stored = spaces.Box(0, 255, (width,), np.uint8) if in_bytes else spaces.Box(-np.inf, np.inf, (width,), np.float32)
    with _temporary_store(target) as store:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Minari asks for author and e-mail, which we do not know
            dataset = minari.create_dataset_from_buffers(
                dataset_id,
                _episode_buffers(demonstrations, in_bytes),
                env=_plain_spec(env),
                observation_space=stored,
                action_space=env.action_space,
                description=description,
                algorithm_name=str(facts.get("expert", facts.get("method", "recorded"))),
            )
            provenance = {**facts, "source": demonstrations.source, "sha256": demonstrations.sha256}
            dataset.storage.update_metadata({_PROVENANCE_KEY: provenance, _BYTES_KEY: in_bytes})
        target.parent.mkdir(parents=True, exist_ok=True)
        replace_directory(store / dataset_id, target)
    _register_namespace(dataset_id)


def check_free(dataset_id: str, overwrite: bool) -> None:
    """Check that a dataset can be written under an id, before work goes into making it.

    Args:
        dataset_id: must be one that Minari takes and stay inside Minari's store.
        overwrite: whether a dataset of that id may be replaced.

    Raises:
        ConfigError: it cannot.
    """
    try:
        parse_dataset_id(dataset_id)
    except ValueError as error:
        raise ConfigError(f"'{dataset_id}' is not a Minari dataset id; write it as me/door/expert-v0") from error
    _check_inside_store(dataset_id)
    target = get_dataset_path(dataset_id)
    if target.exists() and not overwrite:
        raise ConfigError(f"Minari dataset '{dataset_id}' exists already in {target}; name another or pass --overwrite")


def _in_bytes(observations_ND: npt.NDArray[np.float32], space: gym.Space[Any]) -> bool:
    """Tell whether observations are images whose numbers are whole 255ths, and nothing is lost by storing them so."""
    if not isinstance(space, spaces.Box) or np.any(space.low != 0.0) or not np.isin(space.high, (1.0, 256.0)).all():
        return False
    blocks = (observations_ND[start : start + _BLOCK_ROWS] for start in range(0, len(observations_ND), _BLOCK_ROWS))
    return all(np.array_equal(image_bytes(block) / np.float32(255.0), block) for block in blocks)


def image_bytes(observations: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    """Return images in [0, 1] as whole numbers up to 255, of the same shape."""
    whole: npt.NDArray[np.uint8] = np.rint(np.clip(observations, 0.0, 1.0) * np.float32(255.0)).astype(np.uint8)
    return whole


def _episode_buffers(demonstrations: Demonstrations, in_bytes: bool) -> Iterator[EpisodeBuffer]:
    """Yield episodes one by one: images of all of them may not fit the memory twice."""
    for e, (start, stop) in enumerate(zip(demonstrations.offsets[:-1], demonstrations.offsets[1:], strict=True)):
        obs = demonstrations.observations_ND[start:stop]
        finals, successes = demonstrations.final_observations_ED, demonstrations.successes_E
        # Minari stores one observation more than actions; where the source has none, the last is repeated.
        seen = np.concatenate([obs, obs[-1:] if finals is None else finals[e : e + 1]])
        at_end = np.arange(start, stop) == stop - 1
        terminated = demonstrations.terminated_E is not None and demonstrations.terminated_E[e]
        yield EpisodeBuffer(
            id=e,
            observations=image_bytes(seen) if in_bytes else seen,
            actions=demonstrations.actions_NA[start:stop],
            rewards=demonstrations.rewards_N[start:stop],
            terminations=at_end & terminated,
            truncations=at_end & (not terminated),
            # As Minari records infos: one more than steps. The step of success is not known here, so all tell it.
            infos={} if successes is None else {"success": np.full(stop - start + 1, successes[e])},
        )


def _plain_spec(env: gym.Env[Any, Any]) -> Any:
    """Return the environment's own specification, which Minari can rebuild without this package."""
    spec = env.unwrapped.spec
    if spec is None or env.action_space != env.unwrapped.action_space:
        return None  # the actions are not those of the environment that would be rebuilt
    limit = env.spec.max_episode_steps if env.spec is not None else None
    plain = replace(spec, additional_wrappers=(), max_episode_steps=limit)
    try:
        plain.to_json()
    except (TypeError, ValueError):
        return None  # registered with a class or with arguments that JSON cannot hold: the spaces alone are stored
    return plain


@contextmanager
def _temporary_store(target: Path) -> Iterator[Path]:
    """Point Minari at an empty store beside its own, on the same file system."""
    root = get_dataset_path()
    store = root / f".mcnn-{uuid.uuid4().hex[:8]}"
    store.mkdir()
    before = os.environ.get("MINARI_DATASETS_PATH")
    os.environ["MINARI_DATASETS_PATH"] = str(store)
    try:
        yield store
    finally:
        if before is None:
            del os.environ["MINARI_DATASETS_PATH"]
        else:
            os.environ["MINARI_DATASETS_PATH"] = before
        shutil.rmtree(store, ignore_errors=True)


def _register_namespace(dataset_id: str) -> None:
    namespace = parse_dataset_id(dataset_id)[0]
    if namespace is not None and namespace not in list_local_namespaces():
        create_namespace(namespace)
