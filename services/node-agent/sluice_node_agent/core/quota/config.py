"""The tunables of the time quota, with the reason for each default. They are told to clients in WELCOME."""

from dataclasses import dataclass

WHOLE_PPM = 1_000_000
"""All of the time, in millionths."""
LEAST_REQUEST_PPM = 1_000
"""What a request of 0 counts as (docs/sharing.md): one thousandth, so that nobody starves."""


@dataclass(frozen=True, slots=True)
class QuotaConfig:
    """Times in microseconds."""

    window_us: int = 100_000
    """What requests and limits are parts of. Ten usual tokens: short beside what a person notices."""
    token_us: int = 10_000
    """How long a turn is. A synchronisation costs tens of microseconds, so far below 1 % of it."""
    least_us: int = 1_000
    """No token is shorter: below it, synchronising would be most of it."""
    grace_us: int = 5_000
    """A token that is given back so late counts as late, and one that is asked ahead so late is not made longer."""
    overrun_max_us: int = 200_000
    """After that a token counts as stalled, and others go on beside it. Kernels are rarely longer than two windows."""
    debt_max_us: int = 10_000_000
    """Nobody pays for a longer overrun than that: a process that hung for an hour shall not be kept out for hours."""
    debt_wait_us: int = 2_000_000
    """So long at most who is in debt is kept from beginning beside a token that has stalled."""
    connections_max: int = 64
    """Of one tenant: more than a pod has CUDA processes (an MPS server takes 48 to 60)."""

    def __post_init__(self) -> None:
        """Refuse what could not work."""
        if not 0 < self.least_us <= self.token_us <= self.window_us:
            raise ValueError(
                f"least_us, token_us and window_us are {self.least_us}, {self.token_us} and {self.window_us}; "
                "they must be above 0 and in that order"
            )
        if min(self.grace_us, self.overrun_max_us, self.debt_max_us, self.debt_wait_us) < 0 or self.connections_max < 1:
            raise ValueError(
                "grace_us, overrun_max_us, debt_max_us and debt_wait_us are at least 0, connections_max at least 1"
            )
