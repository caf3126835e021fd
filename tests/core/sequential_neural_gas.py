"""Fritzke's growing neural gas, one observation at a time: what `mcnn_ray.core.neural_gas` is compared with.

Written for reading, from the published algorithm (Fritzke, 1995), without the vectorised one's shortcuts. Two things
differ from the paper's text: nodes are inserted at such intervals that exactly `count` are there after 70 % of the
signals, and from then on the learning rates fall linearly to 0, so that the nodes compared have settled. Nodes that
lost their edges stay, since the number of nodes is the task's.
"""

from __future__ import annotations

import numpy as np

WINNER_RATE, NEIGHBOUR_RATE = 0.05, 0.0006
SPLIT_DECAY, ERROR_DECAY = 0.5, 0.0005
MAX_AGE = 50


def sequential_neural_gas(obs_ND, count, *, seed, epochs=10, start_fraction=0.025):
    """Return (count, D) nodes and the set of edges (i, j), i < j."""
    rng = np.random.default_rng(seed)
    total, dim = obs_ND.shape
    size = min(count, max(2, int(start_fraction * total)))
    nodes = np.zeros((count, dim))
    nodes[:size] = obs_ND[rng.choice(total, size, replace=False)]
    error = np.zeros(count)
    edges = [{} for _ in range(count)]  # of each node: neighbour -> age
    signals = epochs * total
    growth = 0.7 * signals
    start = size
    for t, row in enumerate(np.concatenate([rng.permutation(total) for _ in range(epochs)])):
        x = obs_ND[row]
        square = ((nodes[:size] - x) ** 2).sum(1)
        first, second = np.argpartition(square, 1)[:2] if size > 2 else np.argsort(square)
        if square[second] < square[first]:
            first, second = second, first
        first, second = int(first), int(second)
        for j in list(edges[first]):
            edges[first][j] += 1
            edges[j][first] += 1
        error[first] += square[first]
        left = min(1.0, (signals - t) / (signals - growth))
        nodes[first] += left * WINNER_RATE * (x - nodes[first])
        for j in edges[first]:
            nodes[j] += left * NEIGHBOUR_RATE * (x - nodes[j])
        edges[first][second] = edges[second][first] = 0
        for j in [j for j, age in edges[first].items() if age > MAX_AGE]:
            del edges[first][j], edges[j][first]
        while size < count and size < start + (count - start) * (t + 1) / growth:
            q = int(error[:size].argmax())
            f = max(edges[q], key=lambda j: error[j], default=second if q == first else first)
            nodes[size] = 0.5 * (nodes[q] + nodes[f])
            edges[q].pop(f, None)
            edges[f].pop(q, None)
            for j in (q, f):
                edges[size][j] = edges[j][size] = 0
                error[j] *= SPLIT_DECAY
            error[size] = error[q]
            size += 1
        error[:size] *= 1.0 - ERROR_DECAY
    return nodes, {(i, j) for i in range(count) for j in edges[i] if i < j}
