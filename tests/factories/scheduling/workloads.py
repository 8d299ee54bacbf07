"""Fleets and workloads in a few lines, and their simulation in this process."""

import io
import json

from sluice.contracts.fleet_file.fleet_spec import parse_fleet
from sluice_allocator.offline.answer_writer import AnswerWriter
from sluice_allocator.offline.pod_requests import parse_policies
from sluice_allocator.offline.simulation import Simulation
from sluice_allocator.offline.workload import read_workload, shuffled


def fleet_of(nodes=1, gpus=1, more="", *, model="a100-40gb", mig="true"):
    """Nodes with equal GPUs; they are called n-0, n-1, ... (or n, if there is only one)."""
    kind = f'{{ model = "{model}", count = {gpus}, mig = {mig} }}'
    return f'[[node]]\nname = "n"\ncount = {nodes}\ngpus = [{kind}]\n{more}'


def arrive(at, pod, /, resources=None, *, line=None, **keys):
    """A line on which a pod arrives; `keys` are annotations of ours, with `_` for `-`; `line` is more of the line."""
    annotations = {f"sluice.dev/{key.replace('_', '-')}": value for key, value in keys.items()}
    return {"at": at, "arrive": {"id": pod, "annotations": annotations, "resources": resources or {}, **(line or {})}}


def depart(at, pod, /):
    return {"at": at, "depart": pod}


def as_text(lines):
    return "".join(json.dumps(line) + "\n" for line in lines)


def simulated(fleet, lines, *, policy="fragmentation", queue=True, seed=0):
    """The whole output of a run, as text."""
    parsed = parse_fleet(fleet, origin="fleet.toml")
    out = io.BytesIO()
    steps = read_workload(as_text(lines).encode().splitlines(), origin="workload.jsonl")
    if seed:
        steps = shuffled(steps, seed)
    Simulation(parsed, AnswerWriter(parsed, out), policies=parse_policies(policy), queue=queue).run(steps)
    return out.getvalue().decode()
