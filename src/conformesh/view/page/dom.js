// Elements of the page. What a trace says only ever becomes text, never markup.
"use strict";

window.conformesh = window.conformesh ?? {};

(() => {
  const view = window.conformesh;

  /** Make an element: functions are listeners (`onclick`), true and false set attributes that have no value. */
  function make(tag, given = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(given)) {
      if (typeof value === "function") element.addEventListener(name.slice(2), value);
      else if (typeof value === "boolean") element.toggleAttribute(name, value);
      else if (value != null) element.setAttribute(name, value);
    }
    element.append(...children.flat().filter((child) => child != null));
    return element;
  }

  /** Change a text only if it is another one: so nothing is laid out or read aloud without need. */
  function write(element, words) {
    if (element.textContent !== words) element.textContent = words;
  }

  /** Pairs of a name and words. */
  function facts(pairs, name = "facts") {
    return make(
      "dl",
      { class: name },
      pairs.map(([term, words]) => make("div", {}, make("dt", {}, term), make("dd", {}, words))),
    );
  }

  /** Put these children in the place of all others, if `key` is another one than last time. */
  function renew(element, key, children) {
    const text = JSON.stringify(key);
    if (element.dataset.key === text) return;
    element.dataset.key = text;
    element.replaceChildren(
      ...children()
        .flat()
        .filter((child) => child != null),
    );
  }

  /** A small picture on a button; its words are in the button's label. */
  function icon(path) {
    const [picture, shape] = ["svg", "path"].map((name) =>
      document.createElementNS("http://www.w3.org/2000/svg", name),
    );
    picture.setAttribute("viewBox", "0 0 16 16");
    picture.setAttribute("aria-hidden", "true");
    shape.setAttribute("d", path);
    picture.append(shape);
    return picture;
  }

  const find = (id) => document.getElementById(id);

  view.dom = { make, write, facts, renew, icon, find };
})();
