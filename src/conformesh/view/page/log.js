// The log: what was said about devices up to the time that is shown, newest first.
"use strict";

(() => {
  const view = window.conformesh;
  const { make, write, renew } = view.dom;
  const { since, whole, pluralize, displayName, truncate } = view.words;
  const MAX_RECORDS = 300; // records at a time
  const LEVELS = ["debug", "info", "warning", "error", "critical"];

  class Log {
    /** `actions` has pick(run number, row) and changed(). */
    constructor(host, actions) {
      this.actions = actions;
      const changed = () => actions.changed();
      this.level = make(
        "select",
        { "aria-label": "level", onchange: changed },
        make("option", { value: "" }, "every level"),
        LEVELS.slice(1, 4).map((level) => make("option", { value: level }, `${level} and worse`)),
      );
      this.filter = make("input", {
        type: "search",
        "aria-label": "records whose device or words have",
        placeholder: "device or words",
        oninput: changed,
      });
      this.count = make("p", { role: "status" });
      this.list = make("ol", { class: "records" });
      host.append(make("div", { class: "filters" }, this.level, this.filter, this.count), this.list);
    }

    show(runs, clock) {
      const least = LEVELS.indexOf(this.level.value);
      const words = this.filter.value.trim().toLowerCase();
      const found = runs.flatMap((run, number) => {
        const last = clock.place(run);
        return run.log
          .filter((record) => record.place <= last && rank(record.level) >= least && text(run, record).includes(words))
          .map((record) => ({ ...record, run, number }));
      });
      found.sort((a, b) => b.at - a.at);
      write(
        this.count,
        found.length > MAX_RECORDS
          ? `the latest ${whole(MAX_RECORDS)} of ${pluralize(found.length, "record")}`
          : pluralize(found.length, "record"),
      );
      renew(
        this.list,
        found.slice(0, MAX_RECORDS).map(({ number, at, row, words: said }) => [number, at, row, said]),
        () => found.slice(0, MAX_RECORDS).map((record) => this.line(record, runs.length > 1)),
      );
    }

    line({ run, number, at, row, level, words }, several_) {
      const name =
        row < 0
          ? null
          : make(
              "button",
              { type: "button", class: "link", onclick: () => this.actions.pick(number, row) },
              displayName(truncate(run.heading.devices[row], 40)),
            );
      const when = since(at, run.heading.unit);
      return make(
        "li",
        { "data-level": level },
        make("b", {}, level),
        make("span", { class: "when" }, when),
        several_ ? `${run.heading.name}: ` : null,
        name,
        make("span", {}, words),
      );
    }
  }

  /** How bad a level is; one that nobody knows counts as information. */
  const rank = (level) => (LEVELS.includes(level) ? LEVELS.indexOf(level) : 1);

  const text = (run, { row, words }) => `${run.heading.devices[row] ?? ""}\n${words}`.toLowerCase();

  view.log = { Log };
})();
