"""The page's own scripts, as far as they need no browser: run by Node, where there is one."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from sluice.contracts.reasons import WaitReason
from sluice_console.shell.web.app import STATIC

HERE = Path(__file__).parent
NODE = shutil.which("node")


@pytest.mark.skipif(NODE is None, reason="there is no node; tests/integration/test_web_page.py runs them in a browser")
def test_the_scripts_find_place_and_keep_what_they_should(tmp_path):
    """A gap that is not noticed shows a fleet that never was."""
    shutil.copytree(STATIC, tmp_path / "static")
    shutil.copytree(HERE / "scripts", tmp_path / "scripts")
    (tmp_path / "package.json").write_text(json.dumps({"type": "module"}))
    files = sorted((tmp_path / "scripts").glob("*.test.mjs"))
    (tmp_path / "all.js").write_text("".join(f'import "./scripts/{file.name}";\n' for file in files))
    assert NODE is not None
    done = subprocess.run(
        [NODE, "all.js"], cwd=tmp_path, capture_output=True, text=True, timeout=50, check=False
    )  # one process: the runner would start one for each file
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"# pass {sum(file.read_text().count('test(') for file in files)}\n" in done.stdout


def test_no_script_reads_html_from_a_string_or_runs_text():
    """A pod's name is written by any user who may create pods; on the page it must stay a name."""
    scripts = sorted(STATIC.glob("*.js"))
    assert len(scripts) > 10
    for script in scripts:
        text = script.read_text(encoding="utf-8")
        for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "://"):
            assert way not in text, f"{script.name} uses {way}"
        assert len(text.splitlines()) < 400, f"{script.name} has grown too long"


def test_every_script_is_asked_for_at_once():
    """One that is found only inside another is one more way to the server and back before anything shows."""
    page = (STATIC / "index.html").read_text(encoding="utf-8")
    preloaded = re.findall(r'<link rel="modulepreload" href="/static/([\w.]+)">', page)
    assert sorted([*preloaded, "main.js"]) == sorted(file.name for file in STATIC.glob("*.js"))


def test_every_wait_reason_has_words_on_the_page():
    words = (STATIC / "reasons.js").read_text(encoding="utf-8")
    assert [reason.value for reason in WaitReason if f"  {reason.value}: " not in words] == []
