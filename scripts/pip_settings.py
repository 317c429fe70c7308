"""Where this machine's pip takes packages from, as files that an image build mounts. Used by build_images.sh.

    python scripts/pip_settings.py FOLDER

Writes FOLDER/pip.conf (of `pip config list`, which includes the PIP_* variables; only what says where
packages come from), FOLDER/ca.crt where pip is given certificates, and prints the local folders that
pip.conf refers to, one a line, for the build to mount under the same names.
"""

import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import urlsplit

SOURCES = ("index-url", "extra-index-url", "find-links", "no-index", "trusted-host", "proxy", "timeout")
LISTS = ("extra-index-url", "find-links", "trusted-host")
CERTIFICATES = "/run/secrets/ca.crt"
ENVIRONMENT = ":env:"


def parse(listed: str) -> dict[str, str]:
    """`pip config list` as one mapping: for every command before for `install`, the environment over both."""
    ranked: list[tuple[int, str, str]] = []
    for line in listed.splitlines():
        name, _, quoted = line.partition("=")
        section, _, key = name.rpartition(".")
        if section in ("global", "install", ENVIRONMENT):
            key = key.removeprefix("default-")
            rank = ("global", "install", ENVIRONMENT).index(section)
            ranked.append((rank, key, quoted[1:-1].encode().decode("unicode_escape")))
    return {key: value for _, key, value in sorted(ranked, key=lambda entry: entry[0])}


def configuration(settings: dict[str, str]) -> str:
    """The pip.conf for inside the build."""
    lines = ["[global]"]
    for key in SOURCES:
        if settings.get(key):
            value = settings[key]
            lines.append(f"{key} = " + ("\n    ".join(["", *value.split()]) if key in LISTS else value))
    if settings.get("cert"):
        lines.append(f"cert = {CERTIFICATES}")
    return "\n".join(lines) + "\n"


def local_folders(settings: dict[str, str]) -> list[str]:
    """Folders here that pip reads: those of wheels, and local indexes with what lies beside them."""
    indexes = f"{settings.get('index-url', '')} {settings.get('extra-index-url', '')}".split()
    folders = [Path(urlsplit(url).path).parent for url in indexes if url.startswith("file:")]
    for entry in settings.get("find-links", "").split():
        path = Path(urlsplit(entry).path if entry.startswith("file:") else entry)
        if "://" not in entry or entry.startswith("file:"):
            folders.append(path)
    return _distinct(str(folder) for folder in folders if folder.is_dir())


def _distinct(entries: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(entries))


def main(target: Path) -> None:
    """Write the files and print the folders."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], check=True, capture_output=True, text=True
    ).stdout
    settings = parse(listed)
    (target / "pip.conf").write_text(configuration(settings))
    if settings.get("cert"):
        shutil.copyfile(settings["cert"], target / "ca.crt")
    print("\n".join(local_folders(settings)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
