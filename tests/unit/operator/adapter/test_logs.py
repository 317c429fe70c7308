import io
import json
import logging
from collections.abc import Iterator

import pytest

from trimtab_operator.adapter.logs import about, set_up_logs


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    before = root.handlers[:], root.level
    made = io.StringIO()
    set_up_logs("info", made)
    yield made
    root.handlers[:], level = before
    root.setLevel(level)


def test_line_names_the_job_and_role_that_it_is_about(stream: io.StringIO) -> None:
    logger = logging.getLogger("trimtab_operator.test")
    with about("ns/job"):
        logger.info("pod %s", "a", extra={"role": "rollout"})
    logger.warning("elsewhere")
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert (first["job"], first["role"], first["message"], first["level"]) == (
        "ns/job",
        "rollout",
        "pod a",
        "info",
    )
    assert (second["job"], second["role"], second["level"]) == ("", "", "warning")


def test_error_is_one_line_with_its_traceback(stream: io.StringIO) -> None:
    try:
        raise ValueError("a\nb")
    except ValueError:
        logging.getLogger("x").exception("failed")
    line = json.loads(stream.getvalue())
    assert "ValueError: a" in line["error"]


def test_kopf_says_what_is_wrong_and_no_more(stream: io.StringIO) -> None:
    logging.getLogger("kopf.activities").info("chatter")
    logging.getLogger("kopf.objects").warning("trouble")
    assert [json.loads(line)["message"] for line in stream.getvalue().splitlines()] == ["trouble"]
