from collections.abc import AsyncIterator

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from trimtab.errors import UserError
from trimtab_operator.adapter.health import HealthServer, limit_check
from trimtab_operator.adapter.metrics import OperatorMetrics
from trimtab_operator.kube.client import Call
from trimtab_operator.kube.resources import JOBS


@pytest.fixture
def metrics() -> OperatorMetrics:
    return OperatorMetrics()


@pytest.fixture
def not_ready() -> list[str]:
    return ["the pods are not listed yet"]


@pytest.fixture
async def server(metrics: OperatorMetrics, not_ready: list[str]) -> AsyncIterator[HealthServer]:
    made = HealthServer(metrics, ready=lambda: not_ready[0])
    yield made
    await made.close()


async def _get(port: int, path: str) -> tuple[int, str]:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}{path}") as response,
    ):
        return response.status, await response.text()


async def test_health_fails_while_something_is_above_its_limit(server) -> None:
    seconds = [10.0]
    server.checks.append(limit_check("pods", lambda: seconds[0], 200, "nothing was heard of them for {} s"))
    port = await server.start(0)
    assert await _get(port, "/healthz") == (200, "ok\n")
    seconds[0] = 201.0
    assert await _get(port, "/healthz") == (500, "pods: nothing was heard of them for 201 s\n")
    seconds[0] = 0.0
    assert (await _get(port, "/healthz"))[0] == 200


async def test_readiness_says_what_is_waited_for(server, not_ready) -> None:
    port = await server.start(0)
    assert await _get(port, "/readyz") == (503, "the pods are not listed yet\n")
    not_ready[0] = ""
    assert await _get(port, "/readyz") == (200, "ok\n")


async def test_port_in_use_is_a_user_error_that_names_the_flag(server, metrics) -> None:
    port = await server.start(0)
    other = HealthServer(metrics, ready=lambda: "")
    with pytest.raises(UserError, match=f"--health-port {port}: .*in use"):
        await other.start(port)
    await other.close()


async def test_metrics_count_calls_looks_jobs_and_pods(server, metrics) -> None:
    metrics.note_call(Call(verb="update", resource=JOBS, subresource="status", code=409, seconds=0.01))
    metrics.note_run(0.004, True)
    metrics.count_from(
        lambda: [("a", "Running"), ("a", "Running"), ("b", "Failed")], lambda: [("rollout", "Pending")]
    )
    port = await server.start(0)
    status, text = await _get(port, "/metrics")
    assert status == 200
    samples = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert (
        samples[
            "trimtab_operator_api_calls_total",
            ("code", "409"),
            ("group", "trimtab.dev"),
            ("resource", "rltrainingjobs/status"),
            ("verb", "update"),
        ]
        == 1
    )
    assert samples["trimtab_operator_reconcile_errors_total",] == 1
    assert samples["trimtab_operator_jobs", ("namespace", "a"), ("phase", "Running")] == 2
    assert samples["trimtab_operator_pods", ("phase", "Pending"), ("role", "rollout")] == 1
    assert samples["process_resident_memory_bytes",] > 0
