"""The operator's page covers every reason a person can meet."""

from pathlib import Path

import pytest

from sluice.contracts.refusals import RefusalReason, WaitReason

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "operations.md").read_text()


@pytest.mark.parametrize("reason", [*RefusalReason, *WaitReason])
def test_a_person_can_look_up_why_a_pod_does_not_run(reason):
    """Each reason has a row."""
    assert f"| `{reason}` |" in PAGE
