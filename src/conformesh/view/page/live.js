// Where steps come from: out of the report itself, or from a server, as they happen.
"use strict";

(() => {
  const view = window.conformesh;
  const AGAIN = 2000; // milliseconds before another try, where the browser has given up

  /** Unpack the trace that stands in a report; null if this page is none. */
  async function enclosed() {
    const element = document.getElementById("trace");
    if (element === null) return null;
    const packed = Uint8Array.from(atob(element.textContent.trim()), (letter) => letter.charCodeAt(0));
    element.remove(); // it may be large, and is not needed any more
    const unpacked = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(unpacked).json();
  }

  /** Listen to the server. `asked` has begin(run, heading), add(run, from, steps, sent), end(run, result), lost(is). */
  function listen(asked) {
    const source = new EventSource("events");
    const on = (name, take) =>
      source.addEventListener(name, (event) => {
        asked.lost(false);
        take(JSON.parse(event.data));
      });
    on("run", ({ run, heading }) => asked.begin(run, heading));
    on("steps", ({ run, from, steps, sent }) => asked.add(run, from, steps, sent));
    on("end", ({ run, result }) => asked.end(run, result));
    source.addEventListener("open", () => asked.lost(false));
    source.addEventListener("error", () => {
      asked.lost(true);
      if (source.readyState === EventSource.CLOSED) setTimeout(() => listen(asked), AGAIN);
    });
  }

  view.live = { enclosed, listen };
})();
