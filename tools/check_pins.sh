#!/bin/sh
# A lock holds versions and hashes; an address in it would tie the project to one registry.
set -eu
if grep -n '://' requirements/*.txt; then
    echo "requirements/ holds an address" >&2
    exit 1
fi
