"""
A broker that asks a callout about its users, with a fake API server that knows their tokens.

Callouts run in this process, or as processes that a test freezes and kills.
"""

import asyncio
import base64
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from factories.broker.nats_server import Broker, User
from fake_kube.server import FakeKube

from sluice.contracts.bus.nats_permissions import permissions_of
from sluice.contracts.bus.streams import Role
from sluice.contracts.ids import NodeName
from sluice.runtime.clock import SystemClock
from sluice.runtime.nats.connection import Connection
from sluice.runtime.nats.credential_files import CredentialFiles
from sluice.runtime.nats.credentials import Credentials
from sluice.runtime.nats.jetstream_bus import NatsBus
from sluice.runtime.nats_server.users import Callout
from sluice.runtime.settings import CommonSettings
from sluice_pod_watcher.core.bus_access import AGENT, ROLES, Namespaces
from sluice_pod_watcher.shell.callout.answers import Answers
from sluice_pod_watcher.shell.callout.nkeys import KeyKind, NKey
from sluice_pod_watcher.shell.kube.client import KubeApi
from sluice_pod_watcher.shell.kube.token_reviews import TokenReviews

ADMINISTRATOR = User(permissions_of(Role.ADMINISTRATOR), "password-of-the-test")
PROBE = Credentials(ADMINISTRATOR.rights.user, ADMINISTRATOR.password)
SYSTEM, NODES = "sluice-system", "sluice-nodes"
KINDS = {"issuer": KeyKind.ACCOUNT, "user": KeyKind.USER, "curve": KeyKind.CURVE}


@dataclass
class CalloutRig:
    """Keys, a broker, and an API server."""

    kube: FakeKube
    broker: Broker
    folder: Path
    keys: dict[str, NKey]
    kubeconfig: Path
    agents: int = 0

    def token(self, account: str, **bound: Any) -> str:
        space = NODES if account == AGENT else SYSTEM
        return self.kube.bound_token(space, account, **({"pod": "p", "node": "system-1"} | bound))

    def credentials(self, account: str, of: NodeName | None = None, **bound: Any) -> Credentials:
        """How a pod of an account logs in; of an agent, as that of a node."""
        user = permissions_of(ROLES[account], of).user
        return Credentials(user, self.token(account, **({"node": of} if of else {}) | bound), is_token=True)

    def in_file(self, node: NodeName, **bound: Any) -> "TokenFile":
        """An agent's token in a file, as a kubelet projects it."""
        self.agents += 1
        return TokenFile(self, node, self.folder / f"token-{self.agents}", bound)

    @asynccontextmanager
    async def connected(self, credentials: Any, within_s: float | None = 10.0) -> AsyncIterator[Connection]:
        connection = await Connection.open(self.broker.url, name="test", credentials=credentials, within_s=within_s)
        try:
            yield connection
        finally:
            await connection.close()

    @asynccontextmanager
    async def answering(self, **more: Any) -> AsyncIterator[Answers]:
        """One replica of the callout in this process."""
        api = await KubeApi.connect(more.pop("kubeconfig", self.kubeconfig))
        answers, connection = await _callout(self.broker.url, api, **self.keys)
        serving = asyncio.create_task(answers.serve(connection))
        try:
            async with asyncio.timeout(60):
                await answers.serving.wait()
            yield answers
        finally:
            serving.cancel()
            await asyncio.wait((serving,))
            await connection.close()
            await api.close()

    async def replica(self) -> asyncio.subprocess.Process:
        """One replica as a process, this file run; it answers when this returns."""
        seeds = [self.keys[name].seed for name in KINDS]
        path = os.pathsep.join(each for each in sys.path if each)
        command = (sys.executable, "-m", "factories.broker.callout_rig", self.broker.url, str(self.kubeconfig))
        own = {**os.environ, "PYTHONPATH": path, "CALLOUT_SEEDS": ",".join(seeds)}
        process = await asyncio.create_subprocess_exec(*command, env=own, stdout=asyncio.subprocess.PIPE)
        async with asyncio.timeout(60):
            while b"answers the broker" not in (line := await process.stdout.readline()):
                assert line, "the callout has ended"
        return process


@dataclass
class TokenFile:
    """A projected token, and the credentials that follow it."""

    rig: CalloutRig
    node: NodeName
    path: Path
    bound: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.renew()

    def renew(self, **bound: Any) -> None:
        """Replace it, as a kubelet does before it ends."""
        draft = self.path.with_suffix(".draft")
        draft.touch(mode=0o600)
        draft.write_text(self.rig.token(AGENT, **({"node": self.node} | self.bound | bound)))
        draft.rename(self.path)

    def source(self) -> CredentialFiles:
        settings = CommonSettings(nats_token_file=self.path)
        return CredentialFiles(settings, permissions_of(Role.NODE_AGENT, self.node).user, look_s=0.05)


ANSWER_S = 4.0
"""How long the broker of these tests waits for an answer."""


async def with_streams(rig: CalloutRig) -> None:
    """An administrator declares the streams on its broker."""
    bus = await NatsBus.connect(rig.broker.url, name="administrator", credentials=PROBE)
    await bus.ensure_streams()
    await bus.close()


@asynccontextmanager
async def callout_rig(folder: Path, *, timeout_s: float = ANSWER_S) -> AsyncIterator[CalloutRig]:
    """A broker whose administrator has a password, and all others are asked about; no callout runs yet."""
    keys = {name: NKey.make(kind) for name, kind in KINDS.items()}
    callout = Callout(*(keys[name].public for name in KINDS), timeout_s)
    with FakeKube() as kube:
        broker = Broker(folder / "broker", users=(ADMINISTRATOR,), callout=callout, probe=PROBE)
        async with broker:
            yield CalloutRig(kube, broker, folder, keys, kube.kubeconfig(folder / "kubeconfig"))


async def _callout(url: str, api: KubeApi, issuer: NKey, user: NKey, curve: NKey) -> tuple[Answers, Connection]:
    own = Credentials(nkey=user.public, sign=lambda nonce: base64.b64encode(user.sign(nonce.encode())))
    clock = SystemClock()
    reviews = TokenReviews(api, "sluice-bus", clock)
    answers = Answers(reviews, Namespaces(), clock, lambda: {issuer.public: issuer}, curve)
    return answers, await Connection.open(url, name="callout", credentials=own)


async def _main(url: str, kubeconfig: str) -> None:
    seeds = os.environ["CALLOUT_SEEDS"].split(",")
    keys = (NKey.from_seed(seed, kind) for seed, kind in zip(seeds, KINDS.values(), strict=True))
    answers, connection = await _callout(url, await KubeApi.connect(Path(kubeconfig)), *keys)
    await answers.serve(connection)


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
