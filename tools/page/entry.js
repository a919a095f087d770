// What the page takes from the libraries; `vendor` holds these names and nothing else.
export { quadtree } from "d3-quadtree";
export { select } from "d3-selection";
export { zoom, zoomIdentity } from "d3-zoom";
export { default as uPlot } from "uplot";
