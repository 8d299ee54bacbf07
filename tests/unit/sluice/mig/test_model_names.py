"""A GPU name means one thing everywhere: in a fleet, in a pod's filter and in a pool's table."""

from dataclasses import replace

import pytest

from sluice.mig.catalog import catalog
from sluice.mig.model import GpuModel
from sluice.mig.model_names import is_meant, is_named, product_name_of, suggestions


@pytest.mark.parametrize("model", catalog(), ids=lambda model: model.key)
def test_every_name_of_a_model_means_its_gpus(model: GpuModel) -> None:
    """A pod that names its GPU as the fleet file does would wait without end beside it."""
    for product in model.product_names:
        for name in (model.key, *model.short_names, product, product.casefold().replace(" ", "-")):
            assert is_named(product, name)
            assert is_meant(product, name)


@pytest.mark.parametrize(
    ("product", "part", "meant"),
    [
        ("NVIDIA L40S", "L4", False),
        ("NVIDIA H200", "h20", False),
        ("NVIDIA A100-SXM4-40GB", "A10", False),
        ("NVIDIA GH200 480GB", "h200", False),
        ("NVIDIA A100-PCIE-40GB", "A100-SXM4-40GB", False),
        ("NVIDIA A100-SXM4-80GB", "a100-40gb", False),
        ("NVIDIA H100 PCIe", "h100-sxm", False),
        ("NVIDIA H100 PCIe", "h100", True),
        ("NVIDIA H100 PCIe", "h100-80gb", True),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb", True),
        ("NVIDIA A100-SXM4-80GB", "sxm", True),
        ("NVIDIA A100X", "a100", True),
        ("NVIDIA H200 NVL", "h200-nvl", True),
        ("NVIDIA H200", "h200-nvl", False),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "rtx-pro-6000", True),
    ],
)
def test_a_name_of_one_model_never_means_another(product: str, part: str, meant: bool) -> None:
    """A pod that is made for one GPU would be started on another, or kept off its own."""
    assert is_meant(product, part) is meant


def test_the_product_that_a_name_spells_is_reported() -> None:
    """A simulated H200 NVL would call itself H200, and pods that ask for NVL would not come."""
    h200 = next(model for model in catalog() if model.key == "h200-141gb")
    assert product_name_of(h200, "h200-nvl") == "NVIDIA H200 NVL"
    assert product_name_of(h200, "h200-141gb") == "NVIDIA H200"


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    """A person with half a name would have to guess which half is missing."""
    assert suggestions("a100") == ("a100-40gb", "a100-80gb")
    assert suggestions("gh200") == ("gh200-96gb", "gh200-144gb")
    assert suggestions("rtx4090")[0] == "rtx-4090"
    assert suggestions("h10")[0] == "h100-sxm-80gb"
    assert suggestions("my own card") == ()


@pytest.mark.parametrize(
    ("slip", "meant"),
    [("A1O0", "a100-40gb"), ("a10o", "a100-40gb"), ("L4OS", "l40s"), ("4O90", "rtx-4090"), ("h2oo", "h200-141gb")],
)
def test_letters_that_look_like_digits_are_no_difference(slip: str, meant: str) -> None:
    """`A1O0` is an A100: a10 and a10g, at the same edit distance, are other cards."""
    found = suggestions(slip)
    assert found[0] == meant
    assert not {"a10", "a10g", "l4"} & {*found}


def test_of_equally_near_models_those_of_the_fleet_come_first() -> None:
    """The fleet's A100 is the 80 GB one, or a model that only its file spells out."""
    larger = next(model for model in catalog() if model.key == "a100-80gb")
    assert suggestions("A1O0", (larger,)) == ("a100-80gb", "a100-40gb")
    own = replace(larger, key="x100", product_names=("NVIDIA X100",), short_names=())
    assert suggestions("XlOO", (own,)) == ("x100",)
