"""The same behaviours with the compiler's sanitizers in library, stand-in and program (`make quota-sanitized`)."""

from pathlib import Path

import pytest
from quota.compiled import Built, CannotBuildError, NoCompilerError, build
from quota.rig import Rig

OPTIONS = {
    # The library's thread is never joined: it runs as long as the process.
    "TSAN_OPTIONS": "report_thread_leaks=0:exitcode=66",
    # Objects of the stand-in stay when they are destroyed, so that their use is reported.
    "ASAN_OPTIONS": "detect_leaks=0",
    "UBSAN_OPTIONS": "halt_on_error=1",
}
NAMES = ("capture", "threads", "contexts", "memory", "keeps-errno", "cancels")
"""Without the one that closes the library's descriptors behind its back, which is a race by itself."""


@pytest.fixture(scope="module", params=["thread", "address,undefined"])
def sanitized(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Built:
    try:
        return build(Path(tmp_path_factory.mktemp("quota")), sanitizer=request.param)
    except NoCompilerError as error:
        pytest.skip(str(error))
    except CannotBuildError as error:
        if "cannot find" in str(error):
            pytest.skip(f"the compiler has no sanitizer {request.param}")
        raise


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", NAMES)
def test_no_race_and_no_stray_access(sanitized: Built, name: str) -> None:
    """A program would crash once in a million launches, on a user's machine."""
    with Rig(sanitized) as rig:
        rig.start_scheduler()
        rig.add("a", request=0.5, memory=64 << 20 if name == "memory" else 0)
        process = rig.start("a", "behaviours", name, LD_PRELOAD="", **OPTIONS)
        assert process.hear(50.0) == "ok", process.errors()
        assert process.ended() == 0, process.errors()
        assert [line for line in process.errors().splitlines() if not line.startswith("sluice-quota:")] == []
