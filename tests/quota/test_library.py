"""The library as a file, and its rules alone."""

import re
import shutil
import subprocess

import pytest
from factories.waiting import wait_until
from quota.command import _judge
from quota.compiled import Built
from quota.judge import Span
from quota.rig import Rig
from quota.scenarios import SCENARIOS

OLDEST_LIBC = (2, 17)
"""Of 2012, and the first for 64-bit Arm. An image with an older one has no driver of today."""
OF_EVERY_LIBC = {"__cxa_atexit", "__errno_location", "__stack_chk_fail", "__stack_chk_guard"}
"""What musl 1.2 has of the names that are a libc's own (ldso/dynlink.c ends a program for any other)."""
HOOKS_LEAST = 50


def test_the_rules_of_tokens_hold(built: Built) -> None:
    """A process would launch without a token, or never again."""
    done = subprocess.run([built.program("token_rules")], capture_output=True, text=True, timeout=30, check=False)
    assert re.fullmatch(r"ok \d+\n", done.stdout), done.stdout + done.stderr


def test_an_old_container_can_load_it(built: Built) -> None:
    """A program whose libc is older than a function of the library would not even start: preloading fails hard."""
    readelf = shutil.which("readelf")
    if readelf is None:
        pytest.skip("there is no readelf on PATH")
    listed = subprocess.run([readelf, "--wide", "--dynamic", "--dyn-syms", "--version-info", str(built.library)],
                            capture_output=True, text=True, timeout=30, check=True).stdout  # fmt: skip
    versions = {tuple(map(int, found.split("."))) for found in re.findall(r"GLIBC_(\d+\.\d+(?:\.\d+)?)", listed)}
    assert versions
    assert max(versions) <= OLDEST_LIBC, f"it needs {max(versions)}"
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", listed)
    assert [name for name in needed if not name.startswith("ld-linux")] == ["libc.so.6"]
    exported = set(re.findall(r"FUNC\s+GLOBAL\s+DEFAULT\s+\d+\s+(\S+)", listed))
    assert {name for name in exported if not name.startswith("cu")} == {"dlsym"}
    assert len(exported) > HOOKS_LEAST


def test_a_container_with_musl_can_load_it(built: Built) -> None:
    """Every program in an Alpine container would end at its start, with "symbol not found"."""
    readelf = shutil.which("readelf")
    if readelf is None:
        pytest.skip("there is no readelf on PATH")
    listed = subprocess.run([readelf, "--wide", "--dyn-syms", str(built.library)],
                            capture_output=True, text=True, timeout=30, check=True).stdout  # fmt: skip
    wanted = set(re.findall(r"GLOBAL\s+DEFAULT\s+UND\s+([^@\s]+)", listed))
    assert {"calloc", "dl_iterate_phdr"} <= wanted
    assert {name for name in wanted if name.startswith("__")} <= OF_EVERY_LIBC


def test_the_stand_in_is_as_strict_as_a_driver(rig: Rig) -> None:
    """What fails on hardware would pass here."""
    assert rig.start("a", "behaviours", "strict", quota=False).hear() == "ok"


@pytest.mark.parametrize(
    ("span", "fine"),
    [
        (Span(10.0, 0.97, {"a": 0.291, "b": 0.679}), True),
        (Span(10.0, 0.97, {"a": 0.32, "b": 0.65}), False),
        (Span(10.0, 0.93, {"a": 0.279, "b": 0.651}), False),
        (Span(10.0, 0.97, {"b": 0.97}), False),
    ],
)
def test_the_proof_fails_where_a_promise_is_not_kept(span: Span, fine: bool) -> None:
    """A quota that does not work would be called proven."""
    assert _judge(SCENARIOS[0], span)[1] is fine


def test_the_device_is_shared_as_hardware_would_without_a_quota(rig: Rig) -> None:
    """The judge would see fair shares where a greedy tenant takes all, and the proof would prove nothing."""
    greedy = rig.tenant("a", "flood", 2000, 3600, quota=False)
    modest = rig.tenant("b", "count", 200, 50, quota=False)
    greedy.say("")
    wait_until(lambda: rig.judge.look().kernels["a"] > 0, "the greedy one runs")  # on a busy machine it may begin late
    before = rig.judge.look().by_name["a"]
    modest.say("")
    assert modest.hear().startswith("kernels=50 ")
    look = rig.judge.look()
    assert look.by_name["a"] - before > 5 * look.by_name["b"]
    assert look.widest_percent == 100
