#!/bin/sh
# Make .venv with the pinned packages and this project in it. Debian ships Python without `venv`: install that
# package when we may, say so when we may not.
set -eu
python=${1:-python3}

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "sluice needs Python 3.11 or newer; '$python' is $("$python" --version 2>&1)" >&2
    exit 1
}
if ! "$python" -c 'import ensurepip' 2>/dev/null; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        apt-get update -qq && apt-get install -y -qq python3-venv
    else
        echo "Python's venv module is missing. On Debian: apt-get install python3-venv" >&2
        exit 1
    fi
fi
[ -x .venv/bin/python ] || "$python" -m venv .venv
.venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.txt
.venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
touch .venv/ready
