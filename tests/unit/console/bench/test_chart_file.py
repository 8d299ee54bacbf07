"""`sluice bench --svg FILE`: the picture of the last run is there until there is a new one."""

import pytest

from sluice_console.shell.bench import show
from sluice_console.shell.errors import CommandError


async def test_a_run_that_fails_leaves_the_last_picture(tmp_path, monkeypatch):
    """Minutes of measuring, gone with the first Ctrl-C of the next run."""

    async def fails(*_):
        raise CommandError("stopped")

    monkeypatch.setattr(show, "bench", fails)
    picture = tmp_path / "picture.svg"
    picture.write_text("<svg/>")
    with pytest.raises(CommandError, match="stopped"):
        await show.bench_and_show(None, svg=picture, form="text")
    assert picture.read_text() == "<svg/>"
    with pytest.raises(CommandError, match="cannot be written"):
        await show.bench_and_show(None, svg=tmp_path, form="text")
