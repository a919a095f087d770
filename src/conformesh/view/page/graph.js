// The picture of a run, for hands: zooming, moving, pointing at devices, and going from one to the next by keys.
"use strict";

(() => {
  const view = window.conformesh;
  const { toNumber, short, truncate, displayName, STATES } = view.words;
  const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

  class Graph extends view.drawing.Drawing {
    /** `actions` has pick(row), changed() and say(words). */
    constructor(run, host, actions) {
      super(run, host);
      this.actions = actions;
      this.tip = host.appendChild(Object.assign(document.createElement("div"), { className: "tip", hidden: true }));
      this.listen();
      this.watch = new ResizeObserver(() => this.resize());
      this.watch.observe(host);
      this.resize();
    }

    close() {
      this.watch.disconnect();
    }

    resize() {
      super.resize();
      this.actions.changed();
    }

    draw(place, share) {
      const moving = super.draw(place, share);
      this.drawTip();
      return moving;
    }

    listen() {
      this.zoom = vendor
        .zoom()
        .scaleExtent([0.5, 60])
        .filter((event) => this.takes(event))
        .on("zoom", ({ transform }) => this.move(transform));
      vendor.select(this.over).call(this.zoom);
      this.over.addEventListener("click", (event) => this.pick(event));
      this.over.addEventListener("pointermove", (event) => this.hover(this.near(event)));
      this.over.addEventListener("pointerleave", () => this.hover(null));
      this.host.addEventListener("keydown", (event) => this.key(event));
      this.host.addEventListener("blur", () => this.focus(null));
    }

    /** Whether zooming takes an event; otherwise the page scrolls. */
    takes(event) {
      if (event.type === "wheel") return event.ctrlKey || event.metaKey || document.activeElement === this.host;
      if (event.type === "touchstart") return this.transform.k > 1 || event.touches.length > 1;
      return !event.ctrlKey && !event.button;
    }

    move(transform) {
      this.transform = transform;
      this.over.style.touchAction = transform.k > 1 ? "none" : "pan-y";
      this.stale = true;
      this.actions.changed();
    }

    zoomBy(factor) {
      vendor.select(this.over).call(this.zoom.scaleBy, factor);
    }

    fit() {
      vendor.select(this.over).call(this.zoom.transform, vendor.zoomIdentity);
    }

    near(event) {
      if (!this.width) return null;
      const box = this.over.getBoundingClientRect();
      const [x, y] = this.transform.invert([event.clientX - box.left, event.clientY - box.top]);
      return this.places.find(x, y, Math.max(this.radius + 4, 12) / this.transform.k);
    }

    pick(event) {
      this.host.focus({ preventScroll: true });
      const row = this.near(event);
      if (row !== null) this.actions.pick(row);
    }

    hover(row) {
      if (row === this.hovered) return;
      this.hovered = row;
      this.over.classList.toggle("pointing", row !== null);
      this.actions.changed();
    }

    focus(row) {
      this.focused = row;
      this.actions.changed();
    }

    key(event) {
      if (event.ctrlKey || event.metaKey || event.altKey || this.run.devices === 0) return;
      const keys = {
        "+": () => this.zoomBy(1.4),
        "=": () => this.zoomBy(1.4),
        "-": () => this.zoomBy(1 / 1.4),
        0: () => this.fit(),
      };
      const from = this.focused ?? this.selected;
      if (event.key in ARROWS) this.step(from, ...ARROWS[event.key]);
      else if (event.key === "Enter" && from !== null) this.actions.pick(from);
      else if (event.key in keys) keys[event.key]();
      else return;
      event.preventDefault();
      event.stopPropagation();
    }

    step(from, dx, dy) {
      const middle = () => this.places.find(...this.transform.invert([this.width / 2, this.height / 2]));
      const row = from === null ? middle() : this.places.next(from, dx, dy);
      this.focus(row);
      this.reveal(row);
      this.actions.say(this.described(row).join(", "));
    }

    /** Move the picture so that a device is in it. */
    reveal(row) {
      const [x, y] = this.at(row);
      if (x < 8 || y < 8 || x > this.width - 8 || y > this.height - 8) {
        vendor.select(this.over).call(this.zoom.translateTo, this.places.x[row], this.places.y[row]);
      }
    }

    /** A device in a few words. */
    described(row) {
      const known = this.run.known(this.known?.place ?? -1);
      const words = [displayName(truncate(this.run.heading.devices[row], 60)), STATES[known.state(row)].name];
      const threshold = known.value("threshold", row);
      if (threshold !== null) words.push(`threshold ${short(toNumber(threshold))}`);
      const heard = known.value("heard", row);
      if (heard !== null) words.push(`${heard} of ${this.run.devices} heard`);
      return words;
    }

    drawTip() {
      const row = this.focused ?? this.hovered;
      this.tip.hidden = row === null;
      if (row === null) return;
      const [x, y] = this.at(row);
      const words = this.described(row).join(" · ");
      if (this.tip.textContent !== words) this.tip.textContent = words;
      const half = this.tip.offsetWidth / 2;
      const left = Math.min(Math.max(x, half + 4), Math.max(this.width - half - 4, half + 4));
      const above = y - this.radius - 16 > this.tip.offsetHeight;
      const top = above ? y - this.radius - 14 - this.tip.offsetHeight : y + this.radius + 22;
      this.tip.style.transform = `translate(${Math.round(left - half)}px, ${Math.round(top)}px)`;
    }
  }

  view.graph = { Graph };
})();
