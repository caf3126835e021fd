"""Workers that share a batch, as threads."""

import threading
from concurrent.futures import ThreadPoolExecutor

import torch

from mcnn_ray.training.data import Shard


def trained_together(packs, steps):
    """Train packs at once in threads, as their workers would; their losses."""
    with ThreadPoolExecutor(len(packs)) as threads:
        return list(threads.map(lambda pack: pack.train(steps), packs))


def shards(workers):
    """Parts of a batch for workers in threads that meet at a barrier, as all_reduce does."""
    barrier, parts = threading.Barrier(workers), [None] * workers

    def sum_over(rank):
        def add(tensor):
            parts[rank] = tensor.clone()
            barrier.wait()
            tensor.copy_(torch.stack(parts).sum(0))
            barrier.wait()

        return add

    return [Shard(rank=rank, workers=workers, sum=sum_over(rank)) for rank in range(workers)]
