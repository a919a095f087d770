"""Pages in tests: waiting for what they show."""

import json

TIMEOUT = 30_000  # milliseconds, for machines that have much to do
WAIT = """() => new Promise((done, failed) => {
    const begun = performance.now();
    const ask = () => {
        if (%s) done();
        else if (performance.now() - begun > %d) failed(new Error("after half a minute still not: " + %s));
        else setTimeout(ask, 10);
    };
    ask();
})"""


def until(page, condition):
    """Wait until a condition in JavaScript holds. Playwright's own wait runs text, which the page's policy forbids."""
    page.evaluate(WAIT % (condition, TIMEOUT, json.dumps(condition)))


def drawn(page):
    """Wait until what was done before has been drawn: the frame that does it was asked for then."""
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
