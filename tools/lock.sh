#!/bin/sh
# Resolve requirements/*.txt again from pyproject.toml: versions and hashes, never an address.
set -eu
tool=$(mktemp -d)
trap 'rm -rf "$tool"' EXIT
.venv/bin/python -m venv "$tool"
"$tool/bin/pip" install --quiet --disable-pip-version-check uv
"$tool/bin/uv" pip compile pyproject.toml --all-extras --group dev --universal --python-version 3.11 --generate-hashes \
    --no-emit-index-url --no-annotate --no-header --no-emit-package sluice-gpu --quiet -o requirements/dev.txt
"$tool/bin/uv" pip compile --group audit --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
    --no-annotate --no-header --quiet -o requirements/audit.txt
