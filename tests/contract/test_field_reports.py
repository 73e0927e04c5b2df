"""What has gone wrong elsewhere: matrices, shapes, flags and options, for every optimizer.

Other reports of the kind are held to by the tests beside this one.
"""

from __future__ import annotations

import pytest
import torch
from torch.nn import Parameter

from cases import CASES, parameters, run, set_gradients, shapes_for
from family_table import CLASSES
from steepest.geometry.scale import shape_factor

FAMILY = pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)


def captured(optimizer):
    """The updates of the next steps, before any hook of the groups."""
    updates = []
    for group in optimizer.param_groups:
        group["hooks"] = ()

    class Capture:
        def __init__(self, _, update, __):
            updates.append(update.clone())

        def __enter__(self):
            return self

        def __exit__(self, *_):
            return None

    optimizer.register_weight_update_hook(Capture)
    return updates


@FAMILY
def test_a_placeholder_shape_is_refused_and_never_silently_skipped(kind):
    """Partitioned initialisation leaves a shape of (0,)."""
    with pytest.raises(ValueError, match=r"'w'.*2 axes, got shape \(0,\)"):
        kind([("w", Parameter(torch.empty(0)))])


@FAMILY
def test_parameters_without_memory_are_checked_by_their_shape(kind):
    kind([Parameter(torch.empty(4, 3, device="meta"))])
    with pytest.raises(ValueError, match="2 axes"):
        kind([Parameter(torch.empty(4, device="meta"))])


@FAMILY
def test_defaults_do_orthogonalize_and_not_follow_the_gradient(kind):
    param = Parameter(torch.eye(8))
    gradient = torch.randn(8, 8, generator=torch.Generator().manual_seed(0))
    param.grad = gradient.clone()
    optimizer = kind([param], lr=1.0, weight_decay=0.0)
    updates = captured(optimizer)
    optimizer.step()
    (update,) = updates
    values = torch.linalg.svdvals(update)
    values = values[values > 1e-4 * values[0]]  # Dion2 takes some rows of them
    if optimizer.param_groups[0]["second_moment"] is None:
        assert values.max() / values.min() < 1.14 / 0.68
    cosine = torch.nn.functional.cosine_similarity(update.flatten(), gradient.flatten(), dim=0)
    assert 0.2 < cosine < 0.97


@pytest.mark.parametrize("split", [(16, 8, 8), (16, 4, 4, 9)])
@FAMILY
def test_sizes_that_do_not_sum_are_refused_by_name(kind, split):
    with pytest.raises(ValueError, match=r"'qkv'.*rows, the parameter 36"):
        kind([("qkv", Parameter(torch.ones(36, 8)))], split=split)


@FAMILY
def test_a_tied_weight_given_twice_is_refused(kind):
    tied = Parameter(torch.ones(4, 3))
    with pytest.raises(ValueError, match="appears twice"):
        kind([tied, tied])
    with pytest.raises(ValueError, match="more than one parameter group"):
        kind([{"params": [tied]}, {"params": [tied]}])


@pytest.mark.parametrize("grads", ["contiguous", "channels_last", "mixed"])
@FAMILY
def test_channels_last_kernels_keep_their_strides(kind, grads):
    (param,), (plain,) = parameters([(8, 4, 3, 3)]), parameters([(8, 4, 3, 3)])
    param.data = param.data.to(memory_format=torch.channels_last)
    strides = param.stride()
    ours, reference = (kind([p], lr=0.01, layout="convolution") for p in (param, plain))
    for step in range(3):
        set_gradients([plain], step)
        last = grads == "channels_last" or (grads == "mixed" and step % 2 == 0)
        kept = torch.channels_last if last else torch.contiguous_format
        param.grad = plain.grad.to(memory_format=kept)
        ours.step()
        reference.step()
    assert param.stride() == strides
    torch.testing.assert_close(param, plain, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kernel", [(64, 16, 3, 3), (64, 16, 5, 3)])
@FAMILY
def test_a_kernel_is_scaled_once_by_the_sides_of_its_matrix(kind, kernel):
    rows, columns = 64, kernel[1] * kernel[2] * kernel[3]
    lengths = {}
    for scale in ("original", "match_rms_adamw", "spectral", "unit_rms", "none"):
        (param,) = parameters([kernel])
        set_gradients([param], 0)
        optimizer = kind([param], lr=1.0, layout="convolution", scale=scale, weight_decay=0.0)
        updates = captured(optimizer)
        optimizer.step()
        lengths[scale] = updates[0].norm().item()
    for scale, length in lengths.items():
        expected = shape_factor(scale, rows, columns)
        assert length / lengths["none"] == pytest.approx(expected, rel=1e-12)


@FAMILY
def test_other_numbers_of_axes_are_refused_with_shape_and_name(kind):
    with pytest.raises(ValueError, match=r"'experts'.*2 axes, got shape \(4, 8, 16\)"):
        kind([("experts", Parameter(torch.ones(4, 8, 16)))])
    for shape, layout in (((4, 8, 16), "stack"), ((2, 4, 8, 16), "stack")):
        kind([Parameter(torch.ones(shape))], layout=layout)
    kind([Parameter(torch.ones(8, 4, 3, 3))], layout="convolution")


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("method", ["decoupled", "l2"])
def test_maximize_is_the_step_of_the_negative_gradient(case, method, decay):
    params, same = parameters(shapes_for(case)), parameters(shapes_for(case))
    options = {"weight_decay": decay, "weight_decay_method": method}
    ours, reference = case.build(params, maximize=True, **options), case.build(same, **options)
    for step in range(3):
        set_gradients(params, step)
        for param, other in zip(params, same, strict=True):
            other.grad = -param.grad
        ours.step()
        reference.step()
    assert all(map(torch.equal, params, same))
    group = ours.state_dict()["param_groups"][0]
    assert group["maximize"] is True


@pytest.mark.parametrize("option", ["differentiable", "foreach", "fused", "capturable"])
def test_options_of_torch_that_are_not_had_are_refused(case, option):
    with pytest.raises((TypeError, ValueError), match=option):
        case.build(parameters(shapes_for(case)), **{option: True})


def test_every_keyword_arrives_in_the_group(case):
    (group,) = case.build(parameters(shapes_for(case))).param_groups
    for name, value in case.options.items():
        if name in group:
            assert group[name] == value


@pytest.mark.parametrize("action", ["raise", "skip"])
@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan])
def test_a_gradient_that_is_not_finite_leaves_no_trace(case, value, action):
    params, same = parameters(shapes_for(case)), parameters(shapes_for(case))
    optimizer, reference = case.build(params, nonfinite=action), case.build(same)
    run(optimizer, params, range(2))
    set_gradients(params, 7)
    params[1].grad.view(-1)[1] = value
    if action == "raise":
        with pytest.raises(RuntimeError, match=r"not finite|parameter 1 of group 0"):
            optimizer.step()
    else:
        assert optimizer.step(lambda: 4.0) == 4.0
    run(optimizer, params, range(2, 4))
    run(reference, same, range(4))
    assert all(map(torch.equal, params, same))


def test_the_global_generator_is_left_alone(case):
    before = torch.get_rng_state()
    params = parameters(shapes_for(case), dtype=torch.bfloat16)
    run(case.build(params), params, range(2))
    assert torch.equal(before, torch.get_rng_state())


def test_all_classes_have_a_case():
    assert {case.make for case in CASES} > set(CLASSES)
