// A chart over time: its frame, its axes, and the line that says where we are. What is drawn in it is in charts.js.
"use strict";

(() => {
  const view = window.conformesh;
  const MAX_POINTS = 1200; // points of a line; of more, some
  const FONT = "11px system-ui, sans-serif";
  const theme = (name) => () => view.colours.theme[name];

  /** The places of at most so many steps, with the last one. */
  function thinned(many) {
    const stride = Math.max(1, Math.ceil(many / MAX_POINTS));
    const found = [];
    for (let place = (many - 1) % stride; place < many; place += stride) found.push(place);
    return found;
  }

  class Chart {
    /** `seek` is called with a time that was clicked on. */
    constructor(host, run, height, seek) {
      Object.assign(this, { host, run, height, seek });
      this.figure = host.appendChild(document.createElement("figure"));
      this.figure.className = "chart";
      this.caption = this.figure.appendChild(document.createElement("figcaption"));
      this.frame = this.figure.appendChild(document.createElement("div"));
      this.frame.className = "frame";
      this.frame.setAttribute("role", "img");
      this.future = Object.assign(document.createElement("div"), { className: "future" });
      this.here = Object.assign(document.createElement("div"), { className: "here" });
      this.watch = new ResizeObserver(() => this.resize());
      this.watch.observe(this.frame);
    }

    resize() {
      const width = this.frame.clientWidth;
      if (this.plot && width) this.plot.setSize({ width, height: this.height });
      this.showTime();
    }

    close() {
      this.watch.disconnect();
      this.plot?.destroy();
    }

    /** Draw again from the steps that are there; `time` says where moments are along the axis. */
    update(time) {
      this.time = time;
      this.keep = thinned(this.run.steps.length);
      const data = this.data();
      if (this.plot && data.length === this.plot.series.length) {
        this.plot.setData(data);
      } else {
        this.plot?.destroy();
        this.plot = new vendor.uPlot(this.options(), data, this.frame);
        this.plot.over.append(this.future, this.here);
        this.plot.over.addEventListener("click", (event) => this.click(event));
      }
      this.showTime();
    }

    click(event) {
      const { left } = this.plot.over.getBoundingClientRect();
      this.seek(this.plot.posToVal(event.clientX - left, "x"));
    }

    xs() {
      return this.keep.map((place) => this.time.along(this.run, this.run.series.at[place]));
    }

    options() {
      return {
        width: Math.max(this.frame.clientWidth, 100),
        height: this.height,
        legend: { show: false },
        cursor: { show: false },
        padding: [6, 22, 0, 0],
        scales: { x: { time: false, range: () => [0, 1] }, y: { range: (_, low, high) => this.range(low, high) } },
        axes: [this.timeAxis(), this.valueAxis()],
        ...this.plotOptions(),
      };
    }

    timeAxis() {
      return {
        stroke: theme("muted"),
        font: FONT,
        size: 24,
        gap: 3,
        grid: { show: false },
        ticks: { stroke: theme("line"), width: 1, size: 4 },
        splits: (plot) => this.time.ticks(this.run, plot.width).map(([at]) => at),
        values: (plot) => this.time.ticks(this.run, plot.width).map(([, words]) => words),
      };
    }

    valueAxis() {
      return {
        stroke: theme("muted"),
        font: FONT,
        size: 52,
        gap: 4,
        space: 26,
        grid: { stroke: theme("line"), width: 1 },
        ticks: { show: false },
        values: (_, splits) => splits.map((value) => this.label(value)),
      };
    }

    label(value) {
      return view.words.short(value);
    }

    /** Fade what comes after the time that is shown. */
    showTime() {
      if (!this.plot || !this.time) return;
      const share = Math.min(Math.max(this.time.position, 0), 1);
      this.future.style.transform = `scaleX(${1 - share})`;
      this.here.style.transform = `translateX(${share * this.plot.over.clientWidth}px)`;
      this.future.hidden = this.here.hidden = share >= 1;
    }

    describe(words) {
      if (this.frame.getAttribute("aria-label") !== words) this.frame.setAttribute("aria-label", words);
    }
  }

  view.chart = { Chart };
})();
