"""
One connection to NATS that works, waits for the server to come back, or fails for good with a BusError.

It never buffers: otherwise a write could be reported as unknown and still be sent minutes later. Settings and limits
were tried on nats-server 2.15 with nats-py 2.16.
"""

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from sluice.runtime import logs
from sluice.runtime.bus import BusError, DeniedError
from sluice.runtime.nats import client as nats
from sluice.runtime.nats import credentials as logins
from sluice.runtime.nats.wire_format import NO_ANSWER, said_in
from sluice.runtime.prometheus import metrics
from sluice.runtime.prometheus.runtime_metrics import DENIED, RECONNECTS
from sluice.runtime.retry import Backoff

SERVER_FLOOR = (2, 15, 0)
"""The oldest supported server: CONSUMER.RESET was tried on it, and it holds the fixes of all known advisories."""
REQUEST_TIMEOUT_S = 5.0
ASK_TIMEOUT_S = 2.0
"""For JetStream's API, which answers at once or has no leader. Creating something waits for a disk, as a write does."""
PING_S, QUIET_PING_S = 1, 60
PINGS_MAX = 2
"""
A frozen server is noticed after about 3 s; the client's default would take minutes. `quiet` connections, of which there
are many, ping at the longer interval while they await no answer.
"""
LOOK_AT_FILES_S = 5.0
"""How often to look for changed credentials."""
RECONNECT_WAIT_S = 0.25
CLOSE_TIMEOUT_S = 2.0
CANCEL_AGAIN_S = 0.1
REFUSED_WAIT_MAX_S = 8.0
REFUSED_MAX_S = 300.0
"""A token may be refused for so long: the service that verifies it may be late. Then the process ends."""

_NOT_AUTHORIZED = re.compile(r"authorization violation", re.IGNORECASE)
_VIOLATION = re.compile(r'permissions violation(?: for (\w+) to "([^"]*)")?', re.IGNORECASE)


class Connection:
    """A connection that outlives its server. `changed` callbacks are called after a reconnect and when it fails."""

    def __init__(self, name: str, *, quiet: bool = False) -> None:
        self.name = name
        self._quiet = quiet
        self._next_ping: asyncio.TimerHandle | None = None
        """While a quiet connection awaits an answer."""
        self._pinging: asyncio.Task[None] | None = None
        self._client = nats.Client()
        self._fatal: BusError | None = None
        self._closing = False
        self._deadlines: dict[asyncio.Timeout, None] = {}
        self._changed: dict[Callable[[], None], None] = {}
        self._up = asyncio.Event()
        self._failed = asyncio.Event()
        self._connecting = True
        self._refused = asyncio.Event()
        """A first handshake failed."""
        self._told: set[str] = set()
        """Problems logged since the bus was last reached: sentences, or kinds of errors."""
        self._trouble = ""
        self._pause = Backoff(initial_s=RECONNECT_WAIT_S, max_s=REFUSED_WAIT_MAX_S)
        self._refused_at: float | None = None
        """Monotonic time of the first refusal of a token since it was last accepted."""
        self._source: logins.CredentialSource = logins.Credentials()
        self._shown = logins.Credentials()
        self._looking: asyncio.Task[None] | None = None
        self._log = logs.get("bus", bus=name)

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        name: str,
        credentials: logins.CredentialSource | None = None,
        within_s: float | None = None,
        quiet: bool = False,
    ) -> "Connection":
        """Connect to any of the servers in `url`; waits while none answers, or for `within_s`. Raises BusError."""
        servers = logins.parse_server_urls(url)
        connection = cls(name, quiet=quiet)
        try:
            async with asyncio.timeout(within_s):
                await connection._connect(servers, credentials or logins.Credentials())
        except TimeoutError as error:
            await connection.close()
            why = f": {connection._trouble}" if connection._trouble else ""
            raise BusError(f"no NATS server answers at {url}{why}") from error
        except BaseException:
            await connection.close()
            raise
        return connection

    async def _connect(self, servers: list[str], source: logins.CredentialSource) -> None:
        self._source, self._shown = source, source.current()
        if not isinstance(source, logins.Credentials):
            self._looking = asyncio.ensure_future(self._watch_credentials())
        while not await self._has_connected(servers, source):
            await asyncio.sleep(RECONNECT_WAIT_S if self._refused_at is None else self._pause.next_s())
            self._client = nats.Client()
        self._connecting = False
        self._accepted()
        self._check_server()
        self.check()
        self._up.set()

    async def _has_connected(self, servers: list[str], source: logins.CredentialSource) -> bool:
        """Try for as long as the client does. False when a first handshake failed: nats-py 2.16 waits on."""
        self._refused.clear()
        connecting = asyncio.ensure_future(
            self._client.connect(
                servers,
                name=self.name,
                error_cb=self._on_error,
                disconnected_cb=self._on_disconnected,
                reconnected_cb=self._on_reconnected,
                closed_cb=self._on_closed,
                max_reconnect_attempts=-1,
                reconnect_time_wait=RECONNECT_WAIT_S,  # type: ignore[arg-type]  # any number of seconds
                ping_interval=QUIET_PING_S if self._quiet else PING_S,
                max_outstanding_pings=PINGS_MAX,
                pending_size=0,
                **logins.connect_options(self._client, source, self.name, servers),
            )
        )
        ends = [asyncio.ensure_future(event.wait()) for event in (self._failed, self._refused)]
        try:
            await asyncio.wait((connecting, *ends), return_when=asyncio.FIRST_COMPLETED)
            self.check()
            if not connecting.done():
                return False
            await connecting
        except nats.Error as error:
            raise BusError(f"cannot connect to {','.join(servers)}: {logins.explain_connect_error(error)}") from error
        finally:
            await _end(connecting, *ends)
        return True

    def check(self) -> None:
        if self._fatal is not None:
            raise self._fatal

    async def request(
        self,
        subject: str,
        data: bytes = b"",
        *,
        headers: dict[str, str] | None = None,
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> nats.Msg:
        """One request and its answer. Raises TimeoutError (at once if disconnected), BusError (denied, too large)."""
        self.check()
        if not self._client.is_connected:
            # The client would raise, too, but keep the request without end (nats-py 2.16).
            raise TimeoutError(f"no answer to {subject}: not connected")
        try:
            async with self._deadline(timeout_s):
                # Not the client's timeout: it swallows a cancellation that comes together with the answer.
                return await self._client.request(subject, data, timeout=None, headers=headers)  # type: ignore[arg-type]
        except (*NO_ANSWER, TimeoutError, nats.ConnectionClosedError) as error:
            self.check()
            raise TimeoutError(f"no answer to {subject}") from error
        except nats.MaxPayloadError as error:
            raise self._too_large(subject, data) from error

    async def ask(
        self, verb: str, body: dict[str, Any] | None = None, *, timeout_s: float = ASK_TIMEOUT_S
    ) -> dict[str, Any]:
        """One request to JetStream's API, `$JS.API.<verb>`. Raises ApiError (refused), and as `request` does."""
        data = json.dumps(body).encode() if body is not None else b""
        answer = await self.request(f"$JS.API.{verb}", data, timeout_s=timeout_s)
        if not answer.data:
            raise TimeoutError(f"no answer to {verb}")
        return said_in(verb, answer.data)

    async def publish(
        self, subject: str, data: bytes, *, reply: str = "", headers: dict[str, str] | None = None
    ) -> None:
        """Send without an answer. Raises TimeoutError when nothing can be sent, BusError when the connection ended."""
        self.check()
        try:
            await self._client.publish(subject, data, reply=reply, headers=headers)
        except (*NO_ANSWER, nats.ConnectionClosedError) as error:
            self.check()
            raise TimeoutError(f"cannot send to {subject}") from error
        except nats.MaxPayloadError as error:
            raise self._too_large(subject, data) from error

    def _too_large(self, subject: str, data: bytes) -> BusError:
        return BusError(
            f"the broker takes no message of {len(data)} bytes ({subject}): its max_payload is "
            f"{self._client.max_payload} bytes, and must be 1MB (deploy/nats/nats-server.conf)"
        )

    async def subscribe(
        self, subject: str, hear: Callable[[nats.Msg], Awaitable[None]], *, messages_max: int
    ) -> nats.Subscription:
        """Await `hear` for each message. Above `messages_max` pending, messages are dropped (and seen as a gap)."""
        self.check()
        try:
            return await self._client.subscribe(
                subject, cb=hear, pending_msgs_limit=messages_max, pending_bytes_limit=0
            )
        except (*NO_ANSWER, nats.ConnectionClosedError) as error:
            self.check()
            raise TimeoutError(f"cannot subscribe to {subject}") from error

    async def flush(self) -> None:
        self.check()
        try:
            async with self._deadline(ASK_TIMEOUT_S):
                await self._client.flush()
        except (*NO_ANSWER, nats.ConnectionClosedError) as error:
            raise TimeoutError("the server does not answer") from error

    def new_inbox(self) -> str:
        return self._client.new_inbox()

    @property
    def clustered(self) -> bool:
        return bool(self._client._server_info.get("cluster"))  # noqa: SLF001 - INFO has no public accessor

    @property
    def up(self) -> bool:
        return self._up.is_set()

    async def up_within(self, limit_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._up.wait()

    def on_change(self, call: Callable[[], None]) -> None:
        self._changed[call] = None

    def off_change(self, call: Callable[[], None]) -> None:
        self._changed.pop(call, None)

    async def close(self) -> None:
        """Flush and disconnect, within CLOSE_TIMEOUT_S; then end whatever is left of the client."""
        self._closing = True
        if self._next_ping is not None:
            self._next_ping.cancel()
        await _end(*(task for task in (self._looking, self._pinging) if task is not None))
        self._fatal = self._fatal or BusError(f"the connection of {self.name} is closed")
        self._give_up_waiting()
        self._tell()
        try:
            with contextlib.suppress(TimeoutError, nats.Error, OSError):
                async with self._deadline(CLOSE_TIMEOUT_S / 2):
                    if self._client.is_connected:
                        await self._client.flush()
            with contextlib.suppress(TimeoutError, nats.Error, OSError):
                async with asyncio.timeout(CLOSE_TIMEOUT_S / 2):
                    await self._client.close()
        finally:
            # A server that dies just now makes it leave tasks behind, and the process waits for all of them to end.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await _end(*self._client.tasks())
            self._client.abandon()  # a try that a cancellation met, or a close that was cut off, leaves its connection

    async def _watch_credentials(self) -> None:
        """Use changed credential files at the next connection, until cancelled.

        New authorities or a new token reconnect at once. With another certificate or password the connection goes on:
        the broker may not know the new one yet."""
        while not self._failed.is_set():
            await asyncio.sleep(LOOK_AT_FILES_S)
            found, shown = self._source.current(), self._shown
            if found is shown:
                continue
            self._shown = found
            self._client.options["tls"] = found.tls
            why = "authorities have changed" if found.trusts != shown.trusts else ""
            if found.is_token and found.password != shown.password:
                why = "token is new"
            if why and self._up.is_set():
                self._log.info("reconnecting", why=why)
                await self._client.force_reconnect()

    @contextlib.asynccontextmanager
    async def _deadline(self, timeout_s: float) -> AsyncIterator[None]:
        """A timeout that also ends at once when the connection is lost."""
        async with asyncio.timeout(timeout_s) as deadline:
            self._deadlines[deadline] = None
            if self._quiet and self._next_ping is None:
                self._next_ping = asyncio.get_running_loop().call_later(PING_S, self._ping)
            try:
                yield
            finally:
                del self._deadlines[deadline]

    def _ping(self) -> None:
        """Find out, while an answer is awaited, whether the server lives."""
        self._next_ping = None
        if self._deadlines and not self._closing:
            loop = asyncio.get_running_loop()
            if self._pinging is None or self._pinging.done():
                self._pinging = loop.create_task(self._client.ping())
            self._next_ping = loop.call_later(PING_S, self._ping)

    def _give_up_waiting(self) -> None:
        now = asyncio.get_running_loop().time()
        for deadline in self._deadlines:
            if not deadline.expired():
                deadline.reschedule(now)

    def _fail(self, why: str | BusError) -> None:
        if self._fatal is None:
            self._fatal = BusError(why) if isinstance(why, str) else why
            self._log.warning("the bus has failed for good", why=str(why))  # who waits for it ends with this
        self._failed.set()
        self._give_up_waiting()
        self._tell()

    def _tell(self) -> None:
        for call in list(self._changed):
            call()

    def _check_server(self) -> None:
        version = self._client.connected_server_version
        found = (version.major, version.minor, version.patch)
        if found < SERVER_FLOOR:
            floor = ".".join(map(str, SERVER_FLOOR))
            self._fail(f"nats-server {'.'.join(map(str, found))} is too old: {floor} or newer is needed")
        elif not self._client._server_info.get("jetstream"):  # noqa: SLF001 - INFO has no public accessor
            self._fail("nats-server runs without JetStream")

    async def _on_error(self, error: Exception) -> None:
        if self._closing:
            return
        denied = _VIOLATION.search(str(error))
        if denied is not None:
            metrics.count(DENIED, (denied[1] or "").lower())
            self._fail(DeniedError(user=self._shown.user or self.name, verb=denied[1] or "", subject=denied[2] or ""))
        elif isinstance(error, nats.AuthorizationError) or _NOT_AUTHORIZED.search(str(error)):
            await self._on_refusal(error)
        else:
            self._log_problem(error)
            if self._connecting and logins.is_identity_error(error):
                self._refused.set()
                # The client must get no further: a connection made while it is cancelled would leak.
                await asyncio.get_running_loop().create_future()

    async def _on_refusal(self, error: Exception) -> None:
        now = asyncio.get_running_loop().time()
        self._refused_at = self._refused_at or now
        if not self._shown.is_token:
            self._fail(
                f"{self.name}: the server does not accept these credentials (nats_user and nats_password_file, or "
                "nats_certificate_file)"
            )
        elif now - self._refused_at > REFUSED_MAX_S:
            self._fail(
                f"{self.name}: the broker has refused our token for {REFUSED_MAX_S:g} s; the logs of sluice-callout "
                "say why, if it runs"
            )
        else:
            self._log_problem(error)
            if not self._connecting:
                self._client.options["reconnect_time_wait"] = self._pause.next_s()
                return
            self._refused.set()
            await asyncio.get_running_loop().create_future()  # no further, as below

    def _accepted(self) -> None:
        self._refused_at = None
        self._pause.reset()
        self._client.options["reconnect_time_wait"] = RECONNECT_WAIT_S

    def _log_problem(self, error: Exception) -> None:
        about_identity = logins.is_identity_error(error)
        why = logins.explain_connect_error(error)
        if about_identity or not self._trouble:
            self._trouble = why  # not replaced by the resets that follow a refused handshake
        kind = why if about_identity else type(error).__name__
        if self._up.is_set() or kind in self._told:
            self._log.debug("connection trouble", error=repr(error))
        else:
            self._told.add(kind)
            self._log.warning("the bus cannot be reached; retrying", why=why)

    async def _on_disconnected(self) -> None:
        self._up.clear()
        if not self._closing:
            self._log.warning("disconnected")
        self._give_up_waiting()

    async def _on_reconnected(self) -> None:
        self._log.info("connected again")
        metrics.count(RECONNECTS)
        self._accepted()
        self._check_server()
        self._up.set()
        self._told.clear()
        self._trouble = ""
        self._tell()

    async def _on_closed(self) -> None:
        if not self._closing:
            self._fail(f"{self.name}: the client closed the connection")


async def _end(*tasks: asyncio.Future[Any]) -> None:
    """Cancel them and wait, repeatedly: the client swallows a cancellation (Python 3.11, `asyncio.wait_for`)."""
    left: set[asyncio.Future[Any]] = set(tasks)
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=CANCEL_AGAIN_S)
