"""Tasks: an environment, a demonstration dataset, a horizon and reference scores."""
