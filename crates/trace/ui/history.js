// The last hour of figures, as lines: asked for once a minute, which is how often there are new ones.

const SVG = "http://www.w3.org/2000/svg";
const MINUTES = 60;
let series = new Map();

const key = (what, of, namespace, name) => [what, of, namespace, name].join("\n");

async function load(changed) {
  // Someone else's cluster, or one that does not let us: the page does without.
  if (document.hidden) return;
  const answer = await fetch(`/cox/history?minutes=${MINUTES}`).catch(() => null);
  if (!answer?.ok) return;
  const told = await answer.json();
  series = new Map(told.series.map((s) => [key(s.what, s.of, s.namespace, s.name), s.points]));
  changed();
}

/** Calls `changed` when there are new figures. */
export function follow(changed) {
  const again = () => load(changed);
  again();
  setInterval(again, 60000);
  document.addEventListener("visibilitychange", again);
}

/** The newest value, if it is not old. */
export function latest(what, of, namespace, name) {
  const [time, value] = series.get(key(what, of, namespace, name))?.at(-1) ?? [0, null];
  return Date.now() / 1000 - time < 180 ? value : null;
}

export const cores = (value) => (value == null ? "" : value >= 1 ? value.toFixed(2) : `${Math.round(value * 1000)}m`);

export function bytes(value) {
  if (value == null) return "";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  for (; value >= 1024 && unit < units.length - 1; unit++) value /= 1024;
  return `${value >= 100 || unit === 0 ? Math.round(value) : value.toFixed(1)} ${units[unit]}`;
}

/** A line of the last hour, from nothing to the highest value; null where there are too few. */
export function spark(what, of, namespace, name, label) {
  const points = series.get(key(what, of, namespace, name)) ?? [];
  if (points.length < 2) return null;
  const [width, height] = [72, 18];
  const end = points.at(-1)[0];
  const most = Math.max(...points.map(([, value]) => value)) || 1;
  const x = (time) => width - ((end - time) / (MINUTES * 60)) * width;
  const y = (value) => height - 1 - (value / most) * (height - 2);
  const line = points.map(([time, value]) => `${x(time).toFixed(1)},${y(value).toFixed(1)}`).join(" ");
  const svg = document.createElementNS(SVG, "svg");
  for (const [attribute, value] of Object.entries({ class: "spark", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label })) svg.setAttribute(attribute, value);
  const path = document.createElementNS(SVG, "polyline");
  path.setAttribute("points", line);
  svg.append(path);
  return svg;
}
