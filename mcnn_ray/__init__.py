"""Imitation learning with Memory-Consistent Neural Networks, on Ray and MLflow."""

__version__ = "0.1.0"
