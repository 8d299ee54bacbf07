"""What the tests of the time quota's library start from; skipped where there is no C compiler."""

from collections.abc import Iterator

import pytest
from quota.compiled import Built, NoCompilerError, build
from quota.rig import Rig


@pytest.fixture(scope="session")
def built() -> Built:
    """The library, the stand-in and the programs, made where they are older than their sources."""
    try:
        return build()
    except NoCompilerError as error:
        pytest.skip(str(error))


@pytest.fixture
def rig(built: Built) -> Iterator[Rig]:
    with Rig(built) as found:
        yield found
