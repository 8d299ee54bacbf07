"""Tables for people: of a name or a number nothing is left out, however long it is and wherever it is printed."""

import io
import re

from rich.console import Console

from sluice_console.core.documents import AmountsDocument, PodDocument, PodsDocument, QuotaDocument, QuotasDocument
from sluice_console.core.fleet.nodes import FleetNodeDocument, NodesDocument
from sluice_console.shell.inspect.nodes import show_nodes
from sluice_console.shell.output.printer import PIPE_WIDTH, show_pods, show_quotas

NAMESPACE = "team-research-large-language-models-experiments"
NAME = "hyperparameter-search-bert-base-uncased-lr-5e-5-warmup-500-0c9a7f5d4-x7x2k-with-seed-1234567890"
NODE = "gpu-node-1.rack-12.cluster.example.com"
SAYS = "waits: 4 x NVIDIA A100 (pool research): GpuLayoutFull, and 3 more reasons that have to be read to the end"


def printed(show, *shown, width=PIPE_WIDTH, soft_wrap=True, **more):
    text = io.StringIO()
    show(Console(file=text, width=width, highlight=False, soft_wrap=soft_wrap), *shown, **more)
    return text.getvalue().splitlines()


def pods():
    """A pod whose names are as long as people make them."""
    pod = PodDocument(
        request="r", namespace=NAMESPACE, name=NAME, origin="", source="s", state="waiting", message=SAYS, node=NODE,
        revision=1,
    )  # fmt: skip
    return PodsDocument(pods=(pod,))


def test_no_long_name_hides_how_a_pod_stands():
    """In a pipe the state was a dot, and why it waits was not there at all."""
    for width in (PIPE_WIDTH, 80):
        _, row, *folded = printed(show_pods, pods(), width=width)
        assert re.sub(r"  +", "  ", row).startswith(f"{NAMESPACE}/{NAME}  waiting  -  -  {NODE}  -  waits: ")
        assert " ".join(" ".join([row, *folded]).split()).endswith(SAYS)


def test_no_number_of_a_quota_is_cut_or_rounded():
    """Of a TiB and more six digits were shown, and behind a long name of a namespace fewer."""
    amounts = AmountsDocument(gpus=120, memory_mib=1234567, compute_slices=840)
    used = AmountsDocument(gpus=1, memory_mib=1064961, compute_slices=6.5)
    quota = QuotaDocument(
        namespace=NAMESPACE, limited=True, source="", used=used, total=amounts, request=amounts, guaranteed=amounts,
    )  # fmt: skip
    _, row = printed(show_quotas, QuotasDocument(quotas=(quota,)))
    all_of_them = "120 devices, 1234567 MiB, 840 compute slices"
    assert re.split(r"  +", row.strip()) == [
        NAMESPACE, "1 of 120", "1064961 of 1234567 MiB", "6.5 of 840", all_of_them, all_of_them, "-",
    ]  # fmt: skip


def test_why_a_node_is_stale_hides_none_of_its_figures():
    """The longer the reason the less was to be seen of all else."""
    why = "its agent does not answer: UNAVAILABLE: failed to connect to all addresses; " * 3
    node = FleetNodeDocument(node=NODE, state="stale", why=why, models={"NVIDIA A100-SXM4-40GB": 8}, gpus=8, pods=3)
    _, row = printed(show_nodes, NodesDocument(nodes=(node,)), idle_only=False)
    assert (NODE in row, why in row, "8 x A100-SXM4-40GB" in row) == (True, True, True)


def test_where_lines_are_cut_every_column_keeps_a_part():
    """`sluice top`: the state must not be beyond the edge of the screen."""
    heads, *_ = printed(show_pods, pods(), width=120, soft_wrap=False)
    assert len(heads.rstrip()) <= 120
    assert ("POD" in heads, "NODE" in heads) == (True, True)
