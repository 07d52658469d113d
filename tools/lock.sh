#!/usr/bin/env bash
# Writes the lock files anew from pyproject.toml: run it after a dependency changed, and commit what it writes.
set -euo pipefail
cd "$(dirname "$0")/.."
lock() { .venv/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate "$@"; }

[ -x .venv/bin/uv ] || .venv/bin/python -m pip install --quiet --require-hashes -r tools/uv.lock
printf 'uv\n' | lock - --output-file tools/uv.lock
printf 'hatchling\nsetuptools\nwheel\n' | lock - --output-file tools/build.lock
# Compiles the emulated GPU on any machine, for any release of the C library: packages go where no compiler is.
printf 'ziglang\n' | lock - --output-file tools/zig.lock

# torch is pinned on its own in torch.lock, as its builds differ in hash; the CUDA libraries it names are never wanted here.
cuda=$(printf -- '--no-emit-package %s ' torch triton cuda-bindings cuda-pathfinder cuda-toolkit nvidia-cublas nvidia-cuda-cupti \
    nvidia-cuda-nvrtc nvidia-cuda-runtime nvidia-cudnn-cu13 nvidia-cufft nvidia-cufile nvidia-curand nvidia-cusolver \
    nvidia-cusparse nvidia-cusparselt-cu13 nvidia-nccl-cu13 nvidia-nvjitlink nvidia-nvshmem-cu13 nvidia-nvtx)
# Optuna opens a database only when it is asked to, and the operator keeps its studies in the jobs' status.
database=$(printf -- '--no-emit-package %s ' sqlalchemy alembic mako)
# shellcheck disable=SC2086
lock --all-extras --constraint tools/torch.lock $cuda --output-file tools/dev.lock pyproject.toml
# Of these, what `make demo` runs with on a cluster, where it need not wait for torch, and without one.
echo helm-python-sdk | lock --extra cli --constraint tools/dev.lock --output-file tools/demo.lock pyproject.toml -
# shellcheck disable=SC2086
echo torch | lock --extra cli --extra operator --constraint tools/dev.lock --constraint tools/torch.lock $cuda $database \
    --output-file tools/demo-local.lock pyproject.toml -

# What only the tests of 8-bit optimizers import.
printf 'bitsandbytes\ntorchao\n' | lock --no-deps - --output-file tools/eight-bit.lock

# The programs that tests/scripts runs, with what they bring beside the development environment. LitGPT asks for an
# older hub than transformers does, and needs none for models on the disk. timm imports a stand-in for torchvision, whose
# builds differ as those of torch do.
have=$(sed -n 's/^\([a-zA-Z0-9_.-]*\)==.*/--no-emit-package \1/p' tools/dev.lock)
# shellcheck disable=SC2086
printf 'datasets\nevaluate\nlitgpt>=0.5\nsentence-transformers\ntimm\ntrl\n' | lock --constraint tools/dev.lock --constraint tools/torch.lock \
    --override <(grep -oE '^huggingface-hub==[0-9.]+' tools/dev.lock) $cuda $have --no-emit-package torchvision \
    - --output-file tools/scripts.lock
# torchtune imports what torchao had until 0.15. Its extra of the hub only downloads.
have=$(sed -n 's/^\([a-zA-Z0-9_.-]*\)==.*/--no-emit-package \1/p' tools/dev.lock tools/scripts.lock)
# shellcheck disable=SC2086
printf 'torchao<0.16\ntorchtune>=0.6\n' | lock --constraint tools/dev.lock --constraint tools/scripts.lock --constraint tools/torch.lock \
    --override <(grep -oE '^huggingface-hub==[0-9.]+' tools/dev.lock) $cuda $have --no-emit-package hf-transfer \
    - --output-file tools/torchtune.lock

# What the images hold: the same versions, and of them only what the operator and the runner need.
# shellcheck disable=SC2086
lock --extra operator --constraint tools/dev.lock $database --no-emit-package markupsafe --output-file images/operator.lock pyproject.toml
# shellcheck disable=SC2086
printf 'scipy\ntorch\n' | lock --constraint tools/dev.lock --constraint tools/torch.lock $cuda --output-file images/operator-gp.lock -
# shellcheck disable=SC2086
lock --extra runner --constraint tools/dev.lock --constraint tools/torch.lock $cuda --output-file images/runner.lock pyproject.toml
