"""The web page's server: brings the rows of `sluice_console.core.web` to browsers, and decides nothing about them."""
