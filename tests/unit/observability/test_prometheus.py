import socket
import urllib.request

import pytest
from prometheus_client import CollectorRegistry

from trimtab.errors import UserError
from trimtab.observability.prometheus import RoleGauges, start_metrics_server


def test_endpoint_serves_gauges_with_help_and_labels(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    registry = CollectorRegistry()
    gauges = RoleGauges("rollout", replica=1, rank=0, registry=registry)
    gauges.set_all({"rollout/latency_ms": 12.5, "my/own-metric": 3.0})
    gauges.set("rollout/latency_ms", 13.5)
    port = start_metrics_server(registry=registry)
    assert f"metrics at http://127.0.0.1:{port}/metrics" in caplog.text
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    assert 'trimtab_rollout_latency_ms{rank="0",replica="1",role="rollout"} 13.5' in text
    assert "# HELP trimtab_rollout_latency_ms Mean time from request to finished response. In ms." in text
    assert 'trimtab_my_own_metric{rank="0",replica="1",role="rollout"} 3.0' in text


def test_port_in_use_names_the_port_and_the_remedy() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=rf"metrics port {port}: in use.*0 for a free one"):
            start_metrics_server(port, registry=CollectorRegistry())
