"""
What the parts of the NATS bus use of the NATS client, imported without the client's WebSocket transport.

That transport is loaded with the client wherever aiohttp is installed, and takes as long as all the rest of it; we
connect by TCP and TLS alone.
"""

from sluice.runtime.optional_imports import without

with without("aiohttp"):
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription
    from nats.errors import (
        AuthorizationError,
        ConnectionClosedError,
        ConnectionDrainingError,
        ConnectionReconnectingError,
        Error,
        NoRespondersError,
        OutboundBufferLimitError,
    )
    from nats.errors import TimeoutError as NatsTimeoutError
    from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
    from nats.js.client import JetStreamContext
    from nats.js.errors import NotFoundError

__all__ = [
    "AckPolicy",
    "AuthorizationError",
    "Client",
    "ConnectionClosedError",
    "ConnectionDrainingError",
    "ConnectionReconnectingError",
    "ConsumerConfig",
    "DeliverPolicy",
    "Error",
    "JetStreamContext",
    "Msg",
    "NatsTimeoutError",
    "NoRespondersError",
    "NotFoundError",
    "OutboundBufferLimitError",
    "Subscription",
]
