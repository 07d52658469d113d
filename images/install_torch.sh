#!/bin/sh
# Installs the torch of torch.lock for /opt/memtune: install_torch.sh cpu|cuda [INDEX]. Fails when the index had another
# build. Without an INDEX pip asks the indexes that it knows, and where these have no CPU build although one is wanted, uv
# does, which knows PyTorch's own index of them.
set -eu
wanted=$1 index=${2:-}
export PATH=/opt/memtune/bin:$PATH
cd "$(dirname "$0")"

offered() { pip install --quiet --dry-run --no-deps --report - -r torch.lock; }
if [ "$wanted" = cpu ] && [ -z "$index" ] && ! offered | grep -q '"version": "[^"]*+cpu"'; then
    pip install --no-cache-dir --require-hashes -r uv.lock
    uv pip install --no-cache --python /opt/memtune/bin/python3 --torch-backend cpu -r torch.lock
    pip uninstall --yes uv
else
    pip install --no-cache-dir ${index:+--index-url "$index"} -r torch.lock
fi
# The wheel brings the programs that torch's own authors test it with: a tenth of its size.
(cd /opt/memtune/lib/python3*/site-packages/torch && rm -rf test bin/*test* bin/*Test)
found=$(python3 -c 'import torch; print("cuda" if torch.version.cuda else "cpu")')
[ "$found" = "$wanted" ] || {
    echo "this is the $found build of torch, not the $wanted build: see TORCH_INDEX in the image's Dockerfile" >&2
    exit 1
}
