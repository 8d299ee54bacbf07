"""An agent that is killed twice: at any step of its first life, and soon in its second."""

from collections.abc import Callable, Iterator
from typing import Any

SECOND_MAX = 4
"""Steps of the second life: those that go on with what was found. Later ones are as after one crash."""


def killed_twice(make_node: Callable[[], Any], begin: Callable[[Any], Any]) -> Iterator[tuple[Any, str]]:
    """Nodes in their third life and how far the first two came; a last step is carried out, its result lost."""
    first, second = 0, 0
    while True:
        node = make_node()
        node.live()
        begin(node)
        is_whole = _killed_after(node, first)
        node.start()
        node.work()
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
