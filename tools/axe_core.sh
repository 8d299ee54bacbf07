#!/bin/sh
# Fetches axe-core, which judges the web page for people with a screen reader or weak eyes, and prints where its script is.
# Of this version and this content, whatever the registry serves: npm has no lock without a package.json.
set -eu
version=4.14.1
sha256=29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c
folder=$(cd "$(dirname "$0")/.." && pwd)/out/axe-core-$version
is_it() { echo "$sha256  $1" | sha256sum --check --status 2>/dev/null; }
if ! is_it "$folder/axe.min.js"; then
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    (cd "$work" && npm pack --silent "axe-core@$version" >&2 && tar xzf ./*.tgz)
    is_it "$work/package/axe.min.js"
    mkdir -p "$folder"
    mv "$work/package/axe.min.js" "$folder/"
fi
echo "$folder/axe.min.js"
