// The controls of time: play, step, slide, speed, how runs are put beside each other, and following what is live.
"use strict";

(() => {
  const view = window.conformesh;
  const { make, write, icon } = view.dom;
  const ICONS = {
    back: "M3 3h2v10H3zM13 3v10L6 8z",
    on: "M11 3h2v10h-2zM3 3v10l7-5z",
    play: "M4 2.5v11l9-5.5z",
    pause: "M3.5 3h3v10h-3zM9.5 3h3v10h-3z",
  };
  const DURATIONS = [
    [4, "in 4 s"],
    [8, "in 8 s"],
    [20, "in 20 s"],
    [60, "in 1 min"],
  ];
  const OWN_KEYS = "input, select, textarea, button, a, [role=application], [role=tab]"; // these have keys of their own

  class Controls {
    /** `actions` has changed(), which is called after the clock was set. */
    constructor(host, clock, actions) {
      Object.assign(this, { clock, actions, live: false });
      const button = (name, label, onclick) =>
        make("button", { type: "button", "aria-label": label, title: label, onclick }, icon(ICONS[name]));
      this.back = button("back", "step back", () => this.step(-1));
      this.play = button("play", "play", () => this.toggle());
      this.on = button("on", "step forward", () => this.step(1));
      this.play.classList.add("play");
      this.slider = make("input", {
        type: "range",
        min: "0",
        max: "1",
        step: "any",
        "aria-label": "time",
        oninput: () => this.slide(),
      });
      this.slider.addEventListener("keydown", (event) => this.key(event));
      this.words = make("output", { class: "moment" });
      this.follow = make(
        "button",
        { type: "button", class: "follow", "aria-pressed": "false", onclick: () => this.goLive() },
        "live",
      );
      this.speed = make(
        "select",
        { "aria-label": "time for all of it", onchange: () => this.hurry() },
        this.durations(),
      );
      this.modes = make("select", {
        "aria-label": "how moments are put beside each other",
        onchange: () => this.choose(),
      });
      host.append(
        make("div", { class: "buttons" }, this.back, this.play, this.on),
        this.slider,
        this.words,
        make("div", { class: "choices" }, this.follow, this.speed, this.modes),
      );
      document.addEventListener("keydown", (event) => this.anywhere(event));
      const measure = () => document.body.style.setProperty("--bar", `${host.offsetHeight}px`); // drawers are above
      new ResizeObserver(measure).observe(host);
    }

    durations() {
      return DURATIONS.map(([seconds, words]) =>
        make("option", { value: String(seconds), selected: seconds === this.clock.duration }, words),
      );
    }

    /** Offer what makes sense for these runs. */
    offer(live) {
      this.live = live;
      const { runs, unit, mode } = this.clock;
      const same = unit === "seconds" ? "same time" : `same ${unit.slice(0, -1)}`;
      const own = { even: runs.length > 1 ? same : "even time" };
      const names = Object.entries(view.clock.MODES).filter(([, { own: each }]) => !each || runs.length > 1);
      this.modes.replaceChildren(
        ...names.map(([name, { words }]) =>
          make("option", { value: name, selected: name === mode }, own[name] ?? words),
        ),
      );
      const real = this.speed.querySelector("[value=real]");
      if (unit === "seconds" && !real) this.speed.append(make("option", { value: "real" }, "real time"));
      if (unit !== "seconds") real?.remove();
      this.follow.hidden = !live;
    }

    toggle() {
      const { clock } = this;
      clock.playing = !clock.playing;
      clock.following = false;
      if (clock.playing && clock.over) clock.position = 0;
      this.actions.changed();
    }

    step(way) {
      Object.assign(this.clock, { playing: false, following: false });
      this.clock.step(way);
      this.actions.changed();
    }

    slide() {
      this.seek(Number(this.slider.value));
    }

    seek(position) {
      Object.assign(this.clock, { playing: false, following: false });
      this.clock.position = position;
      this.actions.changed();
    }

    goLive() {
      Object.assign(this.clock, { playing: false, following: true });
      this.actions.changed();
    }

    hurry() {
      this.real = this.speed.value === "real";
      this.pace();
    }

    pace() {
      this.clock.duration = this.real ? Math.max(this.clock.end, 0.1) : Number(this.speed.value);
    }

    choose() {
      this.clock.choose(this.modes.value);
      this.actions.rescaled();
    }

    /** Keys of the slider: from one step to the next, rather than by pixels. */
    key(event) {
      const way = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1 }[event.key];
      const ends = { Home: 0, End: 1 };
      if (way !== undefined) this.step(way);
      else if (event.key in ends) this.seek(ends[event.key]);
      else if (event.key === " ") this.toggle();
      else return;
      event.preventDefault();
      event.stopPropagation();
    }

    /** Keys anywhere else, unless what has the focus uses them. */
    anywhere(event) {
      if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
      const within = event.target.closest?.(OWN_KEYS);
      if (within && !(event.key === " " && within.matches("[role=application]"))) return;
      if (event.key === " ") this.toggle();
      else if (event.key === "ArrowLeft") this.step(-1);
      else if (event.key === "ArrowRight") this.step(1);
      else return;
      event.preventDefault();
    }

    show() {
      const { clock } = this;
      if (this.real) this.pace();
      this.slider.value = String(clock.position);
      this.slider.style.setProperty("--share", `${100 * clock.position}%`);
      write(this.words, clock.words);
      this.slider.setAttribute("aria-valuetext", clock.words);
      const label = clock.playing ? "pause" : "play";
      if (this.play.title !== label) {
        this.play.title = label;
        this.play.setAttribute("aria-label", label);
        this.play.replaceChildren(icon(ICONS[label]));
      }
      this.follow.setAttribute("aria-pressed", String(clock.following));
    }
  }

  view.replay = { Controls };
})();
