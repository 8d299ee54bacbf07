"""What the other tests here are run against when they say `container`: else they would prove nothing of an image."""

import signal
import subprocess
from pathlib import Path

import pytest
from factories.broker.nats_server import Broker, Launch

pytestmark = pytest.mark.asyncio(loop_scope="session")


def of_this_image() -> list[str]:
    asked = ["docker", "ps", "--all", "--no-trunc", "--filter", "label=org.testcontainers", "--format", "{{.Command}}"]
    return subprocess.run(asked, capture_output=True, text=True, timeout=90, check=True).stdout.splitlines()


async def test_the_broker_is_in_its_image_and_has_no_rights(tmp_path: Path, containers: Launch) -> None:
    """Its root is the image's, which has nothing but the program; it has no capabilities and cannot get any."""
    async with Broker(tmp_path, launch=containers) as broker:
        process = broker.servers[0].process
        proc = Path(f"/proc/{process.pid}")
        assert (proc / "root" / "nats-server").is_file()
        assert not (proc / "root" / "bin").exists()
        status = dict(line.split(":\t", 1) for line in (proc / "status").read_text().splitlines() if ":\t" in line)
        assert status["CapEff"].strip("0") == ""
        assert status["NoNewPrivs"] == "1"


async def test_a_broker_that_was_killed_or_stopped_leaves_no_container(tmp_path: Path, containers: Launch) -> None:
    """Else a day of tests would fill the disk; and its end is reported as a process's is."""
    folder = str(tmp_path)
    async with Broker(tmp_path, launch=containers) as broker:
        process = broker.servers[0].process
        assert any(folder in each for each in of_this_image())
        await broker.servers[0].kill()
        assert process.returncode == -signal.SIGKILL
        assert not any(folder in each for each in of_this_image())
        with pytest.raises(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        await broker.servers[0].start()
        await broker.ready()
        again = broker.servers[0].process
    assert again.returncode is not None
    assert not any(folder in each for each in of_this_image())
