"""
Every user of the bus by every kind of subject, on a real broker: what it lets through and what it does not.

The table is written by hand from what each service is for; it knows nothing of `sluice.contracts.bus.nats_permissions`,
which it judges. A subject that is not in a user's column must be denied to it.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager

import pytest
import pytest_asyncio
from factories.broker.guarded_broker import Guarded, guarded_broker
from factories.broker.raw_nats import RawNats, raw_nats

from sluice.contracts.bus.streams import SUBJECT_KINDS
from sluice.contracts.ids import NodeName

WATCHER, ALLOCATOR, INVENTORY = "pod-watcher", "allocator", "inventory"
CONSOLE, OPERATOR, ADMIN = "console", "operator", "administrator"
AGENT_A, AGENT_B = "node-agent.gpu-a_example", "node-agent.gpu-b"
NODES = (NodeName("gpu-a.example"), NodeName("gpu-b"))
USERS = {WATCHER, ALLOCATOR, INVENTORY, CONSOLE, OPERATOR, ADMIN, AGENT_A, AGENT_B}
READ_BOTH = {WATCHER, ALLOCATOR, CONSOLE, OPERATOR}
READ_STATE = READ_BOTH | {INVENTORY}

WORDS: Mapping[str, set[str]] = {
    "request.r1": {WATCHER, OPERATOR},
    "source.s1": {WATCHER, OPERATOR},
    "host.gpu-a_example": {WATCHER},
    "evicted.r1": {WATCHER},
    "quota.team": {WATCHER, OPERATOR},
    "cordon.gpu-a_example": {WATCHER, OPERATOR},
    "ledger.gpu-a_example.r1": {ALLOCATOR},
    "ledger.gpu-a_example.head": {ALLOCATOR},
    "ledger.gpu-b.r1": {ALLOCATOR},
    "binding.r1": {ALLOCATOR},
    "waiting.r1": {ALLOCATOR},
    "eviction.r1": {ALLOCATOR},
    "pool.p1": {ALLOCATOR},
    "inventory.gpu-a_example": {INVENTORY},
    "slice.gpu-a_example.r1": {AGENT_A},
    "slice.gpu-b.r1": {AGENT_B},
    "node.gpu-a_example": {AGENT_A, WATCHER, OPERATOR},
    "node.gpu-b": {AGENT_B, WATCHER, OPERATOR},
}
"""The publishers of each message. Each may also copy it to HISTORY; allocators copy what agents write."""

PUBLISH: Mapping[str, set[str]] = {
    **{f"sluice.{subject}": who for subject, who in WORDS.items()},
    **{
        f"hist.sluice.{subject}": who | ({ALLOCATOR} if subject.startswith(("slice.", "node.")) else set())
        for subject, who in WORDS.items()
    },
    "sluice.lease.allocator": {ALLOCATOR, WATCHER, INVENTORY},
    "hist.sluice.lease.allocator": set(),
    # No token deeper and none shallower than the noun has.
    "sluice.request": set(),
    "sluice.request.r1.more": set(),
    "sluice.slice.gpu-a_example": set(),
    "sluice.unheard.of": set(),
    "anything": set(),
    # Reading a stream: to ask about it, to make a consumer, to pull, to get one value.
    "$JS.API.STREAM.INFO.BOOK": READ_BOTH | {ADMIN},
    "$JS.API.STREAM.INFO.STATE": READ_STATE | {ADMIN},
    "$JS.API.STREAM.INFO.HISTORY": {ALLOCATOR, INVENTORY, CONSOLE, OPERATOR, ADMIN},
    "$JS.API.CONSUMER.CREATE.BOOK.x.sluice.binding.>": READ_BOTH | {ADMIN},  # the durables of agents
    "$JS.API.CONSUMER.CREATE.BOOK.x.sluice.ledger.gpu-a_example.>": READ_BOTH | {ADMIN},
    "$JS.API.CONSUMER.CREATE.STATE.x.sluice.slice.>": READ_STATE,
    "$JS.API.CONSUMER.CREATE.HISTORY.x": {INVENTORY, CONSOLE, OPERATOR},
    "$JS.API.CONSUMER.CREATE.BOOK.agent_gpu-a_example.sluice.ledger.gpu-a_example.>": READ_BOTH | {ADMIN},
    "$JS.API.CONSUMER.DURABLE.CREATE.BOOK.agent_gpu-a_example": set(),
    "$JS.API.CONSUMER.MSG.NEXT.BOOK.x": READ_BOTH,
    "$JS.API.CONSUMER.MSG.NEXT.BOOK.agent_gpu-a_example": READ_BOTH | {AGENT_A},
    "$JS.API.CONSUMER.MSG.NEXT.BOOK.agent_gpu-b": READ_BOTH | {AGENT_B},
    "$JS.API.CONSUMER.MSG.NEXT.STATE.x": READ_STATE,
    "$JS.API.CONSUMER.MSG.NEXT.HISTORY.x": {INVENTORY, CONSOLE, OPERATOR},
    "$JS.API.DIRECT.GET.BOOK.sluice.binding.r1": READ_BOTH,
    "$JS.API.DIRECT.GET.STATE.sluice.slice.gpu-a_example.r1": READ_STATE | {AGENT_A},
    "$JS.API.DIRECT.GET.STATE.sluice.slice.gpu-b.r1": READ_STATE | {AGENT_B},
    "$JS.API.DIRECT.GET.STATE.sluice.node.gpu-a_example": READ_STATE | {AGENT_A},
    "$JS.API.DIRECT.GET.STATE.sluice.inventory.gpu-a_example": READ_STATE,
    "$JS.API.DIRECT.GET.HISTORY.hist.sluice.binding.r1": {INVENTORY, CONSOLE, OPERATOR},
    "$JS.API.DIRECT.GET.STATE": set(),  # by a body that names any subject or sequence
    "$JS.API.DIRECT.GET.BOOK": set(),
    "$JS.API.STREAM.MSG.GET.BOOK": set(),
    # An agent's own durable, and no other.
    "$JS.API.CONSUMER.INFO.BOOK.agent_gpu-a_example": {ALLOCATOR, ADMIN, AGENT_A},
    "$JS.API.CONSUMER.INFO.BOOK.agent_gpu-b": {ALLOCATOR, ADMIN, AGENT_B},
    "$JS.API.CONSUMER.RESET.BOOK.agent_gpu-a_example": {AGENT_A},
    "$JS.API.CONSUMER.RESET.BOOK.agent_gpu-b": {AGENT_B},
    "$JS.ACK.BOOK.agent_gpu-a_example.1.2.3.4.5": {AGENT_A},
    "$JS.ACK.BOOK.agent_gpu-b.1.2.3.4.5": {AGENT_B},
    # Declaring what is missing.
    "$JS.API.STREAM.CREATE.BOOK": {ALLOCATOR, ADMIN},
    "$JS.API.STREAM.CREATE.STATE": {ALLOCATOR, ADMIN},
    "$JS.API.STREAM.CREATE.HISTORY": {ALLOCATOR, ADMIN},
    "$JS.API.STREAM.CREATE.OTHER": set(),
    # No service changes, empties, restores or deletes, or queries what is not ours.
    "$JS.API.STREAM.UPDATE.BOOK": set(),
    "$JS.API.STREAM.DELETE.BOOK": set(),
    "$JS.API.STREAM.PURGE.BOOK": set(),
    "$JS.API.STREAM.PURGE.HISTORY": set(),
    "$JS.API.STREAM.PURGE.STATE": {ALLOCATOR},
    "$JS.API.STREAM.MSG.DELETE.BOOK": set(),
    "$JS.API.STREAM.SNAPSHOT.BOOK": set(),
    "$JS.API.STREAM.RESTORE.BOOK": set(),
    "$JS.API.CONSUMER.DELETE.BOOK.agent_gpu-a_example": set(),
    "$JS.API.CONSUMER.PAUSE.BOOK.agent_gpu-a_example": set(),
    "$JS.API.CONSUMER.LEADER.STEPDOWN.BOOK.agent_gpu-a_example": set(),
    "$JS.API.STREAM.NAMES": set(),
    "$JS.API.STREAM.LIST": set(),
    "$JS.API.CONSUMER.NAMES.BOOK": set(),
    "$JS.API.INFO": set(),
    "$SYS.REQ.SERVER.PING": set(),
    # A holder of a lease answers its standby, which is the same user. Other answers are the server's to give.
    "alive.allocator.run": {ALLOCATOR, WATCHER, INVENTORY},
    "_INBOX_allocator.x": {ALLOCATOR},
    "_INBOX_console.x": set(),
    "_INBOX_node-agent_gpu-a_example.x": set(),
    "_INBOX.x": set(),
}

NOT_HEARD = ("_INBOX.>", "_INBOX.x", ">", "*", "sluice.>", "hist.>", "$JS.>", "$JS.API.>", "$JS.EVENT.>", "$SYS.>")
SUBSCRIBE: Mapping[str, set[str]] = {
    **{f"_INBOX_{user.replace('.', '_')}.{rest}": {user} for user in USERS for rest in ("x", "x.y", ">")},
    **{subject: set() for subject in NOT_HEARD},
    **{f"{prefix}{subject}": set() for prefix in ("sluice.", "hist.sluice.") for subject in WORDS},
}
"""
No service subscribes to a subject of ours: streams are read by consumers, which a stream's subjects cannot deceive.
"""


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def guarded(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Guarded]:
    async with guarded_broker(tmp_path_factory.mktemp("matrix"), *NODES) as rig:
        assert set(rig.users) == USERS
        yield rig


def logged_in(guarded: Guarded, user: str) -> AbstractAsyncContextManager[RawNats]:
    return raw_nats(guarded.broker.servers[0].plan.port, user, guarded.users[user].password)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("user", sorted(USERS))
async def test_a_user_may_publish_what_its_work_needs_and_nothing_else(guarded: Guarded, user: str) -> None:
    """A right too many is what a stolen password can do; one that is missing is a service that ends."""
    async with logged_in(guarded, user) as connection:
        denied = await connection.denied_to_publish(PUBLISH)
    assert denied == {subject for subject, who in PUBLISH.items() if user not in who}


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("user", sorted(USERS))
async def test_a_user_hears_its_own_answers_and_nothing_else(guarded: Guarded, user: str) -> None:
    """A user that reads all inboxes would learn what every other user reads."""
    async with logged_in(guarded, user) as connection:
        denied = await connection.denied_to_subscribe(SUBSCRIBE)
    assert denied == {subject for subject, who in SUBSCRIBE.items() if user not in who}


def test_the_table_has_every_kind_of_word() -> None:
    """A noun that is added later must be thought about here."""
    assert ({subject.split(".")[0] for subject in WORDS} | {"lease"}) == {noun.kind for noun in SUBJECT_KINDS}
