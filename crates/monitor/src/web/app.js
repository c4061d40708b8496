"use strict";
// Everything that is shown is set as text, never as markup: names of jobs and mounts come from users.
const SVG = "http://www.w3.org/2000/svg";
const get = (id) => document.getElementById(id);

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function drawn(name, attributes, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function scaled(value, units, step) {
  let unit = 0;
  while (value >= step && unit + 1 < units.length) { value /= step; unit++; }
  const digits = value >= 100 || value === 0 || (unit === 0 && step === 1024) ? 0 : value >= 10 ? 1 : 2;
  return `${value.toFixed(digits)} ${units[unit]}`.trim();
}
const bytes = (value) => scaled(value, ["B", "KiB", "MiB", "GiB", "TiB", "PiB"], 1024);
const rate = (value) => `${bytes(value)}/s`;
const count = (value) => value > 0 && value < 10 ? value.toFixed(1) : scaled(Math.round(value), ["", "k", "M", "G"], 1000);
const whole = (value) => scaled(Math.round(value), value < 1000 ? [""] : ["", "k", "M", "G"], 1000).replace(/\.0+(?=$| )/, "");
const several = (number, name) => `${number} ${name}${number === 1 ? "" : "s"}`;
const perSecond = (value) => `${count(value)}/s`;
function time(value) {
  if (value === null || value === undefined) return "-";
  if (value < 1e-3) return `${(value * 1e6).toFixed(0)} µs`;
  if (value < 1) return `${(value * 1e3).toFixed(value < 0.01 ? 1 : 0)} ms`;
  return `${value.toFixed(1)} s`;
}
function duration(value) {
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const [name, unit] = units.find(([, unit]) => value >= unit) || units[3];
  return `${Math.floor(value / unit)} ${name}`;
}

function bar(used) {
  const level = used >= 0.95 ? "critical" : used >= 0.8 ? "warning" : "";
  const shape = drawn("svg", { class: `bar ${level}`, viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" },
    drawn("rect", { width: Math.max(0, Math.min(1, used)) * 100, height: 10 }));
  return element("span", {}, shape, `${(used * 100).toFixed(0)} %`);
}
// As df: what is reserved counts neither as used nor as available.
const use = (row) => row.used + row.available > 0 ? bar(row.used / (row.used + row.available)) : "-";

// A table of rows; columns are [title, function of a row]. The first one heads its row.
function table(id, columns, rows, none) {
  const parts = [];
  if (rows.length === 0) {
    parts.push(element("tbody", {}, element("tr", {}, element("td", { class: "none" }, none))));
  } else {
    parts.push(element("thead", {}, element("tr", {}, ...columns.map(([title]) => element("th", { scope: "col" }, title)))));
    parts.push(element("tbody", {}, ...rows.map((row) => element("tr", {}, ...columns.map(([, of], index) => {
      const value = of(row);
      const cell = index === 0 ? element("th", { scope: "row" }) : element("td");
      if (index === 0) { cell.title = value; cell.className = "name"; }
      cell.append(value);
      return cell;
    })))));
  }
  get(id).replaceChildren(...parts);
}

function line(values, most, name) {
  const step = 100 / Math.max(1, values.length - 1);
  const points = values.map((value, index) => `${(index * step).toFixed(2)} ${(30 - 28 * value / most).toFixed(2)}`);
  return drawn("path", { d: points.length ? `M${points.join("L")}` : "", class: name });
}

// A card with the present values, and a curve for each.
function chart(title, curves, show, span) {
  const most = Math.max(...curves.flatMap((curve) => curve.values), Number.MIN_VALUE);
  const heads = curves.map((curve, index) => element("div", { class: "big" },
    element("span", { class: index ? "key b" : "key", "aria-hidden": "true" }), show(curve.now), " ", element("small", {}, curve.name)));
  const words = curves.map((curve) => `${curve.name} ${show(curve.now)}`).join(", ");
  const picture = drawn("svg", { class: "chart", viewBox: "0 0 100 32", preserveAspectRatio: "none", role: "img", "aria-label": `${title}: ${words}; highest ${show(most)}` },
    drawn("line", { x1: 0, y1: 30, x2: 100, y2: 30 }), ...curves.map((curve, index) => line(curve.values, most, index ? "b" : "a")));
  const peak = most > Number.MIN_VALUE ? `highest ${show(most)}` : "nothing yet";
  return element("article", { class: "card" }, element("h2", {}, title), ...heads, picture,
    element("div", { class: "axis" }, element("span", {}, span), element("span", {}, peak)));
}

function charts(view, history) {
  const last = (values) => values.length ? values[values.length - 1] : 0;
  const curve = (name, values) => ({ name, values, now: last(values) });
  const seconds = history.at_ms.length > 1 ? (last(history.at_ms) - history.at_ms[0]) / 1000 : 0;
  const span = `last ${duration(seconds)}`;
  const quiet = (value) => value > 0 ? time(value) : "-";
  const space = element("article", { class: "card" }, element("h2", {}, "Space"),
    element("div", { class: "big" }, bytes(view.total.available), " ", element("small", {}, `available of ${bytes(view.total.size)}`)),
    element("p", {}, use(view.total)),
    element("p", { class: "none" }, `${several(view.targets.length, "target")}, ${several(view.mounts.length, "mount")} here`));
  get("charts").replaceChildren(
    chart("Throughput of OSTs", [curve("read", history.read), curve("written", history.write)], rate, span),
    chart("Metadata operations", [curve("at MDTs", history.metadata)], perSecond, span),
    chart("Latency, 99th percentile", [curve("OST reads and writes", history.ost_p99_s), curve("MDT requests", history.mdt_p99_s)], quiet, span),
    space);
}

function show({ view, history }) {
  get("fsname").textContent = view.fsname;
  document.title = `${view.fsname} - NacreFS`;
  const critical = view.alerts.filter((alert) => alert.severity === "critical").length;
  const health = get("health");
  health.className = critical ? "critical" : view.alerts.length ? "warning" : "good";
  const words = view.alerts.length ? several(view.alerts.length, "problem") : "all is well";
  if (health.textContent !== words) health.textContent = words;
  get("alerts").replaceChildren(...view.alerts.map((alert) =>
    element("div", { class: `alert ${alert.severity}` }, element("strong", {}, alert.text), alert.action)));
  charts(view, history);
  table("targets", [
    ["Target", (row) => row.name], ["State", (row) => element("span", { class: row.state }, row.state)], ["Used", use],
    ["Available", (row) => bytes(row.available)], ["Inodes", (row) => whole(row.inodes - row.inodes_free)],
    ["Read", (row) => rate(row.read)], ["Written", (row) => rate(row.write)], ["Requests", (row) => perSecond(row.requests)],
    ["Mean time", (row) => time(row.mean_s)], ["In progress", (row) => whole(row.busy)], ["Clients", (row) => whole(row.clients)],
    ["Cache", (row) => row.cache === null ? "-" : bar(row.cache)], ["Process", (row) => row.process],
  ], view.targets, "No target answers.");
  table("jobs", [["Job", (row) => row.job], ["Requests", (row) => perSecond(row.requests)], ["Read", (row) => rate(row.read)], ["Written", (row) => rate(row.write)]],
    view.jobs, "No job makes requests.");
  const limited = (show) => (used, soft, hard) => {
    const limits = [soft > 0 ? `soft ${show(soft)}` : "", hard > 0 ? `hard ${show(hard)}` : ""].filter((text) => text);
    const text = limits.length ? `${show(used)} (${limits.join(", ")})` : show(used);
    return soft > 0 && used > soft || hard > 0 && used >= hard ? element("span", { class: "unhealthy" }, text) : text;
  };
  const [space, inodes] = [limited(bytes), limited(whole)];
  table("owners", [["Owner", (row) => `${row.kind} ${row.name}`], ["Space", (row) => space(row.used, row.soft, row.hard)],
    ["Inodes", (row) => inodes(row.inodes, row.inodes_soft, row.inodes_hard)]], view.owners, "Nothing is known about owners yet, or MDT0000 is on another host.");
  table("slow", [["Operation", (row) => row.operation], ["Target", (row) => row.target], ["99th percentile", (row) => time(row.p99_s)], ["Requests", (row) => perSecond(row.rate)]],
    view.slow, "No operation takes longer than 100 ms.");
  table("pools", [["Pool", (row) => row.name], ["OSTs", (row) => whole(row.osts)], ["Used", use], ["Available", (row) => bytes(row.available)]],
    view.pools, "There are no pools.");
  table("mounts", [["Mount", (row) => row.mount], ["Read", (row) => rate(row.read)], ["Written", (row) => rate(row.write)], ["Requests", (row) => perSecond(row.requests)], ["Mean time", (row) => time(row.mean_s)], ["Held back", (row) => bytes(row.dirty)]],
    view.mounts, "No mount runs here.");
  table("processes", [["Process", (row) => row.name], ["State", (row) => element("span", { class: row.up ? "up" : "down" }, row.up ? "up" : "down")], ["Uptime", (row) => duration(row.uptime_s)], ["Memory", (row) => bytes(row.memory)],
    ["CPU", (row) => row.cpu === null ? "-" : `${(row.cpu * 100).toFixed(0)} %`], ["Threads", (row) => whole(row.threads)]], view.processes, "No process answers.");
  const moving = get("moving");
  moving.className = view.moving.length ? "" : "none";
  const sentences = view.moving.length ? view.moving : ["Nothing moves or is being repaired."];
  moving.replaceChildren(...sentences.map((text) => element("li", {}, text)));
  get("updated").textContent = `Figures of ${new Date(view.at_ms).toLocaleTimeString()}, every 2 s`;
}

function ask(why) {
  get("app").hidden = true;
  get("login").hidden = false;
  get("health").textContent = "";
  get("refused").textContent = why;
  get("token").focus();
}

async function logIn(token) {
  const reply = await fetch("/api/login", { method: "POST", body: token });
  if (!reply.ok) { ask("This is not the token of this server."); return; }
  get("login").hidden = true;
  get("token").value = "";
  await update();
}

let timer = 0;
async function update() {
  clearTimeout(timer);
  try {
    const reply = await fetch("/api/state");
    if (reply.status === 401) { ask(""); return; }
    const data = await reply.json();
    if (data.view.at_ms > 0) { show(data); get("app").hidden = false; }
  } catch {
    get("health").className = "critical";
    get("health").textContent = "nacre web does not answer";
  }
  timer = setTimeout(update, 2000);
}

get("login").addEventListener("submit", (event) => { event.preventDefault(); logIn(get("token").value); });
// The token after # is not sent with requests, and leaves the address once it is used.
const given = new URLSearchParams(location.hash.slice(1)).get("token");
if (given) { history.replaceState(null, "", "/"); logIn(given); } else { update(); }
