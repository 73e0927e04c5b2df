"""PyTorch optimizers that take the steepest step in a chosen geometry."""

from steepest import linalg
from steepest.optim.muon import Muon
from steepest.optim.orthogonalized import OrthogonalizedOptimizer
from steepest.optim.projected import ProjectionRegularizedSGD

__version__ = "0.1.0"

__all__ = ["Muon", "OrthogonalizedOptimizer", "ProjectionRegularizedSGD", "linalg"]
