"""The plans of many kinds of models, each reviewed and kept in ``golden/``.

``python tests/model/test_plans.py`` writes them anew; review what has changed.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from model.models import MODELS
from steepest import Muon
from steepest.model.routing import route

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize("name", MODELS)
def test_the_plan_is_the_reviewed_one(name):
    assert str(route(MODELS[name]())) + "\n" == (GOLDEN / f"{name}.txt").read_text()


@pytest.mark.parametrize("name", MODELS)
def test_every_parameter_is_planned_once_and_muon_takes_its_part(name):
    model = MODELS[name]()
    plan = route(model)
    assert [each.name for each in plan] == [name for name, _ in model.named_parameters()]
    optimizer = Muon(plan.groups("matrix"))
    taken = sum(len(group["params"]) for group in optimizer.param_groups)
    assert taken == len(plan.by_rule("matrix"))
    assert len({id(each.param) for each in plan}) == len(plan.routes)


if __name__ == "__main__":
    for key, build in MODELS.items():
        (GOLDEN / f"{key}.txt").write_text(str(route(build())) + "\n")
