"""Logs: one JSON object per line on stderr (text on a terminal), with service, run, and trace if any; bounded.

Records of the standard library come out the same way. Without a reader of stderr lines are lost and work goes on."""

import logging
import sys
import time
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from typing import Any, TextIO, cast

import msgspec

from sluice.runtime.bounded_dict import BoundedDict
from sluice.runtime.optional_imports import without
from sluice.runtime.tracing import request_traces

with without("rich", "better_exceptions", "colorama", "twisted"):  # traceback formatters, and trio's event loop
    import structlog
    from structlog.typing import EventDict, FilteringBoundLogger, WrappedLogger

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
VALUE_MAX = 4_096
"""Characters of one value; a traceback may have four times as many."""
BURST = 100
"""Warnings and errors of one kind (part and event) at once ..."""
PER_S = 5.0
"""... and per second from then on."""
KINDS_MAX = 1_000
"""Kinds that are counted; beyond it those seen longest ago start afresh."""
_BOUNDED = frozenset({"warning", "error", "critical"})


def shortened(text: str, most: int = VALUE_MAX) -> str:
    if len(text) <= most:
        return text
    return f"{text[: most // 2]} ... ({len(text)} characters) ... {text[-most // 2 :]}"


def bound_values(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for key, value in event.items():
        if value is None or isinstance(value, bool | int | float):
            continue
        text = value if isinstance(value, str) else str(value)
        most = 4 * VALUE_MAX if key == "exception" else VALUE_MAX
        if len(text) > most:
            event[key] = shortened(text, most)
    return event


@dataclass(slots=True)
class _Kind:
    left: float
    seen_at: float
    left_out: int = 0


class RateLimit:
    """A structlog processor: leaves out warnings beyond the rate; the next line of their kind says how many."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kinds: BoundedDict[tuple[object, object], _Kind] = BoundedDict(KINDS_MAX)

    def __call__(self, _logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """Raises DropEvent for a line to leave out."""
        if event.get("level") not in _BOUNDED:
            return event
        key, now = (event.get("part"), str(event.get("event"))[:VALUE_MAX]), self._clock()
        kind = self._kinds.get(key) or _Kind(BURST, now)
        self._kinds.put(key, kind)
        kind.left, kind.seen_at = min(BURST, kind.left + (now - kind.seen_at) * PER_S), now
        if kind.left < 1:
            kind.left_out += 1
            raise structlog.DropEvent
        kind.left -= 1
        if kind.left_out:
            event["left_out"], kind.left_out = kind.left_out, 0
        return event


def configure(*, service: str, run: str, level: str = "info", form: str = "auto", stream: TextIO | None = None) -> None:
    """Set up logging, once and first. `level` is one of LEVELS; `form`: `json`, `text`, `auto` (by the terminal)."""
    out = sys.stderr if stream is None else stream
    text = form == "text" or (form == "auto" and out.isatty())
    # A rich traceback shows the values of variables, which may be a password.
    plain = structlog.dev.ConsoleRenderer(colors=out.isatty(), exception_formatter=structlog.dev.plain_traceback)
    renderer = plain if text else structlog.processors.JSONRenderer(_json)
    fixed = {"service": service, "run": run}

    def identify(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        ids = request_traces.ids_of(request_traces.current())
        traced = {"trace_id": ids[0], "span_id": ids[1]} if ids else {}
        return {**event, **fixed, **traced}

    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            RateLimit(),
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            identify,
            *([] if text else [structlog.processors.format_exc_info]),
            bound_values,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(file=cast("TextIO", _Unfailing(out))),
        cache_logger_on_first_use=False,
    )
    root = logging.getLogger()
    root.handlers = [_IntoStructlog()]
    root.setLevel(max(LEVELS[level], logging.INFO))  # debug lines of libraries are about their internals


def get(name: str, **fields: Any) -> FilteringBoundLogger:
    return cast("FilteringBoundLogger", structlog.get_logger(part=name, **fields))


class _IntoStructlog(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        try:
            get(record.name).log(record.levelno, record.getMessage(), exc_info=record.exc_info or None)
        except (TypeError, ValueError):  # a record whose arguments do not match its format
            self.handleError(record)


class _Unfailing:
    """A stream whose reader may go away."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except (OSError, ValueError):
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except (OSError, ValueError):
            return


def _json(event: EventDict, **_kwargs: Any) -> str:
    try:
        return msgspec.json.encode(event, enc_hook=str).decode()
    except (TypeError, ValueError):  # a value that JSON cannot hold: an object, a name that is not text
        plain = {key: str(value).encode("utf-8", "backslashreplace").decode() for key, value in event.items()}
        return msgspec.json.encode(plain).decode()
