#!/usr/bin/env bash
# Makes the locked development environment in .venv, or does nothing when it is up to date; `tools/env.sh demo` makes
# the small part of it that `make demo` runs with.
set -euo pipefail
cd "$(dirname "$0")/.."

part=${1:-dev}
key=$(cat pyproject.toml tools/env.sh tools/*.lock | sha256sum | cut -d' ' -f1)
for stamp in .venv/.memtune-dev .venv/.memtune-$part; do
    [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$key" ] && exit 0
done

python=${PYTHON:-python3}
"$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' ||
    { echo "the development environment needs Python 3.11 to 3.13, but $python is $("$python" --version); set PYTHON=/path/to/python" >&2; exit 2; }
if ! "$python" -c 'import ensurepip' 2>/dev/null; then
    echo "$python cannot make a virtual environment: install its venv package (Debian: apt-get install python3-venv)" >&2
    exit 2
fi
step() { echo "env: $*"; }
[ -x .venv/bin/python ] || "$python" -m venv .venv
pip() { .venv/bin/python -m pip --disable-pip-version-check "$@"; }

install_torch() {
    # The CPU build of torch. The default index serves gigabytes of CUDA libraries on Linux, so ask first what pip would
    # take: a CPU build that lies nearer is used, otherwise uv, which knows PyTorch's own CPU index.
    torch=$(grep -E '^torch==' tools/torch.lock)
    if ! .venv/bin/python -c "import importlib.metadata as m, sys; sys.exit(m.version('torch').split('+')[0] != '${torch#torch==}')" 2>/dev/null; then
        step "installing the CPU build of $torch"
        resolved=$(pip install --quiet --dry-run --no-deps --ignore-installed --report - "$torch" |
            .venv/bin/python -c 'import json, sys; print(json.load(sys.stdin)["install"][0]["metadata"]["version"])' || true)
        case "$(uname -s)-$resolved" in
            Darwin-* | *+cpu) pip install --quiet "$torch" ;;
            *)
                pip install --quiet --require-hashes -r tools/uv.lock
                .venv/bin/uv pip install --quiet --python .venv/bin/python --torch-backend cpu "$torch"
                ;;
        esac
    fi
    .venv/bin/python -c 'import torch, sys; sys.exit(torch.version.cuda is not None)' ||
        { echo "the CUDA build of torch is in .venv; remove .venv and try again with an index that has the CPU build" >&2; exit 1; }
}

if [ "$part" = dev ]; then
    step "making .venv: 2 to 10 minutes, about 2 GB"
    install_torch
fi
step "installing the build tools of tools/build.lock"
pip install --quiet --no-deps --require-hashes -r tools/build.lock
# DeepSpeed comes as source and looks at the torch that is there: no build isolation, or it would fetch another one.
step "installing the packages of tools/$part.lock"
pip install --quiet --no-deps --no-build-isolation --require-hashes -r "tools/$part.lock"
if [ "$part" = dev ]; then
    # Apart from the rest: every process that imports transformers would import these as well, for seconds.
    step "installing the 8-bit optimizers of tools/eight-bit.lock"
    # Anew, since pip leaves the old metadata there of what it upgrades in a directory.
    rm -rf .venv/eight-bit
    pip install --quiet --no-deps --require-hashes --target .venv/eight-bit -r tools/eight-bit.lock
fi
step "installing memtune itself"
pip install --quiet --no-deps --no-build-isolation --editable .
# pip compiles what it installs, but not what it only points to; without this the first command of all is a slow one.
.venv/bin/python -m compileall -q core operator runner cli
echo "$key" >"$stamp"
step "done"
