// The page as a whole: runs and their panels, one time for all of them, and what is selected.
"use strict";

(() => {
  const view = window.conformesh;
  const { make, write, find } = view.dom;
  const { several, whole, short, counted } = view.words;
  const { Run } = view.state;
  const CHARTS = 250; // milliseconds between drawings of charts while steps arrive
  const WORDS = 120; // milliseconds between changes of tables while time goes on
  const TRAVEL = 700; // milliseconds that a message takes
  const QUICK = 250; // milliseconds: steps that are shown for less have messages that flow by themselves
  const SOON = 3000; // milliseconds after opening, in which a run that ends is played from its beginning
  const UNLIKE = 8; // times as long: then runs are put beside each other in log time
  const LATENCIES = 1000;
  const TABS = ["picture", "table", "log"];
  const still = matchMedia("(prefers-reduced-motion: reduce)");

  class Page {
    constructor() {
      this.runs = [];
      this.panels = [];
      this.number = 0; // of the run that table and device belong to
      this.row = null;
      this.tab = "picture";
      this.live = false;
      this.arrived = []; // when the server sent what the next frame shows
      this.waiting = [];
      this.clock = new view.clock.Clock([]);
      const changed = () => this.later();
      const pick = (number, row) => this.pick(number, row);
      this.controls = new view.replay.Controls(find("time"), this.clock, { changed: () => this.moved(), rescaled: () => this.rescaled() });
      this.table = new view.table.Table(find("table"), { changed, pick, choose: (number) => this.pick(number, null) });
      this.log = new view.log.Log(find("log"), { changed, pick });
      this.device = new view.device.Device(find("device"), { changed, pick });
      this.which = find("which");
      this.which.addEventListener("change", () => this.arrange());
      this.listen();
    }

    listen() {
      for (const name of TABS) find(`tab-${name}`).addEventListener("click", () => this.open(name));
      find("tabs").addEventListener("keydown", (event) => this.tabKey(event));
      find("theme").addEventListener("click", () => this.nextTheme());
      matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.recolour());
      still.addEventListener("change", () => this.later());
      window.addEventListener("hashchange", () => this.recall());
      window.addEventListener("error", (event) => view.errors.push(event.message));
      window.addEventListener("unhandledrejection", (event) => view.errors.push(String(event.reason)));
      this.setTheme(stored("theme") ?? "auto");
    }

    // What arrives.

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
      this.fresh = true;
      this.later();
    }

    add(number, from, steps, sent) {
      const run = this.runs[number];
      const known = Math.max(run.places - from, 0); // of these we have some
      run.add(steps.slice(known));
      run.places = Math.max(run.places, from + steps.length);
      if (sent !== undefined) this.arrived.push(1000 * sent);
      this.fresh = true;
      this.later();
    }

    end(number, result) {
      this.runs[number].result = result;
      this.fresh = true;
      const over = this.runs.every((run) => run.ended);
      if (over && !this.played && performance.now() - this.opened < SOON) this.start();
      this.later();
    }

    lost(is) {
      document.body.classList.toggle("lost", is);
      find("banner").hidden = !is;
      if (is) write(find("banner"), "the server does not answer; trying again");
    }

    /** Show all that there is from its beginning, once; or the end, for who would rather have no motion. */
    start() {
      this.played = true;
      if (this.recalled) return;
      this.clock.following = false;
      this.clock.playing = !still.matches;
      this.clock.position = still.matches ? 1 : 0;
      this.controls.offer(this.live && this.runs.some((run) => !run.ended));
    }

    // Which runs are shown, and how.

    offerRuns() {
      const seconds = this.runs.some((run) => run.heading.unit === "seconds");
      const last = this.runs.length - 1;
      const names = this.runs.map((run, number) => make("option", { value: String(number), selected: seconds && number === last }, run.heading.name));
      this.which.replaceChildren(make("option", { value: "all" }, `all ${this.runs.length} runs`), ...names);
      if (!seconds) this.which.value = "all";
      find("choice").hidden = this.runs.length < 2;
      this.arrange();
    }

    arrange() {
      const one = this.which.value === "all" ? null : Number(this.which.value);
      this.shown = this.runs.map((_, number) => number).filter((number) => one === null || number === one);
      if (!this.shown.includes(this.number)) this.number = this.shown[0];
      for (const panel of this.panels) panel.close();
      const asked = { pick: (number, row) => this.pick(number, row), seek: (at) => this.controls.seek(at), changed: () => this.later(), say: (words) => this.say(words) };
      this.panels = this.shown.map((number) => new view.panel.Panel(this.runs[number], number, asked));
      const host = find("runs");
      host.classList.toggle("several", this.panels.length > 1);
      host.append(...this.panels.map((panel) => panel.element));
      for (const panel of this.panels) panel.open(this.panels.length === 1);
      this.clock.runs = this.shown.map((number) => this.runs[number]);
      this.clock.mode = "even";
      this.chosen = false;
      this.controls.offer(this.live && this.runs.some((run) => !run.ended));
      this.table.offer(this.runs, this.number);
      this.title();
      this.fresh = true;
      this.pick(this.number, null);
    }

    title() {
      const words = this.panels.length === 1 ? this.panels[0].run.heading.name : several(this.panels.length, "run");
      write(find("title"), words);
      document.title = `${words} · conformesh`;
    }

    /** Runs of very different lengths are seen together in log time only. */
    choose() {
      if (this.chosen || this.panels.length < 2 || !this.clock.runs.every((run) => run.steps.length)) return;
      this.chosen = true;
      const ends = this.clock.runs.map((run) => run.end);
      const mode = Math.max(...ends) > UNLIKE * Math.max(Math.min(...ends), 1) ? "log" : "even";
      if (mode !== this.clock.mode) this.clock.choose(mode);
      this.controls.offer(this.live);
    }

    // What is selected.

    pick(number, row) {
      const before = this.row;
      this.number = number ?? this.number;
      this.row = row;
      for (const panel of this.panels) panel.select(panel.number === this.number ? row : null);
      document.body.classList.toggle("opened", row !== null);
      this.table.choice.value = String(this.number);
      if (row === null) {
        const inside = find("device").contains(document.activeElement);
        this.device.close();
        if (inside) (this.panels.find((panel) => panel.number === this.number) ?? this.panels[0])?.picture.focus();
      } else if (row !== before || this.device.run !== this.runs[this.number]) {
        this.device.open(this.runs[this.number], this.number, row, this.live);
        if (find("device").contains(document.activeElement) || narrow()) this.device.title.focus();
        this.say(`page of ${this.runs[this.number].heading.devices[row]}`);
      }
      this.remember();
      this.later();
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
      this.later();
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

    // Drawing.

    moved() {
      this.since = performance.now();
      this.remember();
      this.later();
    }

    rescaled() {
      this.fresh = true;
      this.moved();
    }

    later() {
      this.asked ??= requestAnimationFrame((now) => this.frame(now));
    }

    frame(now) {
      this.asked = undefined;
      if (this.panels.length === 0) return;
      const { clock } = this;
      if (clock.playing) clock.go(Math.min(now - (this.last ?? now), 100) / 1000);
      this.last = clock.playing ? now : undefined;
      if (this.fresh && (!this.live || !clock.following || !(now - this.drawn < CHARTS))) this.refresh(now);
      if (clock.following) clock.at = clock.end;
      const moving = this.panels.map((panel) => panel.show(clock, this.share(panel.run, now))).some(Boolean);
      this.controls.show();
      if (!clock.playing || !(now - this.written < WORDS)) this.write(now);
      this.measure();
      if (clock.playing || this.fresh || (moving && this.travelling(now))) this.later();
      else if (this.wasPlaying) this.settle();
      this.wasPlaying = clock.playing;
    }

    /** Draw what new steps change beyond the picture. */
    refresh(now) {
      this.choose();
      this.fresh = false;
      this.drawn = now;
      view.colours.scale.fit(this.runs);
      this.legend();
      for (const panel of this.panels) panel.refresh(this.clock);
      if (this.clock.following) this.since = now;
    }

    write(now) {
      this.written = now;
      const run = this.runs[this.number];
      const place = this.clock.place(run);
      if (this.tab === "table") this.table.show(run, this.number, place, this.row);
      if (this.tab === "log") this.log.show(this.runs, this.clock);
      this.device.show(place);
      if (!this.clock.playing) this.announce();
    }

    /** How far the messages of a step have come. */
    share(run, now) {
      if (still.matches) return 0.5;
      const { clock } = this;
      if (!clock.playing) return Math.min((now - (this.since ?? now)) / TRAVEL, clock.following ? 1 : 0.5);
      const place = clock.place(run);
      const [from, to] = [place, place + 1].map((step) => clock.along(run, run.series.at[step] ?? run.end));
      if ((to - from) * clock.duration * 1000 < QUICK) return (now % TRAVEL) / TRAVEL;
      return Math.min((clock.position - from) / (to - from), 1);
    }

    travelling(now) {
      return !still.matches && now - (this.since ?? now) < TRAVEL;
    }

    settle() {
      this.wasPlaying = false;
      this.remember();
      this.announce();
    }

    /** Note how long it took from the server's sending to the picture. */
    measure() {
      if (this.arrived.length === 0) return;
      const sent = this.arrived.splice(0);
      setTimeout(() => {
        for (const at of sent) view.latencies.push(Date.now() - at);
        view.latencies.splice(0, Math.max(view.latencies.length - LATENCIES, 0));
      });
    }

    /** Say aloud what has changed for all devices, sparingly. */
    announce() {
      const words = this.panels.map(({ run }) => {
        const now = counted(run.series.counts[this.clock.place(run)] ?? run.counts);
        const all = now.length === 1 ? `all ${several(run.devices, "device")} are ${now[0][0]}` : now.map(([name, count]) => `${whole(count)} ${name}`).join(", ");
        return this.panels.length > 1 ? `${run.heading.name}: ${all}` : all;
      }).join("; ");
      if (words !== this.said) this.say(words);
      this.said = words;
    }

    say(words) {
      write(find("say"), words);
    }

    legend() {
      const { scale, shades } = view.colours;
      const states = [...new Set(this.panels.flatMap(({ run }) => run.series.counts.flatMap((counts) => counted(counts).map(([name]) => name))))];
      const [low, high] = scale.empty ? ["", ""] : [(scale.clipsLow ? "≤ " : "") + short(scale.low), (scale.clipsHigh ? "≥ " : "") + short(scale.high)];
      view.dom.renew(find("legend"), [states, low, high, view.colours.theme.text], () => [
        make("span", { class: "scale" }, "threshold ", low, ramp(shades), high),
        make("span", {}, view.marks.glyph("calibrating", view.colours.SHADES + 1), "+∞"),
        make("span", {}, view.marks.glyph("calibrating"), "none yet"),
        ...states.map((name) => make("span", {}, view.marks.glyph(name, 26), name)),
      ]);
    }

    // Theme and address.

    nextTheme() {
      const order = ["auto", "light", "dark"];
      this.setTheme(order[(order.indexOf(this.theme) + 1) % order.length]);
      store("theme", this.theme);
    }

    setTheme(name) {
      this.theme = name;
      document.documentElement.dataset.theme = name;
      write(find("theme"), `colours: ${name}`);
      this.recolour();
    }

    recolour() {
      view.colours.refresh();
      for (const panel of this.panels) {
        delete panel.counts.dataset.key;
        panel.place = undefined;
      }
      this.fresh = true;
      this.later();
    }

    /** Keep in the address what is shown: a link to a moment. */
    remember() {
      if (this.clock.playing || this.panels.length === 0 || !this.settled) return;
      const parts = { run: this.number, device: this.row, at: this.clock.following ? null : Number(this.clock.at.toPrecision(9)), time: this.clock.mode, tab: this.tab };
      const words = new URLSearchParams(Object.entries(parts).filter(([, value]) => value !== null).map(([name, value]) => [name, String(value)]));
      history.replaceState(null, "", `#${words}`);
    }

    /** Go to where an address points. */
    recall() {
      const words = new URLSearchParams(location.hash.slice(1));
      const number = (name) => (words.has(name) && words.get(name) !== "" ? Number(words.get(name)) : NaN);
      const run = this.runs[number("run")];
      if (words.get("time") in view.clock.MODES && Number.isFinite(number("at"))) {
        this.clock.choose(words.get("time"));
        Object.assign(this.clock, { at: Math.min(Math.max(number("at"), 0), this.clock.end), playing: false, following: false });
        this.chosen = this.recalled = true;
        this.controls.offer(this.live);
      }
      if (TABS.includes(words.get("tab"))) this.open(words.get("tab"));
      if (run && this.shown.includes(number("run"))) this.pick(number("run"), run.heading.devices[number("device")] === undefined ? null : number("device"));
      this.rescaled();
    }
  }

  const narrow = () => matchMedia("(max-width: 900px)").matches;

  function ramp(shades) {
    const canvas = make("canvas", { class: "ramp", width: "120", height: "10", "aria-hidden": "true" });
    const pen = canvas.getContext("2d");
    shades.forEach((shade, place) => {
      pen.fillStyle = shade;
      pen.fillRect((120 * place) / shades.length, 0, 120 / shades.length + 1, 10);
    });
    return canvas;
  }

  // A page of a file may have no store.
  function stored(name) {
    try {
      return localStorage.getItem(`conformesh-${name}`);
    } catch {
      return null;
    }
  }

  function store(name, value) {
    try {
      localStorage.setItem(`conformesh-${name}`, value);
    } catch {
      /* then it is forgotten */
    }
  }

  async function opened() {
    const page = new Page();
    view.page = page;
    const trace = await view.live.enclosed();
    if (trace === null) await served(page);
    else {
      trace.runs.forEach(({ heading }, number) => page.begin(number, heading));
      trace.runs.forEach(({ steps, result }, number) => {
        page.runs[number].add(steps ?? []);
        page.runs[number].result = result ?? null;
      });
      page.recall();
      page.start();
    }
    page.settled = true;
    await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  }

  /** Follow a server; returns when something was drawn. */
  async function served(page) {
    page.live = true;
    page.clock.following = true;
    find("links").hidden = false;
    await new Promise((done) => {
      view.live.listen({
        begin: (...told) => page.begin(...told),
        add: (...told) => done(page.add(...told)),
        end: (...told) => done(page.end(...told)),
        lost: (is) => page.lost(is),
      });
    });
    if (location.hash.length > 1) page.recall();
  }

  Object.assign(view, { latencies: [], errors: [] });
  Object.defineProperties(view, {
    runs: { get: () => view.page.runs },
    playing: { get: () => view.page.clock.playing },
    steps: { get: () => view.page.clock.steps.length },
    step: { get: () => view.page.clock.steps.filter((at) => at <= view.page.clock.at + 1e-9).length - 1 },
  });
  view.ready = opened();
})();
