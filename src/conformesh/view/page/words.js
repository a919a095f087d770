// Words and numbers: how the page says things, once.
"use strict";

window.conformesh = window.conformesh ?? {};

(() => {
  const view = window.conformesh;

  // What a step may say of a device, and how the page calls it: the same table as FIELDS in trace.py.
  const FIELDS = {
    health: "health",
    phase: "state",
    threshold: "threshold",
    certified: "certified threshold",
    labels: "labels",
    misses: "misses",
    lately: "covered lately",
    within: "guaranteed within",
    alarm: "drift alarm",
    kind: "guarantee",
    about: "about",
    run: "run",
    round: "round",
    heard: "devices heard",
    known: "scores known",
    roster: "roster",
    sent: "bytes sent",
    byzantine: "Byzantine",
    problem: "problem",
  };

  // States of a device for the picture: the first that fits. Every name has a mark in marks.js. Health is not judged
  // here: it is the field that the node itself reports.
  const STATES = [
    { name: "Byzantine", fits: (device) => device.byzantine != null },
    { name: "silent", fits: (device) => device.health === "silent" },
    { name: "failed", fits: (device) => device.phase === "failed" },
    { name: "unknown", fits: (device) => device.phase == null || device.health === "unknown" },
    { name: "not certified", fits: (device) => device.phase === "not certified" },
    { name: "certified", fits: (device) => device.phase === "certified" },
    { name: "learning", fits: (device) => device.phase === "learning" },
    { name: "calibrating", fits: (device) => device.phase === "calibrating" },
    { name: "waiting", fits: () => true }, // it starts, waits for neighbours, or says a word of a later version
  ];
  const STATE_FIELDS = ["byzantine", "health", "phase"];
  const FAULT_STATES = ["silent", "failed", "unknown", "Byzantine"];

  /** The place in STATES of a device with these values. */
  const stateOf = (device) => STATES.findIndex((state) => state.fits(device));

  /** A number of a trace; NaN where there is none. In JSON infinity is a word. */
  function toNumber(value) {
    if (typeof value === "number") return value;
    return value === "inf" ? Infinity : value === "-inf" ? -Infinity : NaN;
  }

  const whole = (count) => count.toLocaleString("en");
  const pluralize = (count, noun) => `${whole(count)} ${noun}${count === 1 ? "" : "s"}`;

  /** Few digits, for a picture. */
  function short(value) {
    if (Number.isNaN(value)) return "unknown";
    if (!Number.isFinite(value)) return value > 0 ? "+∞" : "−∞";
    const size = Math.abs(value);
    if (size !== 0 && (size >= 1e6 || size < 1e-4)) return minus(value.toExponential(2));
    return minus(String(Number(value.toPrecision(4))));
  }

  const minus = (text) => text.replace("-", "−");

  /** A value of a field in full, as text: of a number every digit it has. */
  function full(value) {
    if (value == null) return "unknown";
    if (value === "inf") return "+∞ (every answer is in the set)";
    if (value === "-inf") return "−∞";
    return typeof value === "number" && Number.isInteger(value) ? whole(value) : String(value);
  }

  /** Seconds in words. */
  function seconds(value) {
    if (value < 60) return `${Number(value.toFixed(value < 10 ? 2 : 1))} s`;
    const minutes = Math.floor(value / 60);
    const rest = String(Math.floor(value % 60)).padStart(2, "0");
    if (minutes < 60) return `${minutes}:${rest} min`;
    return `${Math.floor(minutes / 60)}:${String(minutes % 60).padStart(2, "0")}:${rest} h`;
  }

  /** A moment of a run in words; `of` is its last one. */
  const moment = (at, of, unit) => `${since(at, unit)} of ${unit === "seconds" ? seconds(of) : whole(of)}`;
  const since = (at, unit = "rounds") => (unit === "seconds" ? seconds(at) : `${unit.slice(0, -1)} ${whole(at)}`);

  /** What is known of where the threshold lies. */
  function search(heading, bracket) {
    const { rank, scores } = heading;
    const first = rank == null ? "" : `rank ${whole(rank)}${scores == null ? "" : ` of ${whole(scores)}`}`;
    if (bracket == null) return first;
    const [low, high, below, upto] = bracket;
    const [least, most] = [toNumber(low), toNumber(high)];
    const words = [first, where(least, most, below, upto)];
    return words.filter(Boolean).join("; ");
  }

  function where(least, most, below, upto) {
    if (least === most)
      return `the threshold is ${short(least)}${upto == null ? "" : `, ${whole(upto)} at or below it`}`;
    if (!Number.isFinite(least) && !Number.isFinite(most)) return "it may lie anywhere";
    if (below == null && upto == null) return `between ${short(least)} and ${short(most)}`;
    const end = (count, name, at) =>
      count == null ? `the ${name} end is ${short(at)}` : `${whole(count)} at the ${name} end (${short(at)})`;
    return `${end(below, "low", least)}, ${end(upto, "high", most)}`;
  }

  /** How many devices are in each state, as pairs of a name and a count, most telling first. */
  const countsByState = (counts) =>
    STATES.map((state, place) => [state.name, counts[place]]).filter(([, count]) => count > 0);

  /** A name that a picture has room for. */
  function truncate(text, most) {
    const letters = [...text];
    return letters.length <= most ? text : `${letters.slice(0, Math.max(most - 1, 1)).join("")}…`;
  }

  const displayName = (name) => (name.trim() === "" ? "(no name)" : name);

  view.words = {
    FIELDS,
    STATES,
    STATE_FIELDS,
    FAULT_STATES,
    stateOf,
    toNumber,
    whole,
    pluralize,
    short,
    full,
    seconds,
    moment,
    since,
    search,
    countsByState,
    truncate,
    displayName,
  };
})();
