// The page of a device: what the trace knows of it, and what a live node says when actions.
"use strict";

(() => {
  const view = window.conformesh;
  const { make, facts, renew, write } = view.dom;
  const { FIELDS, STATES, full, short, pluralize, seconds, since, toNumber, whole, displayName } = view.words;
  const ASK_INTERVAL_MS = 1000; // between questions to a live node
  const MAX_RECORDS = 50;
  const SEARCHED_STEPS = 500; // that are searched back for the last message of a device

  class Device {
    /** `actions` has pick(run number, row or null). */
    constructor(host, actions) {
      Object.assign(this, { host, actions, run: null, row: null, details: null });
      this.title = make("h2", { tabindex: "-1" });
      this.state = make("p", { class: "state" });
      this.parts = ["now", "said", "neighbours", "log", "live"].map((name) => make("section", { class: name }));
      const onclick = () => actions.pick(null, null);
      const close = make("button", { type: "button", class: "close", onclick }, "close");
      host.append(make("header", {}, this.title, close), this.state, ...this.parts);
      host.addEventListener("keydown", (event) => event.key === "Escape" && actions.pick(null, null));
    }

    /** Open the page of a device; `live` says whether there is a node to ask about it. */
    open(run, number, row, live) {
      this.stop();
      Object.assign(this, { run, number, row, details: null });
      this.host.hidden = false;
      write(this.title, displayName(run.heading.devices[row]));
      if (live) this.ask();
    }

    close() {
      this.stop();
      this.run = null;
      this.host.hidden = true;
    }

    stop() {
      clearTimeout(this.timer);
      this.question?.abort();
    }

    /** Ask the server about a live node, again and again, unless it knows nothing of it. */
    async ask() {
      this.question = new AbortController();
      const { signal } = this.question;
      try {
        const answer = await fetch(`device/${this.number}/${this.row}`, { signal });
        this.details = answer.ok ? await answer.json() : null;
        if (answer.status === 404) return;
      } catch (problem) {
        if (signal.aborted) return;
        this.details = null; // what it said before may be wrong by now
      }
      if (signal.aborted) return;
      this.actions.changed();
      this.timer = setTimeout(() => this.ask(), ASK_INTERVAL_MS);
    }

    show(place) {
      if (this.run === null) return;
      const known = this.run.known(place);
      const state = STATES[known.state(this.row)].name;
      renew(this.state, [state, view.colours.theme.text], () => [
        view.marks.glyph(state),
        state,
        make("span", {}, ` in ${this.run.heading.name}`),
        state === "silent" ? make("span", { class: "past" }, "What stands below is what was known of it last.") : null,
      ]);
      const [now, said, neighbours, log, live] = this.parts;
      this.showNow(now, known);
      this.showLastMessage(said, place);
      this.showNeighbours(neighbours, known);
      this.showLog(log, place);
      this.showLive(live);
    }

    showNow(host, known) {
      const { run, row } = this;
      const pairs = Object.entries(FIELDS)
        .map(([name, words]) => [name, words, known.value(name, row)])
        .filter(([name, , value]) => value !== null || name === "threshold")
        .map(([name, words, value]) => [words, full(value) + beside(name, run, known)]);
      renew(host, pairs, () => [facts(pairs)]);
    }

    showLastMessage(host, place) {
      // Messages of streams are not recorded.
      const words = this.run.heading.unit === "steps" ? "" : this.describeLastMessage(place);
      renew(host, words, () => (words ? [make("h3", {}, "what it said"), make("p", {}, words)] : []));
    }

    /** What the device said last, in words. */
    describeLastMessage(place) {
      const { run, row } = this;
      const links = new Set(run.neighbours[row].map(([, link]) => link));
      const bitsSent = (step) => spoken(step.said, row) ?? (step.flow ? sum(step.flow, links) : null);
      let last = place;
      while (last >= 0 && last > place - SEARCHED_STEPS && bitsSent(run.steps[last]) === null) last -= 1;
      if (last < 0) return "nothing so far";
      if (last === place - SEARCHED_STEPS) return `nothing in the last ${whole(SEARCHED_STEPS)} steps`;
      const step = run.steps[last];
      const bits = bitsSent(step);
      const what = step.said
        ? `${whole(bits)} bits to each of ${pluralize(links.size, "neighbour")}`
        : `${whole(bits / 8)} bytes along its links`;
      const when = last === place ? "in this step" : `last ${ago(run, last, place)}`;
      const lost = (step.lost ?? []).filter((link) => links.has(link)).length;
      return `${what}, ${when}${lost ? `; ${whole(lost)} of them lost` : ""}`;
    }

    showNeighbours(host, known) {
      const byRow = new Map((this.details?.neighbours ?? []).map((neighbour) => [neighbour.row, neighbour]));
      const rows = this.run.neighbours[this.row].map(([row]) => {
        const threshold = known.value("threshold", row);
        return [
          row,
          STATES[known.state(row)].name,
          threshold === null ? "" : short(toNumber(threshold)),
          describeArrivals(byRow.get(row)),
        ];
      });
      renew(host, rows, () => [
        make("h3", {}, pluralize(rows.length, "neighbour")),
        make(
          "ul",
          {},
          rows.map(([row, state, threshold, heard]) =>
            make(
              "li",
              {},
              this.link(row),
              make("span", {}, view.marks.glyph(state), [state, threshold, heard].filter(Boolean).join(" · ")),
            ),
          ),
        ),
      ]);
    }

    link(row) {
      return make(
        "button",
        { type: "button", class: "link", onclick: () => this.actions.pick(this.number, row) },
        displayName(this.run.heading.devices[row]),
      );
    }

    showLog(host, place) {
      const records = this.run.log
        .filter((record) => record.row === this.row && record.place <= place)
        .slice(-MAX_RECORDS)
        .reverse();
      renew(
        host,
        records.map((record) => record.place + record.words),
        () =>
          records.length === 0
            ? []
            : [
                make("h3", {}, "log"),
                make(
                  "ol",
                  { class: "records" },
                  records.map(({ at, level, words }) =>
                    make("li", { "data-level": level }, make("b", {}, level), ` ${when(this.run, at)} `, words),
                  ),
                ),
              ],
      );
    }

    showLive(host) {
      const { details } = this;
      renew(host, details && [details.facts, details.certificate, details.log], () =>
        details === null
          ? []
          : [
              make("h3", {}, "the node itself"),
              facts(details.facts ?? []),
              details.certificate == null ? null : make("p", { class: "certificate" }, details.certificate),
              make(
                "ol",
                { class: "records" },
                (details.log ?? [])
                  .slice(-MAX_RECORDS)
                  .reverse()
                  .map(([at, level, words]) =>
                    make("li", { "data-level": level }, make("b", {}, level), ` ${clockTime(at)} `, words),
                  ),
              ),
            ],
      );
    }
  }

  /** What makes a number of a field readable. */
  function beside(name, run, { everybody }) {
    if (name === "heard") return ` of ${whole(run.devices)}`;
    if (name === "within" && everybody) return ` of ${everybody.alpha}`;
    return name === "known" && run.heading.scores != null ? ` of ${whole(run.heading.scores)}` : "";
  }

  function describeArrivals(neighbour) {
    if (neighbour === undefined) return "";
    const { last_heard_seconds_ago: ago, bytes_received: bytes, frames_received: frames } = neighbour;
    const heard = ago == null ? "never heard" : `heard ${seconds(ago)} ago`;
    return [heard, frames == null ? "" : pluralize(frames, "frame"), bytes == null ? "" : pluralize(bytes, "byte")]
      .filter(Boolean)
      .join(", ");
  }

  /** The bits that a device said to all its neighbours, or null; looked up for one device only. */
  function spoken(said, row) {
    const place = said == null ? -1 : said.rows == null ? row : said.rows.indexOf(row);
    return place < 0 ? null : said.bits[said.bits.length === 1 ? 0 : place];
  }

  function sum(flow, links) {
    let [found, bytes] = [false, 0];
    flow.links.forEach((link, place) => {
      if (links.has(link)) [found, bytes] = [true, bytes + flow.bytes[place]];
    });
    return found ? 8 * bytes : null;
  }

  const when = (run, at) => since(at, run.heading.unit);

  function ago(run, last, place) {
    const [then, now] = [last, place].map((step) => run.series.at[step]);
    return run.heading.unit === "seconds" ? `${seconds(now - then)} ago` : `in ${since(then, run.heading.unit)}`;
  }

  const clockTime = (at) => new Date(1000 * at).toLocaleTimeString();

  view.device = { Device };
})();
