"""PyTorch optimizers that take the steepest step in a chosen geometry."""

from steepest import linalg
from steepest.model.combined import CombinedOptimizer
from steepest.model.create import create_optimizer
from steepest.model.diagnostics import Diagnostics, diagnose
from steepest.model.plan import Plan, Route
from steepest.model.routing import route
from steepest.optim.adamuon import AdaMuon
from steepest.optim.dion2 import Dion2
from steepest.optim.matrix import MatrixOptimizer
from steepest.optim.matrix_options import MatrixOptions
from steepest.optim.mop import MOP
from steepest.optim.muon import Muon
from steepest.optim.muon_hyperball import MuonHyperball
from steepest.optim.normuon import NorMuon
from steepest.optim.orthogonalized import OrthogonalizedOptimizer
from steepest.optim.polargrad import PolarGrad
from steepest.optim.projected import ProjectionRegularizedSGD
from steepest.optim.qk_clip import qk_clip_
from steepest.optim.scion import Scion
from steepest.optim.spel import Spel

__version__ = "0.1.0"

__all__ = [
    "MOP",
    "AdaMuon",
    "CombinedOptimizer",
    "Diagnostics",
    "Dion2",
    "MatrixOptimizer",
    "MatrixOptions",
    "Muon",
    "MuonHyperball",
    "NorMuon",
    "OrthogonalizedOptimizer",
    "Plan",
    "PolarGrad",
    "ProjectionRegularizedSGD",
    "Route",
    "Scion",
    "Spel",
    "create_optimizer",
    "diagnose",
    "linalg",
    "qk_clip_",
    "route",
]
