"""`sluice doctor` beside a running system: it shows what is wrong, and what it could not check."""

import asyncio
import json
import signal
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from sluice.runtime.nats_server.free_ports import free_ports

pytestmark = pytest.mark.slow

LOST_WITHIN_S = 60.0


async def doctor(up, *words: str) -> tuple[int, dict[str, list[dict[str, str]]]]:
    done = await asyncio.to_thread(up.sluice, "doctor", "--no-cluster", "--json", *words)
    levels: dict[str, list[dict[str, str]]] = {}
    for finding in json.loads(done.stdout)["findings"]:
        levels.setdefault(finding["level"], []).append(finding)
    return done.returncode, levels


SHOWN = {
    "allocator": "sluice_lease_held sluice_allocator_works sluice_nodes sluice_requests sluice_leaked_slices "
    "sluice_bus_lag_messages",
    "inventory": "sluice_gpus sluice_gpu_memory_slices sluice_inventory_nodes sluice_inventory_oldest_answer_seconds",
    "node-agent": "sluice_agent_open sluice_agent_gpus sluice_agent_gpu_memory_slices sluice_agent_gpu_creatable",
    "pod-watcher": "sluice_bus_writes_total sluice_core_event_seconds",
}
"""Of each service, what an alert or a picture needs; all show the metrics of EVERY."""
EVERY = {"sluice_started_time_seconds", "sluice_bus_connected", "sluice_core_caught_up", "sluice_bus_silent_seconds"}


def scraped(port: int) -> dict[str, list[float]]:
    """What a process shows, by name; nothing while it does not answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            page = answer.read().decode()
    except OSError:
        return {}
    found: dict[str, list[float]] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            found.setdefault(sample.name.removesuffix("_count"), []).append(sample.value)
    return found


async def test_a_system_that_works_is_well_and_one_that_lost_its_allocator_is_not(up):
    """The allocator is frozen, so that it is not restarted: its lease expires, and only doctor would show that."""
    ports = dict(zip(SHOWN, free_ports(len(SHOWN)), strict=True))
    for service, port in ports.items():
        up.environment[f"SLUICE_{service.replace('-', '_').upper()}_METRICS_ADDRESS"] = f"127.0.0.1:{port}"
    running = await up.started("--processes", "1")
    code, levels = await doctor(up)
    assert (code, set(levels)) == (0, {"ok"}), levels
    said = {finding["check"]: finding["what"] for finding in levels["ok"]}
    assert "holds the lease and answers" in said["allocator"]
    assert "GPUs on" in said["inventory"]
    parts = len(running.nodes) + 3  # the allocator, the recorder, and the command itself
    assert said["versions"].startswith(f"{parts} parts, all of version "), said
    assert "writers within 2 s of the broker" in said["clocks"]
    text = await asyncio.to_thread(up.sluice, "doctor", "--no-cluster")
    assert (text.returncode, text.stdout.splitlines()[-1]) == (0, "nothing must be fixed")
    for service, names in SHOWN.items():
        shown = await asyncio.to_thread(scraped, ports[service])
        assert set(names.split()) | EVERY <= set(shown), (service, sorted(shown))
        assert shown["sluice_bus_connected"][0] >= 1, service
    shown = await asyncio.to_thread(scraped, ports["allocator"])
    assert (shown["sluice_lease_held"], shown["sluice_leaked_slices"]) == ([1], [0])
    allocator = up.child("sluice_allocator")
    allocator.send_signal(signal.SIGSTOP)
    try:
        async with asyncio.timeout(LOST_WITHIN_S):
            while (found := await doctor(up))[0] != 1:
                pass  # each look takes a second of another process
        assert [finding["check"] for finding in found[1]["problem"]] == ["allocator"]
        assert "none holds the lease" in found[1]["problem"][0]["what"]
    finally:
        allocator.send_signal(signal.SIGCONT)


async def test_what_cannot_be_looked_at_is_not_called_well(up):
    """Neither a broker that is away nor a missing kubectl looks like health."""
    code, levels = await doctor(up, "--server", "nats://127.0.0.1:1")
    assert (code, set(levels)) == (2, {"unknown"})
    assert "no NATS server answers at nats://127.0.0.1:1" in levels["unknown"][0]["what"]
    up.environment["PATH"] = str(up.temporary)
    both = await asyncio.to_thread(up.sluice, "doctor", "--in-cluster")
    assert both.returncode == 2
    assert "there is no kubectl on PATH" in both.stdout
    assert "nothing is running" in both.stdout
    wrong = await asyncio.to_thread(up.sluice, "doctor", "--no-cluster", "--in-cluster")
    assert wrong.returncode == 2
    assert "contradicts" in wrong.stderr
