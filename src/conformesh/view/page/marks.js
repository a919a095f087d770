// Marks: how a device looks. Its shape and outline say its state, its filling the threshold; both can be told in grey.
"use strict";

(() => {
  const view = window.conformesh;
  const { SHADES, shades } = view.colours;
  const SMALL = 4; // pixels

  const circle = (pen, r) => pen.arc(0, 0, r, 0, 2 * Math.PI);
  const polygon = (corners) => (pen, r) => {
    corners.forEach(([x, y], place) => (place ? pen.lineTo(x * r, y * r) : pen.moveTo(x * r, y * r)));
    pen.closePath();
  };
  const diamond = polygon([
    [0, -1.25],
    [1.25, 0],
    [0, 1.25],
    [-1.25, 0],
  ]);
  const square = polygon([
    [-0.95, -0.95],
    [0.95, -0.95],
    [0.95, 0.95],
    [-0.95, 0.95],
  ]);
  const triangle = polygon([
    [0, -1.35],
    [1.25, 0.9],
    [-1.25, 0.9],
  ]);

  const hexagon = polygon([
    [0, -1.15],
    [1, -0.58],
    [1, 0.58],
    [0, 1.15],
    [-1, 0.58],
    [-1, -0.58],
  ]);

  // Of each state: shape, width of the outline in radii, dashes, whether it is filled, and what is drawn over it.
  const LOOKS = {
    certified: { shape: circle, width: 0.26, filled: true },
    learning: { shape: hexagon, width: 0.14, filled: true },
    calibrating: { shape: circle, width: 0.1, filled: true },
    waiting: { shape: circle, size: 0.7, width: 0.1, filled: true },
    "not certified": { shape: diamond, width: 0.12, filled: true },
    failed: { shape: square, width: 0.2, filled: true, over: cross, large: true },
    silent: { shape: circle, width: 0.16, dashes: [0.5, 0.4], over: slash, large: true },
    unknown: { shape: circle, size: 0.8, width: 0.12, dashes: [0.12, 0.4] },
    Byzantine: { shape: triangle, width: 0.2, filled: true, over: exclaimed, large: true },
  };

  function cross(pen, r, colour, width) {
    strokes(
      pen,
      colour,
      width,
      [
        [-0.95, -0.95, 0.95, 0.95],
        [-0.95, 0.95, 0.95, -0.95],
      ],
      r,
    );
  }

  function slash(pen, r, colour, width) {
    strokes(pen, colour, width, [[-0.7, 0.7, 0.7, -0.7]], r);
  }

  /** A white bar and a point with dark edges, which show on every shade. */
  function exclaimed(pen, r, colour, width, theme) {
    const bars = [
      [0, -0.55, 0, 0.2],
      [0, 0.55, 0, 0.56],
    ];
    pen.lineCap = "round";
    strokes(pen, theme.surface, 0.5 * r, bars, r);
    strokes(pen, theme.text, 0.26 * r, bars, r);
  }

  function strokes(pen, colour, width, lines, r) {
    pen.setLineDash([]);
    pen.strokeStyle = colour;
    pen.lineWidth = width;
    pen.beginPath();
    for (const [x1, y1, x2, y2] of lines) {
      pen.moveTo(x1 * r, y1 * r);
      pen.lineTo(x2 * r, y2 * r);
    }
    pen.stroke();
  }

  /** Draw a device at the origin. */
  function draw(pen, name, shade, radius, theme) {
    const look = LOOKS[name];
    const r = radius * (look.size ?? 1);
    const width = Math.max(look.width * radius, radius < SMALL ? 0.4 : 0.8); // small marks are mostly their filling
    pen.beginPath();
    look.shape(pen, r);
    pen.fillStyle = look.filled && shade < SHADES ? shades[shade] : theme.surface;
    pen.fill();
    if (look.filled && shade > SHADES) infinite(pen, shade === SHADES + 1, r, theme);
    pen.beginPath();
    look.shape(pen, r);
    pen.setLineDash((look.dashes ?? []).map((dash) => dash * r));
    pen.strokeStyle = theme.text;
    pen.lineWidth = width;
    pen.stroke();
    pen.setLineDash([]);
    look.over?.(pen, r, theme.text, width, theme);
  }

  /** Infinity has no shade but stripes: lying ones, and standing ones for minus infinity. */
  function infinite(pen, up, r, theme) {
    pen.save();
    pen.clip();
    if (!up) pen.rotate(Math.PI / 2);
    pen.fillStyle = theme.text;
    for (const stripe of [-0.75, -0.25, 0.25, 0.75]) pen.fillRect(-1.5 * r, (stripe - 0.11) * r, 3 * r, 0.22 * r);
    pen.restore();
  }

  /** Pictures of marks, made once for a size and a theme: thousands of them are quickly put on a canvas. */
  class Marks {
    constructor() {
      this.pictures = new Map();
      this.size = "";
    }

    /** Use this radius, in pixels of the page, and this theme from now on. */
    use(radius, ratio, theme) {
      const size = [radius, ratio, theme.text, theme.surface].join();
      if (size !== this.size) this.pictures.clear();
      Object.assign(this, { size, radius, ratio, theme });
    }

    picture(state, shade) {
      const key = state * (SHADES + 3) + shade;
      let found = this.pictures.get(key);
      if (found === undefined) {
        const { name } = view.words.STATES[state];
        const radius = LOOKS[name].large ? Math.max(this.radius, 4.5) : this.radius; // seen among thousands
        const half = Math.ceil(1.6 * radius + 2);
        const canvas = new OffscreenCanvas(2 * half * this.ratio, 2 * half * this.ratio);
        const pen = canvas.getContext("2d");
        pen.scale(this.ratio, this.ratio);
        pen.translate(half, half);
        draw(pen, name, shade, radius, this.theme);
        found = { image: canvas.transferToImageBitmap(), half }; // which is copied faster than a canvas
        this.pictures.set(key, found);
      }
      return found;
    }
  }

  /** A small picture of a state for a line of text; decoration, since its name stands beside it. */
  function glyph(name, shade = SHADES) {
    const canvas = document.createElement("canvas");
    const ratio = Math.max(window.devicePixelRatio, 1);
    canvas.className = "glyph";
    canvas.width = canvas.height = 18 * ratio;
    canvas.setAttribute("aria-hidden", "true");
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    pen.translate(9, name === "Byzantine" ? 10 : 9);
    draw(pen, name, shade, 5.6, view.colours.theme);
    return canvas;
  }

  view.marks = { Marks, glyph };
})();
