"""
`python tests/cluster`: a real Kubernetes on this machine, for a person or for the suites of this folder.

    up [NAME] [--kubernetes 1.37] [--workers 2]   build what is missing, start, print the kubeconfig
    down [NAME]                                    remove it
    build [--kubernetes 1.37]                      only build
    shell [NAME] NODE COMMAND...                   run a command on one of its machines
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from cluster.harness import cluster as clusters
from cluster.harness.binaries import NEWEST, VERSIONS, BuildError, build_all
from cluster.harness.box import BoxError


def main() -> int:
    """Exit status 0, or 1 with what is wrong."""
    parser = argparse.ArgumentParser(prog="python tests/cluster", description="A real Kubernetes on this machine.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    up = verbs.add_parser("up", help="start a cluster")
    down = verbs.add_parser("down", help="remove a cluster")
    build = verbs.add_parser("build", help="build the components")
    shell = verbs.add_parser("shell", help="run a command on a machine of a cluster")
    for verb in (up, build):
        verb.add_argument("--kubernetes", default=NEWEST, choices=sorted(VERSIONS), help="minor version")
    up.add_argument("--workers", type=int, default=2, help="nodes beside the control plane; 0: one machine for all")
    for verb in (up, down, shell):
        verb.add_argument("--name", default="default", help="of the cluster")
    shell.add_argument("node")
    shell.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    if why := clusters.why_impossible():
        print(f"no cluster here: {why}", file=sys.stderr)
        return 1
    try:
        return _run(options)
    except (BoxError, BuildError, clusters.NoClusterError) as error:
        print(error, file=sys.stderr)
        return 1


def _run(options: argparse.Namespace) -> int:
    match options.verb:
        case "build":
            build_all(options.kubernetes)
        case "up":
            cluster = clusters.start(options.name, minor=options.kubernetes, workers=options.workers, is_kept=True)
            print(f"ready after {sum(cluster.seconds.values()):.0f} s {cluster.seconds}", file=sys.stderr)
            print(f"export KUBECONFIG={cluster.kubeconfig}")
        case "down":
            clusters.find(options.name).remove()
        case "shell":
            print(clusters.find(options.name).node(options.node).box.run(*options.command), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
