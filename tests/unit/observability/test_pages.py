import re
import subprocess
import sys
from pathlib import Path

from trimtab.errors import ExitCode

ROOT = Path(__file__).resolve().parents[3]
TROUBLESHOOTING = (ROOT / "docs" / "troubleshooting.md").read_text()


def test_pages_are_as_the_registry_and_the_rules_say() -> None:
    subprocess.run(
        [sys.executable, ROOT / "scripts" / "generate_metrics_page.py", "--check"], check=True, timeout=60
    )


def test_troubleshooting_lists_every_exit_code() -> None:
    listed = set(re.findall(r"^\| (\d+) \| `(\w+)`", TROUBLESHOOTING, re.MULTILINE))
    assert listed == {(str(int(code)), code.name) for code in ExitCode}


def test_troubleshooting_links_lead_to_headings() -> None:
    headings = {
        re.sub(r"[^a-z0-9 -]", "", line.lstrip("# ").lower()).strip().replace(" ", "-")
        for line in TROUBLESHOOTING.splitlines()
        if line.startswith("#")
    }
    assert set(re.findall(r"\]\(#([\w-]+)\)", TROUBLESHOOTING)) <= headings
