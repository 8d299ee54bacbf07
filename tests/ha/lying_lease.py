"""
One service whose lease always says that it works: `python tests/ha/lying_lease.py sluice_pod_watcher`.

The lease is a hint (PROTOCOL §9). With two of these everything that a paused or partitioned holder could do is done all
the time, and nothing may come of it but double work.
"""

import asyncio
import runpy
import sys

from sluice.runtime.lease import Lease


async def _for_ever(_: Lease) -> None:
    await asyncio.Event().wait()


async def _at_once(_: Lease) -> None: ...


def main() -> None:
    Lease.held = property(lambda _: True)
    Lease.keep = _for_ever
    Lease.release = _at_once
    runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
