"""`sluice security rotate`: whatever breaks off a step, the same step is gone again, and the three come to an end."""

import datetime as dt
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from sluice.runtime.tls.certificate_authority import CredentialsError
from sluice_console.shell.security.installation import Installation, InstallationOptions
from sluice_console.shell.security.key_folder import KeyFolder

NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
KEPT = {f"{kind}.{end}" for kind in ("bus", "users", "rpc") for end in ("crt", "key")}


@dataclass(frozen=True, slots=True)
class FullFolder(KeyFolder):
    """A folder on a disk that is full after some changes."""

    left: list[None] = field(default_factory=list)

    def _change(self) -> None:
        if not self.left:
            raise CredentialsError("no space left on device")
        self.left.pop()

    def write(self, name: str, content: bytes | str) -> None:
        self._change()
        KeyFolder.write(self, name, content)

    def remove(self, name: str) -> None:
        """Likewise: it stands for a process that is killed, too."""
        self._change()
        KeyFolder.remove(self, name)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("made") / "keys"
    Installation(KeyFolder(root), NOW).create(["localhost"], [], InstallationOptions(), given=None, force=False)
    return root


@pytest.mark.parametrize("broken", [1, 2, 3])
@pytest.mark.parametrize("changes", [1, 2, 3, 4, 5, 6, 7, 8, 10, 15, 18])
def test_a_step_that_is_broken_off_is_gone_again(made, tmp_path, broken, changes):
    """Else the next one cuts off clients of before, an old authority stays believed, or none is ever replaced."""
    root = tmp_path / "keys"
    shutil.copytree(made, root)
    whole = Installation(KeyFolder(root), NOW)
    for step in (1, 2, 3):
        if step == broken:
            with pytest.raises(CredentialsError, match="no space"):
                Installation(FullFolder(root, [None] * changes), NOW).rotate()
        assert whole.rotate() == step
    assert {path.name for path in (root / "authorities").iterdir()} == KEPT
    for kind in ("bus", "users", "rpc"):
        now, before = ((of / "authorities" / f"{kind}.crt").read_bytes() for of in (root, made))
        assert now != before
