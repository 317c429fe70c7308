"""Writes runtime/trimtab/v1/*_pb2*.py from proto/, for `make proto`; `make verify` fails on a difference."""

import sys
from pathlib import Path

import grpc_tools
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    """Generate messages, type stubs and services; the import path is trimtab.v1."""
    sources = sorted(str(p) for p in (ROOT / "proto").rglob("*.proto"))
    well_known = str(Path(grpc_tools.__file__).parent / "_proto")
    out = str(ROOT / "runtime")
    arguments = ["protoc", f"-I{ROOT / 'proto'}", f"-I{well_known}"]
    arguments += [f"--python_out={out}", f"--pyi_out={out}", f"--grpc_python_out={out}", *sources]
    return int(protoc.main(arguments))


if __name__ == "__main__":
    sys.exit(main())
