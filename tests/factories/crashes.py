"""An agent that is killed at any step of its run, and one that is killed again soon in its second."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

SECOND_MAX = 4
"""Steps of the second run: those that go on with what was found. Later ones are as after one crash."""


@dataclass
class Death:
    """An agent's after so many steps; the next one is carried out, and its result lost, or it is not."""

    steps: int
    executed: bool
    ended: bool = False
    """It had nothing more to do."""

    def strikes(self, node: Any) -> None:
        self.ended = node.work(own_max=self.steps)
        if not self.ended and self.executed:
            node.carry_out(node.waiting.popleft())


def deaths(*, executed: bool = False, least: int = 1) -> Iterator[Death]:
    """One after each number of steps, until an agent has come to its end; there must be `least` steps."""
    for steps in count():
        death = Death(steps, executed)
        yield death
        if death.ended:
            assert steps >= least, f"there were {steps} steps"
            return


def killed_twice(make_node: Callable[[], Any], begin: Callable[[Any], Any]) -> Iterator[tuple[Any, str]]:
    """Nodes in their third run and how far the first two came; a last step is carried out, its result lost."""
    first, second = 0, 0
    while True:
        node = make_node()
        begin(node)
        is_whole = _killed_after(node, first)
        node.begin()
        node.open()
        ended = _killed_after(node, second)
        node.live()
        yield node, f"{first} steps, then {second}"
        if is_whole:
            return
        first, second = (first + 1, 0) if ended or second == SECOND_MAX else (first, second + 1)


def _killed_after(node: Any, steps: int) -> bool:
    ended: bool = node.work(own_max=steps)
    if not ended:
        node.carry_out(node.waiting.popleft())
    return ended
