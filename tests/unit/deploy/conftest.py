"""What `kubectl apply -k` would send, rendered once for all tests."""

import functools
from collections.abc import Callable, Sequence

import deploy_check
import pytest

Rendered = list[deploy_check.Document]


@functools.cache
def _rendered(overlay: str, components: tuple[str, ...]) -> Rendered:
    return deploy_check.render(overlay, components)


@pytest.fixture
def rendered() -> Callable[..., Rendered]:
    """An overlay with components, as objects; the test is skipped where nothing can render."""

    def render(overlay: str, components: Sequence[str] = ()) -> Rendered:
        try:
            return _rendered(overlay, tuple(components))
        except deploy_check.NoKubectlError as error:
            pytest.skip(f"overlays cannot be rendered: {error}")

    return render
