"""A real browser, Debian's Chromium without a window, where it is there."""

import shutil

import pytest

# It asks nothing of the network by itself, and needs neither a sandbox of its own nor a graphics card.
QUIET = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.fixture(scope="session")
def browser():
    """Chromium, for all tests of a worker: mark them `xdist_group("browser")`."""
    playwright = pytest.importorskip("playwright.sync_api", reason="tests in a browser need playwright")
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("tests in a browser need Chromium: apt install chromium")
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=path, args=[*QUIET])
        yield chromium
        chromium.close()
