// The panel of a run: its title, its picture, its charts, and the same in words.
"use strict";

(() => {
  const view = window.conformesh;
  const { make, write, facts, renew } = view.dom;
  const { STATES, FAULT_STATES, countsByState, search, short, pluralize } = view.words;
  const { toNumber, whole, truncate, displayName, moment, since } = view.words;
  const KEY_HELP = "arrow keys go from device to device, Enter opens its page, plus and minus zoom, 0 fits";
  const MAX_NAMED = 6; // devices that are named in a line about faults

  class Panel {
    /** `actions` has pick(run, row), seek(position), changed() and say(words). */
    constructor(run, number, actions) {
      Object.assign(this, { run, number, actions });
      const { heading } = run;
      const links = pluralize(heading.edges.length, "link");
      const what = `${pluralize(run.devices, "device")} and ${links} of ${heading.name}`;
      const label = `${what}; ${KEY_HELP}`;
      this.picture = make("div", { class: "picture", role: "application", tabindex: "0", "aria-label": label });
      this.time = make("span", { class: "when" });
      this.search = make("p", { class: "search" });
      this.spread = make("p", { class: "spread" });
      this.counts = make("ul", { class: "counts", "aria-label": "devices by state" });
      this.faults = make("div", { class: "faults" });
      this.charts = make("div", { class: "charts" });
      this.online = new view.online.Online(run, (row) => actions.pick(number, row));
      this.result = make("div", { class: "result" });
      this.element = make(
        "section",
        { class: "run", "aria-label": heading.name },
        make(
          "header",
          {},
          make("h2", {}, heading.name),
          this.time,
          this.tools(),
          facts(factsNotInName(heading), "facts inline"),
        ),
        make("div", { class: "stage" }, this.picture),
        make(
          "div",
          { class: "side" },
          make("div", { class: "words" }, this.counts, this.search, this.spread, this.online.element, this.faults),
          this.charts,
          this.result,
        ),
      );
      if (heading.private)
        this.search.after(
          make(
            "p",
            { class: "private" },
            "A private run: of single devices nothing is shown but what their neighbours see.",
          ),
        );
    }

    tools() {
      const buttons = [
        ["+", "zoom in", () => this.graph.zoomBy(1.5)],
        ["−", "zoom out", () => this.graph.zoomBy(1 / 1.5)],
        ["fit", "fit all devices", () => this.graph.fit()],
      ];
      return make(
        "div",
        { class: "tools" },
        buttons.map(([words, label, onclick]) =>
          make(
            "button",
            { type: "button", "aria-label": `${label}: ${this.run.heading.name}`, title: label, onclick },
            words,
          ),
        ),
      );
    }

    /** Draw for the first time, once the element is in the page and has a size. */
    open(large) {
      const { run } = this;
      const seek = (position) => this.actions.seek(position);
      this.graph = new view.graph.Graph(run, this.picture, {
        pick: (row) => this.actions.pick(this.number, row),
        changed: () => this.actions.changed(),
        say: (words) => this.actions.say(words),
      });
      this.learnt = this.online.open(this.charts, large, seek);
      this.thresholds = new view.charts.Thresholds(this.charts, run, large ? 210 : 150, seek);
      this.sentBits = new view.charts.SentBits(this.charts, run, large ? 110 : 80, seek);
      this.stacked = new view.charts.Counts(this.charts, run, large ? 110 : 80, seek);
      this.all = [...this.learnt, this.thresholds, this.sentBits, this.stacked];
    }

    close() {
      for (const part of [this.graph, ...this.all]) part.close();
      this.element.remove();
    }

    /** New steps, another time axis or other colours: charts are drawn again. */
    refresh(clock) {
      const { counts, bits } = this.run.series;
      this.online.refresh();
      this.sentBits.figure.hidden = !bits.some((each) => each > 0);
      this.stacked.figure.hidden = !counts.some((each) => each.filter(Boolean).length > 1); // else words do
      for (const chart of this.all) if (!chart.figure.hidden) chart.update(clock);
    }

    /** Write everything again, since colours are other ones. */
    forget() {
      this.place = undefined;
      this.graph.stale = true;
      for (const part of [this.counts, this.faults]) delete part.dataset.key;
    }

    /** Show a step. Says whether messages are on their way. */
    show(clock, share) {
      const place = clock.place(this.run);
      const moving = this.graph.draw(place, share);
      for (const chart of this.all) chart.showTime();
      if (place !== this.place || this.run.steps[place] !== this.step || this.run.result !== this.shown)
        this.write(place, clock);
      return moving;
    }

    write(place, clock) {
      const { run } = this;
      const known = run.known(place);
      Object.assign(this, { place, step: run.steps[place], shown: run.result });
      write(this.time, place < 0 ? "nothing yet" : this.when(place, clock));
      write(this.search, search(run.heading, known.bracket));
      write(this.spread, describeThresholds(run, known, place));
      this.online.write(known);
      this.writeCounts(place);
      this.writeFaults(known, place);
      const over = run.ended && place === run.steps.length - 1;
      renew(this.result, over ? run.result : null, () =>
        over && run.result.length ? [make("h3", {}, "how it ended"), facts(run.result)] : [],
      );
      this.thresholds.describe(
        `thresholds over time; ${this.spread.textContent || "none yet"}; ${this.search.textContent}`,
      );
      const bits = whole(run.series.bits[place] ?? 0);
      this.sentBits.describe(`${this.sentBits.caption.textContent}: ${bits} bits in this step`);
      this.stacked.describe(`devices by state: ${this.counts.textContent}`);
    }

    when(place, clock) {
      const { run } = this;
      const at = run.series.at[place];
      if (run.ended || !clock.following) return moment(at, run.end, run.heading.unit);
      return `${since(at, run.heading.unit)} so far`;
    }

    writeCounts(place) {
      const now = countsByState(this.run.series.counts[place] ?? this.run.counts);
      renew(this.counts, now, () =>
        now.map(([name, count]) => {
          const swatch = make("i", { class: "swatch", "aria-hidden": "true" });
          swatch.style.background = view.charts.tone(name);
          return make(
            "li",
            {},
            view.marks.glyph(name),
            make("b", {}, whole(count)),
            ` ${name}`,
            this.stacked.figure.hidden ? null : swatch,
          );
        }),
      );
    }

    /** List devices with a fault, and messages lost in this step. Health is what the node itself reports. */
    writeFaults(known, place) {
      const wrong = new Map();
      for (let row = 0; row < this.run.devices; row += 1) {
        const state = STATES[known.state(row)].name;
        const problem = known.value("problem", row) !== null || known.value("health", row) === "unhealthy";
        const isFault = FAULT_STATES.includes(state) && known.value("phase", row) !== null;
        const name = isFault ? state : problem ? "with a problem" : null;
        if (known.value("alarm", row) !== null) wrong.set("drift alarm", [...(wrong.get("drift alarm") ?? []), row]);
        if (name !== null) wrong.set(name, [...(wrong.get(name) ?? []), row]);
      }
      const lost = this.run.steps[place]?.lost?.length ?? 0;
      renew(this.faults, [[...wrong], lost], () => [
        ...[...wrong].map(([name, rows]) => make("p", {}, `${name}: `, this.links(rows))),
        lost ? make("p", {}, `${pluralize(lost, "message")} lost in this step`) : null,
      ]);
    }

    links(rows) {
      const buttons = rows
        .slice(0, MAX_NAMED)
        .map((row) =>
          make(
            "button",
            { type: "button", class: "link", onclick: () => this.actions.pick(this.number, row) },
            displayName(truncate(this.run.heading.devices[row], 30)),
          ),
        );
      return [...buttons, rows.length > MAX_NAMED ? ` and ${whole(rows.length - MAX_NAMED)} more` : null];
    }

    select(row) {
      this.graph.selected = row;
      this.thresholds.select(row);
      this.online.select(row);
      this.place = undefined; // words name who is chosen
    }
  }

  /** Facts that the name does not say already. */
  const factsNotInName = ({ name, facts: pairs }) => (pairs ?? []).filter(([, words]) => !name.includes(words));

  /** The thresholds of a step in words, with those that no chart can show. */
  function describeThresholds(run, known, place) {
    const spread = run.series.spread[place];
    const values = known.fields.get("threshold") ?? [];
    const infinite = values.filter((value) => value === "inf").length;
    const beyond = values.filter((value) => value === "-inf").length;
    const words = [];
    const [low, high] = known.bracket ?? [];
    if (spread && !(low === high && spread[0] === low && spread[4] === low))
      words.push(
        spread[0] === spread[4]
          ? `threshold ${short(spread[0])}`
          : `thresholds from ${short(spread[0])} to ${short(spread[4])}`,
      );
    if (infinite) words.push(`${pluralize(infinite, "device")} at +∞`);
    if (beyond) words.push(`${pluralize(beyond, "device")} at −∞`);
    const missing = values.filter((value) => Number.isNaN(toNumber(value))).length;
    if (missing && words.length) words.push(`of ${pluralize(missing, "device")} unknown`);
    return words.join("; ");
  }

  view.panel = { Panel };
})();
