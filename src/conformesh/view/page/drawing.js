// Drawing a run: devices and links on two canvases, of which only the upper one changes while time goes on.
"use strict";

(() => {
  const view = window.conformesh;
  const { toNumber, truncate } = view.words;
  const MAX_LINKS = 30_000; // that are drawn; of more, some of them, and the picture says so
  const MAX_MESSAGES = 2_500; // in view, beyond which nobody could follow one
  const MAX_LABELS = 250; // names in view, beyond which they cover each other
  const MIN_CUT_LETTERS = 10; // letters: a longer name that is cut is still told from others
  const RADII = [2.2, 17]; // least and greatest, in pixels

  class Drawing {
    constructor(run, host) {
      Object.assign(this, { run, host });
      this.places = new view.places.Places(run.heading);
      this.marks = new view.marks.Marks();
      this.messages = new view.flow.Messages(run);
      this.transform = vendor.zoomIdentity;
      this.selected = this.hovered = this.focused = null;
      this.under = this.canvas("under");
      this.over = this.canvas("over");
    }

    canvas(name) {
      const found = this.host.appendChild(document.createElement("canvas"));
      found.className = name;
      found.setAttribute("aria-hidden", "true"); // the picture has a label, and every device a row in the table
      return found;
    }

    resize() {
      const { width, height } = this.host.getBoundingClientRect();
      if (width === 0 || this.run.devices === 0) return;
      this.ratio = Math.min(Math.max(window.devicePixelRatio, 1), 2);
      Object.assign(this, { width, height });
      for (const canvas of [this.under, this.over]) {
        canvas.width = Math.round(width * this.ratio);
        canvas.height = Math.round(height * this.ratio);
      }
      this.places.fit(width, height);
      this.stale = true;
    }

    at(row) {
      return this.transform.apply([this.places.x[row], this.places.y[row]]);
    }

    inside(x, y, margin) {
      return x > -margin && y > -margin && x < this.width + margin && y < this.height + margin;
    }

    /** Draw a step; `share` is how far its messages have come. Says whether there are any to be seen moving. */
    draw(place, share) {
      if (!this.width) return false;
      this.known = this.run.known(place);
      const theme = view.colours.theme;
      const space = this.places.pixels * this.transform.k;
      const radius = Math.max(0.3 * space, Math.min(0.42 * space, 6)); // marks take most of little room
      this.radius = Math.round(Math.min(Math.max(radius, RADII[0]), RADII[1]) * 4) / 4;
      this.marks.use(this.radius, this.ratio, theme);
      if (this.stale) this.drawLinks(theme);
      const pen = this.cleared(this.over);
      const moving = this.drawMessages(pen, place, share, theme);
      this.drawDevices(pen, theme);
      this.drawChosen(pen, theme);
      return moving;
    }

    cleared(canvas) {
      const pen = canvas.getContext("2d");
      pen.setTransform(1, 0, 0, 1, 0, 0);
      pen.clearRect(0, 0, canvas.width, canvas.height);
      pen.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
      return pen;
    }

    drawLinks(theme) {
      const { edges } = this.run.heading;
      const stride = Math.ceil(edges.length / MAX_LINKS);
      const pen = this.cleared(this.under);
      const [solid, open] = [new Path2D(), new Path2D()];
      this.seen = 0;
      for (let edge = 0; edge < edges.length; edge += stride) {
        if (this.places.wraps.has(edge))
          for (const stub of this.places.stubs(edge))
            this.line(open, stub[0], stub[1], stub[0] + stub[2], stub[1] + stub[3]);
        else this.line(solid, ...edges[edge].flatMap((row) => [this.places.x[row], this.places.y[row]]));
      }
      pen.strokeStyle = theme.link;
      pen.lineWidth = Math.min(Math.max(this.radius / 8, 0.5), 1.5);
      pen.stroke(solid);
      pen.setLineDash([3, 3]);
      pen.stroke(open);
      pen.setLineDash([]);
      this.host.dataset.links = stride > 1 ? `one of ${stride} links is drawn` : "";
      this.stale = false;
    }

    line(path, ...ends) {
      const [x1, y1] = this.transform.apply(ends.slice(0, 2));
      const [x2, y2] = this.transform.apply(ends.slice(2));
      if (
        Math.max(x1, x2) < 0 ||
        Math.max(y1, y2) < 0 ||
        Math.min(x1, x2) > this.width ||
        Math.min(y1, y2) > this.height
      )
        return;
      this.seen += 1;
      path.moveTo(x1, y1);
      path.lineTo(x2, y2);
    }

    drawMessages(pen, place, share, theme) {
      const step = this.run.steps[place];
      if (!step || !(step.said || step.flow || step.lost?.length)) return false;
      if (2 * this.seen <= MAX_MESSAGES && this.radius >= 4) {
        view.flow.draw(pen, this.messages.at(place), this.places, (at) => this.transform.apply(at), share, theme);
        return true;
      }
      const rows = step.said?.rows; // too many for dots: those who speak have a halo, unless all do
      if (rows) {
        const halos = new Path2D();
        for (const row of rows) view.flow.dotted(halos, ...this.at(row), this.radius + 2);
        pen.fillStyle = theme.accent;
        pen.fill(halos);
      }
      return false;
    }

    drawDevices(pen, theme) {
      const { x, y } = this.places;
      const { k, x: dx, y: dy } = this.transform;
      const { fields } = this.known;
      const [thresholds, scale] = [fields.get("threshold"), view.colours.scale];
      const whole = (at) => Math.round(at * this.ratio) / this.ratio; // pixels that need no smoothing are copied faster
      const states = this.states();
      const shown = [];
      for (let row = 0; row < x.length; row += 1) {
        const [left, top] = [k * x[row] + dx, k * y[row] + dy];
        if (!this.inside(left, top, 30)) continue;
        const { image, half } = this.marks.picture(
          states[row],
          scale.shade(thresholds ? toNumber(thresholds[row]) : NaN),
        );
        pen.drawImage(image, whole(left) - half, whole(top) - half, 2 * half, 2 * half);
        shown.push(row);
      }
      if (this.radius >= 5) this.drawRings(pen, shown, theme);
      this.drawProblems(pen, shown, theme);
      if (this.radius >= 8 && shown.length <= MAX_LABELS) this.drawNames(pen, shown, theme);
    }

    /** States by row at the step that is drawn; those at the end are kept by the run. */
    states() {
      if (this.known === this.run.latest) return this.run.states;
      return Uint8Array.from({ length: this.run.devices }, (_, row) => this.known.state(row));
    }

    /** A ring that fills: devices of which something was heard, or scores that are known. */
    drawRings(pen, rows, theme) {
      const heard = this.known.fields.get("heard");
      const values = heard ?? this.known.fields.get("known");
      const all = heard ? this.run.devices : this.run.heading.scores;
      if (!values || !all) return;
      const r = this.radius * 1.28 + 2.5;
      const [track, filled] = [new Path2D(), new Path2D()];
      for (const row of rows) {
        const [x, y] = this.at(row);
        track.moveTo(x + r, y);
        track.arc(x, y, r, 0, 2 * Math.PI);
        const share = Math.min((values[row] ?? 0) / all, 1);
        filled.moveTo(x, y - r);
        filled.arc(x, y, r, -Math.PI / 2, (2 * share - 0.5) * Math.PI);
      }
      pen.lineCap = "butt";
      pen.lineWidth = Math.max(this.radius / 6, 1.5);
      pen.strokeStyle = theme.line;
      pen.stroke(track);
      pen.strokeStyle = theme.accent;
      pen.stroke(filled);
    }

    /** A spot beside a device that says something is wrong. */
    drawProblems(pen, rows, theme) {
      const [health, problems, alarms] = ["health", "problem", "alarm"].map((name) => this.known.fields.get(name));
      if (!health && !problems && !alarms) return;
      const spots = new Path2D();
      const r = Math.min(Math.max(this.radius * 0.38, 2.5), 5);
      for (const row of rows) {
        if (problems?.[row] == null && alarms?.[row] == null && health?.[row] !== "unhealthy") continue;
        const [x, y] = this.at(row);
        view.flow.dotted(spots, x + 0.85 * this.radius, y - 0.85 * this.radius, r);
      }
      pen.fillStyle = theme.bad;
      pen.strokeStyle = theme.surface;
      pen.lineWidth = 2;
      pen.stroke(spots);
      pen.fill(spots);
    }

    drawNames(pen, rows, theme) {
      const aside = 0.8 * (this.radius * 1.28 + 2); // below to the right, where links seldom are
      const room = Math.floor((this.places.pixels * this.transform.k - aside - this.radius) / 6.2);
      pen.font = "11px system-ui, sans-serif";
      pen.textAlign = "left";
      pen.textBaseline = "top";
      pen.lineWidth = 3;
      pen.lineJoin = "round";
      pen.strokeStyle = theme.surface;
      pen.fillStyle = theme.muted;
      for (const row of rows) {
        const [x, y] = this.at(row);
        const name = this.short(this.run.heading.devices[row], room);
        pen.strokeText(name, x + aside, y + aside);
        pen.fillText(name, x + aside, y + aside);
      }
    }

    /** A name in little room: without what all names begin with; and none, rather than one cut to a wrong number. */
    short(name, room) {
      this.prefix ??= common(this.run.heading.devices);
      if (room >= MIN_CUT_LETTERS || name.length <= room) return truncate(name, room);
      const rest = this.prefix ? `…${name.slice(this.prefix)}` : name;
      return rest.length <= room ? rest : "";
    }

    drawChosen(pen, theme) {
      const rings = [
        [this.selected, [], 2.5],
        [this.focused ?? this.hovered, [4, 3], 2],
      ];
      for (const [row, dashes, width] of rings) {
        if (row === null) continue;
        const ring = new Path2D();
        view.flow.dotted(ring, ...this.at(row), Math.max(this.radius, 5) * 1.28 + 7);
        pen.strokeStyle = theme.accent;
        pen.lineWidth = width;
        pen.setLineDash(dashes);
        pen.stroke(ring);
        pen.setLineDash([]);
      }
    }
  }

  /** How many letters all names begin with, but for digits, which count devices. */
  function common(names) {
    const [first] = names;
    let many = names.length > 1 ? first.length : 0;
    for (const name of names) while (!name.startsWith(first.slice(0, many))) many -= 1;
    while (many > 0 && /\d/.test(first[many - 1])) many -= 1;
    return many;
  }

  view.drawing = { Drawing };
})();
