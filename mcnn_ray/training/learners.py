"""Which class trains the members of which family."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mcnn_ray.member import DataKey, Member
from mcnn_ray.training.bet import BetLearner
from mcnn_ray.training.cql import CqlLearner
from mcnn_ray.training.data import Shard, TrainingData
from mcnn_ray.training.diffusion import DiffusionLearner
from mcnn_ray.training.ibc import ImplicitLearner
from mcnn_ray.training.learner import Learner, LearnerPack
from mcnn_ray.training.lstm_gmm import LstmGmmLearner
from mcnn_ray.training.pack import Pack

__all__ = ["LEARNERS", "AnyPack", "make_pack"]

AnyPack = Pack | LearnerPack

LEARNERS: dict[str, type[Learner]] = {
    "bet": BetLearner,
    "cql": CqlLearner,
    "diffusion": DiffusionLearner,
    "ibc": ImplicitLearner,
    "lstm-gmm": LstmGmmLearner,
}


def make_pack(
    members: Sequence[Member],
    data: TrainingData | Mapping[DataKey, TrainingData],
    shard: Shard | None = None,
) -> AnyPack:
    """Return a pack of members of one family and shape; arguments and errors are those of `Pack`."""
    family = members[0].family
    return Pack(members, data, shard) if family not in LEARNERS else LearnerPack(members, data, LEARNERS[family], shard)
