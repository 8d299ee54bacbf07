"""The sockets of the time quota, with processes that keep to the protocol, and with some that do not."""

import contextlib
import errno
import os
import selectors
import shutil
import socket
import struct
import sys
import threading
from unittest.mock import Mock

import pytest
from factories.waiting import wait_until

from sluice.contracts.ids import HomeId
from sluice_node_agent.core.events import QuotaTenant
from sluice_node_agent.core.instructions import SetQuotas
from sluice_node_agent.core.quota.events import QuotaConfig
from sluice_node_agent.shell.quota import loop as quota_loop
from sluice_node_agent.shell.quota import server as quota_server
from sluice_node_agent.shell.quota.controller import QuotaController, QuotaControllerError
from sluice_node_agent.shell.quota.server import QuotaServer, QuotaServerError

HELLO, ASK, GIVE_BACK, WELCOME, GRANT, CHANGED, REFUSED = 1, 2, 3, 17, 18, 19, 21
_HEAD = struct.Struct("<IHHQ")
_WAIT_S = 20.0


class _Client:
    """A process of a tenant. Written after docs/time-quota.md, not after the server."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(_WAIT_S)
        self.socket.connect(str(path))
        self.sequence = 0

    def say(self, kind, body=b"", version=1):
        self.sequence += 1
        self.socket.send((_HEAD.pack(0x54514C53, version, kind, self.sequence) + body).ljust(64, b"\0"))

    def hello(self):
        self.say(HELLO, struct.pack("<III16s", os.getpid(), 0, 1 << 16, bytes(16)))
        return self.hear()

    def ask(self, ahead_of=0):
        self.say(ASK, struct.pack("<QQ", 0, ahead_of))

    def give_back(self, token):
        self.say(GIVE_BACK, struct.pack("<QQ", token, 0))

    def hear(self):
        """Kind and the first number of the body; None when the server has closed the connection."""
        try:
            packet = self.socket.recv(65)
        except ConnectionResetError:
            return None
        if not packet:
            return None
        assert len(packet) == 64
        _, _, kind, _ = _HEAD.unpack_from(packet)
        return kind, struct.unpack_from("<Q", packet, _HEAD.size)[0]

    def token(self):
        self.ask()
        kind, token = self.hear()
        assert kind == GRANT
        return token


@contextlib.contextmanager
def _running(**options):
    found = QuotaServer("home", **options)
    found.start()
    yield found
    found.stop()
    assert found.failure is None


@pytest.fixture
def server():
    with _running(config=QuotaConfig(overrun_max_us=500_000_000)) as found:
        yield found


@pytest.fixture
def stopped_clock():
    """A home whose clock stands still, and the clock: a list of one number."""
    clock = [0]
    with _running(clock=lambda: clock[0]) as found:
        yield found, clock


@pytest.fixture
def connect():
    made = []

    def client(path):
        made.append(_Client(path))
        return made[-1]

    yield client
    for each in made:
        each.socket.close()


def _add(server, path, name="a", **changes):
    size = {"request": 0.3, "limit": 1.0, "width_percent": 100, "uid": os.getuid()} | changes
    server.add_tenant(name, path, **size)
    return path


def test_a_process_gets_its_quota_and_tokens(server, connect, tmp_path):
    client = connect(_add(server, tmp_path / "a.sock"))
    assert client.hello() == (WELCOME, 100_000)
    token = client.token()
    client.give_back(token)
    assert client.token() != token
    used = server.usage()["a"]
    assert (used.tokens, used.hellos, used.connections, used.greeted_pids) == (2, 1, 1, (os.getpid(),))


def test_a_busy_agent_does_not_hold_tokens_up_for_half_of_one(server):
    """The device idles whenever the agent computes: Python lets a thread wait 5 ms for its lock, a token is 10 ms."""
    assert sys.getswitchinterval() <= 0.0005


def test_a_long_path_is_no_problem(server, connect, tmp_path):
    """The socket of a home with a long path cannot be made, and its pod has no tokens."""
    folder = tmp_path / ("x" * 120)
    folder.mkdir()
    _add(server, folder / "a.sock")
    short = tmp_path / "s"
    short.symlink_to(folder)
    assert connect(short / "a.sock").hello()[0] == WELCOME


def test_the_token_of_a_process_that_is_gone_goes_to_its_neighbour(server, connect, tmp_path):
    first, second = (connect(_add(server, tmp_path / f"{name}.sock", name)) for name in "ab")
    first.hello(), second.hello()
    first.token()
    second.ask()
    first.socket.close()
    assert second.hear()[0] == GRANT


def test_a_changed_size_is_told_to_those_who_are_connected(server, connect, tmp_path):
    client = connect(_add(server, tmp_path / "a.sock"))
    client.hello()
    server.change_tenant("a", request=0.5, limit=0.6, width_percent=50)
    assert client.hear()[0] == CHANGED
    server.remove_tenant("a")
    assert client.hear() == (REFUSED, 4)
    assert client.hear() is None
    assert list(tmp_path.iterdir()) == []


def test_a_process_of_another_user_or_another_pod_is_refused(server, connect, tmp_path, monkeypatch):
    """A process that finds a socket computes on the time of its tenant."""
    _add(server, tmp_path / "a.sock", admits=lambda pid: pid != os.getpid())
    assert connect(tmp_path / "a.sock").hear() == (REFUSED, 2)
    monkeypatch.setattr(quota_loop, "peer_of", lambda _: (1, 4711))
    _add(server, tmp_path / "b.sock", "b")
    assert connect(tmp_path / "b.sock").hear() == (REFUSED, 2)
    assert server.counted.refused == 2


@pytest.mark.parametrize(
    ("said", "answer"),
    [(b"x", None), (b"x" * 65, None), (_HEAD.pack(0x54514C53, 2, 1, 1).ljust(64, b"\0"), (REFUSED, 1))],
    ids=["short", "long", "newer"],
)
def test_who_talks_nonsense_is_cut_off_alone(server, connect, tmp_path, said, answer):
    bad, good = (connect(_add(server, tmp_path / f"{name}.sock", name)) for name in "ab")
    good.hello()
    bad.socket.send(said)
    assert bad.hear() == answer
    assert bad.hear() is None
    assert good.token()
    assert server.counted.cut_off == 1


def test_who_floods_is_read_slower_and_its_neighbour_is_served(server, connect, tmp_path):
    """A pod that sends without end stops all others on its GPU."""
    bad, good = (connect(_add(server, tmp_path / f"{name}.sock", name, width_percent=50)) for name in "ab")
    bad.hello(), good.hello()
    over = threading.Event()

    def flood():
        while not over.is_set():
            try:
                bad.say(GIVE_BACK, struct.pack("<QQ", 99, 0))
            except TimeoutError:
                continue

    flooding = threading.Thread(target=flood)
    bad.socket.settimeout(0.05)
    flooding.start()
    try:
        for _ in range(20):
            good.give_back(good.token())
        wait_until(lambda: server.counted.slowed > 0, "it is read slower")
    finally:
        over.set()
        flooding.join(_WAIT_S)
    assert good.token()


def test_a_tenant_says_no_more_by_many_processes_than_by_one(stopped_clock, connect, tmp_path):
    """A tenant that floods over all the connections that it may have stops all others on its GPU."""
    server, _ = stopped_clock
    bad = [connect(_add(server, tmp_path / "a.sock"))] + [connect(tmp_path / "a.sock") for _ in range(7)]
    for each in bad:
        for _ in range(64):
            each.say(HELLO, bytes(28))
    # 256 messages are not read, which are all of as many at least.
    wait_until(lambda: server.counted.slowed >= 4, "all are read slower")
    assert connect(_add(server, tmp_path / "b.sock", "b")).hello()[0] == WELCOME
    answered = 0
    for each in bad:
        each.socket.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while each.socket.recv(65):
                answered += 1
    assert answered == 256


def test_who_connects_without_end_is_let_in_slower_and_its_neighbour_at_once(stopped_clock, connect, tmp_path):
    """A pod that only connects and hangs up stops all others on its GPU."""
    server, clock = stopped_clock
    _add(server, tmp_path / "a.sock")
    for _ in range(128):
        client = connect(tmp_path / "a.sock")
        assert client.hello()[0] == WELCOME
        client.socket.close()
    late = connect(tmp_path / "a.sock")
    wait_until(lambda: server.counted.held_up == 1, "it is held up")
    assert connect(_add(server, tmp_path / "b.sock", "b")).hello()[0] == WELCOME
    late.say(HELLO, bytes(28))
    assert server.usage()["a"].connections == 0
    clock[0] += 600_000
    server.usage()  # it looks at its clock again
    assert late.hear()[0] == WELCOME


def test_who_reads_nothing_is_cut_off(server, connect, tmp_path):
    """Answers to a process that is stopped fill the agent's memory."""
    bad, good = (connect(_add(server, tmp_path / f"{name}.sock", name)) for name in "ab")
    good.hello()
    bad.say(HELLO, bytes(28))
    bad.socket.settimeout(1.0)
    with pytest.raises(OSError, match=r"."):  # noqa: PT012 - until it is cut off
        for _ in range(100_000):
            bad.say(HELLO, bytes(28))
    assert server.counted.cut_off == 1
    assert good.token()


def test_who_never_says_hello_is_cut_off(server, connect, tmp_path, monkeypatch):
    """Connections that say nothing take all that a tenant may have."""
    monkeypatch.setattr(quota_loop, "HELLO_S", 0.05)
    assert connect(_add(server, tmp_path / "a.sock")).hear() is None


def test_a_successor_takes_over_the_sockets(connect, tmp_path):
    """After a restart of the agent no process finds its scheduler again."""
    welcomes = []
    for _ in range(2):
        server = QuotaServer("home")
        server.start()
        (tmp_path / "a.sock").touch()  # as one that was killed leaves it
        client = connect(_add(server, tmp_path / "a.sock"))
        client.say(HELLO, bytes(28))
        packet = client.socket.recv(65)
        welcomes.append(packet[16 + 32 : 16 + 40])
        server.stop()
        assert client.hear() is None
    assert welcomes[0] != welcomes[1]  # another epoch


def test_who_cannot_be_looked_at_is_refused_and_all_others_are_served(server, connect, tmp_path):
    """An agent without a descriptor left would end the time quota of a whole home: all pods on it stand still."""
    admits = Mock(side_effect=OSError(errno.EMFILE, "Too many open files"))
    assert connect(_add(server, tmp_path / "a.sock", admits=admits)).hear()[0] == REFUSED
    assert server.counted.refused == 1
    assert connect(_add(server, tmp_path / "b.sock", "b")).hello()[0] == WELCOME


@pytest.mark.parametrize("step", ["register", "tell"])
def test_a_tenant_that_could_not_be_added_can_be_added_again(server, connect, tmp_path, monkeypatch, step):
    """A pod would wait for tokens until the agent is restarted, because one call failed once."""
    fail = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    broken, method = (selectors.DefaultSelector, "register") if step == "register" else (quota_loop.QuotaLoop, "_tell")
    with monkeypatch.context() as once:
        once.setattr(broken, method, fail)
        with pytest.raises(OSError, match="No space left"):
            _add(server, tmp_path / "a.sock")
    fail.assert_called_once()
    assert not (tmp_path / "a.sock").exists()
    assert connect(_add(server, tmp_path / "a.sock")).hello()[0] == WELCOME


def test_after_its_end_a_server_says_so(tmp_path):
    server = QuotaServer("home")
    with pytest.raises(QuotaServerError, match="does not run"):
        server.usage()
    server.start()
    server.stop()
    with pytest.raises(QuotaServerError, match="does not run"):
        _add(server, tmp_path / "a.sock")


@pytest.mark.parametrize(
    ("size", "why"),
    [({"request": 1.5}, "request of tenant 'a' is 1.5"), ({"width_percent": 0}, "width_percent of tenant 'a' is 0")],
)
def test_sizes_that_make_no_sense_are_refused(server, tmp_path, size, why):
    with pytest.raises(ValueError, match=why):
        _add(server, tmp_path / "a.sock", **size)


def _tenant(name, request=300):
    return QuotaTenant(name, f"{name[0]}.sock", "pod-1", os.getuid(), request, 1000, 100, 1000)


@pytest.fixture
def homes(tmp_path):
    """The time quota of a node with one home, h1."""
    library = tmp_path / "library"
    library.write_bytes(b"elf")
    (tmp_path / "h1").mkdir()
    found = QuotaController(tmp_path, library, lambda _: "")
    yield found
    found.close()


@pytest.fixture
def goes_on(homes):
    """What a slow scheduler waits for; it is set before its homes are closed."""
    found = threading.Event()
    yield found
    found.set()


def test_the_homes_of_a_node_have_library_and_sockets(homes, connect, tmp_path):
    homes.set(SetQuotas(1, HomeId("h1"), (_tenant("a"), _tenant("b"))))
    place = tmp_path / "h1" / "quota"
    assert sorted(path.name for path in place.iterdir()) == ["a.sock", "b.sock", "libsluice-quota.so"]
    client = connect(place / "a.sock")
    client.hello()
    assert homes.seen(HomeId("h1")).greeted == (os.getpid(),)
    assert sorted(homes.usage()) == ["a", "b"]
    homes.set(SetQuotas(2, HomeId("h1"), (_tenant("a", 500),)))
    assert client.hear()[0] == CHANGED
    assert sorted(path.name for path in place.iterdir()) == ["a.sock", "libsluice-quota.so"]
    assert list(homes.usage()) == ["a"]
    homes.end(HomeId("h1"))
    assert homes.seen(HomeId("h1")) is None
    with pytest.raises(QuotaControllerError, match="the time quota of home h2 cannot be served"):
        homes.set(SetQuotas(3, HomeId("h2"), (_tenant("a"),)))


@pytest.mark.parametrize("lost", ["a.sock", "libsluice-quota.so"])
def test_a_home_whose_sockets_are_gone_is_restarted(homes, connect, tmp_path, lost):
    """After its memory disk was emptied the time of new processes is not enforced, silently."""
    order = SetQuotas(1, HomeId("h1"), (_tenant("a"), _tenant("b")))
    homes.set(order)
    assert homes.seen(HomeId("h1")).alive
    (tmp_path / "h1" / "quota" / lost).unlink()
    assert not homes.seen(HomeId("h1")).alive
    homes.set(order)
    connect(tmp_path / "h1" / "quota" / "a.sock").hello()
    assert homes.seen(HomeId("h1")).alive


def test_what_was_counted_is_told_at_once_whatever_is_under_way(homes, goes_on, tmp_path, monkeypatch):
    """A page of metrics would stop the whole agent for as long as a disk, or another home's scheduler, is slow."""
    (tmp_path / "h2").mkdir()
    is_slow, told = threading.Event(), []
    homes.set(SetQuotas(1, HomeId("h1"), (_tenant("a"),)))
    homes.seen(HomeId("h1"))
    copy = shutil.copyfile

    def slow_copy(source, target):
        is_slow.set()
        assert goes_on.wait(_WAIT_S)
        return copy(source, target)

    monkeypatch.setattr(shutil, "copyfile", slow_copy)
    setter = threading.Thread(target=homes.set, args=(SetQuotas(2, HomeId("h2"), (_tenant("b"),)),))
    setter.start()
    assert is_slow.wait(_WAIT_S)
    asker = threading.Thread(target=lambda: told.extend(homes.usage()), daemon=True)
    asker.start()
    asker.join(2.0)
    assert told == ["a"]
    goes_on.set()
    setter.join(_WAIT_S)
    homes.end(HomeId("h1"))
    assert homes.usage() == {}


def test_a_scheduler_that_died_is_restarted(homes, connect, tmp_path, monkeypatch):
    """Otherwise a defect of ours ends the time quota of a home until the agent is restarted."""
    order = SetQuotas(1, HomeId("h1"), (_tenant("a"),))
    homes.set(order)
    with monkeypatch.context() as broken:
        broken.setattr(quota_loop.QuotaLoop, "serve_once", lambda _: 1 / 0)
        connect(tmp_path / "h1" / "quota" / "a.sock").socket.close()
        wait_until(lambda: not homes.seen(HomeId("h1")).alive, "its scheduler dies")
    homes.set(order)
    assert homes.seen(HomeId("h1")).alive
    assert connect(tmp_path / "h1" / "quota" / "a.sock").hello()[0] == WELCOME


def test_a_scheduler_that_is_slow_ends_no_agent_and_is_told_again(homes, goes_on, connect, tmp_path, monkeypatch):
    """A machine that stood still for some seconds would end the agent, or leave a tenant without tokens for ever."""
    homes.set(SetQuotas(1, HomeId("h1"), (_tenant("a"),)))
    with monkeypatch.context() as slow:
        slow.setattr(quota_loop.QuotaLoop, "serve_once", lambda _: goes_on.wait(_WAIT_S))
        homes.seen(HomeId("h1"))  # from now on it is slow
        slow.setattr(quota_server, "_CALL_S", 0.05)
        assert not homes.seen(HomeId("h1")).alive
        assert homes.usage() == {}
        with pytest.raises(QuotaControllerError, match="has not answered"):
            homes.set(SetQuotas(2, HomeId("h1"), (_tenant("a"), _tenant("b"))))
    goes_on.set()
    homes.set(SetQuotas(3, HomeId("h1"), (_tenant("a"), _tenant("b"))))
    assert homes.seen(HomeId("h1")).alive
    assert all(connect(tmp_path / "h1" / "quota" / f"{name}.sock").hello()[0] == WELCOME for name in "ab")


@pytest.mark.parametrize("step", ["add", "change", "remove"])
def test_what_a_scheduler_did_after_the_last_wait_is_in_no_tenants_way(homes, goes_on, monkeypatch, step):
    """The machine stood still while a tenant came or went: its home has no time quota until the agent starts again."""
    before = (_tenant("a"), *((_tenant("b"),) if step != "add" else ()))
    after = (_tenant("a"), *((_tenant("b", 500 if step == "change" else 300),) if step != "remove" else ()))
    real = getattr(quota_loop.QuotaLoop, step)

    def slow(*how):
        assert goes_on.wait(_WAIT_S)
        return real(*how)

    homes.set(SetQuotas(1, HomeId("h1"), before))
    with monkeypatch.context() as still:
        still.setattr(quota_loop.QuotaLoop, step, slow)
        still.setattr(quota_server, "_CALL_S", 0.2)
        with pytest.raises(QuotaControllerError, match="has not answered"):
            homes.set(SetQuotas(2, HomeId("h1"), after))
        goes_on.set()
    homes.set(SetQuotas(3, HomeId("h1"), after))
    homes.seen(HomeId("h1"))
    assert sorted(homes.usage()) == [tenant.name for tenant in after]
    homes.set(SetQuotas(4, HomeId("h1"), before))
    homes.seen(HomeId("h1"))
    assert sorted(homes.usage()) == [tenant.name for tenant in before]
