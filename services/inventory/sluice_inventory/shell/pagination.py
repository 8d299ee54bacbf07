"""Pages of the fleet: one answer holds all of it, or one page. A page ends between nodes, which are sorted by name, so
the name of its last node is the token of the next page. The server keeps no state per client."""

from collections.abc import Collection

import grpc
from google.protobuf.message import Message

from sluice.contracts.pb import inventory_pb2 as pb
from sluice.runtime.grpc.transport import MESSAGE_BYTES_MAX

PAGE_BYTES_MAX = 3 * 1024 * 1024
"""Of a page, unless it is a single node. gRPC clients accept answers up to 4 MiB by default."""
WHOLE_BYTES_MAX = MESSAGE_BYTES_MAX - 64 * 1024  # Of the GPUs of an answer without pages. The rest is for their sums.
_AROUND_BYTES = 112
"""Overhead per GPU in an answer, at most: tags, lengths, and its UUID as a key, which NVML gives 96 bytes."""


class PageError(Exception):
    """The requested page does not exist; the text says what is allowed."""

    def __init__(self, code: grpc.StatusCode, why: str) -> None:
        super().__init__(why)
        self.code = code


class Page:
    """The nodes of one answer."""

    def __init__(self, request: pb.ListGpusRequest | pb.GetAllocationMapRequest) -> None:
        """Parse the request. Raises PageError."""
        if request.page_size < 0:
            raise PageError(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"page_size is {request.page_size}; it must be a number of GPUs, or 0 for all of them in one answer",
            )
        if request.page_token and not request.page_size:
            raise PageError(
                grpc.StatusCode.INVALID_ARGUMENT, "page_token is given without page_size; a next page has a size, too"
            )
        self.after = request.page_token  # the node before the first of this page; empty for the first page
        self.next_token = ""  # of the next page; empty while this one is not full
        self._gpus_left = request.page_size
        self._is_whole = not request.page_size
        self._bytes_left = WHOLE_BYTES_MAX if self._is_whole else PAGE_BYTES_MAX
        self._last = ""

    @property
    def is_full(self) -> bool:
        return bool(self.next_token)

    def takes(self, node: str, gpus: Collection[Message]) -> bool:
        """Whether the GPUs of the next node fit on this page. Raises PageError where there is no next page for them."""
        size = sum(gpu.ByteSize() + _AROUND_BYTES for gpu in gpus)
        if self._is_whole and size > self._bytes_left:
            raise PageError(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"the GPUs up to node {node!r} alone are more than an answer holds ({MESSAGE_BYTES_MAX >> 20} MiB): "
                "ask page by page (page_size, for example 1000, and page_token) or for some of the nodes",
            )
        if self._last and not self._is_whole and (self._gpus_left <= 0 or size > self._bytes_left):
            self.next_token = self._last
            return False
        self._gpus_left -= len(gpus)
        self._bytes_left -= size
        self._last = node
        return True
