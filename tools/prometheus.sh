#!/bin/sh
# Unpacks Debian's Prometheus and prints the folder of its programs; installs nothing, so no daemon starts.
set -eu
folder=$(cd "$(dirname "$0")/.." && pwd)/out/prometheus
if [ ! -x "$folder/usr/bin/prometheus" ]; then
    mkdir -p "${folder%/*}"
    work=$(mktemp -d "${folder%/*}/XXXXXX") # beside it: so it comes as a whole, or not at all
    trap 'rm -rf "$work"' EXIT
    (cd "$work" && apt-get download -qq prometheus >&2 && dpkg -x ./prometheus_*.deb "$work/unpacked")
    rm -rf "$folder"
    mv "$work/unpacked" "$folder"
fi
echo "$folder/usr/bin"
