"""
Lets a call through only when the certificate of its caller allows it (`sluice.contracts.rpc_permissions`).

Part of `sluice.runtime.grpc.transport`, for TLS servers, which require a client certificate. The TLS library has
verified it and provides its names.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from sluice.contracts.rpc_permissions import deny_reason
from sluice.runtime import logs

_SAN = "peer_dns"
"""DNS names in the subject alternative names (grpc, include/grpc/grpc_security_constants.h)."""
_LOG_AGAIN_S = 60.0
"""A repeated refusal is logged once in this time."""
_SAID_MAX = 256


class AuthorizationInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpc has no types
    """Answers PERMISSION_DENIED, with the reason, to callers without the right."""

    def __init__(self) -> None:
        """Start without refusals."""
        self._said: dict[str, float] = {}
        self._log = logs.get("rpc")

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler]],
        details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler:
        """Wrap the called method with the check."""
        handler = await continuation(details)
        if handler is None:
            return handler
        if handler.request_streaming:
            raise NotImplementedError(f"{details.method}: methods that read a stream are not looked after")

        async def check(context: grpc.aio.ServicerContext) -> None:
            names = [name.decode(errors="replace") for name in context.auth_context().get(_SAN, ())]
            reason = deny_reason(names, details.method)
            if reason:
                self._say(reason, context.peer())
                await context.abort(grpc.StatusCode.PERMISSION_DENIED, reason)

        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(
                _streaming_after(check, handler.unary_stream), handler.request_deserializer, handler.response_serializer
            )
        return grpc.unary_unary_rpc_method_handler(
            _answering_after(check, handler.unary_unary), handler.request_deserializer, handler.response_serializer
        )

    def _say(self, reason: str, peer: str) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._said.get(reason, -_LOG_AGAIN_S) < _LOG_AGAIN_S:
            return
        self._said.pop(reason, None)
        while len(self._said) >= _SAID_MAX:
            del self._said[next(iter(self._said))]
        self._said[reason] = now
        self._log.warning("refused a call", why=reason, peer=peer)


_Check = Callable[[grpc.aio.ServicerContext], Awaitable[None]]


def _answering_after(check: _Check, behaviour: Callable[[Any, Any], Awaitable[Any]]) -> Callable[..., Any]:
    async def answer(request: object, context: object) -> object:
        await check(context)
        return await behaviour(request, context)

    return answer


def _streaming_after(check: _Check, behaviour: Callable[[Any, Any], AsyncIterator[Any]]) -> Callable[..., Any]:
    async def stream(request: object, context: object) -> AsyncIterator[object]:
        await check(context)
        async for answer in behaviour(request, context):
            yield answer

    return stream
