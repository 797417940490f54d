"""How Chromium is started for the tests of the console."""

#: What keeps Chromium from updating, synchronizing and reporting.
FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
