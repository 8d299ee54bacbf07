"""The limits file: its syntax, and the error for each mistake."""

from pathlib import Path

import pytest

from sluice.contracts.bus import subjects
from sluice.contracts.ids import GpuUuid, NodeName, SourceName
from sluice.contracts.messages import Amounts, Cordoned, QuotaSet
from sluice.contracts.quotas.limits_file import BYTES_MAX, ENTRIES_MAX, GPUS_MAX, read_limits
from sluice.contracts.toml_tables import TableError

SOURCE = SourceName("cluster")


def said(text: str) -> list[QuotaSet | Cordoned]:
    return list(read_limits(text, origin="limits.toml", source=SOURCE).values())


def test_a_file_says_what_the_commands_say():
    text = """
        [namespaces.research]
        gpus = 8
        memory = "160Gi"
        compute-slices = "unlimited"
        pod-gpus = 0
        pod-memory = 20480
        guaranteed-gpus = "4"
        priority-max = -10
        [nodes."gpu-1.example"]
        cordon = true
        why = "its fan"
        [nodes.gpu-2]
        drain = true
        gpus = ["GPU-b", "GPU-a", "GPU-b"]
    """
    node, other = NodeName("gpu-1.example"), NodeName("gpu-2")
    gpus = GpuUuid("GPU-b"), GpuUuid("GPU-a")
    assert read_limits(text, origin="limits.toml", source=SOURCE) == {
        subjects.quota("research"): QuotaSet(
            namespace="research",
            total=Amounts(gpus=8, memory_mib=163840),
            request=Amounts(gpus=0, memory_mib=20480),
            guaranteed=Amounts(gpus=4),
            priority_max=-10,
            source=SOURCE,
        ),
        subjects.cordon(node): Cordoned(node=node, why="its fan", source=SOURCE),
        subjects.cordon(other): Cordoned(node=other, gpus=gpus, drain=True, source=SOURCE),
    }


def test_the_example_can_be_read_also_with_what_is_only_shown_in_it():
    text = (Path(__file__).parents[5] / "examples" / "limits.toml").read_text()
    assert [type(word) for word in said(text)] == [QuotaSet, QuotaSet]
    shown = text.replace("# [nodes", "[nodes").replace("# cordon", "cordon").replace("# why", "why")
    assert said(shown)[2] == Cordoned(node=NodeName("gpu-2"), why="its fan is changed", source=SOURCE)


WHOLE = "a whole number from 0 to 999999999, or unlimited"
MANY_GPUS = [f"GPU-{number}" for number in range(GPUS_MAX + 1)]
MANY_NODES = "".join(f"[nodes.n{number}]\ncordon = true\n" for number in range(ENTRIES_MAX + 1))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[namespaces.a", "limits.toml: not TOML: "),
        ("[quotas.a]", "limits.toml: quotas = {'a': {}}: unknown key; known here: namespaces, nodes"),
        ("[[nodes]]", "limits.toml: nodes = [{}]: must be a table"),
        ("[namespaces]\na = 4", "limits.toml: namespaces.a = 4: must be a table"),
        ("[namespaces.Lab]\ngpus = 1", "limits.toml: namespaces.Lab = \"Lab\": 'Lab' is no namespace: small letters"),
        ("[namespaces.a]", "limits.toml: namespaces.a = (not given): name at least one limit, gpus = 4 for instance"),
        ("[namespaces.a]\ngpu = 1", "limits.toml: namespaces.a.gpu = 1: unknown key; known here: gpus, memory, "),
        ("[namespaces.a]\ngpus = true", f"limits.toml: namespaces.a.gpus = true: {WHOLE}"),
        ("[namespaces.a]\ngpus = 1.5", f"namespaces.a.gpus = 1.5: {WHOLE}"),
        ("[namespaces.a]\ngpus = 1000000000", "namespaces.a.gpus = 1000000000: a whole number"),
        (f"[namespaces.a]\ngpus = 0x{'f' * 9000}", "gpus = (a number of thousands of digits): a whole number"),
        ('[namespaces.a]\npod-memory = "8GB"', 'namespaces.a.pod-memory = "8GB": an amount like 64Gi, 65536Mi or'),
        (
            '[namespaces.a]\nmemory = "8Gi"\nguaranteed-memory = "9Gi"',
            'namespaces.a.guaranteed-memory = "9Gi": the namespace may have 8192 in all',
        ),
        ("[nodes.a_b]\ncordon = true", "nodes.a_b = \"a_b\": 'a_b': a node name is letters, digits, '-' and '.'"),
        ("[nodes.a]", "nodes.a.cordon = (not given): must be true, unless drain is; to use the node again take its"),
        ("[nodes.a]\ncordon = false", "nodes.a.cordon = false: must be true, unless drain is"),
        ('[nodes.a]\ncordon = "yes"', 'nodes.a.cordon = "yes": must be true or false'),
        ("[nodes.a]\ncordon = true\ngpus = []", "nodes.a.gpus = []: name 1 to 64, or take the key away to mean the"),
        ('[nodes.a]\ncordon = true\ngpus = ["0"]', "nodes.a.gpus = ['0']: GPUs by UUID, as `sluice gpus` and "),
        ("[nodes.a]\ncordon = true\ngpus = [0]", "nodes.a.gpus = [0]: must be a list of texts"),
        (f'[nodes.a]\ncordon = true\nwhy = "{"x" * 401}"', ": at most 400 characters"),
        (f"[nodes.a]\ncordon = true\ngpus = {MANY_GPUS}", ": name 1 to 64"),
        (MANY_NODES, "limits.toml: 1001 namespaces and nodes, the limit is 1000"),
        ("#" * (BYTES_MAX + 1), "limits.toml: larger than 65536 bytes"),
    ],
)
def test_a_mistake_names_file_table_key_value_and_cure(text, sentence):
    """The editor of a ConfigMap sees only this sentence in a log."""
    with pytest.raises(TableError) as found:
        said(text)
    assert sentence in str(found.value)
