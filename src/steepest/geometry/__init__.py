"""Which direction is steepest, and how long it is; nothing of training loops or models."""
