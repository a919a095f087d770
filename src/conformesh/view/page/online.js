// Devices that learn online: coverage lately, coverage so far inside what is guaranteed, and the same in words.
"use strict";

(() => {
  const view = window.conformesh;
  const { make, renew } = view.dom;
  const { displayName, truncate, pluralize, toNumber, whole } = view.words;
  const { stepped } = vendor.uPlot.paths;
  const STEPPED = stepped({ align: 1 }); // a value holds until the next one
  const NAME_LETTERS = 16; // letters of a device's name in the table
  const NAMED_DEVICES = 3; // devices that are named
  const RANGE_BOUNDS = 5; // bounds that a chart of what is guaranteed reaches, up and down
  const MIN_RANGE = 0.005; // and shares, at least
  const MILLION = 1e6;
  const FIELDS = ["labels", "misses", "lately", "within"];
  const plain = { paths: STEPPED, points: { show: false } };
  const clear = { ...plain, width: 0, stroke: () => "transparent" }; // ends of a band
  const theme = (name) => () => view.colours.theme[name];
  const faint = (name, share) => () => view.colours.faint(view.colours.theme[name], share);
  const finite = (value) => (Number.isFinite(value) ? value : null);
  const share = ({ labels, misses }) => (labels > 0 ? 1 - misses / labels : null);

  // A guarantee is never rounded towards its middle.
  const three = (value) => value.toFixed(3);
  const down = (value) => three(Math.floor(1000 * value + 1e-9) / 1000);
  const up = (value) => three(Math.ceil(1000 * value - 1e-9) / 1000);

  /** What the chosen device had covered at every step: shares so far and lately, and how far it can be from alpha. */
  class DeviceCoverage {
    constructor(run) {
      this.run = run;
      this.choose(null);
    }

    choose(row) {
      Object.assign(this, { row, taken: 0, first: null, now: {}, lately: [], sofar: [], within: [] });
    }

    /** Go on to the last step; only columns of this device are looked at. */
    update() {
      if (this.row === null) return;
      const { steps } = this.run;
      if (steps[0] !== this.first) this.choose(this.row); // it began again, or its oldest steps were folded
      this.first = steps[0];
      for (; this.taken < steps.length; this.taken += 1) {
        for (const name of FIELDS) this.take(name, steps[this.taken].devices?.[name]);
        this.lately.push(this.now.lately ?? null);
        this.sofar.push(share(this.now));
        this.within.push(this.now.within ?? null);
      }
    }

    take(name, column) {
      const place = column === undefined ? -1 : column.rows == null ? this.row : column.rows.indexOf(this.row);
      if (place >= 0) this.now[name] = column.values[place];
    }
  }

  /** A chart of shares, with a dashed line at what was asked for. */
  class Shares extends view.chart.Chart {
    constructor(host, run, height, seek, own) {
      super(host, run, height, seek);
      this.own = own;
    }

    get coverageOfAll() {
      return this.run.series.everybody;
    }

    get target() {
      return 1 - (this.run.latest.everybody?.alpha ?? 0);
    }

    line(value) {
      return this.keep.map((place) => finite(this.coverageOfAll[place] && value(this.coverageOfAll[place])));
    }

    ofDevice(values) {
      return this.keep.map((place) => finite(values[place]));
    }

    label(value) {
      return String(Number(value.toFixed(4)));
    }

    drawTarget(plot) {
      const { left, width } = plot.bbox;
      const pen = plot.ctx;
      const y = Math.round(plot.valToPos(this.target, "y", true));
      pen.save();
      pen.strokeStyle = view.colours.theme.text;
      pen.lineWidth = 1 * devicePixelRatio;
      pen.setLineDash([6 * devicePixelRatio, 4 * devicePixelRatio]);
      pen.beginPath();
      pen.moveTo(left, y);
      pen.lineTo(left + width, y);
      pen.stroke();
      pen.restore();
    }

    look(series, bands) {
      return { series: [{}, ...series], bands, hooks: { draw: [(plot) => this.drawTarget(plot)] } };
    }
  }

  const all = { ...plain, width: 2, stroke: theme("text") };
  const chosen = { ...plain, width: 2, stroke: theme("accent") };

  /** Coverage of the last labels: of all, of the chosen device, and how devices spread. */
  class RecentCoverage extends Shares {
    update(time) {
      const { window: many, own } = this.run.latest.everybody;
      const one = own === many ? "" : `, of a device ${whole(own)}`;
      const spread = this.run.devices > 1 ? "; bands: devices, and their middle half" : "";
      view.dom.write(this.caption, `covered in the last ${lately(this.run, many)}${one}${spread}`);
      super.update(time);
    }

    data() {
      const bands = [4, 3, 1, 0].map((part) => this.line(({ spread }) => spread?.[part]));
      return [this.xs(), ...bands, this.line((each) => each.lately), this.ofDevice(this.own.lately)];
    }

    /** Around what there is once a whole window has passed; how it began may go beyond the edge. */
    range() {
      const { coverageOfAll, target } = this;
      const passed = (place) =>
        (this.run.heading.unit === "steps" ? this.run.series.at[place] : coverageOfAll[place].labels) >=
        coverageOfAll[place].window;
      const settled = this.keep.filter((place) => coverageOfAll[place] && passed(place));
      const places = settled.length ? settled : this.keep.filter((place) => coverageOfAll[place]);
      const values = places.flatMap((place) => {
        const { spread, lately: recent } = coverageOfAll[place];
        return [spread?.[0], spread?.[4], recent, this.own.lately[place]].filter(Number.isFinite);
      });
      const [least, most] = [Math.min(target, ...values), Math.max(target, ...values)];
      const rim = 0.06 * Math.max(most - least, 0.02);
      return [Math.max(least - rim, 0), Math.min(most + rim, 1)];
    }

    plotOptions() {
      return this.look(
        [clear, clear, clear, clear, all, chosen],
        [
          { series: [1, 4], fill: faint("text", 0.1) },
          { series: [2, 3], fill: faint("text", 0.14) },
        ],
      );
    }
  }

  /** Coverage since the first label, inside what is guaranteed whatever the scores are. */
  class SoFar extends Shares {
    update(time) {
      const known = this.run.latest.everybody.within != null;
      const band = known ? "; the band is guaranteed, whatever the scores" : "; no bound is known for this rule";
      view.dom.write(this.caption, `covered so far${band}`);
      super.update(time);
    }

    data() {
      const { own, target } = this;
      const edge = (way) =>
        own.within.map((within) => (within == null ? null : Math.min(Math.max(target + way * within, 0), 1)));
      return [
        this.xs(),
        this.line(({ within }) => within?.[1]),
        this.line(({ within }) => within?.[0]),
        this.line(share),
        this.ofDevice(own.sofar),
        this.ofDevice(edge(1)),
        this.ofDevice(edge(-1)),
      ];
    }

    /** Around what was asked for, some bounds wide; how it began, when little was certain, goes beyond the edge. */
    range() {
      const { target, own } = this;
      const ends = this.run.latest.everybody?.within ?? []; // a run that begins again has none
      const far = Math.max(...ends.map((end) => Math.abs(end - target)), own.within.at(-1) ?? 0);
      const reach = far > 0 ? Math.max(RANGE_BOUNDS * far, MIN_RANGE) : 1;
      return [Math.max(target - reach, 1 - 3 * (1 - target), 0), Math.min(target + reach, 1)];
    }

    plotOptions() {
      const edge = { ...plain, width: 1.4, dash: [2, 3], stroke: theme("accent") };
      return this.look([clear, clear, all, chosen, edge, edge], [{ series: [1, 2], fill: theme("band") }]);
    }
  }

  const lately = (run, many) => pluralize(many, run.heading.unit === "steps" ? "step" : "label");

  /** A row of the table of what was covered: of whom, lately, so far, of how many labels, and what is guaranteed. */
  function cells(name, { labels, misses, lately: recent, within }) {
    const sofar = share({ labels, misses });
    return [
      name,
      recent == null ? "" : three(recent),
      sofar === null ? "" : three(sofar),
      labels >= MILLION ? `${(labels / MILLION).toPrecision(3)} M` : whole(labels),
      within ? `${down(within[0])} to ${up(within[1])}` : "nothing",
    ];
  }

  /** What is known of one device at a step; null where it does not learn. */
  function ownCells(run, known, row) {
    const [labels, misses, recent, within] = FIELDS.map((name) => known.value(name, row));
    if (labels === null) return null;
    const target = 1 - known.everybody.alpha;
    const ends = within === null ? null : [Math.max(target - within, 0), Math.min(target + within, 1)];
    const name = truncate(displayName(run.heading.devices[row]), NAME_LETTERS);
    return cells(name, { labels, misses, lately: recent, within: ends });
  }

  /** Who has covered least lately, as pairs of a row and a share. */
  function lowest(known) {
    const shares = known.fields.get("lately") ?? [];
    const found = [];
    shares.forEach((value, row) => {
      if (value === null || (found.length === NAMED_DEVICES && value >= found.at(-1)[1])) return;
      found.push([row, toNumber(value)]);
      found.sort((a, b) => a[1] - b[1] || a[0] - b[0]);
      found.length = Math.min(found.length, NAMED_DEVICES);
    });
    return found;
  }

  const spoken = ([name, recent, sofar, labels, within]) =>
    `${name}: ${recent || "unknown"} lately, ${sofar || "unknown"} of ${labels} labels so far, ${within} guaranteed`;

  function table(rows, target) {
    const head = ["", "lately", "so far", "labels", "guaranteed"];
    const kind = (place) => (head[place] === "labels" ? "labels" : null); // which a narrow panel has no room for
    const title = (words, place) => (words ? make("th", { scope: "col", class: kind(place) }, words) : make("td"));
    const line = (place) => make("i", { class: place ? "line own" : "line", "aria-hidden": "true" });
    return make(
      "table",
      { class: "learnt" },
      make("caption", {}, `covered, of ${target} asked for`),
      make("thead", {}, make("tr", {}, head.map(title))),
      make(
        "tbody",
        {},
        rows.map(([name, ...values], place) =>
          make(
            "tr",
            {},
            make("th", { scope: "row" }, line(place), name),
            values.map((value, column) => make("td", { class: kind(column + 1) }, value)),
          ),
        ),
      ),
    );
  }

  /** The part of a run's panel that is about learning; it is empty where nobody does. */
  class Online {
    /** `pick` is called with the row of a device that was asked for. */
    constructor(run, pick) {
      Object.assign(this, { run, pick });
      this.own = new DeviceCoverage(run);
      this.element = make("div", { class: "online" });
    }

    /** Make the charts, in this element. */
    open(host, large, seek) {
      this.lately = new RecentCoverage(host, this.run, large ? 170 : 120, seek, this.own);
      this.sofar = new SoFar(host, this.run, large ? 150 : 110, seek, this.own);
      return [this.lately, this.sofar];
    }

    refresh() {
      this.own.update();
      this.lately.figure.hidden = this.sofar.figure.hidden = this.run.latest.everybody === null;
    }

    /** Another device is chosen: its curves are drawn in the place of others. */
    select(row) {
      if (row === this.own.row) return;
      this.own.choose(row);
      this.own.update();
      if (this.run.latest.everybody === null) return;
      for (const chart of [this.lately, this.sofar]) if (chart.plot) chart.update(chart.time);
    }

    write(known) {
      const { run } = this;
      const { everybody } = known;
      if (everybody === null) return renew(this.element, null, () => []);
      const chosenRow = this.own.row === null ? null : ownCells(run, known, this.own.row);
      const rows = [cells("all", everybody), chosenRow].filter(Boolean);
      const least = run.devices < 2 ? [] : lowest(known);
      const target = three(1 - everybody.alpha);
      renew(this.element, [rows, least, target], () => [
        table(rows, target),
        least.length
          ? make("p", { class: "lowest" }, `lowest in the last ${lately(run, everybody.own)}: `, this.links(least))
          : null,
      ]);
      const said = rows.map(spoken).join("; ");
      for (const chart of [this.lately, this.sofar])
        chart.describe(`${chart.caption.textContent}; asked for ${target}; ${said}`);
    }

    links(least) {
      return least.flatMap(([row, value]) => [
        make(
          "span",
          {},
          make(
            "button",
            { type: "button", class: "link", onclick: () => this.pick(row) },
            displayName(truncate(this.run.heading.devices[row], 30)),
          ),
          ` ${three(value)}`,
        ),
        " ",
      ]);
    }
  }

  view.online = { Online };
})();
