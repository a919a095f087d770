// Where things are in a picture: devices, the ends of links, and which device is near a point.
"use strict";

(() => {
  const view = window.conformesh;
  const MARGINS = [44, 36]; // pixels beside and above the devices, for rings and names
  const STUB = 0.6; // of the space between devices: how far an edge is drawn that leaves the picture
  const SAMPLE = 300; // devices of which the space around them is measured

  /** The middle one of some numbers. */
  const median = (values) => values.sort((a, b) => a - b)[values.length >> 1];

  /** How far apart devices stand: the usual distance to the nearest other one. */
  function spacing(places) {
    const tree = vendor.quadtree(places.map((place, row) => [...place, row]));
    const stride = Math.max(1, Math.floor(places.length / SAMPLE));
    const found = [];
    for (let row = 0; row < places.length; row += stride) {
      const [x, y] = places[row];
      const itself = tree.find(x, y);
      const [otherX, otherY] = tree.remove(itself).find(x, y) ?? [x, y];
      tree.add(itself);
      found.push(Math.hypot(otherX - x, otherY - y));
    }
    return median(found.filter((distance) => distance > 0)) ?? 1; // 1 where all stand in one place
  }

  class Places {
    constructor(heading) {
      this.heading = heading;
      this.space = spacing(heading.places);
      this.wraps = new Set(heading.wraps ?? []);
      this.x = new Float64Array(heading.places.length);
      this.y = new Float64Array(heading.places.length);
    }

    /** Fit all devices into a rectangle. */
    fit(width, height) {
      const { places } = this.heading;
      const around = this.wraps.size ? STUB * this.space : 0;
      const [left, right] = ends(
        places.map(([x]) => x),
        around,
      );
      const [low, high] = ends(
        places.map(([, y]) => y),
        around,
      );
      const room = [width - 2 * MARGINS[0], height - 2 * MARGINS[1]].map((pixels) => Math.max(pixels, 1));
      // one device, or all on a line, must not fill the picture
      const scale = Math.min(
        room[0] / Math.max(right - left, this.space),
        room[1] / Math.max(high - low, this.space),
        160 / this.space,
      );
      places.forEach(([x, y], row) => {
        this.x[row] = width / 2 + scale * (x - (left + right) / 2);
        this.y[row] = height / 2 - scale * (y - (low + high) / 2);
      });
      this.pixels = scale * this.space;
      this.tree = vendor.quadtree(Array.from(this.x, (x, row) => [x, this.y[row], row]));
    }

    /** The device nearest to a point, if it is near. */
    find(x, y, far) {
      return this.tree.find(x, y, far)?.[2] ?? null;
    }

    /** The ends of the two pieces in which an edge that leaves the picture is drawn: [from, way out], for each end. */
    stubs(edge) {
      const [a, b] = this.heading.edges[edge];
      const reach = STUB * this.pixels;
      const [dx, dy] = [Math.sign(this.x[b] - this.x[a]) * reach, Math.sign(this.y[b] - this.y[a]) * reach];
      return [
        [this.x[a], this.y[a], -dx, -dy],
        [this.x[b], this.y[b], dx, dy],
      ];
    }

    /** Where a message is that has gone this share of a link. */
    along(link, share) {
      const edge = link >> 1;
      const [from, to] = link & 1 ? [1, 0] : [0, 1];
      if (this.wraps.has(edge)) {
        const [x, y, dx, dy] = this.stubs(edge)[share < 0.5 ? from : to];
        const out = share < 0.5 ? 2 * share : 2 - 2 * share;
        return [x + out * dx, y + out * dy];
      }
      const rows = this.heading.edges[edge];
      const [a, b] = [rows[from], rows[to]];
      return [this.x[a] + share * (this.x[b] - this.x[a]), this.y[a] + share * (this.y[b] - this.y[a])];
    }

    /** The next device in a direction, for the arrow keys: near, and not far aside. */
    next(row, dx, dy) {
      let [best, least] = [row, Infinity];
      for (let other = 0; other < this.x.length; other += 1) {
        const [x, y] = [this.x[other] - this.x[row], this.y[other] - this.y[row]];
        const ahead = x * dx + y * dy;
        const aside = Math.abs(x * dy - y * dx);
        if (ahead > 1e-9 && ahead + 3 * aside < least) [best, least] = [other, ahead + 3 * aside];
      }
      return best;
    }
  }

  function ends(values, around) {
    let [low, high] = [Infinity, -Infinity];
    for (const value of values) [low, high] = [Math.min(low, value), Math.max(high, value)];
    return [low - around, high + around];
  }

  view.places = { Places };
})();
