"""
Logs: one JSON object per line on stderr (text on a terminal), with service, run, and trace if any.

Records of the standard library's logging (the NATS and gRPC clients use it) come out the same way. A log line never
stops a service: without a reader of stderr, lines are lost and work goes on. `log_bounds` limits sizes and rates.
"""

import logging
import sys
from typing import Any, TextIO, cast

import msgspec

from sluice.runtime.log_bounds import RateLimit, bound_values
from sluice.runtime.optional_imports import without
from sluice.runtime.tracing import request_traces

with without("rich", "better_exceptions", "colorama", "twisted"):  # traceback formatters, and trio's event loop
    import structlog
    from structlog.typing import EventDict, FilteringBoundLogger, WrappedLogger

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def configure(*, service: str, run: str, level: str = "info", form: str = "auto", stream: TextIO | None = None) -> None:
    """
    Set up logging of this process. `level` is one of LEVELS; `form` is `json`, `text`, or `auto` (by the terminal).

    Call once, before the first line.
    """
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
    """A logger that adds its `name` (and `fields`) to every line."""
    return cast("FilteringBoundLogger", structlog.get_logger(part=name, **fields))


class _IntoStructlog(logging.Handler):
    """Passes records of the standard library to structlog."""

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
