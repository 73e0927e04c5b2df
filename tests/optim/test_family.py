"""Each named optimizer, and each option of the family, against its formula in float64."""

from __future__ import annotations

import math
from types import MappingProxyType

import pytest
import torch
from torch.nn import Parameter

import oracles
import steepest
from cases import parameters, run, set_gradients
from oracles_family import REFERENCES, options
from steepest import Muon
from steepest.linalg import SCHEDULES
from steepest.model.create import MATRIX_OPTIMIZERS

SHAPES = [(6, 4), (4, 6), (5, 5), (2, 9), (12, 3), (16, 8)]
TABLE = SCHEDULES["polar_express"].coefficients[:5]


def polynomial(x):
    return oracles.newton_schulz(x, TABLE)


def assert_follows(optimizer, params, formulas, tolerance, steps=5):
    for formula in formulas:
        next(formula)
    for step in range(steps):
        set_gradients(params, step)
        optimizer.step()
        for param, formula in zip(params, formulas, strict=True):
            expected = formula.send(param.grad.double())
            error = (param.double() - expected).norm() / expected.norm()
            assert error <= tolerance, (tuple(param.shape), step)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("exact", [True, False], ids=["exact", "polynomial"])
@pytest.mark.parametrize("name", MATRIX_OPTIMIZERS)
def test_a_named_optimizer_follows_its_formula(name, exact, dtype):
    params = parameters(SHAPES, dtype=dtype)
    rate = 0.02 if name != "scion" else 0.002
    optimizer = MATRIX_OPTIMIZERS[name](params, lr=rate, **({"method": "svd"} if exact else {}))
    orth = oracles.polar if exact else polynomial
    formulas = [REFERENCES[name](p.detach().double().clone(), orth, rate) for p in params]
    tolerance = {torch.float64: 1e-11, torch.float32: 1e-6 if exact else 1e-5}[dtype]
    assert_follows(optimizer, params, formulas, tolerance)


def test_the_table_of_formulas_is_complete():
    assert MATRIX_OPTIMIZERS.keys() == REFERENCES.keys()


# --- one option at a time -------------------------------------------------------------------------


def clipped(d, _):
    u, s, vh = torch.linalg.svd(d, full_matrices=False)
    return u @ torch.diag(s.clamp(0.2, 0.4)) @ vh


def by_rows(d, _):
    return d / d.norm(dim=1, keepdim=True)


def by_columns(d, _):
    return d / d.norm(dim=0, keepdim=True)


def in_tiles(d, _, size=3):
    result = torch.zeros_like(d)
    for i in range(0, d.shape[0], size):
        for j in range(0, d.shape[1], size):
            tile = d[i : i + size, j : j + size]
            scale = 0.2 * math.sqrt(max(tile.shape))
            result[i : i + size, j : j + size] = scale * oracles.polar(tile)
    return result


def every_third(d, step):
    long_as = d * math.sqrt(min(d.shape)) / d.norm()
    return oracles.polar(d) if step % 3 == 1 else long_as


def every_second_whole_else_in_tiles(d, step):
    whole = 0.2 * math.sqrt(max(d.shape)) * oracles.polar(d)
    return whole if step % 2 == 1 else in_tiles(d, step)


def cautious(w, u, lr):
    return torch.where(w * u >= 0, w - lr * 0.1 * w, w)


def spectral(w, _, lr):
    a, s, bh = torch.linalg.svd(w, full_matrices=False)
    return w - lr * 0.1 * (a @ torch.diag((s - 0.5).clamp_min(0)) @ bh)


def moments(kind):
    v = 0.0

    def adapt(u, g, d, step):
        nonlocal v
        if kind.startswith("namo"):
            v = 0.8 * v + 0.2 * g.norm() ** 2
            corrected = math.sqrt(1 - 0.8**step) / (1 - 0.95 ** (step + 1))
            return u * d.norm() / (v.sqrt() + 1e-8) * (corrected if kind == "namo" else 1.0)
        o = u / (0.2 * math.sqrt(max(u.shape)))
        squares = o**2
        if kind == "normuon_long":
            squares = squares.mean(1 if o.shape[0] >= o.shape[1] else 0, keepdim=True)
        v = 0.8 * v + 0.2 * squares
        o = o / (v.sqrt() + 1e-8)
        return 0.2 * math.sqrt(o.numel()) * o / o.norm()

    return adapt


OPTIONS = {
    "clip": ({"clip": (0.2, 0.4)}, lambda _: {"direction": clipped}),
    "row": (
        {"norm": "row"},
        lambda w: {"direction": by_rows, "scale": 0.2 * math.sqrt(w.shape[1])},
    ),
    "column": (
        {"norm": "column", "scale": "unit_rms"},
        lambda w: {"direction": by_columns, "scale": math.sqrt(w.shape[0])},
    ),
    "sign": (
        {"norm": "sign", "scale": "unit_rms", "radius": 3.0},
        lambda w: {"direction": lambda d, _: d.sign(), "scale": 3.0 / w.shape[1]},
    ),
    "block_size": ({"block_size": 3}, lambda _: {"direction": in_tiles, "scale": 1.0}),
    "period": ({"period": 3}, lambda _: {"direction": every_third}),
    "period and block_size": (
        {"period": 2, "block_size": 3},
        lambda _: {"direction": every_second_whole_else_in_tiles, "scale": 1.0},
    ),
    "palm": (
        {"weight_decay_method": "palm"},
        lambda _: {"decay": lambda w, _, lr: w - lr**2 * 0.1 * w},
    ),
    "cautious": ({"weight_decay_method": "cautious"}, lambda _: {"decay": cautious}),
    "spectral": (
        {"weight_decay_method": "spectral", "spectral_cap": 0.5},
        lambda _: {"decay": spectral},
    ),
    **{
        kind: ({"second_moment": kind, "beta2": 0.8}, lambda _, kind=kind: {"adapt": moments(kind)})
        for kind in ("adamuon", "normuon_long", "namo", "namo_raw")
    },
    "left": ({"method": "left"}, lambda _: {}),
    "right": ({"method": "right"}, lambda _: {}),
    "eigh": ({"method": "eigh"}, lambda _: {}),
    "qdwh": ({"method": "qdwh"}, lambda _: {}),
    "tolerance": ({"tolerance": 1e-9}, lambda _: {}),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_follows_its_formula(name, dtype):
    given, formula = OPTIONS[name]
    exact = {} if given.keys() & {"clip", "norm", "method", "tolerance"} else {"method": "svd"}
    params = parameters(SHAPES, dtype=dtype)
    optimizer = Muon(params, lr=0.05, **exact, **given)
    formulas = [
        options(p.detach().double().clone(), oracles.polar, 0.05, **formula(p)) for p in params
    ]
    assert_follows(optimizer, params, formulas, 1e-8 if dtype == torch.float64 else 1e-6)


@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1e12, 1e30])
@pytest.mark.parametrize(
    "name", [name for name in MATRIX_OPTIMIZERS if name not in ("polargrad", "mop")]
)
def test_the_scale_of_the_gradients_does_not_matter(name, scale):
    results = []
    for factor in (1.0, scale):
        params = parameters(SHAPES, dtype=torch.float32)
        optimizer = MATRIX_OPTIMIZERS[name](params, lr=0.01)
        for step in range(3):
            set_gradients(params, step)
            for param in params:
                param.grad *= factor
            optimizer.step()
        results.append(params)
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", ["svd", "left", "right"])
def test_one_sided_forms_agree_on_rank_deficient_matrices(method):
    param = Parameter(torch.zeros(6, 9, dtype=torch.float64))
    generator = torch.Generator().manual_seed(0)
    thin = torch.randn(6, 2, generator=generator, dtype=torch.float64)
    param.grad = thin @ torch.randn(2, 9, generator=generator, dtype=torch.float64)
    options = {"momentum": 0.0, "weight_decay": 0.0, "method": method}
    steepest.PolarGrad([param], lr=1.0, **options).step()
    singular = torch.linalg.svdvals(param.detach())
    nuclear = torch.linalg.svdvals(param.grad).sum()
    torch.testing.assert_close(singular[:2], nuclear.repeat(2), rtol=1e-8, atol=0)
    assert singular[2:].max() < 1e-7 * nuclear


def test_a_centered_direction_does_not_move_the_mean_of_the_rows():
    (param,) = parameters([(4, 7)])
    before = param.detach().clone()
    optimizer = steepest.PolarGrad([param], lr=0.1, weight_decay=0.0, method="left", center=True)
    run(optimizer, [param], range(3))
    moved = param.detach() - before
    assert moved.abs().max() > 1e-3
    assert moved.mean(dim=0).abs().max() < 1e-12


def test_scion_keeps_weights_in_the_ball():
    (param,) = parameters([(8, 16)])
    param.data.zero_()
    optimizer = steepest.Scion([param], lr=0.3, radius=2.0, method="svd")
    for step in range(30):
        set_gradients([param], step)
        optimizer.step()
        largest = torch.linalg.matrix_norm(param.detach(), 2) / math.sqrt(8 / 16)
        assert largest <= 2.0 * (1 + 1e-12)
    assert largest > 0.5


def test_spel_keeps_every_block_orthogonal():
    (param,) = parameters([(8, 5)])
    optimizer = steepest.Spel([param], lr=0.1, split=(4, 2, 2))
    run(optimizer, [param], range(3))
    for block in (param[:4], param[4:6], param[6:]):
        values = torch.linalg.svdvals(block.detach())
        torch.testing.assert_close(values, torch.ones_like(values), rtol=0, atol=1e-12)


def test_dion2_takes_in_the_end_what_it_left_out():
    """A constant gradient reaches every row, though each step takes a quarter of them."""
    (param,) = parameters([(8, 12)])
    param.data.zero_()
    optimizer = steepest.Dion2([param], lr=0.1, momentum=0.2, weight_decay=0.0)
    generator = torch.Generator().manual_seed(0)
    gradient = torch.randn(8, 12, generator=generator, dtype=torch.float64)
    touched = []
    for _ in range(8):
        before = param.detach().clone()
        param.grad = gradient
        optimizer.step()
        touched.append(set((param - before).detach().abs().sum(1).nonzero().flatten().tolist()))
    assert all(len(rows) == 2 for rows in touched)
    assert set.union(*touched) == set(range(8))


def test_a_new_optimizer_is_one_map():
    class Halves(steepest.MatrixOptimizer):
        own_options = MappingProxyType(
            {"share": 0.5, "scale": "none", "nesterov": False, "weight_decay": 0.0}
        )

        def direction(self, matrices, *, share, **options):
            return share * matrices

    (param,) = parameters([(8, 5)])
    expected = param.detach().clone()
    optimizer = Halves([param], lr=1.0, momentum=0.0, share=0.25, heads=2)
    set_gradients([param], 0)
    optimizer.step()
    torch.testing.assert_close(param.detach(), expected - 0.25 * param.grad, rtol=1e-12, atol=0)
    with pytest.raises(TypeError, match="unexpected keyword argument 'shares'"):
        Halves([param], shares=1.0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"norm": "nuclear"}, "norm must be one of spectral, sign, row, column, got 'nuclear'"),
        ({"method": "cholesky"}, "method must be one of auto.*got 'cholesky'"),
        ({"tolerance": -1.0}, "tolerance must be > 0, got -1.0"),
        ({"tolerance": 1e-3, "method": "svd"}, "method must be 'auto', got 'svd'"),
        ({"tolerance": 1e-3, "method": "left"}, "needs method='auto', got 'left'"),
        ({"clip": (0.5, 0.1)}, r"clip must be two finite numbers .*got \(0.5, 0.1\)"),
        ({"clip": (0.5,)}, "clip must be two finite numbers"),
        ({"clip": 0.5}, "clip must be two finite numbers .*got 0.5"),
        ({"clip": (0.1, 0.5), "method": "svd"}, "clip is exact"),
        ({"clip": (0.1, 0.5), "norm": "sign"}, "need norm='spectral', got norm='sign'"),
        ({"norm": "row", "method": "svd"}, "need norm='spectral'"),
        ({"radius": 0.0}, "radius must be a finite number > 0, got 0.0"),
        ({"second_moment": "adam"}, "second_moment must be one of adamuon.*got 'adam'"),
        ({"beta2": 1.0}, r"beta2 must be in \[0, 1\), got 1.0"),
        ({"eps": -1.0}, "eps must be a finite number >= 0"),
        ({"period": 0}, "period must be an integer >= 1, got 0"),
        ({"block_size": 0}, "block_size must be an integer >= 1, got 0"),
        ({"spectral_cap": -1.0}, "spectral_cap must be"),
        ({"maximize": 1}, "maximize must be True or False, got 1"),
        ({"nonfinite": "ignore"}, "nonfinite must be one of raise, skip, pass, got 'ignore'"),
        ({"low_precision": "fp8"}, "low_precision must be one of nearest, stochastic, float32"),
        ({"allow_vectors": 1}, "allow_vectors must be True or False"),
        ({"second_moment": "namo", "scale": "nuclear"}, "choose one"),
        ({"hooks": "hyperball"}, "hooks must be a list"),
        ({"hooks": ("sphere",)}, "hooks must be one of hyperball.*got 'sphere'"),
        ({"hooks": (("hyperball", 0.0),)}, "'hyperball' in hooks must be a finite number > 0"),
        ({"hooks": (("radial_brake", 2.0),)}, r"'radial_brake' in hooks must be in \[0, 1\]"),
        ({"hooks": ("hyperball", "hyperball")}, "each hook once"),
        ({"hooks": (3,)}, "a name or a pair"),
    ],
)
def test_bad_options_are_refused_with_what_is_allowed(given, message):
    with pytest.raises(ValueError, match=message):
        Muon(parameters([(4, 3)]), **given)
    optimizer = Muon(parameters([(4, 3)]))
    with pytest.raises(ValueError, match=message):
        optimizer.add_param_group({"params": parameters([(4, 3)]), **given})
    assert len(optimizer.param_groups) == 1


def test_dion2_refuses_what_it_has_not():
    with pytest.raises(ValueError, match="nesterov=True is not defined for Dion2"):
        steepest.Dion2(parameters([(4, 3)]), nesterov=True)
    with pytest.raises(ValueError, match=r"fraction must be in \[0, 1\], got 1.5"):
        steepest.Dion2(parameters([(4, 3)]), fraction=1.5)


@pytest.mark.parametrize(
    ("shape", "given", "seen"),
    [
        ((1, 8), {}, "1 × 8"),
        ((8, 1), {}, "8 × 1"),
        ((1, 1), {}, "1 × 1"),
        ((8, 1, 1), {"layout": "convolution"}, "8 × 1"),
        ((8, 1, 1), {"layout": "stack"}, "1 × 1"),
        ((1, 1, 1, 1), {"layout": "convolution"}, "1 × 1"),
        ((4, 5), {"heads": 4}, "1 × 5"),
        ((8, 1, 3, 3), {"layout": "convolution", "groups": 8}, "depthwise"),
    ],
)
def test_vectors_are_refused_or_stepped_when_asked(shape, given, seen):
    with pytest.raises(ValueError, match=rf"'gain' .*{seen}"):
        Muon([("gain", Parameter(torch.ones(shape)))], **given)
    if seen == "depthwise":
        return
    param = Parameter(torch.ones(shape, dtype=torch.float64))
    optimizer = Muon(
        [param], lr=1.0, weight_decay=0.0, scale="none", allow_vectors=True, method="svd", **given
    )
    set_gradients([param], 0)
    optimizer.step()
    lengths = (1.0 - param.detach()).reshape(-1, *shape[-2:])
    expected = math.sqrt(4) if given.get("heads") or given.get("layout") == "stack" else 1.0
    expected = math.sqrt(8) if shape == (8, 1, 1) and given["layout"] == "stack" else expected
    assert lengths.norm().item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("method", ["adamuon", "normuon", "normuon_long"])
def test_second_moments_do_not_change_the_length_of_a_part_of_a_matrix(method):
    """Dion2 takes k rows, of length √k together, and not those of a whole matrix."""
    (param,) = parameters([(8, 12)])
    start = param.detach().clone()
    optimizer = steepest.Dion2(
        [param], lr=1.0, weight_decay=0.0, scale="none", second_moment=method, method="svd"
    )
    run(optimizer, [param], [0])
    assert (param - start).norm().item() == pytest.approx(math.sqrt(2), rel=1e-6)


@pytest.mark.parametrize(
    "given", [{"block_size": 2}, {"period": 2}, {"second_moment": "adamuon_sign"}]
)
def test_dion2_refuses_what_would_choose_other_rows_than_those_that_decay(given):
    with pytest.raises(ValueError, match=f"{next(iter(given))}=.*Dion2"):
        steepest.Dion2(parameters([(4, 3)]), **given)


def test_muon_hyperball_keeps_its_hook():
    with pytest.raises(ValueError, match="hooks of MuonHyperball must have 'hyperball'"):
        steepest.MuonHyperball(parameters([(4, 3)]), hooks=("radial_brake",))
    steepest.MuonHyperball(parameters([(4, 3)]), hooks=("radial_brake", ("hyperball", 2.0)))


@pytest.mark.parametrize("hook", ["hyperball", ("radial_brake", 0.0), ("relative_update", 0.1)])
def test_zero_weights_that_a_hook_would_never_let_move_are_refused(hook):
    zeros = [("out", Parameter(torch.zeros(4, 3)))]
    with pytest.raises(ValueError, match="'out' is all zeros"):
        Muon(zeros, hooks=(hook,))
    Muon(zeros, hooks=("radial_brake",))
    Muon(zeros, hooks=(("hyperball", 1.0),))


def test_another_kind_of_second_moment_than_the_state_has_is_refused_before_the_step():
    params = parameters([(4, 3), (2, 5)])
    optimizer = Muon(params, second_moment="adamuon")
    run(optimizer, params, [0])
    before = [param.detach().clone() for param in params]
    optimizer.param_groups[0]["second_moment"] = "normuon"
    set_gradients(params, 1)
    with pytest.raises(RuntimeError, match="has become 'normuon', and its state has shape"):
        optimizer.step()
    assert all(map(torch.equal, params, before))


def test_an_override_of_orthogonalize_sees_the_decayed_weight_in_16_bits_too():
    seen = []

    class Watching(Muon):
        def orthogonalize(self, param, grad, **kwargs):
            seen.append(param.detach().clone())
            return super().orthogonalize(param, grad, **kwargs)

    param = Parameter(torch.ones(4, 3, dtype=torch.bfloat16))
    param.grad = torch.ones_like(param)
    Watching([param], lr=0.1, weight_decay=0.01).step()
    torch.testing.assert_close(seen[0], torch.full((4, 3), 0.999))
