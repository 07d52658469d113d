#!/usr/bin/env bash
# Makes the locked development environment in .venv, or does nothing when it is up to date. `tools/env.sh demo` and
# `tools/env.sh demo-local` make only what `make demo` needs with a cluster and without one.
set -euo pipefail
cd "$(dirname "$0")/.."

part=${1:-dev}
# cksum is everywhere; macOS has no sha256sum.
key=$(cat pyproject.toml tools/env.sh tools/*.lock | cksum)
for stamp in .venv/.memtune-dev ".venv/.memtune-$part"; do
    [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$key" ] && exit 0
done

step() { echo "env: $*"; }
python=$(tools/python.sh)
[ -x .venv/bin/python ] || "$python" -m venv .venv
# The demo compiles only what it imports, which halves the time.
compile=$([ "$part" = dev ] || echo --no-compile)
pip() { .venv/bin/python -m pip --disable-pip-version-check "$@"; }
install() { pip install --quiet $compile "$@"; }

install_torch() {
    # The CPU build of torch. The default index serves gigabytes of CUDA libraries on Linux, so ask first what pip would
    # take: a CPU build that lies nearer is used, otherwise uv, which knows PyTorch's own CPU index.
    torch=$(grep -E '^torch==' tools/torch.lock)
    if ! .venv/bin/python -c "import importlib.metadata as m, sys; sys.exit(m.version('torch').split('+')[0] != '${torch#torch==}')" 2>/dev/null; then
        step "installing the CPU build of $torch"
        resolved=$(pip install --quiet --dry-run --no-deps --ignore-installed --report - "$torch" |
            .venv/bin/python -c 'import json, sys; print(json.load(sys.stdin)["install"][0]["metadata"]["version"])' || true)
        case "$(uname -s)-$resolved" in
            Darwin-* | *+cpu) install "$torch" ;;
            *)
                install --require-hashes -r tools/uv.lock
                .venv/bin/uv pip install --quiet --python .venv/bin/python --torch-backend cpu "$torch"
                ;;
        esac
    fi
    .venv/bin/python -c 'import torch, sys; sys.exit(torch.version.cuda is not None)' ||
        { echo "the CUDA build of torch is in .venv; remove .venv and try again with an index that has the CPU build" >&2; exit 1; }
}

[ "$part" = dev ] && step "making .venv: 2 to 10 minutes, about 3 GB"
[ "$part" = demo ] || install_torch
step "installing the build tools of tools/build.lock"
install --no-deps --require-hashes -r tools/build.lock
# DeepSpeed comes as source and looks at the torch that is there: no build isolation, or it would fetch another one.
step "installing the packages of tools/$part.lock"
install --no-deps --no-build-isolation --require-hashes -r "tools/$part.lock"
if [ "$part" = dev ]; then
    # Apart from the rest: every process that imports transformers would import the 8-bit optimizers as well, for
    # seconds, and refuse the torchao that torchtune needs. The rest are programs that only tests/scripts runs.
    for apart in eight-bit scripts torchtune; do
        step "installing the packages of tools/$apart.lock in .venv/$apart"
        # Anew, since pip leaves the old metadata there of what it upgrades in a directory.
        rm -rf ".venv/$apart"
        pip install --quiet --no-deps --require-hashes --target ".venv/$apart" -r "tools/$apart.lock"
    done
fi
step "installing memtune itself"
install --no-deps --no-build-isolation --editable .
# pip compiles what it installs, but not what it only points to; without this the first command of all is a slow one.
.venv/bin/python -m compileall -q core operator runner cli
echo "$key" >"$stamp"
step "done"
