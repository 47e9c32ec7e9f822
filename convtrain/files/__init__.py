"""Resource files: one container format for training archives, checkpoints and model packages."""
