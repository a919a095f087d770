// The table of devices: all that the picture shows, in words, for everybody; some devices at a time.
"use strict";

(() => {
  const view = window.conformesh;
  const { make, write } = view.dom;
  const { FIELDS, STATES, toNumber, full, short, whole, pluralize, displayName } = view.words;
  const PAGE_ROWS = 100; // devices at a time
  const NARROW_COLUMNS = ["name", "state", "threshold"]; // columns that a narrow screen has room for

  class Table {
    /** `actions` has pick(run number, row) and changed(). */
    constructor(host, actions) {
      Object.assign(this, { actions, run: null, sorted: "name", down: false, from: 0, words: "" });
      this.choice = make("select", { "aria-label": "run", onchange: () => actions.choose(Number(this.choice.value)) });
      this.filter = make("input", {
        type: "search",
        "aria-label": "devices whose name or state has",
        placeholder: "name or state",
        oninput: () => this.narrow(),
      });
      this.count = make("p", { role: "status" });
      this.head = make("tr");
      this.body = make("tbody");
      this.caption = make("caption");
      this.back = make("button", { type: "button", onclick: () => this.page(-PAGE_ROWS) }, "previous");
      this.on = make("button", { type: "button", onclick: () => this.page(PAGE_ROWS) }, "next");
      host.append(
        make("div", { class: "filters" }, this.choice, this.filter, this.count, this.back, this.on),
        make(
          "div",
          { class: "scroll" },
          make("table", { class: "devices" }, this.caption, make("thead", {}, this.head), this.body),
        ),
      );
    }

    narrow() {
      this.words = this.filter.value.trim().toLowerCase();
      this.from = 0;
      this.actions.changed();
    }

    page(by) {
      this.from = Math.max(0, this.from + by);
      this.actions.changed();
    }

    sort(column) {
      this.down = this.sorted === column && !this.down;
      this.sorted = column;
      this.actions.changed();
    }

    /** Offer these runs. */
    offer(runs, number) {
      this.choice.replaceChildren(
        ...runs.map((run, place) =>
          make("option", { value: String(place), selected: place === number }, run.heading.name),
        ),
      );
      this.choice.hidden = runs.length < 2;
    }

    show(run, number, place, selected) {
      if (run !== this.run) Object.assign(this, { run, number, from: 0 });
      const known = run.known(place);
      const columns = [
        "name",
        "state",
        ...Object.keys(FIELDS).filter((name) => name !== "phase" && known.fields.has(name)),
      ];
      if (!columns.includes("threshold")) columns.splice(2, 0, "threshold");
      if (!columns.includes(this.sorted)) this.sorted = "name";
      const rows = this.order(this.matching(known), known);
      this.from = Math.min(this.from, Math.max(0, Math.floor((rows.length - 1) / PAGE_ROWS) * PAGE_ROWS));
      this.showHead(columns);
      const shown = rows.slice(this.from, this.from + PAGE_ROWS);
      shown.forEach((row, line) => this.showRow(this.line(line), row, columns, known, selected));
      while (this.body.rows.length > shown.length) this.body.lastElementChild.remove();
      write(this.caption, `devices of ${run.heading.name}`);
      const all =
        rows.length === run.devices
          ? pluralize(run.devices, "device")
          : `${whole(rows.length)} of ${pluralize(run.devices, "device")}`;
      write(
        this.count,
        rows.length > PAGE_ROWS ? `${all}, from ${whole(this.from + 1)} to ${whole(this.from + shown.length)}` : all,
      );
      this.back.hidden = this.on.hidden = rows.length <= PAGE_ROWS;
      this.back.disabled = this.from === 0;
      this.on.disabled = this.from + PAGE_ROWS >= rows.length;
    }

    matching(known) {
      const rows = Array.from({ length: this.run.devices }, (_, row) => row);
      if (this.words === "") return rows;
      return rows.filter((row) =>
        `${this.run.heading.devices[row]}\n${STATES[known.state(row)].name}`.toLowerCase().includes(this.words),
      );
    }

    order(rows, known) {
      const { sorted, down, run } = this;
      const way = down ? -1 : 1;
      if (sorted === "name") return down ? rows.reverse() : rows; // rows of a trace are in the order of names
      if (sorted === "state")
        return rows
          .map((row) => [known.state(row), row])
          .sort(([a, x], [b, y]) => way * (a - b) || x - y)
          .map(([, row]) => row);
      const value = (row) => known.value(sorted, row);
      const unknown = (row) => value(row) === null; // last, whichever way
      const compare = (x, y) => {
        const [a, b] = [toNumber(value(x)), toNumber(value(y))];
        return Number.isNaN(a) || Number.isNaN(b) ? String(value(x)).localeCompare(String(value(y))) : a - b || 0;
      };
      return rows.sort((x, y) => unknown(x) - unknown(y) || way * compare(x, y) || x - y);
    }

    showHead(columns) {
      const key = JSON.stringify([columns, this.sorted, this.down]);
      if (this.head.dataset.key === key) return;
      const focused = this.head.contains(document.activeElement);
      this.head.dataset.key = key;
      this.head.replaceChildren(
        ...columns.map((column) => {
          const words = { name: "device", state: "state" }[column] ?? FIELDS[column];
          const order = column === this.sorted ? (this.down ? "descending" : "ascending") : null;
          const arrow = order === null ? "" : this.down ? " ▾" : " ▴";
          return make(
            "th",
            { scope: "col", "aria-sort": order, class: wide(column) },
            make("button", { type: "button", class: "link", onclick: () => this.sort(column) }, words + arrow),
          );
        }),
      );
      if (focused) this.head.querySelector("[aria-sort] button").focus();
    }

    /** The line of the table with this number; lines are kept, so that the one with the focus keeps it. */
    line(number) {
      while (this.body.rows.length <= number) {
        const button = make("button", { type: "button", class: "link" });
        const line = make("tr", {}, make("th", { scope: "row" }, button));
        button.addEventListener("click", () => this.actions.pick(this.number, Number(line.dataset.row)));
        this.body.append(line);
      }
      return this.body.rows[number];
    }

    showRow(line, row, columns, known, selected) {
      line.dataset.row = String(row);
      line.classList.toggle("selected", row === selected);
      line.classList.toggle("past", STATES[known.state(row)].name === "silent"); // what was known of it last
      const button = line.cells[0].firstElementChild;
      write(button, displayName(this.run.heading.devices[row]));
      if (row === selected) button.setAttribute("aria-current", "true");
      else button.removeAttribute("aria-current");
      while (line.cells.length < columns.length) line.append(make("td"));
      while (line.cells.length > columns.length) line.lastElementChild.remove();
      columns.slice(1).forEach((column, place) => {
        const cell = line.cells[place + 1];
        cell.className = wide(column);
        if (column === "state") this.showState(cell, STATES[known.state(row)].name);
        else write(cell, this.words_(column, known.value(column, row)));
      });
    }

    words_(column, value) {
      if (value === null) return "";
      return column === "threshold" ? short(toNumber(value)) : full(value);
    }

    showState(cell, name) {
      if (cell.textContent === name) return;
      cell.replaceChildren(view.marks.glyph(name), name);
    }
  }

  const wide = (column) => (NARROW_COLUMNS.includes(column) ? "" : "wide");

  view.table = { Table };
})();
