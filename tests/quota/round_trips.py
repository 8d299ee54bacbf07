"""How long a token takes without other clients: asked, granted and returned by a bare socket."""

import socket
import struct
import time
from pathlib import Path

MAGIC, VERSION, HELLO, ASK, GIVE_BACK, GRANT = 0x54514C53, 1, 1, 2, 3, 18
ANSWER_WITHIN_S = 10.0
PAUSE_S = 0.002
"""Between two tokens: over 4,096 messages a second are read more slowly, which is not what is measured."""


def packet(kind: int, sequence: int, body: bytes = b"") -> bytes:
    """A message of the protocol (docs/time-quota.md), written here once more: this is no code of either side."""
    return struct.pack("<IHHQ", MAGIC, VERSION, kind, sequence) + body.ljust(48, b"\0")


def measure(path: Path, times: int) -> list[float]:
    """Microseconds from each ASK to its GRANT, sorted."""
    took: list[float] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
        peer.settimeout(ANSWER_WITHIN_S)
        peer.connect(str(path))
        peer.send(packet(HELLO, 1, struct.pack("<III", 1, 0, 1 << 16)))
        peer.recv(64)
        for number in range(2, 2 + 2 * times, 2):
            began = time.perf_counter()
            peer.send(packet(ASK, number, struct.pack("<QQ", 0, 0)))
            answer = peer.recv(64)
            took.append((time.perf_counter() - began) * 1e6)
            kind, token = struct.unpack_from("<6xH8xQ", answer)
            assert kind == GRANT, f"an ASK was answered with a message of kind {kind}"
            peer.send(packet(GIVE_BACK, number + 1, struct.pack("<QQ", token, 0)))
            time.sleep(PAUSE_S)
    return sorted(took)
