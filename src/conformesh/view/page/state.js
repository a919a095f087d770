// A run: its heading, its steps, and what is known at each of them.
"use strict";

(() => {
  const view = window.conformesh;
  const { STATES, STATE_FIELDS, stateOf, toNumber } = view.words;
  const MAX_LINES = 50; // devices with one line each in a chart; of more only the spread can be read, and is drawn
  const SNAPSHOT_STEPS = 1000; // steps between two snapshots, at most: so many are applied again when time goes back
  const MAX_STEPS = 60_000; // of a run without end, a bound on memory: beyond it the oldest become one
  const FOLDED_STEPS = 10_000; // that become one at a time: folding starts the run again, which takes time
  const KEPT_RECORDS = 2000; // of the log that are kept of steps that were folded

  const SCRATCH = {}; // reused for every device: there are thousands of them in every step

  /** What is known at a step: all steps up to it, merged into one. The same as RecordedState in recording.py. */
  class RecordedState {
    constructor(devices) {
      this.devices = devices;
      this.fields = new Map();
      this.bracket = null;
      this.everybody = null; // coverage of all devices together that learn online
      this.place = -1;
    }

    copy() {
      const other = new RecordedState(this.devices);
      for (const [name, values] of this.fields) other.fields.set(name, values.slice());
      Object.assign(other, { bracket: this.bracket, everybody: this.everybody });
      other.place = this.place;
      return other;
    }

    take(step) {
      this.place += 1;
      this.bracket = step.bracket ?? this.bracket;
      this.everybody = step.everybody ?? this.everybody;
      for (const [name, column] of Object.entries(step.devices ?? {})) {
        if (!this.fields.has(name)) this.fields.set(name, new Array(this.devices).fill(null));
        const values = this.fields.get(name);
        column.values.forEach((value, place) => {
          values[column.rows ? column.rows[place] : place] = value;
        });
      }
    }

    value(name, row) {
      return this.fields.get(name)?.[row] ?? null;
    }

    /** The place in STATES of a device. */
    state(row) {
      for (const name of STATE_FIELDS) SCRATCH[name] = this.fields.get(name)?.[row] ?? null;
      return stateOf(SCRATCH);
    }
  }

  /** Minimum, quartiles and maximum of the finite values. */
  function spread(values) {
    const finite = Float64Array.from(values.filter(Number.isFinite)).sort();
    if (finite.length === 0) return null;
    return [0, 0.25, 0.5, 0.75, 1].map((share) => finite[Math.round(share * (finite.length - 1))]);
  }

  class Run {
    constructor(heading) {
      this.heading = heading;
      this.devices = heading.devices.length;
      this.result = null;
      this.forget();
    }

    /** Begin again, without steps. */
    forget() {
      this.steps = [];
      this.places = 0; // of steps, as the server counts them: those that were folded count as well
      this.snapshots = [];
      this.latest = new RecordedState(this.devices);
      this.states = new Uint8Array(this.devices).fill(this.latest.devices ? new RecordedState(1).state(0) : 0);
      this.counts = STATES.map(() => 0);
      for (const state of this.states) this.counts[state] += 1;
      this.weight = 0; // values in steps since the last snapshot
      this.series = { at: [], spread: [], counts: [], bits: [], bracket: [], everybody: [] };
      this.lines = this.devices <= MAX_LINES ? Array.from({ length: this.devices }, () => []) : null;
      this.log = [];
      this.infinite = false; // whether a threshold was infinite
      this.cursor = null;
    }

    get end() {
      return this.steps.length ? this.steps.at(-1).at : 0;
    }

    get ended() {
      return this.result !== null;
    }

    add(steps) {
      for (const step of steps) this.addOne(step);
      if (this.steps.length > MAX_STEPS) this.fold(FOLDED_STEPS);
    }

    addOne(step) {
      const place = this.steps.length;
      this.steps.push(step);
      this.latest.take(step);
      this.countStates(step.devices ?? {});
      this.extendSeries(step);
      for (const [row, level, words] of step.log ?? []) this.log.push({ place, at: step.at, row, level, words });
      for (const column of Object.values(step.devices ?? {})) this.weight += column.values.length;
      const last = this.snapshots.at(-1)?.place ?? -1;
      // as many values as a snapshot holds: so that going back is quick, and all snapshots are no larger than the trace
      if (this.weight > this.devices * Math.max(this.latest.fields.size, 4) || place - last > SNAPSHOT_STEPS) {
        this.snapshots.push(this.latest.copy());
        this.weight = 0;
      }
    }

    countStates(changed) {
      if (!STATE_FIELDS.some((name) => name in changed)) return;
      for (let row = 0; row < this.devices; row += 1) {
        const state = this.latest.state(row);
        this.counts[this.states[row]] -= 1;
        this.counts[state] += 1;
        this.states[row] = state;
      }
    }

    extendSeries(step) {
      const { series, latest } = this;
      const changed = step.devices?.threshold !== undefined;
      const values = changed ? latest.fields.get("threshold").map(toNumber) : null;
      this.infinite ||= values?.includes(Infinity) ?? false;
      series.at.push(step.at);
      series.spread.push(changed ? spread(values) : (series.spread.at(-1) ?? null));
      series.counts.push(this.counts.slice());
      series.bits.push(bitsOf(step, this.devices));
      series.bracket.push(latest.bracket);
      series.everybody.push(latest.everybody);
      this.lines?.forEach((line, row) => line.push(changed ? values[row] : (line.at(-1) ?? NaN)));
    }

    /** The names of states in which devices were at some step. */
    occurred() {
      return STATES.filter((_, state) => this.series.counts.some((counts) => counts[state] > 0)).map(
        ({ name }) => name,
      );
    }

    /** Make one of the oldest steps. */
    fold(many) {
      const first = this.known(many - 1).copy();
      const columns = [...first.fields].map(([name, values]) => [name, { values: values.slice() }]);
      const { bracket, everybody } = first;
      const merged = { at: this.steps[many - 1].at, devices: Object.fromEntries(columns), bracket, everybody };
      const [kept, places, log] = [[merged, ...this.steps.slice(many)], this.places, this.log];
      this.forget();
      for (const step of kept) this.addOne(step);
      const old = log.filter((record) => record.place < many).slice(-KEPT_RECORDS);
      this.log.unshift(...old.map((record) => ({ ...record, place: 0 })));
      this.places = places;
    }

    /** The last step at or before a time; -1 before the first. */
    placeAt(at) {
      const times = this.series.at;
      let [low, high] = [0, times.length];
      while (low < high) {
        const middle = (low + high) >> 1;
        if (times[middle] <= at) low = middle + 1;
        else high = middle;
      }
      return low - 1;
    }

    /** What is known at a step. Not to be kept: the next call may change it. */
    known(place) {
      if (place === this.steps.length - 1) return this.latest;
      if (this.cursor === null || this.cursor.place > place) this.cursor = this.before(place);
      const nearer = this.before(place, this.cursor.place);
      if (nearer !== null) this.cursor = nearer;
      while (this.cursor.place < place) this.cursor.take(this.steps[this.cursor.place + 1]);
      return this.cursor;
    }

    /** A copy of the last snapshot at or before a step, or of nothing; null if it is not later than `after`. */
    before(place, after = -2) {
      const found = this.snapshots.findLast((snapshot) => snapshot.place <= place);
      if ((found?.place ?? -1) <= after) return null;
      return found ? found.copy() : new RecordedState(this.devices);
    }

    /** For each device its neighbours and the links to them, as [row, link], where links are as in a trace's `flow`. */
    get neighbours() {
      if (this.around === undefined) {
        this.around = Array.from({ length: this.devices }, () => []);
        this.heading.edges.forEach(([a, b], edge) => {
          this.around[a].push([b, 2 * edge]);
          this.around[b].push([a, 2 * edge + 1]);
        });
      }
      return this.around;
    }
  }

  /** Return a function from a row to the bits that it sent to all its neighbours in a step, or null. */
  function bitsSentBy(step) {
    const said = step?.said;
    if (said == null) return () => null;
    const rows = said.rows == null ? null : new Map(said.rows.map((row, place) => [row, place]));
    return (row) => {
      const place = rows === null ? row : rows.get(row);
      return place === undefined ? null : said.bits[said.bits.length === 1 ? 0 : place];
    };
  }

  /** All bits that were sent in a step, a message to all neighbours once; or the bits that went along links. */
  function bitsOf(step, devices) {
    let sum = 0;
    if (step.said) {
      const { bits, rows } = step.said;
      sum += bits.length === 1 ? bits[0] * (rows?.length ?? devices) : bits.reduce((total, each) => total + each, 0);
    }
    if (step.flow) sum += 8 * step.flow.bytes.reduce((total, each) => total + each, 0);
    return sum;
  }

  view.state = { Run, bitsSentBy };
})();
