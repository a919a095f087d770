// Colours: of the theme, and of thresholds on one scale for all runs.
"use strict";

(() => {
  const view = window.conformesh;
  // Viridis: the lightness grows from one end to the other, so that it reads the same in grey.
  const STOPS = [
    "#440154",
    "#482878",
    "#3e4989",
    "#31688e",
    "#26828e",
    "#1f9e89",
    "#35b779",
    "#6ece58",
    "#b5de2b",
    "#fde725",
  ];
  const SHADES = 40;
  const OUTLIER_FACTOR = 8; // times as far apart: then the outermost twentieths are left out
  const NAMES = ["page", "surface", "line", "text", "muted", "accent", "bad", "band", "link"];

  const parts = (colour) => [1, 3, 5].map((place) => parseInt(colour.slice(place, place + 2), 16));

  function mixed(share) {
    const along = share * (STOPS.length - 1);
    const left = Math.min(Math.floor(along), STOPS.length - 2);
    const [from, to] = [parts(STOPS[left]), parts(STOPS[left + 1])];
    return `rgb(${from.map((part, place) => Math.round(part + (along - left) * (to[place] - part))).join(" ")})`;
  }

  /** A colour of the theme, with so much of it in another one, or in nothing. */
  function faint(colour, share, other = null) {
    const [from, to] = [colour, other ?? colour].map((each) =>
      each
        .match(/[\d.]+/g)
        .slice(0, 3)
        .map(Number),
    );
    const mix = from.map((part, place) => Math.round(share * part + (1 - share) * to[place]));
    return `rgb(${mix.join(" ")}${other === null ? ` / ${share}` : ""})`;
  }

  const shades = Array.from({ length: SHADES }, (_, place) => mixed(place / (SHADES - 1)));

  /** Read the colours of the theme, which has changed. */
  function refresh() {
    const probe = document.createElement("i");
    document.body.append(probe);
    const found = {};
    for (const name of NAMES) {
      probe.style.color = `var(--${name})`;
      found[name] = getComputedStyle(probe).color;
    }
    probe.remove();
    view.colours.theme = found;
  }

  /** From a threshold to a shade; what lies beyond an end has the shade of that end. */
  class Scale {
    constructor() {
      this.low = NaN;
      this.high = NaN;
    }

    /** Span the thresholds of these runs, but not the few that are far from all the others. Says whether it changed. */
    fit(runs) {
      const found = runs
        .flatMap(extent)
        .filter(Number.isFinite)
        .sort((a, b) => a - b);
      const certain = runs.flatMap((run) => run.series.spread.at(-1) ?? []);
      const at = (share) => found[Math.round(share * (found.length - 1))] ?? NaN;
      const far = at(1) - at(0) > OUTLIER_FACTOR * (at(0.95) - at(0.05)); // then a few would squeeze all the others
      let low = Math.min(at(far ? 0.05 : 0), ...certain);
      let high = Math.max(at(far ? 0.95 : 1), ...certain);
      if (low === high)
        [low, high] = [low - Math.max(Math.abs(low) * 0.05, 1e-9), high + Math.max(Math.abs(high) * 0.05, 1e-9)];
      const changed = !Object.is(low, this.low) || !Object.is(high, this.high);
      [this.low, this.high] = [low, high];
      this.clipsLow = found.length > 0 && found[0] < low;
      this.clipsHigh = found.length > 0 && found.at(-1) > high;
      return changed;
    }

    get empty() {
      return !Number.isFinite(this.low);
    }

    /** The number of a shade; SHADES for what is unknown, then +inf, then -inf. */
    shade(value) {
      if (Number.isNaN(value)) return SHADES;
      if (!Number.isFinite(value)) return SHADES + (value > 0 ? 1 : 2);
      const share = (value - this.low) / (this.high - this.low);
      return Math.round(Math.min(Math.max(share, 0), 1) * (SHADES - 1));
    }
  }

  /** Some hundred of the least and the greatest thresholds of a run, and of the ends of its bracket. */
  function extent(run) {
    const { spread, bracket } = run.series;
    const stride = Math.max(1, Math.floor(spread.length / 400));
    const places = Array.from({ length: Math.ceil(spread.length / stride) }, (_, place) => place * stride);
    return places.flatMap((place) => {
      const ends = (bracket[place] ?? []).slice(0, 2).map(view.words.toNumber);
      return [spread[place]?.[0], spread[place]?.[4], ...ends].filter(Number.isFinite);
    });
  }

  view.colours = { SHADES, shades, faint, refresh, theme: null, scale: new Scale() };
})();
