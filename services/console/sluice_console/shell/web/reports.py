"""Use over time for the page, from the recorder."""

import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from sluice.contracts.pb import inventory_pb2 as pb
from sluice_console.core.web.charts import ChartDocument, chart_document
from sluice_console.shell.live.allocator_client import recorder
from sluice_console.shell.live.connect import connected
from sluice_console.shell.web.answers import AnswerCache

COUNTS_FOR_S = 30.0
KEPT_MAX = 32
ANSWER_WITHIN_S = 20.0
ROUNDED_S = 60
"""The recorder sums up minutes."""


class Span(NamedTuple):
    """Unix seconds."""

    start: int
    end: int
    """0: now."""


Ask = Callable[[Span], Awaitable[ChartDocument]]


class Reports:
    """Asks the recorder, one question at a time."""

    def __init__(self, url: str, ask: Ask | None = None) -> None:
        """The recorder of the broker at `url`."""
        self._url = url
        self._answers = AnswerCache(self._of, counts_for_s=COUNTS_FOR_S, kept_max=KEPT_MAX, at_once=1)
        self._ask = ask or self._ask_recorder

    async def since(self, span_s: int) -> ChartDocument:
        """The last `span_s` seconds. Raises as `between`."""
        now = int(time.time()) // ROUNDED_S * ROUNDED_S
        return await self.between(Span(now - span_s, 0))

    async def between(self, span: Span) -> ChartDocument:
        """A span. Raises NotAskableError, BusError."""
        return await self._answers.of(span, None)

    async def _of(self, span: Span, _: None) -> ChartDocument:
        return await self._ask(span)

    async def _ask_recorder(self, span: Span) -> ChartDocument:
        def request(by: pb.ReportKey) -> pb.ReportRequest:
            return pb.ReportRequest(from_unix=span.start, until_unix=span.end, by=by, points=True)

        async with connected(self._url) as bus, recorder(bus) as asked:
            by_team = await asked.Report(request(pb.REPORT_KEY_NAMESPACE), timeout=ANSWER_WITHIN_S)
            fleet = await asked.Report(request(pb.REPORT_KEY_UNSPECIFIED), timeout=ANSWER_WITHIN_S)
            return chart_document(by_team, fleet)
