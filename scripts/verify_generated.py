"""Regenerates everything that is generated and fails where the checkout held something else.

Run by `make verify`, after `scripts/setup.sh`. It compares contents, so it also works in a checkout with
uncommitted changes; what it regenerated stays, ready to be looked at and committed.
"""

import difflib
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GENERATORS = (
    "generate_proto.py",
    "generate_reference.py",
    "generate_metrics_page.py",
    "generate_crd.py",
    "generate_operator_page.py",
    "generate_conditions.py",
    "generate_chart_readme.py",
)
OUTPUT_FOLDERS = ("runtime/trimtab/v1", "docs", "charts/trimtab")
MAX_DIFF_LINES = 40


def snapshot() -> dict[Path, bytes]:
    """Contents of every file in the folders that generators write to."""
    files = (path for folder in OUTPUT_FOLDERS for path in sorted((ROOT / folder).rglob("*")))
    return {path: path.read_bytes() for path in files if path.is_file() and "__pycache__" not in path.parts}


def describe(path: Path, before: bytes | None, after: bytes | None) -> str:
    """The first lines of the difference, or that the file appeared or went."""
    name = str(path.relative_to(ROOT))
    if before is None:
        return f"{name}: not in the checkout, but generated"
    if after is None:
        return f"{name}: in the checkout, but no longer generated"
    lines = difflib.unified_diff(
        before.decode(errors="replace").splitlines(),
        after.decode(errors="replace").splitlines(),
        f"checkout/{name}",
        f"generated/{name}",
        lineterm="",
    )
    return "\n".join(list(lines)[:MAX_DIFF_LINES])


def main() -> int:
    """Run every generator; return 1 where one changed a file."""
    before = snapshot()
    for generator in GENERATORS:
        subprocess.run([sys.executable, str(ROOT / "scripts" / generator)], check=True)
    after = snapshot()
    changed = [path for path in sorted({*before, *after}) if before.get(path) != after.get(path)]
    for path in changed:
        print(describe(path, before.get(path), after.get(path)))
    if changed:
        names = ", ".join(str(path.relative_to(ROOT)) for path in changed)
        print(f"\nGenerated files differ from the checkout: {names}\nLook at them and commit them.")
        return 1
    print(f"Generated files are up to date ({', '.join(GENERATORS)}).")
    return 0


if __name__ == "__main__":
    sys.exit(main())
