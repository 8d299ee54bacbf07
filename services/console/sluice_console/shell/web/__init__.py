"""The web page's server: sends the rows of `sluice_console.core.web` to browsers."""
