// The walk of one object: who did what because of what, as a timeline that can be played.
import { candidates, h } from "./app.js";

const LANES = [
  ["1", "kubectl"], ["2", "API server"], ["3", "store"], ["4", "initializers"], ["5", "control loops"], ["6", "scheduler"],
  ["7", "kubelet"], ["8", "runtime"], ["9", "pod network"], ["10", "between hosts"], ["11", "services, DNS"],
];
const ROW = 21;

const lane = (span) => span.stage.split(".")[0];

export function time(seconds) {
  if (seconds < 1e-3) return `${(seconds * 1e6).toFixed(0)} µs`;
  if (seconds < 1) return `${(seconds * 1e3).toFixed(seconds < 0.01 ? 2 : 1)} ms`;
  return `${seconds.toFixed(2)} s`;
}

/** Shows the walk of `object` in `main`; returns what ends it. */
export function walkView(main, object) {
  const walk = new View(main, object);
  walk.open();
  return () => walk.close();
}

class View {
  constructor(main, object) {
    Object.assign(this, { main, object, spans: new Map(), scale: "even", abort: new AbortController(), keys: (e) => this.key(e) });
  }

  open() {
    this.chooser = h("input", { "aria-label": "Object", placeholder: "deploy/nginx", list: "objects", value: this.object });
    this.objects = h("datalist", { id: "objects" });
    this.play = h("button", { type: "button", class: "primary", onclick: () => this.toggle() }, "▶ Play");
    this.even = h("button", { type: "button", "aria-pressed": "true", title: "Short steps are drawn wider than they were", onclick: () => this.rescale() }, "Even steps");
    this.idle = h("button", { type: "button", "aria-pressed": "false", title: "Also control loops that had nothing to do", onclick: () => this.toggleIdle() }, "Idle looks");
    const form = h("form", { onsubmit: (e) => { e.preventDefault(); location.hash = `#/walk/${this.chooser.value.trim()}`; } }, this.chooser, this.objects, h("button", {}, "Show"));
    this.title = h("p", { class: "faint", role: "status" });
    this.timeline = h("div", { class: "timeline", role: "listbox", "aria-label": "Spans of the walk", tabindex: "-1" });
    this.detail = h("section", { class: "card", "aria-live": "polite" });
    this.path = h("section", { class: "card" });
    this.main.replaceChildren(
      h("h1", {}, "The walk"),
      h("div", { class: "controls" }, form, this.play, this.even, this.idle),
      h("section", { class: "card" }, this.title, h("div", { class: "scroller" }, this.timeline),
        h("p", { class: "faint keys" }, h("kbd", {}, "space"), " play  ", h("kbd", {}, "←"), " ", h("kbd", {}, "→"), " in time  ", h("kbd", {}, "↑"), " cause  ", h("kbd", {}, "↓"), " effect  ", h("kbd", {}, "c"), " cluster")),
      h("div", { class: "two" }, this.path, this.detail));
    addEventListener("keydown", this.keys);
    addEventListener("resize", (this.resized = () => this.draw()));
    this.suggest();
    if (this.object) this.follow();
    else this.title.textContent = "Name an object to see what the cluster made of it.";
  }

  close() {
    this.abort.abort();
    this.stop();
    removeEventListener("keydown", this.keys);
    removeEventListener("resize", this.resized);
    clearTimeout(this.later);
  }

  suggest() {
    const names = candidates();
    this.objects.replaceChildren(...names.map((name) => h("option", { value: name })));
    if (!names.length) this.later = setTimeout(() => this.suggest(), 500);
  }

  /** Reads pieces of the walk as they come. */
  async follow() {
    try {
      const answer = await fetch(`/cox/trace?watch=true&object=${encodeURIComponent(this.object)}`, { signal: this.abort.signal });
      if (!answer.ok) throw new Error((await answer.json()).message ?? answer.statusText);
      this.title.textContent = "Waiting for the first span…";
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) break;
        const lines = (rest + value).split("\n");
        rest = lines.pop();
        for (const line of lines) this.take(JSON.parse(line));
      }
    } catch (error) {
      if (error.name !== "AbortError") this.title.textContent = error.message;
    }
  }

  take(piece) {
    const first = !this.spans.size;
    for (const span of piece.spans) this.spans.set(span.id, span);
    this.draw();
    if (first) this.select(this.ordered[0]?.id, false);
    if (first && !matchMedia("(prefers-reduced-motion: reduce)").matches) this.start();
  }

  /** Sorts, packs and places everything. */
  draw() {
    const all = [...this.spans.values()];
    this.ordered = all.filter((span) => !span.inner && (!span.idle || this.everything)).sort((a, b) => a.offset - b.offset);
    if (!this.ordered.length) return;
    this.effects = Map.groupBy(this.ordered.filter((span) => span.cause), (span) => span.cause);
    this.laps = Map.groupBy(all.filter((span) => span.inner), (span) => span.cause);
    this.end = Math.max(...all.map((span) => span.offset + span.duration));
    const width = Math.max(this.timeline.parentElement.clientWidth - 4, Math.min(2400, this.ordered.length * 9));
    this.x = this.scale === "even" ? this.evenly(width) : (at) => (at / (this.end || 1)) * (width - 12);
    this.timeline.style.width = `${width}px`;
    const lanes = LANES.map(([number, title]) => this.lane(number, title)).filter(Boolean);
    this.head = h("div", { class: "head" });
    this.arrows = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    this.arrows.setAttribute("class", "arrows");
    this.timeline.replaceChildren(this.arrows, ...lanes, this.axis(width), this.head);
    const stages = new Set(all.map((span) => span.stage)).size;
    this.title.replaceChildren(h("b", {}, this.object), `: ${all.length} spans of ${stages} stages in ${time(this.end)}. `, "Solid is the critical path.");
    this.showPath();
    if (this.chosen) this.select(this.chosen, false);
    if (this.playing) this.mark();
  }

  /** A scale on which each stretch of time has the root of its length: what is short can be seen beside what is long. */
  evenly(width) {
    const times = [...new Set(this.ordered.flatMap((span) => [span.offset, span.offset + span.duration]))].sort((a, b) => a - b);
    const sums = [0];
    for (let i = 1; i < times.length; i++) sums.push(sums[i - 1] + Math.sqrt(times[i] - times[i - 1]));
    const total = sums.at(-1) || 1;
    this.back = (x) => {
      const sum = (x / (width - 12)) * total;
      let i = sums.findIndex((s) => s >= sum);
      if (i < 1) i = 1;
      const part = (sum - sums[i - 1]) / (sums[i] - sums[i - 1] || 1);
      return times[i - 1] + part * (times[i] - times[i - 1]);
    };
    return (at) => {
      let low = 0, high = times.length - 1;
      while (low < high) { const middle = (low + high + 1) >> 1; if (times[middle] <= at) low = middle; else high = middle - 1; }
      const gap = (times[low + 1] ?? times[low]) - times[low];
      const part = gap ? (at - times[low]) / gap : 0;
      return ((sums[low] + part * ((sums[low + 1] ?? sums[low]) - sums[low])) / total) * (width - 12);
    };
  }

  lane(number, title) {
    const spans = this.ordered.filter((span) => lane(span) === number);
    if (!spans.length) return null;
    const ends = [];
    const bars = spans.map((span) => {
      const left = this.x(span.offset), right = Math.max(this.x(span.offset + span.duration), left + 6);
      let row = ends.findIndex((end) => end <= left);
      if (row < 0) row = ends.length;
      ends[row] = right + 2;
      const label = `${span.stage} ${span.name}, ${span.actor} ${span.object}, after ${time(span.offset)}, ${time(span.duration)}, ${span.outcome}`;
      return h("button", {
        type: "button", role: "option", tabindex: "-1", "data-id": span.id, "aria-label": label, title: label,
        class: `span ${span.critical ? "critical" : ""} ${span.outcome === "ok" ? "" : span.outcome}`,
        style: { left: `${left}px`, width: `${right - left}px`, top: `${row * ROW}px` }, onclick: () => this.select(span.id),
      });
    });
    return h("div", { class: `lane c${number}` }, h("span", { class: "label" }, `${number} ${title}`), h("div", { class: "rows", style: { height: `${ends.length * ROW + 2}px` } }, bars));
  }

  axis(width) {
    const count = Math.max(2, Math.min(10, Math.floor(width / 110)));
    const marks = Array.from({ length: count + 1 }, (_, i) => (i / count) * (width - 12));
    const at = (x) => (this.scale === "even" ? this.back(x) : (x / (width - 12)) * this.end);
    return h("div", { class: "axis" }, marks.map((x) => h("span", { style: { left: `${x}px` } }, time(at(x)))));
  }

  bar(id) {
    return this.timeline.querySelector(`[data-id="${CSS.escape(id)}"]`);
  }

  select(id, focus = true) {
    const span = this.spans.get(id);
    if (!span) return;
    this.chosen = id;
    for (const old of this.timeline.querySelectorAll("[aria-selected]")) { old.removeAttribute("aria-selected"); old.tabIndex = -1; }
    const bar = this.bar(id);
    if (bar) {
      bar.setAttribute("aria-selected", "true");
      bar.tabIndex = 0;
      if (focus) { bar.focus({ preventScroll: true }); bar.scrollIntoView({ inline: "nearest", block: "nearest" }); }
    }
    this.drawArrows(span);
    this.showDetail(span);
    for (const step of this.path.querySelectorAll("[aria-current]")) step.removeAttribute("aria-current");
    this.path.querySelector(`[data-step="${CSS.escape(id)}"]`)?.setAttribute("aria-current", "true");
  }

  /** From the chosen span back to the beginning, and to its effects. */
  drawArrows(span) {
    const box = this.timeline.getBoundingClientRect();
    const place = (id, side) => {
      const r = this.bar(id)?.getBoundingClientRect();
      return r && { x: (side === "end" ? r.right : r.left) - box.left, y: r.top + r.height / 2 - box.top };
    };
    const paths = [];
    const draw = (from, to, kind) => {
      const [a, b] = [place(from, "end"), place(to, "start")];
      if (!a || !b) return;
      const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
      const bend = Math.max(14, Math.abs(b.x - a.x) / 2);
      path.setAttribute("d", `M${a.x},${a.y} C${a.x + bend},${a.y} ${b.x - bend},${b.y} ${b.x},${b.y}`);
      path.setAttribute("class", kind);
      paths.push(path);
    };
    for (let at = span; at?.cause; at = this.spans.get(at.cause)) draw(at.cause, at.id, "back");
    for (const effect of this.effects.get(span.id) ?? []) draw(span.id, effect.id, "on");
    this.arrows.replaceChildren(...paths);
  }

  showDetail(span) {
    const laps = this.laps.get(span.id) ?? [];
    const longest = Math.max(...laps.map((lap) => lap.duration), 1e-9);
    const cause = this.spans.get(span.cause);
    const effects = this.effects.get(span.id) ?? [];
    const jump = (to) => h("button", { type: "button", class: "quiet", onclick: () => this.select(to.id) }, h("span", { class: `stage c${lane(to)}` }, to.stage), ` ${to.name} ${to.object || to.actor}`);
    const facts = [["who", span.actor], ["what", span.object], ["detail", span.detail], ["began", `${time(span.offset)} after the start (${span.start})`], ["took", time(span.duration)], ["outcome", span.outcome], ["id", span.id]];
    this.detail.replaceChildren(
      h("header", {}, h("span", { class: `stage c${lane(span)}` }, span.stage), h("h2", {}, span.name)),
      h("dl", { class: "facts" }, facts.filter(([, value]) => value).map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
      h("h3", {}, "because of"), cause ? jump(cause) : h("p", { class: "faint" }, "nothing before: this is the beginning"),
      effects.length ? h("h3", {}, "led to") : null, ...effects.slice(0, 12).map((e) => h("div", {}, jump(e))),
      laps.length ? h("h3", {}, `its ${laps.length} steps`) : null,
      laps.length ? h("ul", { class: "list laps" }, laps.map((lap) => h("li", { class: `c${lane(lap)}` },
        h("span", { class: "cut", title: `${lap.stage} ${lap.name} ${lap.detail ?? ""}` }, lap.detail || lap.name), h("span", { class: "num faint" }, time(lap.duration)), h("i", { style: { width: `${(100 * lap.duration) / longest}%` } })))) : null);
  }

  showPath() {
    const steps = this.ordered.filter((span) => span.critical);
    this.path.replaceChildren(
      h("header", {}, h("h2", {}, "Critical path"), h("span", { class: "faint" }, "what the end waited for")),
      h("ol", { class: "steps" }, steps.map((span) => h("li", {}, h("button", { type: "button", "data-step": span.id, onclick: () => this.select(span.id) },
        h("span", { class: "num faint" }, time(span.offset)), h("span", { class: `stage c${lane(span)}` }, span.stage), h("span", { class: "cut" }, `${span.name} `, h("span", { class: "faint" }, span.object || span.actor)), h("span", { class: "num" }, time(span.duration)))))));
  }

  toggle() {
    if (this.playing) this.stop();
    else this.start();
  }

  start() {
    if (!this.ordered?.length) return;
    const width = this.x(this.end);
    const length = Math.min(12000, 3000 + this.ordered.length * 25);
    const began = performance.now();
    this.play.textContent = "■ Stop";
    const step = (now) => {
      this.at = Math.min(1, (now - began) / length) * width;
      this.mark();
      if (this.at < width) this.playing = requestAnimationFrame(step);
      else this.stop();
    };
    this.timeline.classList.add("playing");
    this.playing = requestAnimationFrame(step);
  }

  /** Lights what the playhead has passed. */
  mark() {
    this.head.style.left = `${this.at}px`;
    for (const bar of this.timeline.querySelectorAll(".span")) {
      const left = parseFloat(bar.style.left), right = left + parseFloat(bar.style.width);
      bar.classList.toggle("past", left <= this.at);
      bar.classList.toggle("now", left <= this.at && right >= this.at);
    }
  }

  stop() {
    cancelAnimationFrame(this.playing);
    this.playing = null;
    this.timeline.classList.remove("playing");
    this.play.textContent = "▶ Play";
  }

  rescale() {
    this.scale = this.scale === "even" ? "true" : "even";
    this.even.setAttribute("aria-pressed", String(this.scale === "even"));
    this.draw();
  }

  toggleIdle() {
    this.everything = !this.everything;
    this.idle.setAttribute("aria-pressed", String(this.everything));
    this.draw();
  }

  key(event) {
    if (event.target.matches("input") || event.ctrlKey || event.metaKey || event.altKey) return;
    const at = this.ordered?.findIndex((span) => span.id === this.chosen) ?? -1;
    const moves = {
      ArrowRight: () => this.select(this.ordered[Math.min(at + 1, this.ordered.length - 1)]?.id),
      ArrowLeft: () => this.select(this.ordered[Math.max(at - 1, 0)]?.id),
      ArrowUp: () => this.select(this.spans.get(this.chosen)?.cause),
      ArrowDown: () => this.select((this.effects?.get(this.chosen) ?? [])[0]?.id),
      Home: () => this.select(this.ordered?.[0]?.id),
      End: () => this.select(this.ordered?.at(-1)?.id),
      " ": () => this.toggle(),
    };
    if (moves[event.key] && !(event.key === " " && event.target.matches("button:not(.span)"))) {
      event.preventDefault();
      moves[event.key]();
    }
  }
}
