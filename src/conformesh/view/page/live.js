// Where steps come from: out of the report itself, or from a server, as they happen.
"use strict";

(() => {
  const view = window.conformesh;
  const RETRY_MS = 2000; // before another try, if the browser has given up

  /** Decompress the trace inside a report; null if this page is no report. */
  async function readEnclosedTrace() {
    const element = document.getElementById("trace");
    if (element === null) return null;
    const packed = Uint8Array.from(atob(element.textContent.trim()), (letter) => letter.charCodeAt(0));
    element.remove(); // it may be large, and is not needed any more
    const unpacked = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(unpacked).json();
  }

  /**
   * Follow the events of the server. `actions` has begin(run, heading), add(run, from, steps, sent), end(run, result)
   * and lost(is).
   */
  function followEvents(actions) {
    const source = new EventSource("events");
    const on = (name, take) =>
      source.addEventListener(name, (event) => {
        actions.lost(false);
        take(JSON.parse(event.data));
      });
    on("run", ({ run, heading }) => actions.begin(run, heading));
    on("steps", ({ run, from, steps, sent }) => actions.add(run, from, steps, sent));
    on("end", ({ run, result }) => actions.end(run, result));
    source.addEventListener("open", () => actions.lost(false));
    source.addEventListener("error", () => {
      actions.lost(true);
      if (source.readyState === EventSource.CLOSED) setTimeout(() => followEvents(actions), RETRY_MS);
    });
  }

  view.live = { readEnclosedTrace, followEvents };
})();
