"""The named optimizers written out in float64 for one matrix, each from its formula alone.

Each is a generator: it is sent a gradient and yields the weight after the step. ``orth`` is the
map to an orthogonal matrix, exact or by polynomials; numbers are the defaults of the classes.
"""

from __future__ import annotations

import math

import torch

from oracles import polar


def muon(w, orth, lr):
    m = torch.zeros_like(w)
    while True:
        g = yield w
        w = w - lr * 0.1 * w
        m = 0.95 * m + 0.05 * g
        w = w - lr * 0.2 * math.sqrt(max(w.shape)) * orth(0.05 * g + 0.95 * m)


def adamuon(w, orth, lr):
    m, v = torch.zeros_like(w), torch.zeros_like(w)
    while True:
        g = yield w
        m = 0.95 * m + 0.05 * g
        o = orth(m.sign())
        v = 0.95 * v + 0.05 * o**2
        o = o / (v.sqrt() + 1e-8)
        w = w - lr * 0.1 * w - lr * 0.2 * math.sqrt(w.numel()) * o / o.norm()


def normuon(w, orth, lr):
    m, v = torch.zeros_like(w), torch.zeros(len(w), 1, dtype=w.dtype)
    while True:
        g = yield w
        m = 0.95 * m + 0.05 * g
        o = orth(m)
        v = 0.95 * v + 0.05 * (o**2).mean(1, keepdim=True)
        o = o / (v.sqrt() + 1e-8)
        w = w - lr * 0.1 * w - lr * 0.2 * math.sqrt(w.numel()) * o / o.norm()


def scion(w, orth, lr):
    m = torch.zeros_like(w)
    while True:
        g = yield w
        m = 0.9 * m + 0.1 * g
        w = (1 - lr) * w - lr * 50 * math.sqrt(w.shape[0] / w.shape[1]) * orth(m)


def polargrad(w, orth, lr):
    m = torch.zeros_like(w)
    while True:
        g = yield w
        m = 0.95 * m + 0.05 * g
        o = orth(m)
        w = w - lr * 0.01 * w - lr * torch.trace(o.T @ m) * o


def mop(w, _, lr):
    m = torch.zeros_like(w)
    while True:
        g = yield w
        m = 0.95 * m + 0.05 * g
        w = w - lr * 0.01 * w - lr * torch.linalg.svdvals(m).sum() * polar(m)


def spel(w, orth, lr):
    m = torch.zeros_like(w)
    while True:
        g = yield w
        m = 0.95 * m + 0.05 * g
        w = polar(w - lr * orth(m))


def muonhyperball(w, orth, lr):
    m, radius = torch.zeros_like(w), w.norm()
    while True:
        g = yield w
        m = 0.95 * m + 0.05 * g
        u = orth(0.05 * g + 0.95 * m)
        w = w - lr * radius * u / u.norm()
        w = radius * w / w.norm()


def dion2(w, orth, lr):
    m = torch.zeros_like(w)
    if w.shape[0] > w.shape[1]:  # columns are fewer
        transposed = dion2(w.T, lambda x: orth(x.T).T, lr)
        w = next(transposed).T
        while True:
            g = yield w
            w = transposed.send(g.T).T
    while True:
        g = yield w
        m = m + g
        rows = m.norm(dim=1).argsort(descending=True)[: math.ceil(0.25 * len(m))]
        o = torch.zeros_like(w)
        o[rows] = orth(m[rows])
        m[rows] = 0.95 * m[rows]
        w = w - lr * 0.1 * w - lr * 0.2 * math.sqrt(max(w.shape)) * o


REFERENCES = {
    f.__name__: f
    for f in (muon, adamuon, normuon, scion, polargrad, mop, spel, muonhyperball, dion2)
}


def options(w, orth, lr, *, direction=None, decay=None, adapt=None, nesterov=True, scale=None):
    """Muon with one of its parts replaced by a formula."""
    m, step = torch.zeros_like(w), 0
    f = 0.2 * math.sqrt(max(w.shape)) if scale is None else scale
    while True:
        g = yield w
        step += 1
        m = 0.95 * m + 0.05 * g
        d = 0.05 * g + 0.95 * m if nesterov else m
        u = f * (direction or (lambda x, _: orth(x)))(d, step)
        u = u if adapt is None else adapt(u, g, d, step)
        w = (w - lr * 0.1 * w if decay is None else decay(w, u, lr)) - lr * u
