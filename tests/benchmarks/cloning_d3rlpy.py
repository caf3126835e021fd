"""Behaviour cloning by d3rlpy's `BC`: deterministic policy, tanh head, mean squared error."""

from __future__ import annotations

import d3rlpy
import numpy as np
from cloning_worker import BATCH, HIDDEN, LEARNING_RATE, Clock, read_job, report


def main() -> None:
    """Train and print."""
    job = read_job()
    clock = Clock(job)
    d3rlpy.seed(job.seed)
    # Ends as terminals: d3rlpy leaves out the last row of an episode that was cut.
    ends_N = job.ends_N.astype(np.float32)
    dataset = d3rlpy.dataset.MDPDataset(job.obs_ND, job.actions_NA, np.zeros_like(ends_N), ends_N)
    encoder = d3rlpy.models.VectorEncoderFactory(list(HIDDEN))
    config = d3rlpy.algos.BCConfig(batch_size=BATCH, learning_rate=LEARNING_RATE, encoder_factory=encoder)
    cloning = config.create(device="cpu")
    quiet = {"logger_adapter": d3rlpy.logging.NoopAdapterFactory(), "show_progress": False} if job.quiet else {}
    # An epoch is logged and saved at its end; with one epoch that falls after the clock has stopped.
    cloning.fit(
        dataset,
        n_steps=job.all_steps,
        n_steps_per_epoch=job.all_steps,
        callback=lambda algorithm, epoch, step: clock.tick(),
        **quiet,
    )
    report(job, clock, cloning.predict(job.obs_ND), ("d3rlpy", "gymnasium", "gym"))


if __name__ == "__main__":
    main()
