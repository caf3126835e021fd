"""Training: packs of members as stacked tensors, and their checkpoints."""
