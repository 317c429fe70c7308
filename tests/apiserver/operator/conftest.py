"""The real operator as processes, against a real API server; the test plays all other parts of a cluster.

A test is a scene (stage.py): `@together async def test_...(world)`. All scenes are played at once when the
first test needs its result; world.py says what a scene can do.
"""

import asyncio
from collections.abc import Iterator

import pytest
from tests.apiserver.operator.stage import SCENES, Stage
from tests.apiserver.server import ApiServer, running


@pytest.fixture(scope="session")
def stage(
    request: pytest.FixtureRequest, apiserver: ApiServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stage]:
    """What became of the scenes that were selected; of all, where a test is about all of them."""
    selected = {item.name for item in request.session.items if "stage" in getattr(item, "fixturenames", ())}
    names = set(SCENES) if selected - SCENES.keys() else selected
    with running(tmp_path_factory.mktemp("served")) as served:
        made = Stage(served, apiserver, tmp_path_factory.mktemp("stage"))
        asyncio.run(made.play(names))
    yield made
