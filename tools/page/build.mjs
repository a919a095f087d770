// Puts the libraries of the page into vendor.js and vendor.css, and their licences into LICENSES.txt.
//
//     node build.mjs [FOLDER]
//
// The versions are those of package-lock.json. The same versions give the same bytes, wherever it is built, so that
// anybody can check what is committed. Nothing is made smaller: a report may be read by the people it is sent to.

import { mkdir, readFile, writeFile } from "node:fs/promises";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const HERE = dirname(fileURLToPath(import.meta.url));
const PAGE = join(HERE, "..", "..", "src", "conformesh", "view", "page");
const OWN = "node_modules/";

/** Bundle the entry, and say which packages came along. */
async function bundled() {
  const made = await build({
    absWorkingDir: HERE,
    entryPoints: ["entry.js"],
    bundle: true,
    format: "iife",
    globalName: "vendor",
    target: "es2022",
    charset: "utf8",
    legalComments: "none", // the whole licences stand at the top
    metafile: true,
    write: false,
  });
  const inputs = Object.keys(made.metafile.inputs).filter((path) => path.startsWith(OWN));
  const names = [...new Set(inputs.map((path) => path.slice(OWN.length).split("/")[0]))].sort();
  return { script: made.outputFiles[0].text, names };
}

/** Read what a package says about itself, and its licence. */
async function described(name) {
  const folder = join(HERE, OWN, name);
  const { version, license } = JSON.parse(await readFile(join(folder, "package.json"), "utf8"));
  const text = (await readFile(join(folder, "LICENSE"), "utf8")).trim();
  return { name, version, license, text };
}

const folder = resolve(process.argv[2] ?? PAGE);
const { script, names } = await bundled();
const packages = await Promise.all(names.map(described));
const listed = packages.map(({ name, version, license }) => `${name} ${version} (${license})`);
const intro = "Built by tools/page from these libraries, and not to be edited.";
const licences = packages.map(({ text }, place) => `${listed[place]}\n\n${text}\n`).join(`\n${"-".repeat(80)}\n\n`);
const banner = `/*!\n${intro}\n\n${licences.replaceAll("*/", "* /")}*/\n`; // a report takes the licences along
const style = await readFile(join(HERE, OWN, "uplot", "dist", "uPlot.min.css"), "utf8");

await mkdir(folder, { recursive: true });
await writeFile(join(folder, "vendor.js"), banner + script);
await writeFile(
  join(folder, "vendor.css"),
  `/* From uPlot, see vendor.js. */\n${style.replaceAll("}", "}\n").trim()}\n`,
);
await writeFile(join(folder, "LICENSES.txt"), `vendor.js and vendor.css hold these libraries.\n\n${licences}`);
console.log(`vendor.js: ${listed.join(", ")}`);
