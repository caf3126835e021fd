"""Sweeps: members planned, trained in packs by Ray Tune, rolled out, filed in MLflow, and compared in a table."""
