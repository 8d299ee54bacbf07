"""Starts a control plane, lets each variant place the same pods in turns, and prints what each took."""

import argparse
import asyncio
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from cluster.harness import cluster as clusters
from cluster.harness.binaries import NEWEST, BuildError
from cluster.harness.box import BoxError
from factories.cluster.played_nodes import take_pods
from factories.processes import Process, own_environment
from perf.burst import objects
from perf.burst.measuring import CONTROL_PLANE, Figures, measure
from perf.burst.variants import INSTALLED, RAISED_QPS, Placer, Scene, Variant, manifests
from perf.figures import conclude, machine, options_of

NODES = [f"gpu-{number}" for number in range(8)]
PLACERS: tuple[Placer, ...] = ("tickets", "dra", "static", "partitionable", "plain")
LIMITS = {"stock": (None,), "raised": (RAISED_QPS,), "both": (None, RAISED_QPS)}
ANCHOR = Variant("partitionable", RAISED_QPS)
"""What ratios are to, round by round."""
COMPARED = ("pods/s to bound", "pods/s to running", "CPU, s")
Runs = Mapping[Variant, Sequence[Figures]]


def main(arguments: Sequence[str]) -> int:
    """Exit status: 0 where everything was measured, or cannot be here."""
    parser = options_of("burst", __doc__)
    parser.add_argument("--pods", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3, help="each has every variant once")
    parser.add_argument("--placer", action="append", choices=PLACERS, help="only these; without it all that can run")
    parser.add_argument("--limits", choices=LIMITS, default="both", help="of Kubernetes' own clients")
    parser.add_argument("--json", type=Path, help="write every figure of every burst to this file")
    parser.add_argument("--in-cluster", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.in_cluster:
        return _measure_all(options)
    if why := clusters.why_impossible():
        sys.stderr.write(f"skipped: {why}\n")
        return 0
    try:
        with clusters.running("burst", minor=NEWEST, runs_pods=False) as cluster:
            # In the API server's network: there it reaches the webhook at the loopback.
            near = ["nsenter", f"--target={cluster.control_plane.box.pid}", "--net"]
            again = [sys.executable, str(Path(__file__).parents[1]), "burst", *arguments]
            inside = [*near, *again, f"--in-cluster={cluster.folder.name}"]
            # In a session of its own, as each component of Kubernetes: the kernel shares CPU out among sessions first.
            with subprocess.Popen(inside, start_new_session=True) as measuring:
                try:
                    return measuring.wait()
                finally:
                    measuring.terminate()
    except (BoxError, BuildError) as error:
        sys.stderr.write(f"{error}\n")
        return 1


def _measure_all(options: argparse.Namespace) -> int:
    wanted = [Variant(each, qps) for qps in LIMITS[options.limits] for each in options.placer or PLACERS]
    found: dict[Variant, list[Figures]] = {each: [] for each in wanted}
    with _scene(clusters.find(options.in_cluster)) as scene:
        for number in range(options.rounds):
            shapes = objects.shapes(options.pods, seed=number)
            for variant in list(found)[:: -1 if number % 2 else 1]:
                found[variant].append(_burst(scene, variant, shapes))
    section = f"{options.pods} pods at once; medians of {options.rounds}.\n\n{report(found)}"
    conclude("burst", section.rstrip(), write=options.write)
    if options.json:
        every = [asdict(variant) | {"bursts": bursts} for variant, bursts in found.items()]
        options.json.write_text(json.dumps({"machine": machine(), "pods": options.pods, "variants": every}) + "\n")
    return 0


@contextlib.contextmanager
def _scene(machines: clusters.Cluster) -> Iterator[Scene]:
    with tempfile.TemporaryDirectory(prefix="sluice-burst-") as name:
        scene = Scene(machines, NODES, Path(name))
        for node in NODES:
            scene.identity(node, f"system:node:{node}", "system:nodes")
        own = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": objects.NAMESPACE}}
        scene.kubectl("apply", [own, *(each for file in INSTALLED for each in manifests(file))])
        command = (sys.executable, "-m", "perf.burst.kubelets", name, *NODES)
        environment = own_environment() | {"PYTHONPATH": str(Path(__file__).parents[2])}
        kubelets = Process("kubelets", command, environment, scene.folder / "kubelets.log", has_session=True)
        kubelets.start()
        try:
            asyncio.run(_ready(scene))
            yield scene
        finally:
            kubelets.stop()
            sys.stderr.write(kubelets.log.read_text()[-3000:])


async def _ready(scene: Scene) -> None:
    async with scene.kube.opened() as kube:
        await kube.until(lambda: kube.get("/api/v1/nodes"), lambda reply: take_pods(reply, NODES))


def _burst(scene: Scene, variant: Variant, shapes: Sequence[str]) -> Figures:
    control_plane = scene.machines.control_plane
    control_plane.restart_controllers(client_qps=variant.client_qps)
    scene.machines.save()
    pids = {name: [control_plane.box.processes[name].pid] for name in CONTROL_PLANE}
    with scene.standing(variant.placer) as (ask, more):
        first = [ask(f"first-{number}", shape) for number, shape in enumerate(objects.MIX)]
        pods = [ask(f"pod-{number}", shape) for number, shape in enumerate(shapes)]
        found = asyncio.run(measure(scene.kube, first, pods, pids | more, control_plane.folder / "audit.log"))
    sys.stderr.write(f"{variant.title}: {', '.join(f'{found[name]:.1f} {name}' for name in COMPARED)}\n")
    return found


def report(runs: Runs) -> str:
    """A table as Markdown: a column for each variant, medians of its bursts; ratios are medians of the rounds'."""
    rows = [["", *(variant.title for variant in runs)], ["---"] * (len(runs) + 1)]
    for name in dict.fromkeys(name for bursts in runs.values() for each in bursts for name in each):
        figures = {variant: [each.get(name, 0.0) for each in bursts] for variant, bursts in runs.items()}
        medians = (statistics.median(each) for each in figures.values())
        rows.append([name, *(f"{each:.2f}" if each else "" for each in medians)])
        if name in COMPARED and ANCHOR in runs:
            pairs = (zip(each, figures[ANCHOR], strict=True) for each in figures.values())
            ratios = (statistics.median(mine / its for mine, its in each) for each in pairs)
            rows.append([f"ratio to {ANCHOR.title}", *(f"{each:.2f}" for each in ratios)])
    return "".join(f"| {' | '.join(each)} |\n" for each in rows)
