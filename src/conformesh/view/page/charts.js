// Charts over time: thresholds with the bracket that closes around them, what was said, and devices by state.
"use strict";

(() => {
  const view = window.conformesh;
  const { toNumber, short, whole, STATES } = view.words;
  const { stepped, bars } = vendor.uPlot.paths;
  const STEPPED = stepped({ align: 1 }); // a value holds until the next one

  // How dark a state is in the chart of states: what is wrong stands out, in grey as well.
  const TONES = {
    certified: ["accent", 0.62],
    "not certified": ["accent", 0.42],
    learning: ["accent", 0.32],
    calibrating: ["accent", 0.24],
    waiting: ["accent", 0.1],
    unknown: ["muted", 0.2],
    silent: ["muted", 0.85],
    failed: ["bad", 1],
    Byzantine: ["text", 1],
  };

  const tone = (name) => mixed(...TONES[name]);
  const mixed = (name, share) => view.colours.faint(view.colours.theme[name], share, view.colours.theme.surface);

  const finite = (value) => (Number.isFinite(value) ? value : null);

  /** Thresholds: a line for each device, or the spread of many; and the bracket as a band. */
  class Thresholds extends view.chart.Chart {
    constructor(...args) {
      super(...args);
      this.selected = null;
    }

    update(time) {
      const { own } = (this.run.heading.unit === "steps" && this.run.latest.everybody) || {};
      const mean = own === undefined ? "" : `, mean of the last ${whole(own)} steps`;
      const whose = this.run.lines ? "threshold of each device" : "thresholds: all, the middle half, the median";
      const what = whose + mean;
      const searched = this.run.series.bracket.some((bracket) => bracket !== null);
      view.dom.write(this.caption, searched ? `${what}; the band is where it is looked for` : what);
      super.update(time);
    }

    range() {
      const { low, high, empty } = view.colours.scale;
      if (empty) return [0, 1];
      const rim = 0.06 * (high - low);
      return [low - rim, high + rim];
    }

    label(value) {
      return view.colours.scale.empty ? "" : short(value);
    }

    data() {
      const { lines, series } = this.run;
      const picked = lines ?? [0, 1, 2, 3, 4].map((part) => series.spread.map((values) => values?.[part] ?? null));
      return [this.xs(), ...picked.map((line) => this.keep.map((place) => finite(line[place])))];
    }

    plotOptions() {
      const { lines } = this.run;
      const plain = { paths: STEPPED, points: { show: false } };
      const look = (row) => ({
        ...plain,
        width: 1.4,
        stroke: () => (row === this.selected ? view.colours.theme.accent : mixed("text", 0.55)),
      });
      const spread = [0.25, 0, 1, 0, 0.25].map((share) => ({
        ...plain,
        width: share === 1 ? 2 : share ? 1 : 0,
        stroke: () => mixed("text", share || 0.25),
      }));
      const bands = [
        [5, 1, 0.12],
        [4, 2, 0.2],
      ].map(([upper, lower, share]) => ({
        series: [upper, lower],
        fill: () => view.colours.faint(view.colours.theme.text, share),
      }));
      return {
        series: [{}, ...(lines ? lines.map((_, row) => look(row)) : spread)],
        bands: lines ? [] : bands,
        hooks: { drawAxes: [(plot) => this.drawBracket(plot)] },
      };
    }

    /** The bracket, from one step at which it changed to the next; an open end reaches the edge of the chart. */
    drawBracket(plot) {
      const { bracket, at } = this.run.series;
      const pen = plot.ctx;
      const { left, top, width, height } = plot.bbox;
      pen.save();
      pen.beginPath();
      pen.rect(left, top, width, height);
      pen.clip();
      for (let place = 0; place < at.length;) {
        let next = place + 1;
        while (next < at.length && bracket[next] === bracket[place]) next += 1;
        if (bracket[place]) this.drawPiece(plot, pen, bracket[place], at[place], at[Math.min(next, at.length - 1)]);
        place = next;
      }
      pen.restore();
    }

    drawPiece(plot, pen, [low, high], from, to) {
      const { top, height } = plot.bbox;
      const y = (value) => Math.min(Math.max(plot.valToPos(toNumber(value), "y", true), top - 4), top + height + 4);
      const [x1, x2] = [from, to].map((at) => plot.valToPos(this.time.along(this.run, at), "x", true));
      const [upper, lower] = [y(high), y(low)];
      pen.fillStyle = view.colours.theme.band;
      pen.fillRect(x1, upper, Math.max(x2 - x1, 1), Math.max(lower - upper, 1));
      pen.fillStyle = view.colours.theme.accent;
      for (const end of [upper, lower]) pen.fillRect(x1, end - 1, Math.max(x2 - x1, 1), 2);
    }

    select(row) {
      if (row === this.selected) return;
      this.selected = row;
      this.plot?.series.forEach((series, place) => place && (series.width = place - 1 === row ? 3 : 1.4));
      this.plot?.redraw(false);
    }
  }

  /** Bits of each step that was noted; bytes where a mesh was watched. */
  class SentBits extends view.chart.Chart {
    constructor(...args) {
      super(...args);
      this.bytes = this.run.heading.unit === "seconds";
      this.caption.textContent = this.bytes
        ? "bytes on the links since the step before"
        : "bits said in a round, of the rounds that were noted";
    }

    range(_, high) {
      return [0, Math.max(high, 1) * 1.08];
    }

    /** Where not every step has a bar, a bar is the greatest of its neighbours', so that no peak is hidden. */
    data() {
      const { at, bits } = this.run.series;
      const unit = this.bytes ? 8 : 1;
      this.keep = this.keep.filter((place, number) => at[place] !== at[this.keep[number + 1]]); // one bar each
      const most = this.keep.map((place, number) => {
        let found = 0;
        for (let other = (this.keep[number - 1] ?? -1) + 1; other <= place; other += 1)
          found = Math.max(found, bits[other]);
        return found / unit;
      });
      return [this.xs(), most];
    }

    plotOptions() {
      const paths = bars({ size: [0.7, 14, 1] });
      return { series: [{}, { paths, points: { show: false }, width: 0, fill: () => mixed("text", 0.55) }] };
    }

    label(value) {
      return value >= 1e6 ? `${short(value / 1e6)} M` : value >= 1e4 ? `${short(value / 1e3)} k` : whole(value);
    }
  }

  /** Devices by state, one above the other. */
  class Counts extends view.chart.Chart {
    constructor(...args) {
      super(...args);
      this.caption.textContent = "devices by state";
    }

    range() {
      return [0, Math.max(this.run.devices, 1)];
    }

    /** From the top: the whole stack first, so that each is painted over by those below it. */
    data() {
      const { counts } = this.run.series;
      const above = (state) =>
        this.keep.map((place) => counts[place].slice(state).reduce((sum, count) => sum + count, 0));
      return [this.xs(), ...STATES.map((_, state) => above(state))];
    }

    plotOptions() {
      const look = ({ name }) => ({ paths: STEPPED, points: { show: false }, width: 0, fill: () => tone(name) });
      return { series: [{}, ...STATES.map(look)] };
    }

    label(value) {
      return Number.isInteger(value) ? whole(value) : "";
    }
  }

  view.charts = { Thresholds, SentBits, Counts, tone };
})();
