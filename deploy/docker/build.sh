#!/bin/sh
# Builds images, all of them or those that are named:
#
#     sh deploy/docker/build.sh [allocator inventory node-agent pod-watcher console broker]
#
# TAG (default: the version) names them; BASE_IMAGE, PIP_INDEX_URL, PIP_TRUSTED_HOST, REVISION and SOURCE go to the
# Dockerfile. ENGINE is the command that builds (default: docker; podman and buildah work too), BUILD_FLAGS are more flags of
# its `build`. NATS_SERVER is the program for the broker's image (default: .venv/bin). REGISTRY goes before the names.
#
# Where syft is on PATH, out/sbom gets what is in each image, as CycloneDX. Where it is not, this says so. For provenance, and
# other platforms, give buildx its own flags: BUILD_FLAGS="--provenance=mode=max --platform linux/arm64" (the broker's
# program and the library of the time quota are of this machine's).
#
# Each context is a stream of exactly the needed files: the older builder does not know Dockerfile.dockerignore and
# would send the whole repository.
set -eu
cd "$(dirname "$0")/../.."
version=$(sed -nE 's/^version = "(.*)"$/\1/p' pyproject.toml)
prefix=${REGISTRY:+${REGISTRY%/}/}sluice-
context=$(mktemp -d)
trap 'rm -rf "$context"' EXIT

argument() { # NAME: a --build-arg, when the environment has it; the engine takes the value from there
    eval "value=\${$1:-}"
    [ -z "$value" ] || printf ' --build-arg %s' "$1"
}

# The time quota's library is built here, not in the image: it binds to no libc of the last ten years, and no compiler
# has to be there. Without one the image has no library.
service() {
    library=
    if [ "$1" = node-agent ] && command -v cc >/dev/null && command -v make >/dev/null; then
        make -s quota >&2
        library=out/quota/libsluice-quota.so
    elif [ "$1" = node-agent ]; then
        echo "build.sh: no C compiler (cc) or no make: the image will have no libsluice-quota.so, so no time quota" >&2
    fi
    tar -c -f - --exclude=__pycache__ --exclude='*.egg-info' --transform 's,^out/quota/,native/quota/,' \
        pyproject.toml README.md LICENSE requirements libs services examples native deploy/docker $library |
        ${ENGINE:-docker} build ${BUILD_FLAGS:-} --force-rm -f deploy/docker/Dockerfile -t "$prefix$1:${TAG:-$version}" \
            --build-arg "SERVICE=$1" --build-arg "VERSION=$version" \
            $(argument BASE_IMAGE) $(argument PIP_INDEX_URL) $(argument PIP_TRUSTED_HOST) \
            $(argument REVISION) $(argument SOURCE) -
}

broker() {
    program=${NATS_SERVER:-.venv/bin/nats-server}
    nats=$("$program" --version | sed -nE 's/^nats-server: v(.*)$/\1/p')
    mkdir -p "$context/root/data"
    chmod 1777 "$context/root/data"
    cp "$program" "$context/root/nats-server"
    cp deploy/docker/broker.Dockerfile "$context/"
    tar -c -f - -C "$context" . |
        ${ENGINE:-docker} build ${BUILD_FLAGS:-} --force-rm -f broker.Dockerfile -t "${prefix}broker:${TAG:-$nats}" \
            --build-arg "VERSION=$nats" -
}

sbom() { # NAME TAG
    command -v syft > /dev/null || { missing=yes; return 0; }
    mkdir -p out/sbom
    syft scan --quiet --output "cyclonedx-json=out/sbom/sluice-$1.cdx.json" "$prefix$1:$2"
}

missing=
[ $# -gt 0 ] || set -- allocator inventory node-agent pod-watcher console broker
for name in "$@"; do
    case "$name" in
        allocator | inventory | node-agent | pod-watcher | console)
            service "$name"
            sbom "$name" "${TAG:-$version}"
            ;;
        broker)
            broker
            sbom broker "${TAG:-$nats}"
            ;;
        *)
            echo "build.sh: '$name' is no image of ours (allocator, inventory, node-agent, pod-watcher, console, broker)" >&2
            exit 2
            ;;
    esac
done
[ -z "$missing" ] || echo "build.sh: no syft, so no SBOM of the images; \`make sbom\` lists the Python packages" >&2
