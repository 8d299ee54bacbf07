"""Nodes and services log in at a real broker by their tokens: which may, as which user, and what each trouble costs."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from factories.broker.bus_rigs import NODE, OTHER_NODE
from factories.broker.callout_rig import ANSWER_S, NODES, CalloutRig, callout_rig, with_streams
from factories.waiting import until

from sluice.contracts.bus import subjects
from sluice.contracts.bus.nats_permissions import permissions_of
from sluice.contracts.bus.streams import Role
from sluice.contracts.ids import NodeName
from sluice.runtime.bus import BusError
from sluice.runtime.nats import connection as connection_module
from sluice.runtime.nats.connection import Connection
from sluice.runtime.nats.credentials import Credentials
from sluice_pod_watcher.core.bus_access import AGENT

AGENTS_USER = permissions_of(Role.NODE_AGENT, NODE).user
WORD = f"sluice.slice.{subjects.node_token(NODE)}.a"


@pytest_asyncio.fixture
async def rig(tmp_path: Path) -> AsyncIterator[CalloutRig]:
    async with callout_rig(tmp_path) as rig:
        await with_streams(rig)
        yield rig


async def works(connection: Connection, within_s: float = 60.0) -> None:
    """Wait until an agent's write is stored, over whatever reconnects come."""
    async with asyncio.timeout(within_s):
        while True:
            with contextlib.suppress(TimeoutError):
                await connection.up_within(1.0)
                if b'"seq"' in (await connection.request(WORD, b"word", timeout_s=1.0)).data:
                    return
            await asyncio.sleep(0.02)


REFUSED: dict[str, tuple[str, NodeName | None, dict[str, Any]]] = {
    "another audience": (AGENT, NODE, {"audience": "https://kubernetes.default.svc"}),
    "an ended token": (AGENT, NODE, {"lifetime_s": -1.0}),
    "another node's name": (AGENT, NODE, {"node": OTHER_NODE}),
    "no node": (AGENT, NODE, {"node": ""}),
    "no pod": (AGENT, NODE, {"pod": ""}),
    "a service without a pod": ("sluice-allocator", None, {"pod": ""}),
}
FORGED: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "an account of a team": ("team-a", AGENT, AGENTS_USER, {}),
    "an account without rights": (NODES, "default", AGENTS_USER, {}),
    "an agent as the allocator": (NODES, AGENT, "allocator", {}),
    "a person as an operator": ("sluice-system", "sluice-console", "operator", {}),
    "an agent's account elsewhere": ("sluice-system", AGENT, AGENTS_USER, {}),
}


async def test_a_client_under_a_false_name_is_refused(rig: CalloutRig) -> None:
    """At once each, and with the reason in the callout's log only."""
    tries: dict[str, Credentials] = {}
    for what, (account, node, bound) in REFUSED.items():
        tries[what] = rig.credentials(account, node, **bound)
    for what, (space, account, user, bound) in FORGED.items():
        token = rig.kube.bound_token(space, account, pod="p", node=NODE, **bound)
        tries[what] = Credentials(user, token, is_token=True)
    gone = rig.credentials(AGENT, NODE)
    rig.kube.access.revoke(gone.password)
    tries |= {"a deleted pod's": gone, "no token": Credentials(AGENTS_USER, "password", is_token=True)}
    async with rig.answering():

        async def is_refused(what: str) -> bool:
            with pytest.raises(BusError, match="no NATS server answers") as caught:
                async with rig.connected(tries[what], within_s=2.0):
                    pass
            return "Authorization Violation" in str(caught.value)  # not yet where the machine was too slow to ask

        await asyncio.gather(*(until(lambda what=what: is_refused(what), what) for what in tries))
        async with rig.connected(rig.credentials(AGENT, NODE)) as connection:
            await works(connection)


async def test_a_node_joins_without_any_change_at_the_broker(rig: CalloutRig) -> None:
    """Twenty nodes that no service has observed, one file each."""
    config = rig.broker.servers[0].plan.config()
    async with rig.answering(), AsyncExitStack() as stack:
        for number in range(20):
            node = NodeName(f"new-{number}.example")
            await stack.enter_async_context(rig.connected(rig.credentials(AGENT, node)))
    assert "new-" not in config


async def test_people_log_in_without_a_pod_as_what_rbac_gave_them(rig: CalloutRig) -> None:
    """`kubectl create token sluice-console --audience sluice-bus`: such a token is bound to no pod."""
    async with rig.answering(), rig.connected(rig.credentials("sluice-console", pod="", node="")) as connection:
        assert (await connection.ask("STREAM.INFO.BOOK"))["config"]["name"] == "BOOK"


async def test_agents_wait_for_a_late_callout(rig: CalloutRig) -> None:
    """The broker says the same as of a wrong token; agents that ended would crash in a loop in every new cluster."""
    agents = [rig.in_file(NODE).source() for _ in range(3)]
    waiting = [asyncio.create_task(Connection.open(rig.broker.url, name="agent", credentials=each)) for each in agents]
    done, _ = await asyncio.wait(waiting, timeout=5.0)  # longer than the broker waits
    assert not done
    async with rig.answering():
        async with asyncio.timeout(60):
            connections = await asyncio.gather(*waiting)
        for each in connections:
            await works(each)
            await each.close()


async def test_a_login_that_takes_seconds_ends_in_a_connection_that_works(rig: CalloutRig) -> None:
    """The broker pings a new client meanwhile, which the client library takes for the end of the login."""
    rig.kube.faults.slow(3.0)
    async with rig.answering(), rig.connected(rig.credentials(AGENT, NODE), within_s=20.0) as connection:
        assert connection.up
        assert b'"seq"' in (await connection.request(WORD, b"word")).data


async def test_a_token_that_stays_wrong_ends_the_service(rig: CalloutRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a bounded time, with a sentence that says where to look."""
    monkeypatch.setattr(connection_module, "REFUSED_MAX_S", 0.5)
    async with rig.answering():
        with pytest.raises(BusError, match=r"has refused our token for 0.5 s; the logs of sluice-callout say why"):
            async with rig.connected(rig.credentials(AGENT, NODE, node=OTHER_NODE), within_s=20.0):
                pass


async def test_a_renewed_token_is_used_before_the_old_one_ends(rig: CalloutRig, monkeypatch) -> None:
    """The login ends with its token, and kubelets renew tokens: no agent may fall off the bus at that hour."""
    monkeypatch.setattr(connection_module, "LOOK_AT_FILES_S", 0.5)
    file = rig.in_file(NODE, lifetime_s=8.0)
    async with rig.answering(), rig.connected(file.source()) as connection:
        changes: list[bool] = []
        connection.on_change(lambda: changes.append(connection.up))
        file.renew(lifetime_s=3600.0)
        await until(lambda: sum(changes), within_s=4)
        await asyncio.sleep(8.0)  # over the end of the old one
        await works(connection)
        assert sum(changes) == 1, "it connects once"


async def test_an_agent_whose_token_ended_returns_with_the_next_one(rig: CalloutRig) -> None:
    """A kubelet that was away for an hour renews the token late; the client library would have closed for good."""
    file = rig.in_file(NODE, lifetime_s=2.0)
    async with rig.answering(), rig.connected(file.source()) as connection:
        await works(connection)
        await until(lambda: not connection.up)
        connection.check()
        file.renew(lifetime_s=3600.0)
        await works(connection)


async def test_agents_survive_a_reload_of_the_broker(rig: CalloutRig) -> None:
    """Any SIGHUP cuts off all users that the callout has let in."""
    async with rig.answering(), AsyncExitStack() as stack:
        agents = [await stack.enter_async_context(rig.connected(rig.in_file(NODE).source())) for _ in range(5)]
        for _ in range(3):
            rig.broker.servers[0].process.send_signal(signal.SIGHUP)
            await asyncio.gather(*(works(each) for each in agents))


async def test_a_hanging_replica_of_two_delays_no_login(rig: CalloutRig) -> None:
    """Its questions are the other's as well; by turns, every second login would be lost."""
    process = await rig.replica()
    try:
        async with rig.connected(rig.credentials(AGENT, NODE)) as connection:  # it does answer
            await works(connection)
        async with rig.answering():
            process.send_signal(signal.SIGSTOP)
            async with AsyncExitStack() as stack, asyncio.timeout(60):
                for number in range(20):
                    who = rig.credentials(AGENT, NodeName(f"n-{number}"))
                    await stack.enter_async_context(rig.connected(who, within_s=ANSWER_S - 1.0))  # else it was lost
    finally:
        process.kill()
        await process.communicate()


async def test_while_the_api_server_is_away_those_within_stay_and_others_wait(rig: CalloutRig) -> None:
    """No answer is no refusal."""
    async with rig.answering(), rig.connected(rig.credentials(AGENT, NODE)) as connection:
        await asyncio.to_thread(rig.kube.faults.away)
        other = rig.credentials(AGENT, OTHER_NODE)
        waiting = asyncio.create_task(Connection.open(rig.broker.url, name="agent", credentials=other))
        done, _ = await asyncio.wait((waiting,), timeout=2.0)
        assert not done
        await works(connection)
        await asyncio.to_thread(rig.kube.faults.away, on=False)
        async with asyncio.timeout(60):
            await (await waiting).close()


async def test_after_a_wiped_broker_every_client_is_back(rig: CalloutRig) -> None:
    """Rights are in no store of the broker."""
    async with rig.answering(), rig.connected(rig.in_file(NODE).source()) as connection:
        await works(connection)
        (server,) = rig.broker.servers
        await server.kill()
        server.wipe()
        await server.start()
        await rig.broker.ready()
        await with_streams(rig)
        await works(connection)


async def test_a_token_is_reviewed_once_while_it_is_remembered(rig: CalloutRig) -> None:
    """A broker that restarts asks about every client; the API server has others to serve."""
    who = rig.credentials(AGENT, NODE)
    async with rig.answering():
        for _ in range(5):
            async with rig.connected(who):
                pass
    assert rig.kube.call(lambda: [path for _, _, path in rig.kube.front.requests].count("tokenreviews")) == 1
