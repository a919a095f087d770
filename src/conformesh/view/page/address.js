// The address of a moment: the part after # says which run, device and time are shown, and in which tab.
"use strict";

(() => {
  const view = window.conformesh;

  /** Put what is shown into the address, without a new entry in the history. */
  function remember({ number, row, tab, clock }) {
    const at = clock.following ? null : Number(clock.at.toPrecision(9));
    const parts = { run: number, device: row, at, time: at === null ? null : clock.mode, tab };
    const given = Object.entries(parts).filter(([, value]) => value !== null);
    history.replaceState(null, "", `#${new URLSearchParams(given.map(([name, value]) => [name, String(value)]))}`);
  }

  /** What the address points at; what makes no sense is null. */
  function recall(runs) {
    const words = new URLSearchParams(location.hash.slice(1));
    const number = (name) => (/^[\d.e+-]+$/.test(words.get(name) ?? "") ? Number(words.get(name)) : null);
    const run = runs[number("run")] ? number("run") : null;
    const device = run !== null && runs[run].heading.devices[number("device")] !== undefined ? number("device") : null;
    const mode = Object.hasOwn(view.clock.MODES, words.get("time")) ? words.get("time") : null;
    return { run, device, at: Number.isFinite(number("at")) ? number("at") : null, mode, tab: words.get("tab") };
  }

  view.address = { remember, recall };
})();
