#!/usr/bin/env bash
# Makes .venv-emulated: the CUDA build of torch, its wheel alone, over the packages of .venv. NVIDIA's libraries, which
# the wheel names, are never installed: the emulated GPU takes their place.
set -euo pipefail
cd "$(dirname "$0")/.."

case "$(uname -s)-$(uname -m)" in
    Linux-x86_64 | Linux-aarch64) ;;
    *)
        echo "the emulated GPU needs Linux on x86_64 or aarch64; this is $(uname -s) on $(uname -m)" >&2
        exit 3
        ;;
esac
key=$(cat tools/env_emulated.sh tools/torch-cuda.lock .venv/.memtune-dev | sha256sum | cut -d' ' -f1)
stamp=.venv-emulated/.memtune
[ -f "$stamp" ] && [ "$(cat "$stamp")" = "$key" ] && exit 0

step() { echo "env-emulated: $*"; }
step "making .venv-emulated: a minute or two, about 1.2 GB"
rm -rf .venv-emulated
.venv/bin/python -m venv --without-pip .venv-emulated
# Three equal signs: no CPU build of the same version will do. Tests train with Liger, whose kernels are Triton's.
.venv/bin/python -m pip --disable-pip-version-check --python .venv-emulated/bin/python \
    install --quiet --no-deps --requirement tools/torch-cuda.lock
packages() { "$1"/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }
# Everything else comes from .venv, behind what lies here.
echo "import site; site.addsitedir('$(packages .venv)')" >"$(packages .venv-emulated)/locked.pth"
echo "$key" >"$stamp"
step "done"
