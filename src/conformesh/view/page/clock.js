// The time that is shown, one for all runs, and where moments lie along an axis.
"use strict";

(() => {
  const view = window.conformesh;
  const { seconds, whole, moment } = view.words;
  const ROUND_NUMBERS = [1, 2, 5, 10];
  const ROUNDING = 1e-9; // of a moment: rounding of shares

  // How moments of runs are put beside each other: along an axis from 0 to 1, and back.
  const MODES = {
    even: { words: "same round", along: (at, end) => at / end, at: (share, end) => share * end },
    log: {
      words: "log time",
      along: (at, end) => Math.log1p(at) / Math.log1p(end),
      at: (share, end) => Math.expm1(share * Math.log1p(end)),
    },
    share: {
      words: "same share of each run",
      own: true,
      along: (at, end) => at / end,
      at: (share, end) => share * end,
    },
  };

  class Clock {
    constructor(runs) {
      this.runs = runs;
      this.mode = "even";
      this.at = 0; // a time of the longest run; where every run has its own axis, a share
      this.playing = false;
      this.following = false;
      this.duration = 8; // seconds for all of it
    }

    get end() {
      return MODES[this.mode].own ? 1 : Math.max(0, ...this.runs.map((run) => run.end));
    }

    get unit() {
      return this.runs[0]?.heading.unit ?? "rounds";
    }

    /** Where the time is, from 0 to 1. */
    get position() {
      return this.end > 0 ? MODES[this.mode].along(Math.min(this.at, this.end), this.end) : 1;
    }

    set position(share) {
      this.at = MODES[this.mode].at(Math.min(Math.max(share, 0), 1), this.end);
    }

    get over() {
      return this.at >= this.end;
    }

    /** Where a moment of a run lies on its axis. */
    along(run, at) {
      const end = MODES[this.mode].own ? run.end : this.end;
      return end > 0 ? MODES[this.mode].along(at, end) : 0;
    }

    /** The step of a run that is shown. */
    place(run) {
      const at = MODES[this.mode].own ? this.at * run.end : this.at;
      return run.placeAt(at + ROUNDING * Math.max(run.end, 1));
    }

    /** Moments of a run in the time that is shown. */
    moments(run) {
      const scale = MODES[this.mode].own && run.end > 0 ? 1 / run.end : 1;
      return run.series.at.map((at) => at * scale);
    }

    /** Go to the next moment at which something changed, or to the one before. */
    step(way) {
      const far = ROUNDING * Math.max(this.end, 1);
      const beyond = this.runs.flatMap((run) => this.moments(run).filter((at) => (at - this.at) * way > far));
      if (beyond.length) this.at = beyond.reduce((best, at) => ((at - best) * way < 0 ? at : best));
    }

    /** All moments at which something changed. */
    get steps() {
      return [...new Set(this.runs.flatMap((run) => this.moments(run)))].sort((a, b) => a - b);
    }

    /** The last of them that is shown. */
    get number() {
      return this.steps.findLastIndex((at) => at <= this.at + ROUNDING * Math.max(this.end, 1));
    }

    /** Change how runs are put beside each other, and stay about where we are. */
    choose(mode) {
      const position = this.position;
      this.mode = mode;
      this.position = position;
    }

    /** Let time go on; `passed` is in seconds. */
    go(passed) {
      this.position += passed / this.duration;
      if (this.position >= 1) {
        this.at = this.end;
        this.playing = false;
      }
    }

    get words() {
      if (this.runs.length === 0) return "nothing yet";
      if (MODES[this.mode].own) return `${Math.round(100 * this.at)} % of each run`;
      return moment(this.unit === "seconds" ? this.at : Math.floor(this.at + ROUNDING), this.end, this.unit);
    }

    /** Some moments for an axis of a run, as pairs of where and words. */
    ticks(run, pixels) {
      const end = MODES[this.mode].own ? run.end : this.end;
      if (!(end > 0)) return [[0, "0"]];
      const times =
        this.mode === "log"
          ? decades(end)
          : multiples(end, Math.max(pixels / 90, 2), run.heading.unit === "seconds" ? 0 : 1);
      const words = (at) => (run.heading.unit === "seconds" ? seconds(at) : whole(at));
      return times.map((at) => [this.along(run, at), words(at)]);
    }
  }

  function multiples(end, most, least) {
    const power = 10 ** Math.floor(Math.log10(end / most));
    const every = Math.max(ROUND_NUMBERS.find((nice) => nice * power * most >= end) * power, least); // rounds are whole
    return Array.from({ length: Math.floor(end / every + ROUNDING) + 1 }, (_, place) => place * every);
  }

  function decades(end) {
    const found = [0];
    for (let at = 1; at <= end; at *= 10) found.push(at);
    return found;
  }

  view.clock = { Clock, MODES };
})();
