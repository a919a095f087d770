// What marks and colours mean, and what is said aloud to who does not see them.
"use strict";

(() => {
  const view = window.conformesh;
  const { make, renew } = view.dom;
  const { countsByState, short, pluralize, whole } = view.words;
  const SAMPLE_SHADE = 26; // a shade that shows what a mark is like when it is filled
  const [WIDTH, HEIGHT] = [120, 10];

  /** Explain the marks that occur in these runs, and the scale of thresholds. */
  function show(host, runs) {
    const { scale, theme, SHADES } = view.colours;
    const states = [...new Set(runs.flatMap((run) => run.occurred()))];
    const infinite = runs.some((run) => run.infinite);
    const [low, high] = scale.empty
      ? ["", ""]
      : [(scale.clipsLow ? "≤ " : "") + short(scale.low), (scale.clipsHigh ? "≥ " : "") + short(scale.high)];
    renew(host, [states, infinite, low, high, theme.text], () => [
      scale.empty ? null : make("span", {}, "threshold ", low, ramp(), high),
      infinite ? make("span", {}, view.marks.glyph("calibrating", SHADES + 1), "+∞") : null,
      make("span", {}, view.marks.glyph("calibrating"), "no threshold"),
      ...states.map((name) => make("span", {}, view.marks.glyph(name, SAMPLE_SHADE), name)),
    ]);
  }

  function ramp() {
    const { shades } = view.colours;
    const canvas = make("canvas", {
      class: "ramp",
      width: String(WIDTH),
      height: String(HEIGHT),
      "aria-hidden": "true",
    });
    const pen = canvas.getContext("2d");
    shades.forEach((shade, place) => {
      pen.fillStyle = shade;
      pen.fillRect((WIDTH * place) / shades.length, 0, WIDTH / shades.length + 1, HEIGHT);
    });
    return canvas;
  }

  /** How all devices are at the time that is shown, in a sentence. */
  function summary(runs, clock) {
    const each = runs.map((run) => {
      const now = countsByState(run.series.counts[clock.place(run)] ?? run.counts);
      const all = run.devices > 1 ? `all ${pluralize(run.devices, "device")} are` : "the device is";
      const words =
        now.length === 1 ? `${all} ${now[0][0]}` : now.map(([name, count]) => `${whole(count)} ${name}`).join(", ");
      return runs.length > 1 ? `${run.heading.name}: ${words}` : words;
    });
    return each.join("; ");
  }

  view.legend = { show, summary };
})();
