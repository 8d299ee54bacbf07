"""Answer the broker's questions about users, until cancelled. Every replica gets every question and the broker takes
the first answer, so one that hangs or cannot ask the API server costs nothing: it says nothing, and the other one
answers. A question that no replica answers is refused by the broker after its timeout, and the client tries again."""

import asyncio
from collections.abc import Callable, Mapping

from sluice.contracts.reasons import shorten
from sluice.runtime import logs
from sluice.runtime.clock import Clock
from sluice.runtime.nats.client import Msg
from sluice.runtime.nats.connection import Connection
from sluice.runtime.prometheus import metrics
from sluice_pod_watcher.core import bus_access, workqueue
from sluice_pod_watcher.shell.callout.claims import NotAQuestionError, Question, admitted, read_question, refused
from sluice_pod_watcher.shell.callout.nkeys import NKey, NotAKeyError
from sluice_pod_watcher.shell.kube import client, token_reviews
from sluice_pod_watcher.shell.metrics import BUS_LOGINS

SUBJECT = "$SYS.REQ.USER.AUTH"
SERVER_KEY = "Nats-Server-Xkey"
QUESTIONS_MAX = 4096  # at once; more are dropped, and their clients try again
SAY_AGAIN_S, SAID_MAX = 60.0, 256  # a refusal is logged once a minute for each user


class Answers:
    """The answers of one replica."""

    def __init__(
        self,
        reviews: token_reviews.TokenReviews,
        where: bus_access.Namespaces,
        clock: Clock,
        issuers: Callable[[], Mapping[str, NKey]],
        curve: NKey,
    ) -> None:
        """`issuers` has the signing keys by their public ones, as they are now; `curve` opens questions."""
        self._reviews, self._where, self._clock = reviews, where, clock
        self._issuers, self._curve = issuers, curve
        self._open: set[asyncio.Task[None]] = set()
        self._said: dict[str, float] = {}
        self._log = logs.get("callout")
        self.serving = asyncio.Event()  # the broker knows this replica

    async def serve(self, connection: Connection) -> None:
        """Answer until cancelled or the connection has failed. Raises BusError, TimeoutError."""
        failed = asyncio.Event()
        connection.on_change(failed.set)
        async with asyncio.TaskGroup() as tasks:

            async def hear(message: Msg) -> None:
                if len(self._open) >= QUESTIONS_MAX:
                    metrics.count(BUS_LOGINS, "dropped")
                    return
                task = tasks.create_task(self._reply(connection, message), name="login")
                self._open.add(task)
                task.add_done_callback(self._open.discard)

            await connection.subscribe(SUBJECT, hear, messages_max=QUESTIONS_MAX)
            await connection.flush()
            self.serving.set()
            self._log.info("answers the broker")
            while True:
                failed.clear()
                connection.check()
                await failed.wait()

    async def _reply(self, connection: Connection, message: Msg) -> None:
        sender = (message.headers or {}).get(SERVER_KEY, "")
        try:
            question = read_question(self._curve.open(message.data, sender) if sender else message.data)
            issuer = self._issuers().get(question.issuer)
            if issuer is None:
                self._say(question.server, "the broker has another issuer than ours: it must be started again")
                return
            answer = await self._answer(question, issuer)
            await connection.publish(message.reply, self._curve.seal(answer, sender) if sender else answer)
        except (NotAQuestionError, NotAKeyError, client.KubeError, TimeoutError) as error:
            metrics.count(BUS_LOGINS, "unanswered")
            self._say("", f"a login is not answered: {error or 'the API server is too slow'}")

    async def _answer(self, question: Question, issuer: NKey) -> bytes:
        now = int(self._clock.utc().timestamp())
        try:
            owner = await self._reviews.owner_of(question.token)
            found = bus_access.rights_on_bus(owner, question.user, self._where)
        except token_reviews.TokenRefusedError as error:
            owner, found = None, str(error)
        if owner is None or isinstance(found, str):
            metrics.count(BUS_LOGINS, "refused")
            self._say(shorten(question.user), str(found))
            return refused(question, str(found), issuer, now=now)
        metrics.count(BUS_LOGINS, "admitted")
        self._log.debug("admitted", user=found.user)
        return admitted(question, found, issuer, now=now, until=owner.until)

    def _say(self, user: str, why: str) -> None:
        now = self._clock.monotonic()
        if now - self._said.get(user, -SAY_AGAIN_S) < SAY_AGAIN_S:
            return
        workqueue.remember(self._said, user, now, at_most=SAID_MAX)
        self._log.warning("a login is refused" if user else "trouble with logins", user=user, why=why)
