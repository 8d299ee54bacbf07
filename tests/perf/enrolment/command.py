"""
How long is a fleet without its bus after broker and callout were lost together?

`--agents` connections of agents, each with a token of its own, log in and write; then the broker and both replicas of
the callout are killed and started again. Measured are seconds until every agent has written again. The clients and a
fake API server (Python) share the machine with them. Exits with 1 when it takes longer than `--within` seconds.
"""

import argparse
import asyncio
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from factories.broker.callout_rig import CalloutRig, callout_rig, with_streams
from perf.figures import machine

from sluice.contracts.bus.subjects import node_token
from sluice.contracts.ids import NodeName
from sluice.runtime import logs
from sluice.runtime.nats.connection import Connection
from sluice.runtime.nats_server.users import CALLOUT_TIMEOUT_S
from sluice_pod_watcher.core.bus_access import AGENT

REPLICAS = 2
WRITE_S = 10.0


async def _joined(rig: CalloutRig, nodes: Sequence[NodeName], stack: AsyncExitStack) -> list[Connection]:
    async def join(node: NodeName) -> Connection:
        who = rig.credentials(AGENT, node)
        return await Connection.open(rig.broker.url, name=f"agent {node}", credentials=who)

    found = await asyncio.gather(*(join(node) for node in nodes))
    for each in found:
        stack.push_async_callback(each.close)
    return list(found)


async def _written(agents: dict[NodeName, Connection]) -> None:
    async def write(node: NodeName, connection: Connection) -> None:
        while True:
            await connection.up_within(WRITE_S)
            try:
                answer = await connection.request(f"sluice.slice.{node_token(node)}.a", b"word", timeout_s=WRITE_S)
            except TimeoutError:
                await asyncio.sleep(0.05)
            else:
                if b'"seq"' in answer.data:
                    return

    await asyncio.gather(*(write(node, connection) for node, connection in agents.items()))


async def _kill(replicas: Sequence[asyncio.subprocess.Process]) -> None:
    for each in replicas:
        if each.returncode is None:
            each.kill()
            await each.communicate()


async def measure(count: int, within_s: float) -> tuple[float, float]:
    """Seconds of the first logins, and of those after the loss."""
    nodes = [NodeName(f"gpu-{number:04}.example") for number in range(count)]
    with tempfile.TemporaryDirectory(prefix="sluice-enrolment-") as folder:
        async with AsyncExitStack() as stack:
            rig = await stack.enter_async_context(callout_rig(Path(folder), timeout_s=CALLOUT_TIMEOUT_S))
            await with_streams(rig)
            replicas = [await rig.replica() for _ in range(REPLICAS)]
            try:
                began = time.monotonic()
                async with asyncio.timeout(5 * within_s):
                    agents = dict(zip(nodes, await _joined(rig, nodes, stack), strict=True))
                    await _written(agents)
                first = time.monotonic() - began
                (server,) = rig.broker.servers
                await server.kill()
                await _kill(replicas)
                began = time.monotonic()
                await server.start()
                replicas = list(await asyncio.gather(*(rig.replica() for _ in range(REPLICAS))))
                async with asyncio.timeout(5 * within_s):
                    await _written(agents)
                return first, time.monotonic() - began
            finally:
                await _kill(replicas)


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", type=int, default=1000)
    parser.add_argument("--within", type=float, default=60.0, metavar="SECONDS")
    asked = parser.parse_args(words)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4 * asked.agents + 1024)), hard))
    logs.configure(service="perf", run="", level="error", form="text")
    first, again = asyncio.run(measure(asked.agents, asked.within))
    said = f"{asked.agents} agents log in: {first:.1f} s; after the loss of broker and callout: {again:.1f} s"
    sys.stdout.write(f"{machine()}\n{said}\n")
    return 0 if again <= asked.within else 1
