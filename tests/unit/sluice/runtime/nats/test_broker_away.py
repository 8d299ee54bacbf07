"""A broker that is away for a weekend costs a waiting service no memory."""

import pytest
from factories.broker.bus_rigs import place, raw

from sluice.contracts.bus.events import Stream
from sluice.runtime.nats_server.process import Broker

PATIENCE_S = 10.0


async def test_what_is_asked_while_the_broker_is_away_is_not_kept(tmp_path):
    """Each unsent message is retried every few seconds, and each try would stay in memory."""
    async with Broker(tmp_path / "nats") as broker, raw(broker.url) as connection:
        with pytest.raises(TimeoutError):
            await connection.request("without.listener", timeout_s=PATIENCE_S)
        (server,) = broker.servers
        await server.kill()
        for _ in range(100):
            with pytest.raises(TimeoutError):
                await connection.request(f"$JS.API.DIRECT.GET.{Stream.STATE}.{place('a').subject}", timeout_s=0.2)
        assert not connection._client._resp_map
