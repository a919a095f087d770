// Opens the page, and tells programs about it: `window.conformesh` is for tests and for measuring.
"use strict";

(() => {
  const view = window.conformesh;
  const { find } = view.dom;

  Object.assign(view, { latencies: [], errors: [] });
  window.addEventListener("error", (event) => view.errors.push(event.message));
  window.addEventListener("unhandledrejection", (event) => view.errors.push(String(event.reason)));

  const page = new view.page.Page();
  const frame = () => new Promise((done) => requestAnimationFrame(done));

  /** Show the trace of a report. */
  function showTrace({ runs }) {
    runs.forEach(({ heading }, number) => page.begin(number, heading));
    runs.forEach(({ steps, result }, number) => {
      page.runs[number].add(steps ?? []);
      page.runs[number].result = result ?? null;
    });
    page.recall();
    page.start();
  }

  /** Follow a server; returns when there is something to draw. */
  async function served() {
    page.live = page.clock.following = true;
    find("links").hidden = false;
    await new Promise((done) => {
      view.live.followEvents({
        begin: (...event) => page.begin(...event),
        add: (...event) => done(page.add(...event)),
        end: (...event) => done(page.end(...event)),
        lost: (is) => page.lost(is),
      });
    });
    if (location.hash.length > 1) page.recall();
  }

  /** Say why there is nothing to be seen. */
  function failed(problem) {
    find("banner").hidden = false;
    view.dom.write(find("banner"), `this page cannot be shown: ${problem.message}`);
    throw problem;
  }

  async function opened() {
    const trace = await view.live.readEnclosedTrace();
    if (trace === null) await served();
    else showTrace(trace);
    page.settled = true;
    await frame();
    await frame(); // the first one is drawn by now
  }

  // The time that is shown as the number of a moment at which something changed, and how many there are.
  Object.defineProperties(view, {
    runs: { get: () => page.runs },
    panels: { get: () => page.panels },
    playing: { get: () => page.clock.playing },
    steps: { get: () => page.clock.steps.length },
    step: { get: () => page.clock.number },
  });
  view.ready = opened().catch(failed);
})();
