// The page as a whole: runs and their panels, one time for all of them, and what is selected.
"use strict";

(() => {
  const view = window.conformesh;
  const { make, write, find } = view.dom;
  const { pluralize } = view.words;
  const { Run } = view.state;
  const REPLAY_MS = 3000; // milliseconds after opening, in which a run that ends is played from its beginning
  const LOG_TIME_RATIO = 8; // times as long: then runs are put beside each other in log time
  const LOG_TIME_ROUNDS = 1000; // rounds: then log time shows the beginning, where most happens
  const REMEMBER_MS = 250; // milliseconds
  const TABS = ["picture", "table", "log"];

  class Page {
    constructor() {
      this.runs = [];
      this.panels = [];
      this.shown = []; // numbers of runs that have panels
      this.number = 0; // of the run that table and device belong to
      this.row = null;
      this.tab = "picture";
      this.live = false;
      this.settled = false; // whether the address may be written
      this.clock = new view.clock.Clock([]);
      this.frames = new view.frames.Frames(this);
      const changed = () => this.frames.later();
      const pick = (number, row) => this.pick(number, row);
      this.controls = new view.replay.Controls(find("time"), this.clock, {
        changed: () => this.moved(),
        rescaled: () => this.rescaled(),
      });
      this.table = new view.table.Table(find("table"), { changed, pick, choose: (number) => this.pick(number, null) });
      this.log = new view.log.Log(find("log"), { changed, pick });
      this.device = new view.device.Device(find("device"), { changed, pick });
      this.theme = new view.theme.Theme(find("theme"), () => this.recoloured());
      this.which = find("which");
      this.which.addEventListener("change", () => this.arrange());
      for (const name of TABS) find(`tab-${name}`).addEventListener("click", () => this.open(name));
      find("tabs").addEventListener("keydown", (event) => this.tabKey(event));
      window.addEventListener("hashchange", () => this.recall());
    }

    // What arrives.

    /** A run begins, or begins again. */
    begin(number, heading) {
      const old = this.runs[number];
      if (old && JSON.stringify(old.heading) === JSON.stringify(heading)) {
        old.forget();
        old.result = null;
      } else {
        this.runs[number] = new Run(heading);
        this.offerRuns();
      }
      this.opened ??= performance.now();
      this.frames.renew();
    }

    /** More steps, from this place on; those that we have already are left out. */
    add(number, from, steps, sent) {
      const run = this.runs[number];
      run.add(steps.slice(Math.max(run.places - from, 0)));
      run.places = Math.max(run.places, from + steps.length);
      this.frames.renew(sent);
    }

    end(number, result) {
      this.runs[number].result = result ?? [];
      const over = this.runs.every((run) => run.ended);
      const watched = this.runs.some((run) => run.heading.live); // then it was seen as it happened
      if (over && !watched && !this.played && performance.now() - this.opened < REPLAY_MS) this.start();
      this.controls.offer(this.live && !over);
      this.frames.renew();
    }

    /** Whether the server has gone. What is shown may be wrong by then, unless all runs have ended. */
    lost(is) {
      const complete = this.runs.length > 0 && this.runs.every((run) => run.ended);
      document.body.classList.toggle("lost", is && !complete);
      find("banner").hidden = !is;
      const more = complete ? "what is shown is complete" : "trying again";
      write(find("banner"), is ? `the server does not answer; ${more}` : "");
    }

    /** Show all that there is from its beginning, once; or the end, for who would rather have no motion. */
    start() {
      this.played = true;
      if (this.recalled) return;
      const still = view.frames.still.matches;
      Object.assign(this.clock, { following: false, playing: !still });
      this.choose();
      this.clock.position = still ? 1 : 0;
      this.frames.later();
    }

    // Which runs are shown, and how.

    /** Let people choose a run. Of a mesh that goes on the latest is shown; other runs are for comparing. */
    offerRuns() {
      const live = this.runs.some((run) => run.heading.live);
      const names = this.runs.map((run, number) => make("option", { value: String(number) }, run.heading.name));
      this.which.replaceChildren(make("option", { value: "all" }, `all ${this.runs.length} runs`), ...names);
      this.which.value = live ? String(this.runs.length - 1) : "all";
      find("choice").hidden = this.runs.length < 2;
      this.arrange();
    }

    /** Make panels for the runs that are chosen. */
    arrange() {
      const one = this.which.value === "all" ? null : Number(this.which.value);
      this.shown = this.runs.map((_, number) => number).filter((number) => one === null || number === one);
      if (!this.shown.includes(this.number)) this.number = this.shown[0];
      for (const panel of this.panels) panel.close();
      const actions = {
        pick: (number, row) => this.pick(number, row),
        seek: (at) => this.controls.seek(at),
        changed: () => this.frames.later(),
        say: (words) => this.frames.say(words),
      };
      this.panels = this.shown.map((number) => new view.panel.Panel(this.runs[number], number, actions));
      find("runs").classList.toggle("several", this.panels.length > 1);
      find("runs").replaceChildren(...this.panels.map((panel) => panel.element));
      for (const panel of this.panels) panel.open(this.panels.length === 1);
      this.clock.runs = this.shown.map((number) => this.runs[number]);
      this.clock.at = Math.min(this.clock.at, this.clock.end);
      this.chosen = false;
      this.controls.offer(this.live && this.runs.some((run) => !run.ended));
      this.table.offer(this.runs, this.number);
      this.title();
      this.pick(this.number, null);
      this.frames.renew();
    }

    title() {
      const one = this.panels.length === 1;
      const words = one ? this.panels[0].run.heading.name : pluralize(this.panels.length, "run");
      write(find("title"), one ? "" : words); // one run has its name above its picture
      document.title = `${words} · conformesh`;
    }

    /** Runs of very different lengths are seen together in log time only, and so is the beginning of a long one. */
    choose() {
      if (this.chosen || this.clock.following || !this.clock.runs.every((run) => run.steps.length)) return;
      this.chosen = true;
      const ends = this.clock.runs.map((run) => run.end);
      const long = this.clock.unit === "rounds" && Math.max(...ends) > LOG_TIME_ROUNDS;
      const mode = long || Math.max(...ends) > LOG_TIME_RATIO * Math.max(Math.min(...ends), 1) ? "log" : "even";
      if (mode !== this.clock.mode) this.clock.choose(mode);
      this.controls.offer(this.live && this.runs.some((run) => !run.ended));
    }

    // What is selected.

    /** Open the page of a device; without a row, close it. */
    pick(number, row) {
      const before = [this.number, this.row];
      this.number = number ?? this.number;
      this.row = row;
      const run = this.runs[this.number];
      for (const panel of this.panels) panel.select(panel.number === this.number ? row : null);
      this.table.choice.value = String(this.number);
      const inside = find("device").contains(document.activeElement);
      if (row === null) {
        this.device.close();
        if (inside) this.panel().picture.focus();
      } else if (this.device.run !== run || before[0] !== this.number || before[1] !== row) {
        this.device.open(run, this.number, row, this.live && run.heading.live);
        if (inside || matchMedia("(max-width: 900px)").matches) this.device.title.focus();
        this.frames.say(`page of ${run.heading.devices[row]}`);
      }
      this.remember();
      this.frames.later();
    }

    panel() {
      return this.panels.find((panel) => panel.number === this.number) ?? this.panels[0];
    }

    open(tab) {
      this.tab = tab;
      for (const name of TABS) {
        const button = find(`tab-${name}`);
        button.setAttribute("aria-selected", String(name === tab));
        button.tabIndex = name === tab ? 0 : -1;
        find(name).hidden = name !== tab;
      }
      this.remember();
      this.frames.later();
    }

    tabKey(event) {
      const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (way === undefined) return;
      const next = TABS[(TABS.indexOf(this.tab) + way + TABS.length) % TABS.length];
      this.open(next);
      find(`tab-${next}`).focus();
      event.preventDefault();
      event.stopPropagation();
    }

    // What has changed.

    moved() {
      this.frames.depart();
      this.remember();
      this.frames.later();
    }

    rescaled() {
      this.chosen = true;
      this.frames.renew();
      this.moved();
    }

    recoloured() {
      for (const panel of this.panels) panel.forget();
      this.frames.renew();
    }

    /** Keep in the address what is shown, once it has been so for a while: browsers refuse to write it all the time. */
    remember() {
      clearTimeout(this.remembering);
      this.remembering = setTimeout(() => {
        if (this.settled && !this.clock.playing && this.panels.length) view.address.remember(this);
      }, REMEMBER_MS);
    }

    /** Go to where the address points. */
    recall() {
      const { run, device, at, mode, tab } = view.address.recall(this.runs);
      if (mode !== null && at !== null) {
        this.clock.mode = mode;
        Object.assign(this.clock, { at: Math.min(Math.max(at, 0), this.clock.end), playing: false, following: false });
        this.recalled = true;
        this.rescaled();
        this.controls.offer(this.live && this.runs.some((each) => !each.ended));
      }
      if (TABS.includes(tab)) this.open(tab);
      if (this.shown.includes(run)) this.pick(run, device);
    }
  }

  view.page = { Page };
})();
