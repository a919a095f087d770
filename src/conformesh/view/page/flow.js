// Messages on their way: who sent what along which link in a step, and the dots that show it.
"use strict";

(() => {
  const view = window.conformesh;
  const MIN_RADIUS = 2.2; // of a dot, in pixels
  const MAX_RADIUS = 5;

  /** Bits along each link in a step, NaN where nothing went, and along which links something was lost. */
  class Messages {
    constructor(run) {
      this.run = run;
      this.place = null;
      this.bits = null;
      this.lost = new Set();
    }

    at(place) {
      const step = this.run.steps[place];
      if (place === this.place && step === this.step) return this;
      Object.assign(this, { place, step });
      this.lost = new Set(step?.lost ?? []);
      this.bits = new Float64Array(2 * this.run.heading.edges.length).fill(NaN);
      const said = view.state.bitsSentBy(step);
      this.run.heading.edges.forEach((rows, edge) => {
        rows.forEach((row, end) => (this.bits[2 * edge + end] = said(row) ?? NaN));
      });
      step?.flow?.links.forEach((link, number) => (this.bits[link] = 8 * step.flow.bytes[number]));
      for (const link of this.lost) if (Number.isNaN(this.bits[link])) this.bits[link] = 0;
      return this;
    }
  }

  const size = (bits) => Math.min(MIN_RADIUS + 0.28 * Math.log2(1 + bits / 32), MAX_RADIUS);

  /** Draw the messages of a step, each this share of its way; a lost one breaks off half-way, with a cross. */
  function draw(pen, messages, places, moved, share, theme) {
    const dots = new Path2D();
    const broken = new Path2D();
    messages.bits.forEach((bits, link) => {
      if (Number.isNaN(bits)) return;
      const gone = messages.lost.has(link);
      const [x, y] = moved(places.along(link, gone ? Math.min(share, 0.45) : share));
      const r = size(bits);
      if (gone && share >= 0.45) crossed(broken, x, y, r + 1.5);
      else dotted(dots, x, y, r);
    });
    pen.fillStyle = theme.accent;
    pen.strokeStyle = theme.surface;
    pen.lineWidth = 1.6;
    pen.stroke(dots);
    pen.fill(dots);
    pen.lineCap = "round";
    pen.lineWidth = 5;
    pen.stroke(broken);
    pen.strokeStyle = theme.bad;
    pen.lineWidth = 2;
    pen.stroke(broken);
  }

  function dotted(path, x, y, r) {
    path.moveTo(x + r, y);
    path.arc(x, y, r, 0, 2 * Math.PI);
  }

  function crossed(path, x, y, r) {
    path.moveTo(x - r, y - r);
    path.lineTo(x + r, y + r);
    path.moveTo(x - r, y + r);
    path.lineTo(x + r, y - r);
  }

  view.flow = { Messages, draw, dotted };
})();
