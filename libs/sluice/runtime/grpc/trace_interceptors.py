"""Trace context for gRPC calls, on both sides. A call outside any trace, such as a probe, creates none."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeVar, cast

import grpc.aio

from sluice.runtime.tracing import request_traces
from sluice.runtime.tracing.request_traces import RequestTraces
from sluice.runtime.tracing.span_attributes import of_call

T = TypeVar("T")

NO_MESSAGE = "its answer is not a message of Sluice"
"""gRPC returns None for an answer it cannot parse, without an error."""


class TraceUnaryClientInterceptor(grpc.aio.UnaryUnaryClientInterceptor):  # type: ignore[misc]  # grpc has no types
    """Sends our trace context along, and a deadline where there is none. An unparsable answer fails the call."""

    def __init__(self, deadline_s: float, traces: RequestTraces) -> None:
        self._deadline_s = deadline_s
        self._traces = traces

    async def intercept_unary_unary(
        self, continuation: Callable[..., Awaitable[T]], details: grpc.aio.ClientCallDetails, request: object
    ) -> T:
        timed = details._replace(timeout=self._deadline_s if details.timeout is None else details.timeout)
        if not self._traces.recording or not request_traces.current():
            return await _answered(await continuation(_with_trace(timed), request))
        method = _text(details.method)
        with self._traces.span(method.lstrip("/"), kind="client", attributes=of_call(method)):
            return await _answered(await continuation(_with_trace(timed), request))


async def _answered(call: T) -> T:
    made = cast("Any", call)
    if await made is None:
        raise grpc.aio.AioRpcError(
            grpc.StatusCode.INTERNAL, await made.initial_metadata(), await made.trailing_metadata(), NO_MESSAGE
        )
    return call


def _with_trace(details: grpc.aio.ClientCallDetails) -> grpc.aio.ClientCallDetails:
    metadata = grpc.aio.Metadata(*(details.metadata or ()))
    if traceparent := request_traces.current():
        metadata.add(request_traces.TRACEPARENT, traceparent)
    return details._replace(metadata=metadata)


class TraceServerInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpc has no types
    """Answers a call within its caller's trace."""

    def __init__(self, traces: RequestTraces) -> None:
        self._traces = traces

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler]],
        details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler:
        handler = await continuation(details)
        traceparent = dict(details.invocation_metadata).get(request_traces.TRACEPARENT, "")
        if handler is None or not traceparent or handler.request_streaming:
            return handler
        method = _text(details.method)

        @asynccontextmanager
        async def within(_context: grpc.aio.ServicerContext) -> AsyncIterator[None]:
            if handler.response_streaming:
                request_traces.enter(traceparent)
                yield
                return
            about = of_call(method)
            with self._traces.span(method.lstrip("/"), parent=traceparent, kind="server", attributes=about):
                yield

        return surrounded(handler, within)


def surrounded(
    handler: grpc.RpcMethodHandler, around: Callable[[grpc.aio.ServicerContext], AbstractAsyncContextManager[None]]
) -> grpc.RpcMethodHandler:
    """The handler of a method with one request; each call is within `around`."""

    async def answer(request: object, context: grpc.aio.ServicerContext) -> object:
        async with around(context):
            return await handler.unary_unary(request, context)

    async def stream(request: object, context: grpc.aio.ServicerContext) -> AsyncIterator[object]:
        async with around(context):
            async for answer in handler.unary_stream(request, context):
                yield answer

    if handler.response_streaming:
        return grpc.unary_stream_rpc_method_handler(stream, handler.request_deserializer, handler.response_serializer)
    return grpc.unary_unary_rpc_method_handler(answer, handler.request_deserializer, handler.response_serializer)


def _text(method: str | bytes) -> str:
    return method.decode("ascii", "replace") if isinstance(method, bytes) else method
