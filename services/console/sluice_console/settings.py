"""Settings of the `sluice` command and the web page's server."""

from sluice.runtime.settings import CommonSettings, SettingsError


class ConsoleSettings(CommonSettings, frozen=True, kw_only=True):
    """What every service may be told, and where the page's links lead."""

    trace_viewer: str = ""
    """Where the page's links to traces lead, with `{trace_id}`: `https://jaeger.example/trace/{trace_id}`."""

    def check(self) -> None:
        """Raise SettingsError if the address of traces is none."""
        is_address = self.trace_viewer.startswith(("http://", "https://")) and "{trace_id}" in self.trace_viewer
        if self.trace_viewer and not is_address:
            raise SettingsError(
                f"trace_viewer = {self.trace_viewer!r}: must be an http or https address with {{trace_id}}, "
                "such as https://jaeger.example/trace/{trace_id}"
            )
