"""The manifests that people copy first."""

from pathlib import Path

import pytest

from sluice_pod_watcher.core.folder.events import FolderConfig, ManifestFile
from sluice_pod_watcher.core.folder.manifests import parse_file

EXAMPLES = sorted((Path(__file__).resolve().parents[3] / "examples").glob("*.yaml"))


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_an_example_is_understood_unless_it_shows_a_mistake(file):
    parsed = parse_file(ManifestFile(file.name, file.read_text()), FolderConfig())
    assert parsed.broken is None
    assert parsed.found
    for found in parsed.found:
        assert (found.refusal is not None) == ("mistake" in file.stem)
        assert bool(found.claims) == (found.refusal is None)
