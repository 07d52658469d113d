#!/usr/bin/env bash
# Builds the wheel, with the emulated GPU compiled for Linux on x86_64 and aarch64, and the source distribution, without.
set -euo pipefail
target=$1
cd "$(dirname "$0")/.."
compiled=runner/memtune_runner/emulated/native
temporary=$(mktemp -d)
trap 'rm -rf "$temporary" $compiled/*.so' EXIT # left here, it would outlive changes of its sources
.venv/bin/python -m venv "$temporary"
"$temporary/bin/python" -m pip --disable-pip-version-check install --quiet --require-hashes -r tools/zig.lock
for machine in x86_64 aarch64; do
    CC="$temporary/bin/python -m ziglang cc --target=$machine-linux-gnu.2.17" PYTHONPATH=core:runner \
        "$temporary/bin/python" -m memtune_runner.emulated.build "$machine"
done
.venv/bin/hatchling build --directory "$target"
