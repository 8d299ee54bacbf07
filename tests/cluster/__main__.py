"""
`python tests/cluster`: a real Kubernetes on this machine, for a person or for the suites of this folder.

    up [--name NAME] [--kubernetes 1.37] [--images] build what is missing, start, say where its kubeconfig is
       [--network-policies]                        enforce NetworkPolicy objects
    down [--name NAME]                             remove it
    build [--kubernetes 1.37] [--extra kueue]      only build
    test [--kubernetes 1.37] [--record]            run the suites on a cluster of their own
         [--short | --product]                     the API server's part, or what a user meets first as well
    shell [--name NAME] NODE COMMAND...            run a command on one of its machines
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from cluster import product, suites
from cluster.cache import CacheError
from cluster.harness import cluster as clusters
from cluster.harness.binaries import EXTRAS, NEWEST, VERSIONS, BuildError, NotFetchedError, build_all, build_extra
from cluster.harness.box import BoxError
from cluster.images.errors import ImageError


def main() -> int:
    """Exit status 0, or 1 with what is wrong. Suites that cannot run here are skipped, and say so."""
    parser = argparse.ArgumentParser(prog="python tests/cluster", description="A real Kubernetes on this machine.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    up = verbs.add_parser("up", help="start a cluster")
    down = verbs.add_parser("down", help="remove a cluster")
    build = verbs.add_parser("build", help="build the components")
    test = verbs.add_parser("test", help="run the suites")
    dose = test.add_mutually_exclusive_group()
    dose.add_argument("--short", action="store_true", help="only what needs no image of Sluice: the API server's part")
    dose.add_argument("--product", action="store_true", help="also what a user meets first, on real nodes")
    test.add_argument("--record", action="store_true", help="write what was run to docs/cluster-runs.json")
    shell = verbs.add_parser("shell", help="run a command on a machine of a cluster")
    for verb in (up, build, test):
        verb.add_argument("--kubernetes", default=NEWEST, choices=sorted(VERSIONS), help="minor version")
    up.add_argument("--workers", type=int, default=2, help="nodes beside the control plane; 0: one machine for all")
    up.add_argument("--images", action="store_true", help="build the images of Sluice and import them")
    up.add_argument("--network-policies", action="store_true", help="enforce NetworkPolicy objects, by kube-router")
    build.add_argument("--extra", action="append", default=[], choices=sorted(EXTRAS), help="build this instead")
    for verb in (up, down, shell):
        verb.add_argument("--name", default="default", help="of the cluster")
    shell.add_argument("node")
    shell.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    if why := clusters.why_impossible():
        print(f"{'skipped' if options.verb == 'test' else 'no cluster here'}: {why}", file=sys.stderr)
        return int(options.verb != "test")
    try:
        return _run(options)
    except NotFetchedError as error:
        print(f"{'skipped' if options.verb == 'test' else 'no cluster here'}: {error}", file=sys.stderr)
        return int(options.verb != "test")
    except (BoxError, BuildError, CacheError, ImageError, clusters.NoClusterError) as error:
        print(error, file=sys.stderr)
        return 1


def _run(options: argparse.Namespace) -> int:
    match options.verb:
        case "build":
            for name in options.extra:
                build_extra(name)
            if not options.extra:
                build_all(options.kubernetes)
        case "test":
            return suites.run(
                options.kubernetes,
                product=() if options.short else suites.FIRST if options.product else suites.ALL,
                is_recorded=options.record,
            )
        case "up":
            cluster = clusters.start(options.name, minor=options.kubernetes, workers=options.workers, is_kept=True)
            if options.network_policies:
                cluster.enforce_network_policies()
            if options.images:
                product.bring_images(cluster)
            print(f"ready after {sum(cluster.seconds.values()):.0f} s {cluster.seconds}", file=sys.stderr)
            print(f"export KUBECONFIG={cluster.kubeconfig} PATH=$PATH:{cluster.folder / 'bin'}")
        case "down":
            clusters.find(options.name, is_doomed=True).remove()
        case "shell":
            print(clusters.find(options.name).node(options.node).box.run(*options.command), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
