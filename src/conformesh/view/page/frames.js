// Frames: when something has changed the next one draws it, and while time goes on there is one after the other.
"use strict";

(() => {
  const view = window.conformesh;
  const { write, find } = view.dom;
  const CHART_MS = 250; // milliseconds between drawings of charts while steps arrive
  const TEXT_MS = 120; // milliseconds between changes of tables while time goes on
  const TRAVEL_MS = 700; // milliseconds that a message takes
  const QUICK_MS = 250; // milliseconds: steps that are shown for less have messages that flow by themselves
  const QUIET_MS = 2000; // milliseconds between sentences that are said aloud
  const MAX_LATENCIES = 1000;
  const still = matchMedia("(prefers-reduced-motion: reduce)");

  class Frames {
    constructor(page) {
      this.page = page;
      this.fresh = false; // whether there are new steps, or colours, or another axis
      this.arrived = []; // when the server sent what the next frame shows
      still.addEventListener("change", () => this.later());
    }

    /** Something is new that charts show as well; `sent` is when the server sent it, in seconds. */
    renew(sent) {
      if (sent !== undefined && !document.hidden) this.arrived.push(1000 * sent); // nobody draws what nobody sees
      this.fresh = true;
      this.later();
    }

    /** Messages set out from here on. */
    depart() {
      this.since = performance.now();
    }

    later() {
      this.actions ??= requestAnimationFrame((now) => this.frame(now));
    }

    frame(now) {
      this.actions = undefined;
      const { clock, panels } = this.page;
      if (panels.length === 0) return;
      const playing = clock.playing;
      if (playing) clock.go(Math.min(now - (this.last ?? now), 100) / 1000);
      this.last = now;
      if (this.fresh && !(clock.following && now - this.drawnAt < CHART_MS)) this.refresh(now);
      if (clock.following) clock.at = clock.end;
      const moving = this.draw(now);
      this.page.controls.show();
      if (!clock.playing || !(now - this.written < TEXT_MS)) this.write(now);
      this.measure();
      if (clock.playing || (moving && this.travelling(now))) this.later();
      else this.last = undefined;
      if (this.fresh) this.waiting ??= setTimeout(() => this.charted(), CHART_MS);
      if (playing && !clock.playing) this.page.remember();
    }

    /** Charts that were left out for a while are due. */
    charted() {
      this.waiting = undefined;
      this.later();
    }

    /** Draw what new steps change beyond the picture. */
    refresh(now) {
      const { page } = this;
      page.choose();
      this.fresh = false;
      this.drawnAt = now;
      view.colours.scale.fit(page.runs);
      view.legend.show(find("legend"), page.clock.runs);
      for (const panel of page.panels) panel.refresh(page.clock);
      if (page.clock.following) this.since = now;
    }

    draw(now) {
      const { panels, clock, tab } = this.page;
      if (tab !== "picture") return false;
      return panels.map((panel) => panel.show(clock, this.share(panel.run, now))).some(Boolean);
    }

    /** How far the messages of a step have come. */
    share(run, now) {
      const { clock } = this.page;
      if (still.matches) return 0.5;
      if (!clock.playing) return Math.min((now - (this.since ?? -Infinity)) / TRAVEL_MS, clock.following ? 1 : 0.5);
      const place = clock.place(run);
      const [from, to] = [place, place + 1].map((step) => clock.along(run, run.series.at[step] ?? run.end));
      if ((to - from) * clock.duration * 1000 < QUICK_MS) return (now % TRAVEL_MS) / TRAVEL_MS;
      return Math.min((clock.position - from) / (to - from), 1);
    }

    travelling(now) {
      return !still.matches && now - (this.since ?? -Infinity) < TRAVEL_MS;
    }

    write(now) {
      const { runs, number, clock, tab, table, log, device, row } = this.page;
      this.written = now;
      const place = clock.place(runs[number]);
      if (tab === "table") table.show(runs[number], number, place, row);
      if (tab === "log") log.show(runs, clock);
      device.show(place);
      if (!clock.playing) this.announce(now);
    }

    /** Say aloud how all devices are, if that is another sentence than the last, and not one after the other. */
    announce(now) {
      const words = view.legend.summary(this.page.clock.runs, this.page.clock);
      if (words === this.said) return;
      if (now - (this.spoken ?? -Infinity) < QUIET_MS) {
        this.speaking ??= setTimeout(() => this.spoke(), QUIET_MS);
        return;
      }
      Object.assign(this, { said: words, spoken: now });
      this.say(words);
    }

    spoke() {
      this.speaking = undefined;
      this.later();
    }

    say(words) {
      write(find("say"), words);
    }

    /** Note how long it took from the server's sending until the frame was drawn. */
    measure() {
      if (this.arrived.length === 0) return;
      const sent = this.arrived.splice(0);
      setTimeout(() => {
        for (const at of sent) view.latencies.push(Date.now() - at);
        view.latencies.splice(0, Math.max(view.latencies.length - MAX_LATENCIES, 0));
      });
    }
  }

  view.frames = { Frames, still };
})();
