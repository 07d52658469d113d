#!/usr/bin/env bash
# Installs a wheel as a user would, into an environment of its own, and asks it for a plan.
set -euo pipefail
wheel=$(realpath "$1")
root=$(realpath "$(dirname "$0")/..")
venv=$(mktemp -d)
trap 'rm -rf "$venv"' EXIT
"$root/.venv/bin/python" -m venv "$venv"
pip() { "$venv/bin/python" -m pip --disable-pip-version-check "$@"; }
pip install --quiet --no-deps --require-hashes -r "$root/tools/demo.lock"
pip install --quiet --no-deps "$wheel"
cd "$venv" # not the checkout, whose packages would be found first
"$venv/bin/memtune" plan "$root/examples/llama-7b-8gpu.yaml" --top 1
"$venv/bin/python" - <<'PROGRAM' # the emulated GPU, for machines without a compiler
from memtune_runner.emulated.build import CUDA_MAJORS, prebuilt_library
from memtune_runner.emulated.elf import MACHINES
assert all(prebuilt_library(major, machine).exists() for major in CUDA_MAJORS for machine in MACHINES)
PROGRAM
