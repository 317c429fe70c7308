import subprocess
import sys
from pathlib import Path

from trimtab.api.fields import walk

ROOT = Path(__file__).resolve().parents[3]


def test_reference_page_is_up_to_date():
    script = ROOT / "scripts" / "generate_reference.py"
    result = subprocess.run(
        [sys.executable, str(script), "--check"], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_reference_page_has_every_field_and_no_dead_link():
    page = (ROOT / "docs" / "reference" / "job.md").read_text(encoding="utf-8")
    for path, _ in walk():
        assert f"| `{path.rsplit('.', 1)[-1]}` |" in page
    anchors = {line[3:].lower().replace(".", "") for line in page.splitlines() if line.startswith("## ")}
    links = {part.split(")")[0] for part in page.split("](#")[1:]}
    assert links <= anchors
