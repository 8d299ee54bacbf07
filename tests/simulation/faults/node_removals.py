"""Removed nodes, published by a source or an operator.

A node that is really gone is switched off. If cut off, its containers run on without an agent. Sometimes a running node
is removed by mistake.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from factories.words import write_of

from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Stream
from sluice.contracts.ids import NodeName
from sluice.contracts.messages import NodeRemoved

if TYPE_CHECKING:
    from simulation.plans.plan import Fault
    from simulation.world.world import World

OFF, CUT_OFF, BY_MISTAKE = range(3)


class Removals:
    """Removes nodes."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.dice = Random(f"removals {world.plan.seed}")
        self._said = 0

    def strike(self, fault: Fault) -> None:
        """A node goes, or does not, and is said to be gone; `lasts_s` later its agent is there again."""
        world, host = self.world, self.world.agents[fault.target]
        if fault.number == BY_MISTAKE:
            self.say(fault.target)
            return
        host.kill()
        if fault.number == OFF:
            host.machine.reboot(tickets_survive=host.keeps_tickets())
            world.kubelets.rebooted(host.machine)
        life = host.life

        def again() -> None:
            if host.life == life and not host.alive and not world.faults.over:
                host.start()

        world.clockwork.after(self.dice.uniform(0.1, 2.0), lambda: self.say(fault.target))
        world.clockwork.after(fault.lasts_s, again)

    def say(self, node: str) -> None:
        """Publish that a node is removed, unless its agent publishes meanwhile."""
        world, address = self.world, subjects.node(NodeName(node))
        if not world.broker.up or not world.broker.values.has(Stream.STATE):
            return
        last = world.broker.values.last(address.subject, world.clockwork.now)
        self._said += 1
        word = write_of(
            address,
            NodeRemoved(node=NodeName(node), cause="its Node object was deleted"),
            last,
            f"operator-{self._said}",
            ttl_s=world.plan.closing_ttl_s,
        )
        world.broker.write("the operator", word, lambda _answer: None)
