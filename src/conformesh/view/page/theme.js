// Dark or light: as the system has it, unless somebody chose.
"use strict";

(() => {
  const view = window.conformesh;
  const { write } = view.dom;
  const ORDER = ["auto", "light", "dark"];
  const KEY = "conformesh-theme";

  /** A browser may refuse to keep anything, above all for a page from a file: then the choice is forgotten. */
  function kept(use) {
    try {
      return use(localStorage);
    } catch {
      return null;
    }
  }

  class Theme {
    /** `changed` is called when colours are other ones. */
    constructor(button, changed) {
      Object.assign(this, { button, changed });
      const before = kept((store) => store.getItem(KEY));
      button.addEventListener("click", () => this.next());
      matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.apply());
      this.name = ORDER.includes(before) ? before : "auto";
      this.apply();
    }

    next() {
      this.name = ORDER[(ORDER.indexOf(this.name) + 1) % ORDER.length];
      kept((store) => store.setItem(KEY, this.name));
      this.apply();
    }

    apply() {
      document.documentElement.dataset.theme = this.name;
      write(this.button, `colours: ${this.name}`);
      view.colours.refresh();
      this.changed();
    }
  }

  view.theme = { Theme };
})();
