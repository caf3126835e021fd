"""Growing neural gas in mini-batches: nodes that cover a dataset, and edges between neighbouring nodes (Algorithm 1).

Fritzke's growing neural gas (1995) presents one observation at a time, each at the cost of a pass over all nodes in an
interpreted loop: hours at 100,000 rows. Here a batch is presented at once: one matrix product finds the two nearest
nodes of each observation, and each rule of the algorithm acts on the batch's sums. Sums are taken over sorted segments,
not by `index_add_`, whose order on CUDA changes from run to run: a seed gives the same bits again on the same machine
and thread count.

Shapes: N dataset rows, B rows of a batch, M nodes, U of them unplaced, W winners, D observation numbers, E edges.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from mcnn_ray.core.nearest_points import PointFinder

__all__ = ["grow_neural_gas", "snap_to_rows"]

_ROUNDS = 8  # of one epoch; after each, edges age and nodes are inserted
_BATCH_ROWS = 2048  # at most, or as many as there are nodes if these are more; a node moves once a batch
_GROWTH = 0.7  # of the whole run, then all nodes are there and settle
_MAX_AGE = 50.0  # wins of its two ends after which an unconfirmed edge goes (Fritzke's a_max)
_ERROR_DECAY = 0.9  # of errors and utilities, a round: they reach back about an epoch
_SPLIT_DECAY = 0.5  # of a node's error when a node is inserted beside it (Fritzke's alpha)
_WINNER_RATE = 0.05  # least step of a winner towards one observation, at the start; annealed to 0 (eps_b)
_NEIGHBOUR_RATE = 0.005  # step of the winner's neighbours, at the start; annealed to 0 (eps_n)
_MOVE_RATIO = 0.3  # a node moves where it is worth more: the error of a cell falls by about this when it is split
_FORGET = 0.25  # of the observations behind a node's mean that still count in the next epoch
_LISTED_ROWS = 1 << 22  # for all nodes together, at most: 64 MiB with their distances
_NEAREST_ROWS = 8  # looked up for each node when it is snapped, before another search


def _grouped(group_B: torch.Tensor, value_B: torch.Tensor) -> torch.Tensor:
    """Return the order that sorts by group and, within one, by rising value."""
    order_B = value_B.argsort(stable=True)
    return order_B[group_B[order_B].argsort(stable=True)]


class _Gas:
    """Nodes, edges and what each node has seen. Arrays have room for all nodes; the first `size` are alive."""

    def __init__(self, start_MD: torch.Tensor, count: int) -> None:
        self.size = len(start_MD)
        self.nodes_MD = start_MD.new_zeros(count, start_MD.shape[1])
        self.nodes_MD[: self.size] = start_MD
        self.hits_M = start_MD.new_zeros(count)  # observations behind the node's running mean
        self.wins_M = start_MD.new_zeros(count)  # observations won since edges last aged
        self.error_M = start_MD.new_zeros(count)  # squared distances of the observations won
        self.utility_M = start_MD.new_zeros(count)  # by how much they would rise without the node (GNG-U)
        self.won_row_M = torch.full((count,), -1, device=start_MD.device)  # an observation won, not at the node; or -1
        self.edge_E = torch.empty(0, dtype=torch.long, device=start_MD.device)  # first end * count + second, sorted
        self.age_E = start_MD.new_empty(0)
        self._seen: list[torch.Tensor] = []
        self._find = PointFinder(start_MD.device)

    def ends(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the (E,) lower and the (E,) higher node of each edge."""
        return self.edge_E // len(self.nodes_MD), self.edge_E % len(self.nodes_MD)

    def adapt(self, obs_BD: torch.Tensor, row_B: torch.Tensor, *, least_rate: float, neighbour_rate: float) -> None:
        """Present a batch: winners and their neighbours move, errors accumulate, the pairs seen are noted."""
        near_Bk, square_Bk = self._find(obs_BD, self.nodes_MD[: self.size], min(2, self.size))
        if self.size > 1:
            self._seen.append(self._keys(near_Bk[:, 0], near_Bk[:, 1]).unique())
        order_B = near_Bk[:, 0].argsort(stable=True)
        winner_W, length_W = near_Bk[order_B, 0].unique_consecutive(return_counts=True)
        extra_B = square_Bk[:, -1] - square_Bk[:, 0]
        values = torch.cat([obs_BD, square_Bk[:, :1], extra_B[:, None]], 1)[order_B]
        sums = torch.segment_reduce(values, "sum", lengths=length_W)
        sums_WD, count_W = sums[:, :-2], length_W.to(obs_BD.dtype)
        self.error_M[winner_W] += sums[:, -2]
        self.utility_M[winner_W] += sums[:, -1]
        self.hits_M[winner_W] += count_W
        self.wins_M[winner_W] += count_W
        last_W = order_B[length_W.cumsum(0) - 1]
        apart = square_Bk[last_W, 0] > 0.0
        self.won_row_M[winner_W[apart]] = row_B[last_W[apart]]

        # A running mean, as in mini-batch k-means, but never slower than the annealed rate of the original.
        rate_W = torch.maximum(count_W / self.hits_M[winner_W], 1.0 - (1.0 - least_rate) ** count_W)
        step_WD = rate_W[:, None] * (sums_WD / count_W[:, None] - self.nodes_MD[winner_W])
        if neighbour_rate > 0.0 and len(self.edge_E):
            self._pull_neighbours(winner_W, sums_WD, count_W, neighbour_rate)
        self.nodes_MD[winner_W] += step_WD

    def _pull_neighbours(
        self, winner_W: torch.Tensor, sums_WD: torch.Tensor, count_W: torch.Tensor, rate: float
    ) -> None:
        """Move each node with winning neighbours towards the mean of what they won."""
        place_M = torch.full((self.size,), -1, device=winner_W.device)
        place_M[winner_W] = torch.arange(len(winner_W), device=winner_W.device)
        low, high = self.ends()
        source, target = place_M[torch.cat([low, high])], torch.cat([high, low])
        source, target = source[source >= 0], target[source >= 0]
        if not len(source):
            return
        target, order = target.sort(stable=True)
        source = source[order]
        node, length = target.unique_consecutive(return_counts=True)
        weight = torch.segment_reduce(count_W[source], "sum", lengths=length)[:, None]
        mean = torch.segment_reduce(sums_WD[source], "sum", lengths=length) / weight
        self.nodes_MD[node] += (1.0 - (1.0 - rate) ** weight) * (mean - self.nodes_MD[node])

    def end_round(self) -> None:
        """Competitive Hebbian learning: pairs seen become edges of age 0, others age by their ends' wins."""
        low, high = self.ends()
        age_E = self.age_E + self.wins_M[low] + self.wins_M[high]
        seen = torch.cat([*self._seen, self.edge_E[:0]]).unique()
        self._seen = []
        keep = (age_E <= _MAX_AGE) & ~torch.isin(self.edge_E, seen)
        self.edge_E, self.age_E = self.edge_E[keep], age_E[keep]
        self._add_edges(seen)
        self.wins_M.zero_()
        self.error_M *= _ERROR_DECAY
        self.utility_M *= _ERROR_DECAY

    def insert(self, size: int, obs_ND: torch.Tensor, generator: torch.Generator) -> None:
        """Grow to `size` nodes, each new one beside a node of the highest error."""
        while self.size < size:
            many = min(self.size, size - self.size)
            beside = self.error_M[: self.size].topk(many).indices
            fresh = torch.arange(self.size, self.size + many, device=obs_ND.device)
            self._place(fresh, beside, obs_ND, generator)
            self.size += many

    def relocate(self, obs_ND: torch.Tensor, generator: torch.Generator) -> None:
        """Take the nodes that would be missed least to where the error is highest, if that gains (GNG-U)."""
        error_M, utility_M = self.error_M[: self.size], self.utility_M[: self.size]
        low, high = self.ends()
        # Of two neighbours only one may go: without it the other is missed more than its utility says.
        rival_M = torch.full_like(utility_M, torch.inf)
        rival_M = rival_M.scatter_reduce(0, low, utility_M[high], "amin")
        rival_M = rival_M.scatter_reduce(0, high, utility_M[low], "amin")
        idle = (utility_M < rival_M).nonzero()[:, 0]
        idle = idle[utility_M[idle].argsort(stable=True)]
        beside = (self.won_row_M[: self.size] >= 0).nonzero()[:, 0]
        beside = beside[error_M[beside].argsort(descending=True, stable=True)]
        many = min(len(idle), len(beside))
        # One rises and the other falls, so those that gain come first.
        many = int((utility_M[idle[:many]] < _MOVE_RATIO * error_M[beside[:many]]).sum())
        idle, beside = idle[:many], beside[:many]
        idle = idle[~torch.isin(idle, beside)]
        keep = ~(torch.isin(low, idle) | torch.isin(high, idle))
        self.edge_E, self.age_E = self.edge_E[keep], self.age_E[keep]
        self._place(idle, beside[: len(idle)], obs_ND, generator)

    def _place(
        self, fresh: torch.Tensor, beside: torch.Tensor, obs_ND: torch.Tensor, generator: torch.Generator
    ) -> None:
        """Put each fresh node on an observation that the node beside it won; where that has no error, on a random row.

        Fritzke's midpoint between two nodes lies off the data in many dimensions. The farthest observation won would
        lower the largest distance by a little more, but spends nodes on outliers: 1-3 % more error (measured).
        """
        spare = torch.randint(len(obs_ND), (len(fresh),), generator=generator).to(obs_ND.device)
        self.nodes_MD[fresh] = obs_ND[torch.where(self.won_row_M[beside] >= 0, self.won_row_M[beside], spare)]
        for value_M in (self.error_M, self.utility_M, self.hits_M):
            value_M[beside] *= _SPLIT_DECAY
            value_M[fresh] = value_M[beside]
        self.won_row_M[fresh] = -1
        self.won_row_M[beside] = -1
        self._add_edges(self._keys(fresh, beside))

    def _keys(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.minimum(a, b) * len(self.nodes_MD) + torch.maximum(a, b)

    def _add_edges(self, keys: torch.Tensor) -> None:
        self.edge_E, order_E = torch.cat([self.edge_E, keys]).sort()
        self.age_E = torch.cat([self.age_E, self.age_E.new_zeros(len(keys))])[order_E]


def _check(obs_ND: torch.Tensor, count: int, epochs: int, start_fraction: float) -> None:
    if obs_ND.ndim != 2 or 0 in obs_ND.shape:
        raise ValueError(f"observations of shape {tuple(obs_ND.shape)} are not (N, D) with at least one row and column")
    if not 1 <= count <= len(obs_ND):
        raise ValueError(
            f"{count} memories cannot be learnt from {len(obs_ND)} observations; ask for 1 to {len(obs_ND)}"
        )
    if epochs < 1:
        raise ValueError(f"neural gas needs at least 1 epoch, got {epochs}; the paper uses 10")
    if not 0.0 <= start_fraction <= 1.0:
        raise ValueError(f"start_fraction {start_fraction:g} is not in [0, 1]; the paper uses 0.025")
    bad = (~torch.isfinite(obs_ND)).any(1).nonzero()
    if len(bad):
        raise ValueError(f"observation row {int(bad[0, 0])} holds NaN or infinity ({len(bad)} such rows); remove them")


def _distinct_rows(obs_ND: torch.Tensor, order_N: torch.Tensor, count: int) -> torch.Tensor:
    """Return the first `count` rows of an order that differ in value, or as many as there are."""
    tried = 2 * count
    while True:
        rows = order_N[:tried]
        label = obs_ND[rows].unique(dim=0, return_inverse=True)[1]
        label, place = label.sort(stable=True)
        first = torch.cat([label.new_ones(1), label.diff()]) > 0
        place = place[first].sort().values[:count]
        if len(place) == count or tried >= len(order_N):
            return rows[place]
        tried *= 2


def grow_neural_gas(
    obs_ND: torch.Tensor,
    count: int,
    *,
    seed: int,
    epochs: int = 10,
    start_fraction: float = 0.025,
    progress: Callable[[float], None] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Grow a neural gas over a dataset (the paper's incremental neural gas).

    Winners are nearest to float32 rounding, which learning does not notice; `snap_to_rows` measures again. On the CPU
    a seed repeats bit for bit at a fixed thread count. Beyond the arguments it needs some tens of MiB.

    Args:
        obs_ND: (N, D) float32, standardised, finite; rows may repeat. Computed on its device.
        count: nodes at the end, 1 to N.
        seed: of the starting rows and the order of presentation.
        epochs: passes over the dataset. The last of several is one step of k-means, in which nothing is inserted.
        start_fraction: nodes at the start over N; at least 2 nodes, distinct in value, and at most `count`.
        progress: called with the fraction done, in [0, 1], rising.

    Returns:
        (count, D) float32 nodes; (E, 2) int64 edges, first below second, sorted, no repeats. After more than one
        epoch an edge says that some observation of the last epoch had these two as its nearest nodes.

    Raises:
        ValueError: `count`, `epochs`, `start_fraction` or the shape is out of range, or an observation is not finite.
    """
    _check(obs_ND, count, epochs, start_fraction)
    generator = torch.Generator().manual_seed(seed)
    total, device = len(obs_ND), obs_ND.device
    centre_D = obs_ND.double().mean(0).float()  # products of numbers about 0 round least
    obs_ND = obs_ND.float() - centre_D

    start = min(count, max(2, int(start_fraction * total)))
    gas = _Gas(obs_ND[_distinct_rows(obs_ND, torch.randperm(total, generator=generator).to(device), start)], count)
    start = gas.size
    rounds = _ROUNDS * max(1, epochs - 1)
    growth = min(rounds, round(_GROWTH * _ROUNDS * epochs))
    batches = math.ceil(total / _ROUNDS / max(_BATCH_ROWS, count))  # of a round
    for done in range(rounds):
        if done % _ROUNDS == 0:
            parts = torch.randperm(total, generator=generator).to(device).tensor_split(_ROUNDS)
            gas.hits_M *= _FORGET
        left = max(0.0, 1.0 - done / growth)
        for row_B in parts[done % _ROUNDS].tensor_split(batches):
            if len(row_B):
                gas.adapt(obs_ND[row_B], row_B, least_rate=_WINNER_RATE * left, neighbour_rate=_NEIGHBOUR_RATE * left)
        gas.end_round()
        gas.insert(start + math.ceil((count - start) * min(1.0, (done + 1) / growth)), obs_ND, generator)
        if (done + 1) % _ROUNDS == 0 and epochs > 1:
            gas.relocate(obs_ND, generator)
        if progress is not None:
            progress((done + 1) / (_ROUNDS * epochs))
    if epochs > 1:
        gas.hits_M.zero_()
        gas.edge_E, gas.age_E = gas.edge_E[:0], gas.age_E[:0]
        gas.adapt(obs_ND, torch.arange(total, device=device), least_rate=0.0, neighbour_rate=0.0)
        gas.end_round()
        if progress is not None:
            progress(1.0)
    return gas.nodes_MD + centre_D, torch.stack(gas.ends(), 1)


def _closest_rows(nodes_UD: torch.Tensor, obs_ND: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the (U, k) closest rows of each node, closest first by distances measured by subtraction in float64."""
    centre_D = obs_ND.mean(0)
    near_Uk, _ = PointFinder(obs_ND.device)(nodes_UD - centre_D, obs_ND - centre_D, k)
    parts = [
        (obs_ND[near].double() - nodes[:, None].double()).square().sum(2)
        for near, nodes in zip(near_Uk.split(4096), nodes_UD.split(4096), strict=True)
    ]
    square_Uk, order_Uk = torch.cat(parts).sort(stable=True, dim=1)
    return near_Uk.gather(1, order_Uk), square_Uk


def _assign(near_Uk: torch.Tensor, square_Uk: torch.Tensor, free_N: torch.Tensor) -> torch.Tensor:
    """Give each node its first free row, the closest node first; return (U,) rows, -1 where none of its k is free.

    Rows given away are cleared in `free_N`.
    """
    row_U = torch.full((len(near_Uk),), -1, device=near_Uk.device)
    waiting = torch.arange(len(near_Uk), device=near_Uk.device)
    while len(waiting):
        free_Uk = free_N[near_Uk[waiting]]
        waiting, free_Uk = waiting[free_Uk.any(1)], free_Uk[free_Uk.any(1)]
        choice = free_Uk.int().argmax(1)
        wanted = near_Uk[waiting, choice]
        order = _grouped(wanted, square_Uk[waiting, choice])
        first = torch.ones(len(order), dtype=torch.bool, device=order.device)
        first[1:] = wanted[order].diff() > 0
        row_U[waiting[order[first]]] = wanted[order[first]]
        free_N[wanted[order[first]]] = False
        waiting = waiting[order[~first]].sort().values
    return row_U


def snap_to_rows(
    nodes_MD: torch.Tensor, edges_E2: torch.Tensor, obs_ND: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Replace each node by its closest dataset row, no two by the same row.

    Where several nodes have the same closest row, the closest node takes it and the others take their next free one.
    The rows differ as indices: they differ in value because the caller passes a dataset whose rows are unique.

    Args:
        nodes_MD: (M, D) float32.
        edges_E2: (E, 2) int64 pairs of nodes.
        obs_ND: (N, D) float32, unique rows, N >= M.

    Returns:
        (M,) int64 rows, ascending; (E, 2) int64 edges between positions in it, first below second, sorted, no repeats.

    Raises:
        ValueError: there are more nodes than rows, or the widths differ.
    """
    count = len(nodes_MD)
    if count > len(obs_ND) or nodes_MD.shape[1:] != obs_ND.shape[1:]:
        raise ValueError(f"nodes of shape {tuple(nodes_MD.shape)} cannot take rows of {tuple(obs_ND.shape)}, one each")
    row_M = torch.full((count,), -1, device=obs_ND.device)
    free_N = torch.ones(len(obs_ND), dtype=torch.bool, device=obs_ND.device)
    waiting, k = torch.arange(count, device=obs_ND.device), _NEAREST_ROWS
    while len(waiting):
        free = free_N.nonzero()[:, 0]
        near_Uk, square_Uk = _closest_rows(nodes_MD[waiting], obs_ND[free], min(k, len(free)))
        row_M[waiting] = _assign(free[near_Uk], square_Uk, free_N)
        waiting = waiting[row_M[waiting] < 0]
        k = max(_NEAREST_ROWS, min(2 * k, _LISTED_ROWS // max(1, len(waiting))))

    row_M, order_M = row_M.sort()
    rank_M = torch.empty_like(order_M)
    rank_M[order_M] = torch.arange(count, device=obs_ND.device)
    low_high_E2 = rank_M[edges_E2].sort(1).values
    keys = (low_high_E2[:, 0] * count + low_high_E2[:, 1]).unique()
    return row_M, torch.stack([keys // max(1, count), keys % max(1, count)], 1)
