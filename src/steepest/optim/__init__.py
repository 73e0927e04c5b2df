"""What a training loop calls."""
