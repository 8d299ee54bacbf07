"""`sluice up --data`: a folder that cannot be used is reported, and one that can is the same each time."""

from pathlib import Path

import pytest

from sluice_console import __main__ as command
from sluice_console.shell.process.data_directory import NotStartedError, lock_data_directory, made_data_directory

FLEET = """
[[node]]
name = "n1"
gpus = [{ model = "a100-40gb", count = 1 }]
"""


def test_up_says_in_a_sentence_that_its_data_directory_cannot_be_made(tmp_path: Path, capsys):
    """A person who mistyped a path was told in forty lines of Python, none of which named --data."""
    (tmp_path / "fleet.toml").write_text(FLEET)
    words = ["up", "--fleet", str(tmp_path / "fleet.toml"), "--pods", str(tmp_path), "--web", "off"]
    data = tmp_path / "fleet.toml" / "data"
    with pytest.raises(SystemExit) as ended:
        command.main([*words, "--data", str(data)])
    told = capsys.readouterr().err
    assert ended.value.code == 1
    assert f"sluice: --data {data} cannot be made: Not a directory; name a folder" in told
    assert "Traceback" not in told


def test_a_file_in_the_place_of_the_folder_is_told(tmp_path: Path):
    """And so is a loop of links, whose error has no number."""
    file, loop = tmp_path / "file", tmp_path / "loop"
    file.touch()
    loop.symlink_to(loop)
    for wrong in (file, loop):
        with pytest.raises(NotStartedError, match=f"--data {wrong} cannot be made: .+; name a folder that you may"):
            made_data_directory(wrong)
    assert made_data_directory(tmp_path / "a" / ".." / "b") == tmp_path / "b"


def test_a_folder_whose_lock_cannot_be_opened_is_told(tmp_path: Path):
    """Somebody else's folder, or a disk that is read-only."""
    (tmp_path / "up.lock").mkdir()
    with pytest.raises(NotStartedError, match=r"cannot be used: up\.lock in it cannot be opened: Is a directory; name"):
        lock_data_directory(tmp_path / "up.lock")
    with lock_data_directory(tmp_path / "other.lock"):
        pass
