"""A job that runs, in the model of the world."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.operator.reconcile.world import Operator, World, run


@pytest.fixture
def begun() -> Callable[..., tuple[World, Operator]]:
    """`world, operator = begun()`: a job whose pods were just asked for."""

    def build(**changes: Any) -> tuple[World, Operator]:
        world = World(**changes)
        operator = Operator(world)
        operator.turn()
        return world, operator

    return build


@pytest.fixture
def stepping(begun: Callable[..., tuple[World, Operator]]) -> Callable[..., tuple[World, Operator]]:
    """`world, operator = stepping()`: a job that has done a few steps, far from its end."""

    def build(**changes: Any) -> tuple[World, Operator]:
        world, operator = begun(training__steps=400, **changes)
        run(world, operator, seconds=120, until=lambda: world.training.step >= 4)
        operator.turn()
        operator.events.clear()
        return world, operator

    return build
