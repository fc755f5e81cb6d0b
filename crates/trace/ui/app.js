// The cluster at a glance. Objects come from the API, by watch; figures once a minute.
import { bytes, cores, follow, latest, spark } from "./history.js";
import { walkView } from "./walk.js";

/** An element: tag, attributes (on* are listeners), children. */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(element.style, value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child != null && child !== false));
  return element;
}

/** `93s`, `5m`, `2d`: as kubectl says it. */
export function age(time) {
  const seconds = Math.max(0, (Date.now() - Date.parse(time)) / 1000);
  for (const [unit, size, from] of [["d", 86400, 172800], ["h", 3600, 7200], ["m", 60, 180]]) {
    if (seconds >= from) return Math.floor(seconds / size) + unit;
  }
  return Math.floor(seconds) + "s";
}

// Watches are WebSockets: a browser allows only six plain connections to one place.
class Watch {
  constructor(path, changed) {
    this.objects = new Map();
    this.changed = changed;
    this.path = path;
    this.delay = 500;
    this.open();
  }
  open() {
    const scheme = location.protocol === "https:" ? "wss" : "ws";
    const query = "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&pretty=false";
    const socket = new WebSocket(`${scheme}://${location.host}${this.path}?${query}`);
    let fresh = new Map();
    socket.onmessage = async (message) => {
      const text = typeof message.data === "string" ? message.data : await message.data.text();
      fresh = this.take(JSON.parse(text), fresh);
    };
    socket.onclose = () => {
      this.live = false;
      status();
      setTimeout(() => this.open(), (this.delay = Math.min(this.delay * 2, 15000)));
    };
  }
  /** Until the first bookmark, what comes is the whole: it replaces what was known. */
  take(event, fresh) {
    const { metadata } = event.object;
    if (event.type === "BOOKMARK") {
      if (fresh) this.objects = fresh;
      this.live = true;
      this.delay = 500;
      status();
      this.changed();
      return null;
    }
    if (event.type === "ERROR") return fresh;
    const target = fresh ?? this.objects;
    if (event.type === "DELETED") target.delete(metadata.uid);
    else target.set(metadata.uid, event.object);
    if (!fresh) this.changed();
    return fresh;
  }
  list() {
    return [...this.objects.values()];
  }
}

let queued = false;
function changed() {
  if (queued) return;
  queued = true;
  requestAnimationFrame(() => {
    queued = false;
    if (view === "cluster") showCluster();
  });
}

const watches = {
  nodes: new Watch("/api/v1/nodes", changed),
  pods: new Watch("/api/v1/pods", changed),
  deployments: new Watch("/apis/apps/v1/deployments", changed),
  replicasets: new Watch("/apis/apps/v1/replicasets", changed),
  services: new Watch("/api/v1/services", changed),
  events: new Watch("/api/v1/events", changed),
};

function status() {
  const link = document.getElementById("link");
  const live = Object.values(watches ?? {}).every((watch) => watch.live);
  link.className = live ? "chip good" : "chip bad";
  link.textContent = live ? "live" : "connecting";
}

/** What a pod's state is called, and how good it is. */
function podState(pod) {
  const { status = {}, metadata } = pod;
  if (metadata.deletionTimestamp) return ["Terminating", "warn"];
  const containers = [...(status.initContainerStatuses ?? []), ...(status.containerStatuses ?? [])];
  const waiting = containers.map((c) => c.state?.waiting?.reason).find((reason) => reason && !["ContainerCreating", "PodInitializing"].includes(reason));
  if (waiting) return [waiting, "bad"];
  const ready = (status.conditions ?? []).some((c) => c.type === "Ready" && c.status === "True");
  if (status.phase === "Running") return ready ? ["Running", "good"] : ["Running, not ready", "warn"];
  if (status.phase === "Succeeded") return ["Completed", "good"];
  if (status.phase === "Failed") return [status.reason ?? "Failed", "bad"];
  return [status.phase ?? "Pending", "wait"];
}

/** The workload that a pod belongs to: its deployment, else whoever controls it. */
function owner(pod, sets) {
  const reference = (pod.metadata.ownerReferences ?? []).find((r) => r.controller);
  if (!reference) return null;
  if (reference.kind === "ReplicaSet") {
    const above = sets.get(reference.uid)?.metadata.ownerReferences?.find((r) => r.controller);
    if (above) return above;
  }
  return reference;
}

const PLURALS = { Deployment: "deployments", ReplicaSet: "replicasets", StatefulSet: "statefulsets", DaemonSet: "daemonsets", Job: "jobs", Node: "nodes", ReplicationController: "replicationcontrollers" };

function workloads() {
  const found = new Map();
  for (const deployment of watches.deployments.list()) {
    const { uid, name, namespace, creationTimestamp } = deployment.metadata;
    found.set(uid, { kind: "Deployment", name, namespace, since: creationTimestamp, wanted: deployment.spec.replicas, pods: [] });
  }
  for (const pod of watches.pods.list()) {
    const reference = owner(pod, watches.replicasets.objects);
    const { namespace, name, uid, creationTimestamp } = pod.metadata;
    const key = reference?.uid ?? uid;
    if (!found.has(key)) {
      found.set(key, { kind: reference?.kind ?? "Pod", name: reference?.name ?? name, namespace, since: creationTimestamp, pods: [] });
    }
    found.get(key).pods.push(pod);
  }
  const order = (w) => (w.namespace === "kube-system" ? 1 : 0);
  return [...found.values()].sort((a, b) => order(a) - order(b) || b.since.localeCompare(a.since));
}

const seen = new Set();
/** Marks what was not there the last time. */
function fresh(key) {
  const isNew = seen.size > 0 && !seen.has(key);
  seen.add(key);
  return isNew ? "new" : null;
}

function card(title, note, ...body) {
  return h("section", { class: "card" }, h("header", {}, h("h2", {}, title), h("span", { class: "faint" }, note)), ...body);
}

function tile(label, number, of) {
  return h("div", { class: "tile" }, h("b", {}, String(number), of == null ? "" : h("small", {}, ` / ${of}`)), h("span", { class: "faint" }, label));
}

/** A value and its last hour. */
function figure(of, namespace, name, what, text) {
  const value = latest(what, of, namespace, name);
  if (value == null) return null;
  return h("span", { class: "figure" }, text(value), spark(what, of, namespace, name, `${what} of ${name}, the last hour`));
}

function apiTile() {
  const rate = latest("requests_per_second", "component", "", "kube-apiserver");
  if (rate == null) return null;
  const slow = latest("request_p99_seconds", "component", "", "kube-apiserver");
  const note = slow == null ? "requests/s" : `requests/s · p99 ${Math.round(slow * 1000)} ms`;
  return h("div", { class: "tile" }, h("b", {}, rate.toFixed(1)), h("span", { class: "faint" }, note), spark("requests_per_second", "component", "", "kube-apiserver", "requests per second, the last hour"));
}

const walkLink = (plural, namespace, name) => `#/walk/${[plural, namespace, name].map(encodeURIComponent).join("/")}`;

function showCluster() {
  const main = document.getElementById("main");
  const [nodes, pods, all] = [watches.nodes.list(), watches.pods.list(), workloads()];
  const isReady = (node) => (node.status?.conditions ?? []).some((c) => c.type === "Ready" && c.status === "True");
  const good = (pod) => podState(pod)[1] === "good";
  const tiles = h("div", { class: "tiles" },
    tile("nodes ready", nodes.filter(isReady).length, nodes.length),
    tile("pods well", pods.filter(good).length, pods.length),
    tile("workloads", all.length),
    tile("services", watches.services.list().length),
    apiTile());

  const nodeList = h("ul", { class: "list" }, nodes.map((node) => {
    const name = node.metadata.name;
    const here = pods.filter((pod) => pod.spec.nodeName === name).length;
    const room = Number(node.status?.allocatable?.pods ?? 110);
    return h("li", { class: fresh(node.metadata.uid) },
      h("div", { class: "grow" },
        h("span", { class: `state ${isReady(node) ? "good" : "bad"}` }, h("b", {}, name)),
        h("span", { class: "faint cut" }, `${node.status?.nodeInfo?.kubeletVersion ?? ""} · ${node.spec?.podCIDR ?? ""}`),
        h("div", { class: "meter", role: "img", "aria-label": `${here} of ${room} pods` }, h("i", { style: { width: `${Math.min(100, (100 * here) / room)}%` } })),
        h("div", { class: "figures" }, figure("node", "", name, "cpu_cores", cores), figure("node", "", name, "memory_bytes", bytes))),
      h("span", { class: "num faint" }, `${here} pods`));
  }));

  const workloadList = h("ul", { class: "list" }, all.map((w) => {
    const dots = w.pods.map((pod) => h("i", { class: `dot ${podState(pod)[1]}`, title: `${pod.metadata.name}: ${podState(pod)[0]}` }));
    for (let missing = w.pods.length; missing < (w.wanted ?? 0); missing++) dots.push(h("i", { class: "dot wait", title: "not there yet" }));
    const ready = w.pods.filter(good).length;
    return h("li", { class: fresh(w.kind + w.namespace + w.name) },
      h("div", { class: "grow" }, h("b", { class: "cut" }, w.name), h("span", { class: "faint cut" }, `${w.kind} · ${w.namespace} · ${age(w.since)}`)),
      h("span", { class: "dots", role: "img", "aria-label": `${ready} of ${w.wanted ?? w.pods.length} pods well` }, dots),
      h("a", { href: walkLink(PLURALS[w.kind] ?? w.kind.toLowerCase() + "s", w.namespace, w.name), "aria-label": `Walk of ${w.name}` }, "walk"));
  }));

  const rows = pods.sort((a, b) => b.metadata.creationTimestamp.localeCompare(a.metadata.creationTimestamp)).slice(0, 200).map((pod) => {
    const [state, quality] = podState(pod);
    const restarts = (pod.status?.containerStatuses ?? []).reduce((sum, c) => sum + c.restartCount, 0);
    return h("tr", { class: fresh(pod.metadata.uid) },
      h("td", {}, h("a", { href: walkLink("pods", pod.metadata.namespace, pod.metadata.name) }, pod.metadata.name), h("span", { class: "faint" }, ` ${pod.metadata.namespace}`)),
      h("td", {}, h("span", { class: `state ${quality}` }, state)),
      h("td", { class: "mono" }, pod.status?.podIP ?? ""),
      h("td", { "data-label": "on" }, pod.spec.nodeName ?? "no node"),
      h("td", { class: "num", "data-label": "cpu" }, figure("pod", pod.metadata.namespace, pod.metadata.name, "cpu_cores", cores)),
      h("td", { class: "num", "data-label": "memory" }, figure("pod", pod.metadata.namespace, pod.metadata.name, "memory_bytes", bytes)),
      h("td", { class: "num", "data-label": "restarts" }, String(restarts)),
      h("td", { class: "num", "data-label": "age" }, age(pod.metadata.creationTimestamp)));
  });
  const table = h("table", {}, h("thead", {}, h("tr", {}, ["Pod", "State", "Address", "Node", "CPU", "Memory", "Restarts", "Age"].map((t) => h("th", { scope: "col" }, t)))), h("tbody", {}, rows));

  const last = (event) => event.lastTimestamp ?? event.eventTime ?? event.metadata.creationTimestamp;
  const events = watches.events.list().sort((a, b) => last(b).localeCompare(last(a))).slice(0, 40);
  const eventList = h("ul", { class: "list" }, events.map((event) => h("li", { class: fresh(event.metadata.uid) },
    h("div", { class: "grow" },
      h("span", { class: `state ${event.type === "Warning" ? "warn" : "good"}` }, h("b", {}, event.reason), h("span", { class: "faint" }, `${event.involvedObject.kind} ${event.involvedObject.name}`)),
      h("span", { class: "faint", style: { display: "block" } }, event.message)),
    h("span", { class: "num faint" }, age(last(event))))));

  const none = (list, text) => (list.length ? null : h("p", { class: "empty" }, text));
  const y = scrollY;
  // Whoever was on a link stays on it.
  const focused = main.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
  main.replaceChildren(
    h("h1", { class: "skip" }, "The cluster at a glance"),
    tiles,
    h("div", { class: "two" },
      h("div", { class: "stack" },
        card("Workloads", "a square is a pod", none(all, "Nothing runs yet. Try: cox kubectl run hello --image=cox.local/hello --replicas=3 --port=80 --expose"), workloadList),
        card("Pods", pods.length > 200 ? "the newest 200" : "", none(pods, "No pods yet."), table)),
      h("div", { class: "stack" },
        card("Nodes", "", none(nodes, "No nodes yet."), nodeList),
        card("Events", "newest first", none(events, "Quiet so far."), eventList))));
  scrollTo(0, y);
  if (focused) main.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
}

/** Objects whose walk may be of interest, newest first. */
export function candidates() {
  return workloads().map((w) => `${PLURALS[w.kind] ?? w.kind.toLowerCase() + "s"}/${w.namespace}/${w.name}`);
}

let view;
let leave = () => {};
function route() {
  const words = location.hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent);
  leave();
  leave = () => {};
  view = words[0] === "walk" ? "walk" : "cluster";
  for (const link of document.querySelectorAll("nav a")) {
    if (link.dataset.view === view) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (view === "walk") leave = walkView(document.getElementById("main"), words.slice(1).join("/"));
  else showCluster();
}
addEventListener("hashchange", () => {
  route();
  document.getElementById("main").focus({ preventScroll: true });
});

function theme() {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = document.documentElement.dataset.theme ?? (dark ? "dark" : "light");
  document.documentElement.dataset.theme = localStorage.theme = now === "dark" ? "light" : "dark";
}
if (localStorage.theme) document.documentElement.dataset.theme = localStorage.theme;
document.getElementById("theme").addEventListener("click", theme);
addEventListener("keydown", (event) => {
  if (event.target.matches("input") || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "t") theme();
  if (event.key === "c") location.hash = "#/";
  if (event.key === "w") location.hash = "#/walk";
});

fetch("/version").then((answer) => answer.json()).then((version) => {
  document.getElementById("version").textContent = version.gitVersion;
}).catch(() => {});
setInterval(changed, 10000);
follow(changed);
route();
