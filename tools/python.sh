#!/usr/bin/env bash
# Prints a Python that can make .venv: $PYTHON if it is set, or the first suitable of the usual names.
set -euo pipefail
tried=${PYTHON:-python3 python3.13 python3.12 python3.11}
for python in $tried; do
    "$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null || continue
    if "$python" -c 'import ensurepip' 2>/dev/null; then
        echo "$python"
        exit
    fi
    echo "$python cannot make a virtual environment: install its venv package (Debian: apt-get install python3-venv)" >&2
    exit 2
done
echo "MemTune's development environment needs Python 3.11 to 3.13, and none of these is: $tried;" \
    "install one, or set PYTHON=/path/to/python" >&2
exit 2
