"""Token schedulers for tests: with processes that connect by themselves, and with a judge beside them."""

from judges.tokens import TokenJudge

from sluice_node_agent.core.quota import events as quota
from sluice_node_agent.core.quota.scheduler import TokenScheduler
from sluice_node_agent.core.quota.wire import Ask, GiveBack, Hello

HELLO = Hello(1, fails_closed=False, library_version=1 << 16, device_uuid=bytes(16))
EPOCH = 7


class JudgedScheduler:
    """Passes an event to a scheduler and to its judge. Times are in microseconds."""

    def __init__(self, scheduler: TokenScheduler) -> None:
        self.scheduler = scheduler
        self.judge = TokenJudge()
        self.wakes_at: int | None = None

    def tell(self, event: quota.QuotaEvent, now: int) -> list[quota.QuotaInstruction]:
        """What comes of it. Raises AssertionError for what the judge does not let pass."""
        told = self.scheduler.handle(event, now)
        self.judge.hears(event, told, now)
        for each in told:
            if isinstance(each, quota.WakeAt):
                self.wakes_at = each.at_us
        return told


class QuotaBench:
    """Times are in milliseconds, to be read."""

    def __init__(self, **tenants: tuple[int, int, int]) -> None:
        """`tenants`: name -> (request, limit, width), all in percent."""
        self.scheduler = TokenScheduler(quota.QuotaConfig(), EPOCH, 0)
        self.asked = 0
        for name, size in tenants.items():
            self.tell(self.size(name, *size))

    @staticmethod
    def size(name: str, request: int, limit: int, width: int) -> quota.TenantSet:
        return quota.TenantSet(name, request * 10_000, limit * 10_000, width)

    def tell(self, event: quota.QuotaEvent, at_ms: float = 0) -> list[quota.QuotaInstruction]:
        return self.scheduler.handle(event, round(at_ms * 1000))

    def process(self, connection: int, tenant: str, at_ms: float = 0) -> int:
        self.tell(quota.ConnectionOpened(connection, tenant), at_ms)
        self.tell(quota.MessageReceived(connection, HELLO), at_ms)
        return connection

    def ask(self, connection: int, at_ms: float = 0, *, ahead_of: int = 0) -> list[quota.QuotaInstruction]:
        """Sequences are counted over all processes, from 1."""
        self.asked += 1
        return self.tell(quota.MessageReceived(connection, Ask(self.asked, 0, ahead_of)), at_ms)

    def give_back(self, connection: int, token: int, at_ms: float) -> list[quota.QuotaInstruction]:
        return self.tell(quota.MessageReceived(connection, GiveBack(token, 0)), at_ms)
