"""The page in a real browser: what it shows of a trace, by hand, by keys and in words."""

import json
import random
from pathlib import Path

import msgspec
import numpy as np
import pytest

from conformesh import Network
from conformesh.online import online
from conformesh.view.online import OnlineRecorder
from conformesh.view.recording import RecordedState
from conformesh.view.report import PAGE_FILE, SCRIPT_FILES, STYLE_FILES, read_page_file
from conformesh.view.trace import FIELDS, Trace
from tests.view import traces
from tests.view.pages import TIMEOUT, drawn, until

pytestmark = pytest.mark.xdist_group("browser")
AXE = Path(__file__).parents[2] / "tools" / "page" / "node_modules" / "axe-core" / "axe.min.js"
STILL = {"reduced_motion": "reduce"}  # shows the end at once


class Shown:
    """A page that shows the report of a trace, with what it wrote to the console and asked the network for."""

    def __init__(self, page, file, address=""):
        self.page, self.file = page, file
        self.messages, self.requests = [], []
        self.listeners = {
            "console": lambda message: self.note(message.text),
            "pageerror": lambda problem: self.note(str(problem)),
            "request": lambda request: self.requests.append(request.url.partition("#")[0]),
        }
        for name, listener in self.listeners.items():
            page.on(name, listener)
        page.goto(file.as_uri() + address)
        page.evaluate("conformesh.ready")

    def note(self, text):
        if "willReadFrequently" not in text:  # a test reads pixels, the page never does
            self.messages.append(text)

    def __getattr__(self, name):
        return getattr(self.page, name)

    def until(self, condition):
        until(self.page, condition)

    def close(self):
        """Look whether all was well, and leave the page to the next test."""
        errors, hacked = self.page.evaluate("[conformesh.errors, window.hacked !== undefined]")
        for name, listener in self.listeners.items():
            self.page.remove_listener(name, listener)
        assert not hacked
        assert self.messages == errors == []
        assert [url for url in self.requests if not url.startswith("data:")] == [self.file.as_uri()]


@pytest.fixture(scope="module")
def pages(browser):
    """A function that returns a page for some options, and the same one again: opening one takes its time."""
    found = {}

    def page_for(**options):
        key = json.dumps(options, sort_keys=True)
        if key not in found:
            found[key] = browser.new_page(**{"viewport": {"width": 1400, "height": 900}, **options})
            found[key].set_default_timeout(TIMEOUT)
        return found[key]

    yield page_for
    for page in found.values():
        page.close()


@pytest.fixture
def show(pages, tmp_path):
    """A function that opens the report of a trace; at the end nothing was written to the console or asked for."""
    opened = []

    def open_(trace, address="", **options):
        file = trace.report(tmp_path / f"{len(opened)}.html")
        opened.append(Shown(pages(**options), file, address))
        return opened[-1]

    yield open_
    for page in opened:
        page.close()


def at_step(page, number):
    """Wait until this moment is shown."""
    page.until(f"conformesh.step === {number}")
    drawn(page)


def pixels(page, selector=".over"):
    """How many pixels of a canvas have some colour."""
    count = """(canvas) => {
        const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
        return data.filter((part, place) => place % 4 === 3 && part > 0).length;
    }"""
    return page.locator(selector).first.evaluate(count)


def words(page, selector):
    """The words of an element, whatever is drawn between them, once what was done is drawn."""
    drawn(page)
    return " ".join(page.locator(selector).first.inner_text().split())


def open_tab(page, name):
    page.get_by_role("tab", name=name).click()
    drawn(page)


def test_parts_of_the_page_are_those_of_a_report():
    """Each is named once, in the order in which a report has them, and nothing else is loaded."""
    page = read_page_file(PAGE_FILE)
    marks = [f'<link rel="stylesheet" href="page/{name}">' for name in STYLE_FILES]
    marks += [f'<script src="page/{name}" defer></script>' for name in SCRIPT_FILES]
    found = [page.index(mark) for mark in marks]
    assert found == sorted(found)
    assert page.count("<script") == len(SCRIPT_FILES)
    assert page.count('rel="stylesheet"') == len(STYLE_FILES)


def test_twenty_devices(show):
    """Of a calibration that a recorder saw, in picture, table and words."""
    page = show(traces.calibrated((Network.torus(5, 4), "e-dcp")), **STILL)
    assert pixels(page) > 2000
    assert pixels(page, ".under") > 500
    assert words(page, ".counts") == "20 certified"
    assert words(page, ".result").startswith("how it ended")
    open_tab(page, "table")
    assert page.locator(".devices tbody tr").count() == 20
    assert words(page, ".devices tbody tr").startswith("0 certified 0.")
    assert page.locator("#say").text_content() == "all 20 devices are certified"
    assert page.evaluate("conformesh.words.FIELDS") == FIELDS


def test_it_plays_once_from_the_beginning(show):
    page = show(traces.searched())
    assert page.evaluate("conformesh.playing && conformesh.step < conformesh.steps - 1")
    assert words(page, ".counts") == "20 calibrating"
    page.evaluate("document.querySelector('[aria-label=\"time for all of it\"] option').value = '0.5'")
    page.get_by_label("time for all of it").select_option("0.5")
    page.until("!conformesh.playing && conformesh.step === conformesh.steps - 1")
    assert words(page, ".counts") == "20 certified"
    page.get_by_label("time for all of it").select_option("60")
    page.get_by_role("button", name="play").click()
    page.until("conformesh.playing && conformesh.step === 0")


def test_steps_by_buttons_keys_and_slider(show):
    page = show(traces.searched(), **STILL)
    assert page.evaluate("[conformesh.step, conformesh.steps, conformesh.playing]") == [4, 5, False]
    page.get_by_role("button", name="step back").click()
    at_step(page, 3)
    slider = page.get_by_role("slider", name="time")
    for key, step in (("ArrowLeft", 2), ("ArrowLeft", 1), ("ArrowRight", 2), ("Home", 0), ("ArrowUp", 1), ("End", 4)):
        slider.press(key)
        at_step(page, step)
    slider.fill("0.5")  # round 20 of 40
    at_step(page, 2)
    assert slider.get_attribute("aria-valuetext") == "round 20 of 40"
    page.locator("body").evaluate("document.activeElement.blur()")
    page.keyboard.press("ArrowRight")
    at_step(page, 3)
    page.keyboard.press("Space")
    page.until("conformesh.playing")
    page.keyboard.press("Space")
    page.until("!conformesh.playing")


def test_the_bracket_closes(show):
    """In words at every step; the chart has a band of the same ends."""
    page = show(traces.searched(), **STILL)
    found = []
    for position in range(5):
        page.evaluate(f"conformesh.panels[0].actions.seek({[0, 1, 11, 21, 40][position] / 40})")
        at_step(page, position)
        page.until("conformesh.panels[0].place === conformesh.step")
        found.append(words(page, ".search"))
    assert found == [
        "rank 901 of 1,000",
        "rank 901 of 1,000; it may lie anywhere",
        "rank 901 of 1,000; between 0.5 and 1.25",
        "rank 901 of 1,000; 871 at the low end (0.8675), 905 at the high end (0.9067)",
        "rank 901 of 1,000; the threshold is 0.8968, 901 at or below it",
    ]
    wide, narrow = page.evaluate("""[12, 30].map((at) => {
        const { ctx, bbox, ...plot } = conformesh.panels[0].thresholds.plot;
        const { data } = ctx.getImageData(plot.valToPos(at / 40, "x", true), bbox.top, 1, bbox.height);
        return data.filter((part, place) => place % 4 === 3 && part > 20).length / bbox.height;
    })""")  # the shares of two lines from top to bottom that are not empty
    assert wide > 3 * narrow > 0


def test_a_device_is_chosen_in_the_picture_by_hand_and_by_keys(show):
    page = show(traces.searched(), **STILL)
    x, y = page.evaluate("conformesh.panels[0].graph.at(7)")
    page.locator(".over").click(position={"x": x, "y": y})
    device = page.get_by_role("complementary", name="device")
    assert device.get_by_role("heading", level=2).inner_text() == "7"
    told = words(page, "#device")
    assert all(
        text in told for text in (str(traces.SURE), "counted", "everybody, by the swap rank", "8 of 20", "4 neighbours")
    )
    device.get_by_role("button", name="6", exact=True).click()
    page.until("document.querySelector('#device h2').textContent === '6'")
    page.keyboard.press("Escape")
    assert device.is_hidden()
    picture = page.get_by_role("application")
    picture.focus()
    for key in ("ArrowUp", "ArrowLeft"):
        picture.press(key)
    drawn(page)
    focused = page.evaluate("conformesh.panels[0].graph.focused")
    assert page.locator("#say").text_content() == f"{focused}, certified, threshold 0.8968, 8 of 20 heard"
    picture.press("Enter")
    assert device.get_by_role("heading", level=2).inner_text() == str(focused)


def test_the_picture_zooms_and_fits(show):
    page = show(traces.searched(), **STILL)
    scale = "conformesh.panels[0].graph.transform.k"
    page.get_by_role("button", name="zoom in").click()
    assert page.evaluate(scale) == 1.5
    page.get_by_role("application").press("0")
    assert page.evaluate(scale) == 1
    box = page.locator(".over").bounding_box()
    page.mouse.move(box["x"] + 30, box["y"] + 30)
    page.evaluate("document.activeElement.blur()")
    page.mouse.wheel(0, -300)  # without the focus the page scrolls
    assert page.evaluate(scale) == 1
    page.keyboard.down("Control")
    page.mouse.wheel(0, -300)
    page.keyboard.up("Control")
    page.until(f"{scale} > 1")


def test_the_table_sorts_filters_and_selects_by_keyboard(show):
    page = show(traces.watched(), **STILL)
    open_tab(page, "table")
    names = lambda: page.locator(".devices tbody th").all_inner_texts()  # noqa: E731
    page.get_by_role("button", name="threshold", exact=True).press("Enter")
    page.until("document.querySelector('.devices th[aria-sort]').textContent.startsWith('threshold')")
    assert names() == ["pump-0", "pump-1", "pump-2", "pump-3", "pump-4", "pump-5"]  # 0.75 five times, then infinity
    page.get_by_role("button", name="threshold ▴").press("Enter")
    page.until("document.querySelector('.devices tbody th').textContent === 'pump-5'")
    page.get_by_label("devices whose name or state has").fill("silent")
    page.until("document.querySelectorAll('.devices tbody tr').length === 1")
    assert names() == ["pump-1"]
    page.get_by_role("button", name="pump-1").press("Enter")
    assert "silent in six pumps What stands below is what was known of it last." in words(page, "#device")


def test_what_goes_wrong_is_said_and_drawn(show):
    page = show(traces.watched(), **STILL)
    assert page.locator(".faults p").all_text_contents() == ["silent: pump-1", "Byzantine: pump-2", "failed: pump-3"]
    assert words(page, ".counts") == "1 Byzantine 1 silent 1 failed 2 certified 1 calibrating"
    assert words(page, ".spread") == "threshold 0.75; 1 device at +∞"
    open_tab(page, "log")
    assert page.locator(".records li").count() == 3
    page.get_by_label("level").select_option("warning")
    page.until("document.querySelectorAll('.records li').length === 2")
    page.get_by_label("records whose device or words have").fill("pump-2")
    page.until("document.querySelectorAll('.records li').length === 1")
    open_tab(page, "picture")
    page.evaluate("conformesh.panels[0].actions.seek(1 / 4)")
    at_step(page, 2)
    page.until("conformesh.panels[0].place === 2")
    assert words(page, ".faults") == "1 message lost in this step"
    messages = page.evaluate(
        "(({ bits, lost }) => [Array.from(bits, (each) => each || 0), [...lost]])"
        "(conformesh.panels[0].graph.messages.at(2))"
    )
    assert messages == [[800, 0, 0, 7200, 0, 0, 0, 0, 0, 0], [5]]


def test_all_reads_the_same_in_grey(show):
    """No two states look alike, with the same threshold and without one; and thresholds grow lighter."""
    page = show(traces.nothing(), **STILL)
    same = page.evaluate("""() => {
        const { STATES } = conformesh.words;
        const marks = new conformesh.marks.Marks();
        marks.use(10, 1, conformesh.colours.theme);
        const canvas = document.createElement("canvas");
        const pen = canvas.getContext("2d");
        const grey = (state, shade) => {
            const { image, half } = marks.picture(state, shade);
            canvas.width = canvas.height = 40;
            pen.drawImage(image, 20 - half, 20 - half);
            const data = pen.getImageData(0, 0, 40, 40).data;
            const weights = [0.3, 0.59, 0.11, 1];
            const part = (place) => weights.reduce((sum, share, at) => sum + share * data[4 * place + at], 0);
            return Array.from({ length: 1600 }, (_, place) => part(place));
        };
        const unlike = (a, b) => a.filter((value, place) => Math.abs(value - b[place]) > 60).length;
        const found = [];
        for (const shade of [20, conformesh.colours.SHADES])
            for (let a = 0; a < STATES.length; a += 1)
                for (let b = 0; b < a; b += 1)
                    if (unlike(grey(a, shade), grey(b, shade)) < 12) found.push([STATES[a].name, STATES[b].name]);
        return found;
    }""")
    assert same == []
    shades = page.evaluate("conformesh.colours.shades.map((shade) => shade.match(/\\d+/g).map(Number))")
    light = [0.2126 * (r / 255) ** 2.2 + 0.7152 * (g / 255) ** 2.2 + 0.0722 * (b / 255) ** 2.2 for r, g, b in shades]
    assert light == sorted(light)
    assert len(set(light)) == len(light) == page.evaluate("conformesh.colours.SHADES")


def test_names_and_words_are_text(show):
    page = show(traces.hostile(), **STILL)
    assert page.inner_text("h2 >> nth=0") == "<b onmouseover='hacked=1'><img src=x onerror=hacked=1></b>"
    assert page.locator("img").count() == 0
    assert (
        words(page, ".spread")
        == "thresholds from 1.00e−300 to 1.00e+300; 1 device at +∞; 1 device at −∞; of 1 device unknown"
    )
    x, y = page.evaluate("conformesh.panels[0].graph.at(0)")
    page.mouse.move(*(page.locator(".over").bounding_box()[side] + at for side, at in (("x", x), ("y", y))))
    page.until("!document.querySelector('.tip').hidden")
    assert page.inner_text(".tip").startswith(traces.NAMES[0])
    for row, name in enumerate(traces.NAMES):
        page.evaluate(f"conformesh.panels[0].actions.pick(0, {row})")
        assert page.locator("#device h2").text_content() == (name or "(no name)")
    open_tab(page, "table")
    assert page.locator(".devices tbody th").all_text_contents() == [*traces.NAMES[:-1], "(no name)"]
    open_tab(page, "log")
    assert page.locator(".records li").first.locator("span").last.text_content() == "<img src=x onerror=hacked=1>"
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize(("trace", "counts"), [(traces.alone(), "1 certified"), (traces.nothing(), "2 unknown")])
def test_next_to_nothing(show, trace, counts):
    """One device without links, and two of which nobody knows anything."""
    page = show(trace)
    page.until("!conformesh.playing")
    assert words(page, ".counts") == counts
    assert pixels(page) > 100
    for key in ("ArrowLeft", "ArrowRight", "Enter"):
        page.get_by_role("application").press(key)
    assert page.locator("#device").is_visible()


def test_a_trace_without_runs(show):
    page = show(Trace.of([]))
    assert words(page, "#runs") == "There is no run to show yet."


def test_a_private_run_says_so(show):
    trace = traces.nothing()
    trace.runs[0].heading.private = True
    page = show(trace, **STILL)
    assert words(page, ".private").startswith("A private run")


def test_several_runs_share_one_time(show):
    """The paper's two methods and the exact one: lengths differ so much that time is logarithmic."""
    network = Network.chain(4)
    page = show(traces.calibrated(*((network, name) for name in ("q-dcp", "h-dcp", "e-dcp"))), **STILL)
    assert page.locator(".run").count() == 3
    modes = page.get_by_label("how moments are put beside each other")
    assert modes.input_value() == "log"
    ends = page.evaluate("conformesh.runs.map((run) => run.end)")
    assert max(ends) > 8 * min(ends)
    page.get_by_role("slider", name="time").press("Home")
    for _ in range(3):
        page.get_by_role("slider", name="time").press("ArrowRight")
    at_step(page, 3)
    page.until("conformesh.panels.every((panel) => panel.run.series.at[panel.place] <= 3)")
    modes.select_option("share")
    page.get_by_role("slider", name="time").fill("0.5")
    page.until(
        "conformesh.panels.every(({ run: { series: { at }, end }, place }) => "
        "at[place] <= end / 2 && at[place + 1] > end / 2)"
    )
    page.locator("#which").select_option("2")
    page.until("document.querySelectorAll('.run').length === 1")


def test_what_is_known_at_a_step_is_what_python_says(show):
    """At steps in any order; also after the oldest were folded into one."""
    trace = traces.watched()
    page = show(trace, **STILL)
    steps, folded = trace.runs[0].steps, 3

    def known(place):
        known = RecordedState(6)
        for step in steps[: place + 1]:
            known.take(step)
        return {name: json.loads(msgspec.json.encode(values)) for name, values in known.fields.items()}

    ask = "(place) => Object.fromEntries(conformesh.runs[0].known(place).fields)"
    for place in random.Random(1).sample([*range(len(steps))] * 3, 3 * len(steps)):
        assert page.evaluate(ask, place) == known(place), place
    page.evaluate(f"conformesh.runs[0].fold({folded})")
    for place in (2, 0, 4, 1):
        assert page.evaluate(ask, place) == known(place + folded - 1), place


def test_snapshots_keep_a_long_run_quick(show):
    """Every step can be reached without going through all before it, and snapshots are not as large as the trace."""
    page = show(traces.many(100, 60), **STILL)
    kept, far = page.evaluate(
        "(({ snapshots: all }) => [all.length, "
        "Math.max(...all.map(({ place }, number) => place - (all[number - 1]?.place ?? -1)))])(conformesh.runs[0])"
    )
    assert 2 < kept < 40
    assert far < 20


def test_an_address_leads_to_a_moment(show):
    page = show(traces.searched(), "#run=0&device=5&at=11&time=even&tab=table")
    assert page.evaluate("[conformesh.step, conformesh.playing]") == [2, False]
    assert page.locator("#device h2").inner_text() == "5"
    assert page.get_by_role("tab", name="table").get_attribute("aria-selected") == "true"
    page.get_by_role("slider", name="time").press("ArrowRight")
    at_step(page, 3)
    page.until("location.hash === '#run=0&device=5&at=21&time=even&tab=table'")
    page.evaluate("location.hash = '#run=0&at=1&time=even&tab=picture'")
    at_step(page, 1)
    assert page.locator("#device").is_hidden()


def test_an_address_that_makes_no_sense_does_no_harm(show):
    page = show(traces.searched(), "#run=9&device=99&at=x&time=y&tab=z", **STILL)
    for address in ("#at=-5&time=even&run=-1", "#at=1e999&time=__proto__", "#run=0&device=1.5&at=nan", "#%E0%A4%A", ""):
        page.evaluate("(address) => { location.hash = address; }", address)
        page.get_by_role("slider", name="time").press("End")
        at_step(page, 4)
        assert words(page, ".counts") == "20 certified"


def test_dark_light_and_the_choice(show):
    page = show(traces.searched(), color_scheme="dark", **STILL)
    colour = "getComputedStyle(document.body).backgroundColor"
    drawn = "conformesh.colours.theme.text"
    dark = page.evaluate(f"[{colour}, {drawn}]")
    page.emulate_media(color_scheme="light", reduced_motion="reduce")
    page.until(f"{colour} !== '{dark[0]}' && {drawn} !== '{dark[1]}'")
    button = page.get_by_role("button", name="colours")
    for name in ("light", "dark"):
        button.click()
        assert button.inner_text() == f"colours: {name}"
    page.until(f"{colour} === '{dark[0]}' && {drawn} === '{dark[1]}'")
    page.reload()
    page.evaluate("conformesh.ready")
    assert page.evaluate(colour) == dark[0]
    page.requests.pop()  # the second visit
    page.evaluate("localStorage.clear()")
    page.emulate_media(color_scheme="dark", reduced_motion="reduce")


@pytest.mark.parametrize("trace", [traces.hostile(), traces.watched(), traces.learnt()])
def test_a_narrow_screen_scrolls_in_one_direction(show, trace):
    page = show(trace, "#run=0&device=0", viewport={"width": 500, "height": 900}, **STILL)
    for tab in ("table", "log", "picture"):
        open_tab(page, tab)
        assert page.evaluate("document.documentElement.scrollWidth") == 500
    assert page.locator("#device").is_visible()
    bar, drawer = page.locator("#time").bounding_box(), page.locator("#device").bounding_box()
    assert drawer["y"] + drawer["height"] <= bar["y"] + 1  # time can be moved while a device is open


@pytest.mark.parametrize(
    ("scheme", "trace"),
    [
        ("light", traces.watched),
        ("dark", traces.watched),
        ("light", traces.learnt),
        pytest.param("dark", traces.learnt, marks=pytest.mark.slow),
    ],
)
def test_accessibility_rules(show, scheme, trace):
    """Rules of axe-core about roles, names and contrast, in every tab and with a device open."""
    if not AXE.exists():
        pytest.skip("rules of accessibility are in axe-core: run npm ci in tools/page")
    page = show(trace(), color_scheme=scheme, **STILL)
    page.add_script_tag(path=str(AXE))
    page.evaluate("conformesh.panels[0].actions.pick(0, 1)")
    for tab in ("picture", "table", "log"):
        open_tab(page, tab)
        page.until("conformesh.panels.length > 0")
        found = page.evaluate(
            "axe.run().then(({ violations }) => violations.map(({ id, nodes }) => "
            "[id, nodes.map((node) => [node.target.join(), node.failureSummary])]))"
        )
        assert found == [], tab
    page.requests[:] = [url for url in page.requests if not url.endswith("axe.min.js")]


# --- devices that learn online ---------------------------------------------------------------------------------------


def lines(page, chart):
    """The drawn data of a chart, after its times."""
    return page.evaluate(f"conformesh.panels[0].online.{chart}.plot.data.slice(1).map((line) => [...line])")


def coloured(page, chart, at, share, away=3):
    """Whether a chart is coloured, and how, where a share would stand at a time from 0 to 1; `away` pixels below it."""
    return page.evaluate(
        """([chart, at, share, away]) => {
            const { plot } = conformesh.panels[0].online[chart];
            const x = Math.round(plot.valToPos(at, "x", true));
            const y = Math.round(plot.valToPos(share, "y", true)) + away;
            return [...plot.ctx.getImageData(x, y, 1, 1).data];
        }""",
        [chart, at, share, away],
    )


def test_coverage_lately_and_so_far_inside_its_bound(show):
    """The curves are those of the trace, the band is drawn, and the words have the same numbers."""
    trace = traces.learnt()
    page = show(trace, **STILL)
    told = [step.everybody for step in trace.runs[0].steps]
    last = told[-1]
    upper, lower, sofar, *_ = lines(page, "sofar")
    assert [upper[-1], lower[-1]] == [last.within[1], last.within[0]]
    assert sofar[1:] == pytest.approx([1 - one.misses / one.labels for one in told[1:]])
    assert lower[1] is None  # nothing is guaranteed of the first step
    assert lines(page, "lately")[4][1:] == [one.lately for one in told[1:]]
    inside, outside = (coloured(page, "sofar", 0.9, share) for share in (last.within[0] + 0.02, last.within[0] - 0.02))
    assert inside[3] > 0
    assert outside[3] == 0
    assert words(page, ".learnt tbody tr") == (
        f"all {last.lately:.3f} {1 - last.misses / last.labels:.3f} {last.labels:,} "
        f"{int(1000 * last.within[0]) / 1000:.3f} to {-int(-1000 * last.within[1] // 1) / 1000:.3f}"
    )
    assert words(page, ".counts") == "6 learning"
    assert words(page, ".faults") == "drift alarm: 2"
    own = trace.runs[0].steps[-1].devices["lately"].values
    least = sorted(range(6), key=lambda row: (own[row], row))[:3]
    assert words(page, ".lowest") == "lowest in the last 100 steps: " + " ".join(
        f"{row} {own[row]:.3f}" for row in least
    )
    label = page.locator(".frame").nth(1).get_attribute("aria-label")
    assert label.startswith("covered so far; the band is guaranteed, whatever the scores; asked for 0.900; all: ")


def test_a_chosen_device_has_its_own_curves(show):
    trace = traces.learnt()
    page = show(trace, **STILL)
    assert set(lines(page, "lately")[5]) == {None}
    page.get_by_role("button", name=str(traces_lowest(trace))).first.click()
    row = traces_lowest(trace)
    page.until(f"conformesh.panels[0].online.own.row === {row}")
    drawn(page)
    steps = trace.runs[0].steps[1:]
    assert lines(page, "lately")[5][1:] == [step.devices["lately"].values[row] for step in steps]
    labels, misses, lately, within = (
        steps[-1].devices[name].values[row] for name in ("labels", "misses", "lately", "within")
    )
    _, _, _, sofar, upper, lower = lines(page, "sofar")
    assert sofar[-1] == pytest.approx(1 - misses / labels)
    assert [lower[-1], upper[-1]] == pytest.approx([0.9 - within, min(0.9 + within, 1)])
    assert words(page, ".learnt tbody tr:last-child").startswith(f"{row} {lately:.3f}")
    assert f"guaranteed within {within} of 0.1" in words(page, "#device")
    page.keyboard.press("Escape")


def traces_lowest(trace):
    """Who covered least lately."""
    shares = trace.runs[0].steps[-1].devices["lately"].values
    return shares.index(min(shares))


def test_streams_are_replayed(show):
    """Before the drift there is no alarm, and counts are those of that moment."""
    trace = traces.learnt()
    page = show(trace, "#run=0&at=300&time=even", **STILL)
    then = trace.runs[0].steps[300].everybody
    assert words(page, ".when") == "step 300 of 900"
    assert f"{then.labels:,}" in words(page, ".learnt tbody tr")
    assert words(page, ".faults") == ""
    page.get_by_role("slider", name="time").press("End")
    at_step(page, 900)
    assert words(page, ".faults") == "drift alarm: 2"
    open_tab(page, "log")
    assert words(page, ".records li") == "warningstep 6302drift alarm at its label 630"
    open_tab(page, "table")
    assert "covered lately" in words(page, ".devices thead")


def test_nothing_about_learning_where_nobody_learns(show):
    page = show(traces.searched(), **STILL)
    assert words(page, ".charts").count("covered") == 0
    assert page.locator(".online").text_content() == ""


def test_without_a_bound_there_is_no_band(show):
    network = Network.cycle(3)
    recorder = OnlineRecorder(network)
    scores = np.random.default_rng(0).random((3, 300))
    online(scores, network, learner="dtaci", coupling="alone", observer=recorder)
    recorder.finish([])
    page = show(recorder.trace(), **STILL)
    assert set(lines(page, "sofar")[0]) == {None}
    assert words(page, ".learnt tbody tr").endswith(" nothing")
    assert "no bound is known for this rule" in words(page, ".charts")


def test_thousands_of_devices(show):
    """A picture, a table in pages, and the spread in place of lines."""
    page = show(traces.many(2000, 4), **STILL)
    assert pixels(page) > 10_000
    assert page.evaluate("conformesh.runs[0].lines") is None
    open_tab(page, "table")
    assert page.locator(".devices tbody tr").count() == 100
    assert page.get_by_role("status").first.inner_text() == "2,000 devices, from 1 to 100"
    page.get_by_role("button", name="next").click()
    page.until("document.querySelector('.devices tbody th').textContent === '100'")


@pytest.mark.slow
def test_five_thousand_devices_move(show, record_property):
    """At least 20 frames a second on an idle machine; half of that is asked for."""
    page = show(traces.many(5000, 120))
    page.evaluate("conformesh.panels[0].actions.seek(0)")
    frames = page.evaluate("""() => new Promise((done) => {
        document.querySelector('.play').click();
        let count = 0;
        const begun = performance.now();
        const next = () => {
            count += 1;
            if (performance.now() - begun > 5000) done(1000 * count / (performance.now() - begun));
            else requestAnimationFrame(next);
        };
        requestAnimationFrame(next);
    })""")
    record_property("frames a second", frames)
    print(f"{frames:.1f} frames a second")
    assert frames > 10
