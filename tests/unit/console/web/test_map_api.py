"""The map of what is in use, for other programs."""

import json

import msgspec
import pytest

from sluice_console.core.fleet.gpus import gpus_document
from sluice_console.core.web.map_api import backendai_map, map_document


def test_a_gpu_says_how_much_of_it_is_in_use_by_whom_and_how_old_that_is(make):
    """A number without its age and its owners is what users of other maps miss."""
    inventory = make.inventory(make.gpu_report(instances=(make.made(),)), make.slice(), stale=True)
    inventory = msgspec.structs.replace(inventory, observed_at="2026-01-01T00:00:00Z")
    fleet_state = make.fleet_state(inventory=inventory, ledger=make.grant())

    assert json.loads(msgspec.json.encode(map_document(gpus_document(fleet_state).gpus))) == {
        "version": 1,
        "gpus": {
            "GPU-aaaaaaaa-0000": {
                "node": "gpu-1.example.internal",
                "index": 0,
                "model": "NVIDIA A100-SXM4-40GB",
                "fraction_in_use": 0.5,
                "slots": [
                    {
                        "start": 4,
                        "size": 4,
                        "state": "ready",
                        "profile": "3g.20gb",
                        "uuid": "MIG-1",
                        "allocation": "run1-1_alloc_1",
                        "request": "run1-1",
                        "owner": "default/train",
                        "memory_mib": 0,
                    }
                ],
                "observed_at": "2026-01-01T00:00:00Z",
                "stale": True,
            }
        },
    }


def test_each_share_of_a_home_is_a_slot(make):
    shares = [make.slice(make.shared(f"{name}_1", name)) for name in ("one", "two")]
    fleet_state = make.fleet_state(inventory=make.inventory(make.gpu_report(instances=(make.made(),)), *shares))
    (gpu,) = map_document(gpus_document(fleet_state).gpus).gpus.values()
    assert [(slot.owner, slot.start, slot.size, slot.memory_mib) for slot in gpu.slots] == [
        ("default/one", 4, 4, 4096),
        ("default/two", 4, 4, 4096),
    ]


@pytest.mark.parametrize(
    ("fraction", "text"), [(0.0, "0.00"), (0.125, "0.13"), (0.6, "0.60"), (0.875, "0.88"), (1.0, "1.00")]
)
def test_backendai_reads_its_own_form(make, fraction, text):
    """UUIDs without their prefix, and decimals as text: what reads `gpu_alloc_map` today."""
    (gpu,) = gpus_document(make.fleet_state(inventory=make.inventory(make.gpu_report()))).gpus
    assert backendai_map([msgspec.structs.replace(gpu, allocated_fraction=fraction)]) == {"aaaaaaaa-0000": text}
