"""What a stolen password can do: nothing but what its role must. Real servers with the generated users."""

import asyncio
import json
import re
import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import nats
import pytest
import pytest_asyncio
from factories.broker.bus_rigs import NODE, OTHER_NODE, place, say, watching
from factories.broker.guarded_broker import Guarded, guarded_broker
from factories.broker.nats_server import Broker, Launch, User
from nats.js.errors import ServerError

from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Stream
from sluice.contracts.bus.nats_permissions import Permissions, permissions_of
from sluice.contracts.bus.streams import SUBJECT_KINDS, Role
from sluice.contracts.ids import AllocationId, NodeName
from sluice.runtime.bus import BusError
from sluice.runtime.nats.credentials import Credentials
from sluice.runtime.nats.jetstream_bus import NatsBus

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest_asyncio.fixture(loop_scope="session")
async def guarded(tmp_path: Path, launch: Launch) -> AsyncIterator[Guarded]:
    async with guarded_broker(tmp_path, NODE, OTHER_NODE, launch=launch) as rig:
        bus = await rig.bus(Role.ADMINISTRATOR)
        await bus.ensure_streams()
        for node in (NODE, OTHER_NODE):
            await bus.ensure_agent(node)
        yield rig


async def test_every_reading_role_reads_what_it_needs(guarded: Guarded) -> None:
    """Snapshot and tail of each stream that the role's nouns are in."""
    for role in (Role.POD_WATCHER, Role.ALLOCATOR, Role.INVENTORY, Role.CONSOLE, Role.OPERATOR):
        bus = await guarded.bus(role)
        for stream in (Stream.BOOK, Stream.STATE):
            if any(role in noun.readers and noun.stream is stream for noun in SUBJECT_KINDS):
                async with watching(bus.read(stream)) as view:
                    await view.until(lambda view: view.caught_up == 1)
    async with watching((await guarded.bus(Role.CONSOLE)).read(Stream.HISTORY)) as view:
        await view.until(lambda view: view.caught_up == 1)


async def test_an_agent_does_its_work_with_its_rights(guarded: Guarded) -> None:
    """It reads its ledger, says how far it is, and reads its own messages back."""
    allocator = await guarded.bus(Role.ALLOCATOR)
    agent = await guarded.bus(Role.NODE_AGENT, NODE)
    await say(allocator, place("a"), 0)
    async with watching(agent.read_ledger(NODE)) as view:
        await view.until(lambda view: view.caught_up == 1)
        assert set(view.known) == {place("a").subject}
    word = subjects.slice_(NODE, AllocationId("a"))
    sequence = await say(agent, word, 0)
    assert (await agent.last(Stream.STATE, word.subject)).sequence == sequence


async def test_no_user_changes_a_stream_not_even_the_size_of_history(guarded: Guarded) -> None:
    """An update can make the server itself republish into another stream: orders that no allocator gave."""
    for role in (Role.ADMINISTRATOR, Role.ALLOCATOR, Role.OPERATOR, Role.CONSOLE):
        with pytest.raises(BusError, match=r"(?i)permissions violation"):
            await (await guarded.bus(role)).resize_history(32 * 1024**2)


async def test_the_allocator_makes_agents_known(guarded: Guarded) -> None:
    """It declares durables of new nodes, and streams that are missing."""
    allocator = await guarded.bus(Role.ALLOCATOR)
    await allocator.ensure_streams()
    await allocator.ensure_agent(NodeName("gpu-3"))


OWN_WORD = "$JS.API.DIRECT.GET.STATE.sluice.slice.{own}"
ELSEWHERE: dict[str, tuple[str, bytes, str]] = {
    "an acknowledgement": ("sluice.slice.{own}.a", b"forged", "sluice.binding.r1"),
    "its own word, forged": (f"{OWN_WORD}.forged", b"", "sluice.ledger.{other}.a"),
    "its own word, copied": (f"{OWN_WORD}.forged", b"", "hist.sluice.binding.r1"),
    "what its durable is": ("$JS.API.CONSUMER.INFO.BOOK.agent_{own}", b"", "sluice.slice.{other}.a"),
    "its own ledger": ("$JS.API.CONSUMER.MSG.NEXT.BOOK.agent_{own}", b'{"batch": 1}', "sluice.ledger.{other}.b"),
    "an empty word, as a purge": (f"{OWN_WORD}.empty", b"", "$JS.API.STREAM.PURGE.BOOK"),
    "an empty word, as a deletion": (f"{OWN_WORD}.empty", b"", "$JS.API.STREAM.DELETE.HISTORY"),
}
"""What an agent may ask, and where it wants the answer: the broker itself would write there."""


async def test_no_answer_to_an_agent_is_a_message_of_another(guarded: Guarded) -> None:
    """Else one compromised node writes any ledger, and empties the book, without one denied publish."""
    allocator = await guarded.bus(Role.ALLOCATOR)
    agent = await guarded.connection(Role.NODE_AGENT, NODE)
    own, other = subjects.node_token(NODE), subjects.node_token(OTHER_NODE)
    await say(allocator, place("kept"), 0)
    for name, data in (("forged", b"forged"), ("empty", b"")):
        await agent.request(f"sluice.slice.{own}.{name}", data)
    before = await _held(guarded)
    for subject, data, answer_to in ELSEWHERE.values():
        filled = {"own": own, "other": other}
        await agent.publish(subject.format(**filled), data, reply=answer_to.format(**filled))
    # Answered behind the others, so they arrived; and this one goes to a subject without subscribers.
    await agent.request(f"sluice.slice.{own}.last", b"last")
    agent.check()
    after = await _held(guarded)
    assert after == before | {("STATE", f"sluice.slice.{own}.{name}"): 1 for name in ("a", "last")}


async def _held(guarded: Guarded) -> dict[tuple[str, str], int]:
    connection = await guarded.connection(Role.CONSOLE)
    held: dict[tuple[str, str], int] = {}
    for stream in Stream:
        info = await connection.ask(f"STREAM.INFO.{stream}", {"subjects_filter": ">"})
        held |= {(stream.value, subject): count for subject, count in (info["state"].get("subjects") or {}).items()}
    return held


async def test_a_reader_without_the_right_ends_instead_of_waiting(guarded: Guarded) -> None:
    """An agent that is made to read a stream fails loudly."""
    bus = await guarded.bus(Role.NODE_AGENT, NODE)
    with pytest.raises(BusError):
        async for _ in bus.read(Stream.BOOK):
            pass


async def test_the_remover_of_unreadable_messages_may_do_that_and_publish_nothing(tmp_path, launch: Launch) -> None:
    """`sluice doctor` names a command that no user of ours may carry out: its reader needs one who may."""
    text = (Path(__file__).parents[2] / "docs" / "evolution.md").read_text(encoding="utf-8")
    user = r"^\{ user: \"remover\", password: \"PASSWORD\", permissions: (\{.*\}) \}$"
    (line,) = re.findall(user, text, re.MULTILINE)
    allowed = json.loads(line)
    rights = Permissions("remover", tuple(allowed["publish"]["allow"]), tuple(allowed["subscribe"]["allow"]))
    administrator = User(permissions_of(Role.ADMINISTRATOR), secrets.token_hex(8))
    remover = User(rights, secrets.token_hex(8))
    probe = Credentials(administrator.rights.user, administrator.password)
    async with Broker(tmp_path, users=(administrator, remover), probe=probe, launch=launch) as broker:
        bus = await NatsBus.connect(broker.url, name="administrator", credentials=probe)
        await bus.ensure_streams()
        await bus.close()
        errors: asyncio.Queue[Exception] = asyncio.Queue()
        who = {"user": "remover", "password": remover.password}
        client = await nats.connect(broker.url, **who, error_cb=errors.put, allow_reconnect=False)
        try:
            stream = client.jetstream()
            assert await stream.purge_stream(Stream.BOOK.value, subject="sluice.ledger.n.p")
            with pytest.raises(ServerError, match="no message found"):  # it may ask
                await stream.delete_msg(Stream.STATE.value, 1)
            await client.publish("sluice.ledger.n.p", b"")
            async with asyncio.timeout(60):  # `flush` would not do: its PING overtakes what is not written yet
                refused = await errors.get()
            assert "permissions violation" in str(refused).lower()
        finally:
            await client.close()
