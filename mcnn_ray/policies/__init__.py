"""Policies: what acts in an environment, and is kept as a directory of JSON and safetensors."""
