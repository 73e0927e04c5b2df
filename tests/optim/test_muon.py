"""Muon against its written-out formula and against torch's own."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import Parameter

import oracles
from cases import parameters, run, set_gradients
from steepest import Muon
from steepest.linalg import SCHEDULES, coefficients
from steepest.optim.base import SteepestOptimizer

SHAPES = [(16, 16), (8, 24), (24, 8), (1, 12), (12, 1), (1, 1)]
SIMPLE = [(3.4445, -4.7750, 2.0315)] * 5


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("schedule", list(SCHEDULES))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_five_steps_equal_the_formula(schedule, nesterov, dtype):
    params = parameters(SHAPES, dtype=dtype)
    optimizer = Muon(
        params,
        lr=0.02,
        momentum=0.9,
        weight_decay=0.1,
        nesterov=nesterov,
        schedule=schedule,
        steps=len(SCHEDULES[schedule].coefficients),
        scale="original",
        allow_vectors=True,
    )
    weights = [param.detach().double().clone() for param in params]
    averages = [torch.zeros_like(weight) for weight in weights]
    for step in range(5):
        set_gradients(params, step)
        optimizer.step()
        for place, param in enumerate(params):
            weights[place], averages[place] = oracles.muon_step(
                weights[place],
                averages[place],
                param.grad,
                lr=0.02,
                momentum=0.9,
                decay=0.1,
                nesterov=nesterov,
                table=SCHEDULES[schedule].coefficients,
                scale=math.sqrt(max(1, param.shape[0] / param.shape[1])),
            )
            tolerance = 1e-5 if dtype == torch.float32 else 1e-12
            if schedule == "cans" and min(param.shape) == 1:
                tolerance *= 1e3  # its interval ends at s = 1, where a row is and it is steepest
            error = (param.double() - weights[place]).norm() / weights[place].norm()
            assert error < tolerance, (param.shape, step)


@pytest.mark.parametrize("scale", ["original", "match_rms_adamw"])
def test_agrees_with_torch_to_its_bf16_rounding(scale):
    params, reference = parameters(SHAPES[:4], dtype=torch.float32), parameters(SHAPES[:4])
    reference = [Parameter(param.detach().clone()) for param in params]
    ours = Muon(params, lr=0.02, scale=scale, schedule="simple", allow_vectors=True)
    theirs = torch.optim.Muon(reference, lr=0.02, adjust_lr_fn=scale)
    start = [param.detach().clone() for param in params]
    for step in range(5):
        set_gradients(params, step)
        set_gradients(reference, step)
        ours.step()
        theirs.step()
    for param, expected, before in zip(params, reference, start, strict=True):
        moved = (expected - before).norm()
        # five bf16 iterations with 8 bits of mantissa
        assert (param - expected).norm() / moved < 2e-2


@pytest.mark.parametrize(
    ("scale", "factor"),
    [
        ("match_rms_adamw", lambda m, n: 0.2 * math.sqrt(max(m, n))),
        ("original", lambda m, n: math.sqrt(max(1, m / n))),
        ("spectral", lambda m, n: math.sqrt(max(m, n))),
        ("unit_rms", lambda m, n: math.sqrt(m / n)),
        ("none", lambda *_: 1.0),
    ],
)
def test_each_scale_multiplies_the_orthogonal_matrix_once(scale, factor):
    params = parameters([(64, 16), (16, 64), (32, 32)])
    start = [param.detach().clone() for param in params]
    optimizer = Muon(params, lr=0.5, weight_decay=0.0, scale=scale, steps=12)
    run(optimizer, params, [0])
    for param, before in zip(params, start, strict=True):
        moved = torch.linalg.svdvals((before - param) / 0.5)
        expected = factor(*param.shape)
        torch.testing.assert_close(moved, torch.full_like(moved, expected), rtol=1e-6, atol=0)


def test_default_update_has_the_root_mean_square_of_adamw_at_the_same_rate():
    (param,) = parameters([(256, 64)], dtype=torch.float32)
    start = param.detach().clone()
    run(Muon([param], lr=3e-4, weight_decay=0.0), [param], [0])
    rms = (param - start).square().mean().sqrt() / 3e-4
    assert 0.17 < rms < 0.21


@pytest.mark.parametrize("shape", [(256, 64), (8, 8), (2, 100)])
def test_decay_uses_the_unscaled_learning_rate_for_every_shape(shape):
    (param,) = parameters([shape])
    start = param.detach().clone()
    optimizer = Muon([param], lr=3e-4, weight_decay=0.1)
    param.grad = torch.zeros_like(param)
    optimizer.step()
    torch.testing.assert_close(param.data, start * (1 - 3e-4 * 0.1), rtol=1e-15, atol=0)


@pytest.mark.parametrize("nesterov", [False, True])
def test_the_momentum_buffer_is_the_average_and_is_not_normalized(nesterov):
    param = Parameter(torch.zeros(8, 5, dtype=torch.bfloat16))
    param.grad = torch.ones_like(param)
    optimizer = Muon([param], lr=0.0, momentum=0.9, nesterov=nesterov)
    optimizer.step()
    buffer = optimizer.state[param]["momentum_buffer"]
    # in float32, where 0.1 is not rounded to the 8 bits of the weights
    assert torch.equal(buffer, torch.full((8, 5), 0.1))
    assert torch.equal(param.grad, torch.ones_like(param))


def test_the_second_step_uses_the_average_and_not_the_raw_gradient():
    (param,) = parameters([(16, 16)])
    optimizer = Muon([param], lr=1.0, momentum=0.95, weight_decay=0.0, scale="none", nesterov=False)
    run(optimizer, [param], [0])
    first, before = param.grad.clone(), param.detach().clone()
    run(optimizer, [param], [1])
    average = 0.95 * 0.05 * first + 0.05 * param.grad
    table = coefficients("polar_express", 5)
    torch.testing.assert_close(before - param, oracles.newton_schulz(average, table))
    wrong = oracles.newton_schulz(param.grad, table)
    assert (before - param - wrong).norm() / wrong.norm() > 0.5


def test_convolution_and_stack_layouts_equal_their_matrices():
    convolution, stack = parameters([(8, 4, 3, 3), (3, 4, 6)])
    flat = Parameter(convolution.detach().reshape(8, 36).clone())
    experts = [Parameter(matrix.clone()) for matrix in stack.detach()]
    ours = Muon(
        [
            {"params": [convolution], "layout": "convolution"},
            {"params": [stack], "layout": "stack"},
        ]
    )
    plain = Muon([flat, *experts])
    for step in range(3):
        set_gradients([convolution, stack], step)
        flat.grad = convolution.grad.reshape(8, 36)
        for matrix, gradient in zip(experts, stack.grad, strict=True):
            matrix.grad = gradient
        ours.step()
        plain.step()
    torch.testing.assert_close(convolution.reshape(8, 36), flat, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(stack, torch.stack(experts), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_an_empty_stack_does_not_stop_its_neighbours(order):
    params = parameters([(0, 4, 3), (2, 4, 3)])
    before = params[1].detach().clone()
    optimizer = Muon([params[place] for place in order], layout="stack", weight_decay=0.0)
    run(optimizer, params, [0])
    assert (params[1] - before).abs().max() > 0


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("what", ["orthogonalize", "hooks", "one by one"])
def test_batches_equal_single_parameters(dtype, what):
    class Trivial(Muon):
        def orthogonalize(self, param, grad, **kwargs):
            return super().orthogonalize(param, grad, **kwargs)

    class Hooked(Muon):
        def pre_weight_update_fn_inplace(self, param, update):
            assert update.dtype == param.dtype
            update.view(-1)

    shapes = [(6, 4), (4, 6), (6, 4), (3, 6, 4), (2, 4, 6), (5, 5), (0, 4)]
    params, same = parameters(shapes, dtype=dtype), parameters(shapes, dtype=dtype)

    def groups(each):
        return [
            {"params": [p for p in each if p.ndim == 2]},
            {"params": [p for p in each if p.ndim == 3], "layout": "stack"},
        ]

    options = {"scale": "original", "lr": 0.1}
    batched = Muon(groups(params), **options)
    kind = {"orthogonalize": Trivial, "hooks": Hooked, "one by one": Muon}[what]
    single = kind(groups(same), **options, batch_bytes=0 if what == "one by one" else 8 << 20)
    for step in range(4):
        for each, weights in ((batched, params), (single, same)):
            set_gradients(weights, step)
            weights[step].grad = None
            each.step()
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 1e-2}[dtype]
    for param, other in zip(params, same, strict=True):
        torch.testing.assert_close(param, other, rtol=tolerance, atol=tolerance)


def test_an_orthogonalize_set_on_one_object_is_honoured():
    params = parameters([(4, 3), (4, 3)])
    optimizer = Muon(params)
    calls = []

    def own(param, grad, **_):
        calls.append(param)
        return grad

    optimizer.orthogonalize = own
    run(optimizer, params, [0])
    assert len(calls) == 2


def test_a_long_stack_is_iterated_in_slices_with_the_same_result():
    whole, sliced = parameters([(50, 6, 4)]), parameters([(50, 6, 4)])
    run(Muon(whole, layout="stack", lr=0.1), whole, range(2))
    run(Muon(sliced, layout="stack", lr=0.1, batch_bytes=7 * 6 * 4 * 8), sliced, range(2))
    torch.testing.assert_close(whole[0], sliced[0], rtol=1e-12, atol=1e-14)


def test_channels_last_kernels_keep_their_strides():
    (param,) = parameters([(8, 4, 3, 3)])
    plain = Parameter(param.detach().clone())
    param.data = param.data.to(memory_format=torch.channels_last)
    strides = param.stride()
    options = {"layout": "convolution", "lr": 0.1}
    for step in range(2):
        set_gradients([param], step)
        plain.grad = param.grad
        if step:
            param.grad = param.grad.to(memory_format=torch.channels_last)
    run(Muon([param], **options), [param], range(2))
    run(Muon([plain], **options), [plain], range(2))
    assert param.stride() == strides
    torch.testing.assert_close(param, plain, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("schedule", "cubic-ish"),
        ("schedule", ((1.0, 2.0),)),
        ("schedule", ()),
        ("schedule", 5),
        ("schedule", None),
        ("schedule", ("ab",)),
        ("schedule", ((1.0, 2.0, float("nan")),)),
        ("steps", 0),
        ("steps", 2.5),
        ("scale", "adam"),
        ("layout", "conv"),
        ("iteration_dtype", "fp8"),
        ("momentum", 1.0),
    ],
)
def test_bad_options_are_refused_at_construction(option, value):
    with pytest.raises(ValueError, match=option):
        Muon(parameters([(4, 3)]), **{option: value})
    optimizer = Muon(parameters([(4, 3)]))
    with pytest.raises(ValueError, match=option):
        optimizer.add_param_group({"params": parameters([(4, 3)]), option: value})
    assert len(optimizer.param_groups) == 1


def test_a_misplaced_parameter_is_refused_by_name_with_its_shape():
    with pytest.raises(ValueError, match=r"'conv.weight'.*2 axes.*\(8, 4, 3, 3\)"):
        Muon([("conv.weight", Parameter(torch.zeros(8, 4, 3, 3)))])


def test_an_unknown_keyword_is_an_error():
    with pytest.raises(TypeError, match="ns_steps"):
        Muon(parameters([(4, 3)]), ns_steps=5)


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float64"])
def test_iteration_dtype_is_honoured(name):
    params, exact = parameters([(32, 16)], dtype=torch.float32), parameters([(32, 16)])
    run(Muon(params, lr=1.0, weight_decay=0.0, iteration_dtype=name), params, [0])
    run(Muon(exact, lr=1.0, weight_decay=0.0), exact, [0])
    start = parameters([(32, 16)])[0]
    error = (params[0].double() - exact[0]).norm() / (exact[0] - start).norm()
    assert (1e-3 < error < 5e-2) if name == "bfloat16" else (error < 1e-5)


def test_bf16_weights_are_iterated_in_float32():
    """A bf16 iteration of the same input would be off by about 1e-2."""
    (param,) = parameters([(32, 16)], dtype=torch.bfloat16)
    param.data.zero_()
    set_gradients([param], 0)
    Muon([param], lr=1.0, weight_decay=0.0, momentum=0.0, nesterov=False).step()
    table = coefficients("polar_express", 5)
    expected = -0.2 * math.sqrt(32) * oracles.newton_schulz(param.grad, table)
    # one rounding of the result and one of its product with the scale
    assert (param.double() - expected).norm() / expected.norm() < 4e-3


class _Hooked(Muon):
    def pre_weight_update_fn_inplace(self, param, update):
        """Do nothing, but keep the update a tensor of its own."""


@pytest.mark.parametrize("method", ["decoupled", "independent", "l2"])
@pytest.mark.parametrize("layout", ["matrix", "convolution", "stack"])
def test_writing_the_last_product_onto_the_weight_changes_nothing(layout, method):
    shapes = {
        "matrix": [(16, 40), (40, 16), (24, 24), (1, 9), (9, 1)],
        "convolution": [(8, 3, 3, 3), (40, 2, 2), (4, 4, 1, 1, 1)],
        "stack": [(3, 6, 20), (2, 2, 20, 6), (12, 5, 5)],
    }[layout]
    options = {
        "lr": 0.05,
        "weight_decay": 0.1,
        "weight_decay_method": method,
        "layout": layout,
        "allow_vectors": True,
    }
    results = []
    for kind in (Muon, _Hooked):
        torch.manual_seed(0)
        params = [Parameter(torch.randn(shape)) for shape in shapes]
        if layout == "matrix":
            params.append(Parameter(torch.randn(shapes[0][::-1]).mT))
        optimizer = kind(params, batch_bytes=0, **options)
        run(optimizer, params, range(3))
        results.append(params)
    for fused, plain in zip(*results, strict=True):
        torch.testing.assert_close(fused, plain, rtol=2e-5, atol=2e-6)


def test_a_single_weight_needs_no_tensor_for_its_update(monkeypatch):
    weight = Parameter(torch.randn(8, 20))
    weight.grad = torch.randn(8, 20)
    optimizer = Muon([weight], lr=0.1)

    def refuse(*_):
        raise AssertionError("an update was made")

    monkeypatch.setattr(SteepestOptimizer, "_apply", refuse)
    before = weight.detach().clone()
    optimizer.step()
    assert not torch.equal(before, weight)


def test_convolutions_of_one_short_side_are_padded_into_one_batch():
    shapes = [(16, 8, 3, 3), (16, 16, 3, 3), (72, 4, 2, 2), (32, 9, 2, 2)]
    results = []
    for batch_bytes in (8 << 20, 0):
        torch.manual_seed(0)
        params = [Parameter(torch.randn(shape)) for shape in shapes]
        optimizer = Muon(params, lr=0.1, layout="convolution", batch_bytes=batch_bytes)
        run(optimizer, params, range(3))
        parts = list(optimizer._parts(optimizer._entries()))
        assert len(parts) == (2 if batch_bytes else 4)
        results.append(params)
    for padded, single in zip(*results, strict=True):
        torch.testing.assert_close(padded, single, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("companion", [(16, 144), (16, 32), (32, 16)])
@pytest.mark.parametrize("condition", [1e1, 1e3, 1e7])
def test_a_companion_of_another_length_does_not_cost_digits(condition, companion):
    """Against the polynomial in float64, on a graded spectrum."""
    generator = torch.Generator().manual_seed(0)
    left, _ = torch.linalg.qr(torch.randn(16, 16, generator=generator, dtype=torch.float64))
    right, _ = torch.linalg.qr(torch.randn(20, 16, generator=generator, dtype=torch.float64))
    spectrum = torch.logspace(0, -math.log10(condition), 16, dtype=torch.float64)
    gradient = ((left * spectrum) @ right.T).float()
    weight, other = Parameter(torch.zeros(16, 20)), Parameter(torch.zeros(companion))
    weight.grad, other.grad = gradient, torch.ones(companion)
    options = {"momentum": 0.0, "weight_decay": 0.0, "scale": "none"}
    Muon([weight, other], lr=1.0, **options).step()
    expected = oracles.newton_schulz(gradient, coefficients("polar_express", 5))
    assert (weight + expected).norm() < 2e-5 * expected.norm()


@pytest.mark.parametrize("precision", ["high", "medium"])
def test_a_global_matmul_precision_does_not_reach_the_iteration(precision):
    gradient = torch.randn(96, 96, generator=torch.Generator().manual_seed(1))
    weight = Parameter(torch.zeros(96, 96))
    weight.grad = gradient
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        Muon([weight], lr=1.0, momentum=0.0, weight_decay=0.0, scale="none").step()
    finally:
        torch.set_float32_matmul_precision(before)
    expected = oracles.newton_schulz(gradient, coefficients("polar_express", 5))
    assert (weight + expected).norm() < 1e-5 * expected.norm()


@pytest.mark.parametrize("options", [{"lr": 0.0}, {"weight_decay_method": "independent"}])
def test_what_is_not_finite_stays_visible_whatever_the_path(options):
    results = []
    for kind in (Muon, _Hooked):
        weight = Parameter(torch.ones(6, 9))
        weight.grad = torch.full((6, 9), math.nan)
        kind([weight], **{"lr": 0.1, "weight_decay": 1.0, "nonfinite": "pass", **options}).step()
        results.append(weight.isfinite().sum().item())
    assert results == [0, 0]


def test_the_average_of_bf16_gradients_keeps_what_is_small_beside_it():
    """In bf16 an average of one would swallow a part of a thousandth."""
    param = Parameter(torch.zeros(4, 3, dtype=torch.bfloat16))
    optimizer = Muon([param], lr=0.0, momentum=0.999)
    expected = torch.zeros(4, 3, dtype=torch.float64)
    for step in range(300):
        param.grad = torch.full_like(param, 1.0 + step % 2)
        expected = 0.999 * expected + 0.001 * param.grad.double()
        optimizer.step()
    buffer = optimizer.state[param]["momentum_buffer"]
    assert buffer.dtype == torch.float32
    torch.testing.assert_close(buffer.double(), expected, rtol=1e-5, atol=0)
    assert all(x.dtype == torch.bfloat16 for x in (param, param.grad))
