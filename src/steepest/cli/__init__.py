"""What a person at a terminal runs; needs the optional dependencies ``steepest[cli]``."""
