"""Distils the packaged experts from the public ones: `python -m mcnn_ray.data.distill`.

The student meets its own mistakes (DAgger): it is rolled out with its noise, every state it visits is labelled with the
public expert's mean action, and it is trained on all states so far. The loss is the divergence of the two Gaussians,
which share their spread: errors count in units of the noise, so a joint that the expert moves precisely is learnt
precisely. How long this goes on is decided on the training seeds; the checking seeds are met once, at the end.

Shapes: N states, D observation numbers, A action numbers, E episodes, H hidden units.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch
import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from safetensors.numpy import save
from scipy import stats
from torch import nn

from mcnn_ray.data.experts import Expert, expert_names
from mcnn_ray.errors import ConfigError, DatasetError, McnnError, did_you_mean
from mcnn_ray.tasks.catalogue import find_task
from mcnn_ray.tasks.environments import make_environment, simulator_versions

__all__ = ["Agreement", "Rollouts", "Settings", "Standing", "check", "distil", "roll_out"]

Float32Array = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]
Tick = Callable[[str], None]

CHECKING_SEED = 3_000_000  # training seeds count from 0 and stay far below
_REPOSITORY = Path(__file__).resolve().parents[2]
_ASSETS = _REPOSITORY / "mcnn_ray" / "assets" / "experts"
_FORMULA = (
    "action_scale*net((obs-obs_shift)/(obs_scale+1e-8))+action_shift, plus exp(log_std)*N(0,1) for the stochastic "
    "expert, then clip to [-1,1]; net: layers.i with tanh between them"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How an expert is distilled and checked.

    Attributes:
        hidden: units of each of the two hidden layers.
        first_episodes: episodes of the public expert that start the aggregate.
        rounds: times the student is rolled out, labelled and trained again.
        round_episodes: episodes a round.
        round_steps: training steps a round.
        final_steps: training steps after the last round.
        batch: states a training step.
        learning_rate: Adam's, falling to a hundredth along a cosine in each training.
        check_episodes: episodes of each of the two policies in the final check.
        seed: of the weights and the batches.
    """

    hidden: int = 64
    first_episodes: int = 25
    rounds: int = 6
    round_episodes: int = 15
    round_steps: int = 4000
    final_steps: int = 30_000
    batch: int = 256
    learning_rate: float = 3e-3
    check_episodes: int = 200
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollouts:
    """Episodes of one policy.

    Attributes:
        observations: (N, D) float64 states in which the policy acted, raw units.
        returns: (E,) float64.
        success_any: (E,) bool, success at any step.
        success_last: (E,) bool, success at the last step.
    """

    observations: Float64Array
    returns: Float64Array
    success_any: npt.NDArray[np.bool_]
    success_last: npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A policy's figures over the checking episodes, each with its 95 % interval.

    Attributes:
        return_mean: mean return.
        return_interval: t interval.
        success_rate: share of episodes with success at any step, in [0, 1].
        success_interval: Wilson interval.
        success_rate_last: share with success at the last step, in [0, 1].
    """

    return_mean: float
    return_interval: tuple[float, float]
    success_rate: float
    success_interval: tuple[float, float]
    success_rate_last: float

    @classmethod
    def of(cls, rollouts: Rollouts) -> Standing:
        """Summarise episodes."""
        mean = float(rollouts.returns.mean())
        episodes = len(rollouts.returns)
        low, high = stats.t.interval(0.95, episodes - 1, mean, stats.sem(rollouts.returns))
        wilson = stats.binomtest(int(rollouts.success_any.sum()), episodes).proportion_ci(0.95, "wilson")
        return cls(
            return_mean=mean,
            return_interval=(float(low), float(high)),
            success_rate=float(rollouts.success_any.mean()),
            success_interval=(float(wilson.low), float(wilson.high)),
            success_rate_last=float(rollouts.success_last.mean()),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """The student beside the original, on the same episode seeds with the same noise.

    Attributes:
        original: the public expert's figures.
        student: the distilled expert's.
        episodes: of each.
        first_seed: episode k has the seed `first_seed + k`.
        mean_action_rmse: root mean square difference of the two means, clipped as the environment does, over all
            actions in all states that the student visited.
        simulator: installed versions.
    """

    original: Standing
    student: Standing
    episodes: int
    first_seed: int
    mean_action_rmse: float
    simulator: dict[str, str]

    @property
    def reached(self) -> bool:
        """Whether the student's mean return and success rate lie within the original's 95 % intervals."""
        return_low, return_high = self.original.return_interval
        success_low, success_high = self.original.success_interval
        return (
            return_low <= self.student.return_mean <= return_high
            and success_low <= self.student.success_rate <= success_high
        )


def roll_out(policy: Expert, env: gym.Env[Any, Any], seeds: Iterable[int], tick: Tick) -> Rollouts:
    """Run the stochastic policy for one episode a seed.

    Args:
        policy: acts with its noise.
        env: the task's environment.
        seeds: each fixes the initial state and the noise of its episode, whatever the policy.
        tick: called before each episode.
    """
    observations, returns, success_any, success_last = [], [], [], []
    for seed in seeds:
        tick("rolling out")
        # The environment draws its initial state from default_rng(seed); the noise must not repeat that stream.
        noise = np.random.default_rng((seed, 1))
        obs_D, _ = env.reset(seed=seed)
        total, successes, done = 0.0, [], False
        while not done:
            observations.append(obs_D)
            obs_D, reward, terminated, truncated, info = env.step(policy.act(obs_D, noise))
            total += float(reward)
            successes.append(bool(info["success"]))
            done = terminated or truncated
        returns.append(total)
        success_any.append(any(successes))
        success_last.append(successes[-1])
    return Rollouts(
        observations=np.array(observations, dtype=np.float64),
        returns=np.array(returns),
        success_any=np.array(success_any),
        success_last=np.array(success_last),
    )


class _Student:
    """The network in training, with the scalings that its first data fixed.

    Args:
        teacher: gives labels, noise and widths.
        obs_ND: (N, D) float64, the teacher's own states, raw units.
        settings: sizes and seed.
    """

    def __init__(self, teacher: Expert, obs_ND: Float64Array, settings: Settings) -> None:
        torch.manual_seed(settings.seed)
        self._teacher = teacher
        self._settings = settings
        self._batches = torch.Generator().manual_seed(settings.seed)
        labels_NA = teacher.mean(obs_ND)
        self._obs_shift_D = obs_ND.mean(0).astype(np.float32)
        self._obs_scale_D = (obs_ND.std(0) + 1e-3).astype(np.float32)
        self._action_shift_A = labels_NA.mean(0)
        self._action_scale_A = labels_NA.std(0) + np.float32(1e-3)
        hidden = settings.hidden
        self._net = nn.Sequential(
            nn.Linear(teacher.obs_dim, hidden),
            nn.Tanh(),
            nn.Linear(hidden, hidden),
            nn.Tanh(),
            nn.Linear(hidden, teacher.action_dim),
        )

    def train(self, obs_ND: Float64Array, steps: int, tick: Tick) -> None:
        """Fit the teacher's mean action on the given states.

        Args:
            obs_ND: (N, D) float64, raw units.
            steps: of Adam.
            tick: called before every thousandth step.
        """
        inputs_ND = torch.from_numpy(((obs_ND - self._obs_shift_D) / self._obs_scale_D).astype(np.float32))
        labels_NA = (self._teacher.mean(obs_ND) - self._action_shift_A) / self._action_scale_A
        targets_NA = torch.from_numpy(labels_NA)
        precision_A = torch.from_numpy(np.square(self._action_scale_A / self._teacher.std_A))
        settings = self._settings
        optimiser = torch.optim.Adam(self._net.parameters(), lr=settings.learning_rate, fused=True)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps, settings.learning_rate / 100)
        for step in range(steps):
            if step % 1000 == 0:
                tick("training")
            rows = torch.randint(len(inputs_ND), (settings.batch,), generator=self._batches)
            error_BA = self._net(inputs_ND[rows]) - targets_NA[rows]
            loss = (precision_A * error_BA.square()).mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()

    def tensors(self) -> dict[str, Float32Array]:
        """Return the expert's tensors, in the layout that `Expert` reads."""
        linear = [layer for layer in self._net if isinstance(layer, nn.Linear)]
        layers = {
            f"layers.{i}.{part}": getattr(layer, part).detach().numpy().copy()
            for i, layer in enumerate(linear)
            for part in ("weight", "bias")
        }
        return layers | {
            "obs_shift": self._obs_shift_D,
            "obs_scale": self._obs_scale_D,
            "action_shift": self._action_shift_A,
            "action_scale": self._action_scale_A,
            "log_std": np.log(self._teacher.std_A),
        }

    def expert(self) -> Expert:
        """Return the policy as it stands."""
        return Expert(self._teacher.name, self.tensors(), {})


def distil(teacher: Expert, env: gym.Env[Any, Any], settings: Settings, tick: Tick) -> dict[str, Float32Array]:
    """Train a student of the teacher on the states that the teacher and then the student itself visit.

    Args:
        teacher: the public expert; its mean is the label.
        env: the task's environment.
        settings: sizes and lengths.
        tick: called with a word on what is being done, `_work(settings)` times together with `check`.

    Returns:
        The student's tensors, in the layout that `Expert` reads.
    """
    seen = roll_out(teacher, env, range(settings.first_episodes), tick).observations
    student = _Student(teacher, seen, settings)
    student.train(seen, settings.round_steps, tick)
    for index in range(settings.rounds):
        first = settings.first_episodes + index * settings.round_episodes
        visited = roll_out(student.expert(), env, range(first, first + settings.round_episodes), tick)
        seen = np.concatenate([seen, visited.observations])
        last = index == settings.rounds - 1
        student.train(seen, settings.final_steps if last else settings.round_steps, tick)
    return student.tensors()


def check(teacher: Expert, student: Expert, env: gym.Env[Any, Any], settings: Settings, tick: Tick) -> Agreement:
    """Measure teacher and student on the checking seeds, both stochastic.

    Args:
        teacher: the public expert.
        student: the distilled one.
        env: the task's environment.
        settings: number of episodes.
        tick: called before each episode.
    """
    seeds = range(CHECKING_SEED, CHECKING_SEED + settings.check_episodes)
    original = roll_out(teacher, env, seeds, tick)
    own = roll_out(student, env, seeds, tick)
    difference = student.act(own.observations) - teacher.act(own.observations)
    return Agreement(
        original=Standing.of(original),
        student=Standing.of(own),
        episodes=settings.check_episodes,
        first_seed=CHECKING_SEED,
        mean_action_rmse=float(np.sqrt(np.square(difference).mean())),
        simulator=simulator_versions(),
    )


def _work(settings: Settings) -> int:
    """Return how often the progress ticks for one task."""
    episodes = settings.first_episodes + settings.rounds * settings.round_episodes + 2 * settings.check_episodes
    steps = [settings.round_steps] * settings.rounds + [settings.final_steps]
    return episodes + sum(-(-count // 1000) for count in steps)


def _metadata(teacher: Expert, settings: Settings, agreement: Agreement) -> dict[str, str]:
    return {
        "task": f"{teacher.name}-expert-v1",
        "source": f"distilled by mcnn-ray from {teacher.metadata.get('source', 'aravindr93/hand_dapg (Apache-2.0)')}",
        "licence": "Apache-2.0 (original policies: aravindr93/hand_dapg)",
        "formula": _FORMULA,
        "settings": json.dumps(asdict(settings)),
        "figures": json.dumps(asdict(agreement)),
    }


def _write(path: Path, tensors: Mapping[str, Float32Array], metadata: Mapping[str, str]) -> None:
    """Write the file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".tmp", delete=False) as file:
        temporary = Path(file.name)
        try:
            file.write(save(dict(tensors), dict(metadata)))
            file.flush()
            os.fsync(file.fileno())
            temporary.chmod(0o644)  # temporary files are made for their owner alone
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def _table(results: Mapping[str, Agreement]) -> Table:
    def number(mean: float, interval: tuple[float, float], digits: int) -> str:
        return f"{mean:.{digits}f} [{interval[0]:.{digits}f}, {interval[1]:.{digits}f}]"

    table = Table(title=f"stochastic experts, episode seeds from {CHECKING_SEED}, 95 % intervals")
    for heading in ("task", "policy", "n", "return", "success, any step", "success, last step", "reached"):
        table.add_column(heading)
    for name, agreement in results.items():
        for policy, standing in (("original", agreement.original), ("student", agreement.student)):
            table.add_row(
                name,
                policy,
                str(agreement.episodes),
                number(standing.return_mean, standing.return_interval, 0),
                number(standing.success_rate, standing.success_interval, 3),
                f"{standing.success_rate_last:.3f}",
                "" if policy == "original" else str(agreement.reached).lower(),
            )
    return table


def _read_teacher(source: Path, name: str) -> Expert:
    path = source / f"adroit_{name}_expert.safetensors"
    if not path.is_file():
        raise DatasetError(
            f"no public expert at {path}; give the folder of adroit_*_expert.safetensors with --source or "
            "MCNN_SHARED_DATA (they are converted from github.com/aravindr93/hand_dapg)"
        )
    return Expert.read(path, name)


def main(
    task: Annotated[list[str] | None, typer.Option(help="Expert to distil; repeatable. Without it all are.")] = None,
    source: Annotated[
        Path, typer.Option(envvar="MCNN_SHARED_DATA", help="Folder of the public experts.")
    ] = _REPOSITORY.parent / "shared" / "data",
    out: Annotated[Path, typer.Option(help="Folder of the distilled experts.")] = _ASSETS,
) -> None:
    """Distil the packaged experts, check each on 200 episodes and write those that match their original.

    Example: python -m mcnn_ray.data.distill --task door --out /tmp/experts
    """
    console = Console(stderr=True)
    torch.set_num_threads(1)  # faster for networks this small
    try:
        results = _distil_all(task or list(expert_names()), source, out, console)
    except McnnError as error:
        console.print(f"[red]{error}")
        raise typer.Exit(error.exit_code) from error
    console.print(_table(results))
    if missed := [name for name, agreement in results.items() if not agreement.reached]:
        console.print(f"[red]not written, since outside the original's interval: {', '.join(missed)}; train longer")
        raise typer.Exit(1)


def _distil_all(names: list[str], source: Path, out: Path, console: Console) -> dict[str, Agreement]:
    if unknown := [name for name in names if name not in expert_names()]:
        raise ConfigError(f"no expert '{unknown[0]}' to distil: {did_you_mean(unknown[0], expert_names())}")
    settings = Settings()
    teachers = {name: _read_teacher(source, name) for name in names}
    results = {}
    with Progress(console=console) as progress:
        for name, teacher in teachers.items():
            bar = progress.add_task(name, total=_work(settings))

            def tick(doing: str, bar: Any = bar, name: str = name) -> None:
                progress.update(bar, advance=1, description=f"{name}: {doing}")

            env = make_environment(find_task(f"{name}-expert-v1"))
            tensors = distil(teacher, env, settings, tick)
            results[name] = agreement = check(teacher, Expert(name, tensors, {}), env, settings, tick)
            env.close()
            if agreement.reached:
                _write(out / f"{name}.safetensors", tensors, _metadata(teacher, settings, agreement))
    return results


if __name__ == "__main__":
    typer.run(main)
