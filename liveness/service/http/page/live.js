/*
 * The live page: what the sidecar tells once a second, drawn.
 *
 * One EventSource (`/v1/live`) brings the last minutes when it opens and a summary each
 * second; a filter opens it anew. Between two summaries only the wheel moves: the hand
 * goes on by its known speed, and dots stand for those who speak and those who leave.
 * When nothing is heard the hand stops, and the page says since when.
 *
 * Whatever comes over the wire is text, and is only ever set as text.
 */

const HISTORY_POINTS = 300; // as many as the stream's history has at most
const FEED_ROWS = 200; // more than anybody reads; each is some elements
const MOST_SECTORS = 120; // narrower ones could not be told apart
const MOST_LABELS = 12; // around the ring, as on a clock
const JUMPS_PER_S = 40; // dots that stand for those who spoke: more is a blur
const LEAVES_PER_S = 24;
const SECTORS_EVERY = 4; // frames: they change slowly, and are most of the work
const MOST_DOTS = 160;
const QUIET_MS = 3_500; // a summary comes each second: three were missed
const LOST_MS = 10_000; // a connection that says nothing so long has died unnoticed
const RETRY_MS = 2_000;
const EXPLAIN_MS = 5_000; // how old an explanation gets while its user is online

const SVG = "http://www.w3.org/2000/svg";
const REDUCED = matchMedia("(prefers-reduced-motion: reduce)");

// --- elements and words ------------------------------------------------------------

const byId = (id) => document.getElementById(id);

/** An element with attributes and children; a string child is text. */
function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  set(element, attributes);
  element.append(...children);
  return element;
}

function draw(name, attributes = {}) {
  const element = document.createElementNS(SVG, name);
  set(element, attributes);
  return element;
}

function set(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
  }
}

/** Sets a text if it is another, so that what somebody selects stays selected. */
function put(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Says something once to who cannot see it. */
function say(text) {
  byId("said").textContent = text;
}

const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const whole = (n) => WHOLE.format(n);
const many = (n, one, more = `${one}s`) => `${whole(n)} ${n === 1 ? one : more}`;

/** Of what happens in a second: whole, unless it is rare. */
const rate = (n) => (n && n < 10 ? n.toFixed(1).replace(/\.0$/, "") : whole(n));

function short(n) {
  if (n >= 1e6) return `${+(n / 1e6).toFixed(2)}M`;
  return n >= 10_000 ? `${+(n / 1e3).toFixed(1)}k` : whole(n);
}

function seconds(s) {
  if (!s) return "0 s";
  if (s < 0.0995) return `${(s * 1e3).toPrecision(2).replace(/\.0$/, "")} ms`;
  if (s < 0.9995) return `${Math.round(s * 1e3)} ms`;
  if (s < 99.95) return `${s.toFixed(1).replace(/\.0$/, "")} s`;
  const units = [["d", 86_400], ["h", 3_600], ["min", 60], ["s", 1]];
  const first = units.findIndex(([, length]) => s >= length);
  const [[unit, length], next] = units.slice(first);
  const rest = next ? Math.floor((s % length) / next[1]) : 0;
  return `${Math.floor(s / length)} ${unit}${rest ? ` ${rest} ${next[0]}` : ""}`;
}

const UNSEEN = /[\p{C}\p{Zl}\p{Zp}]|(?! )\p{Zs}/gu;

/** As the command line writes what no eye could tell apart, or would not see at all. */
function visible(text) {
  return text.replace(new RegExp(`${UNSEEN.source}|\\\\`, "gu"), (one) => {
    const code = one.codePointAt(0);
    if (one === "\\") return "\\\\";
    const [ticket, digits] = code < 256 ? ["x", 2] : code < 65_536 ? ["u", 4] : ["U", 8];
    return `\\${ticket}${code.toString(16).padStart(digits, "0")}`;
  });
}

const uidText = (uid) => (typeof uid === "number" ? `int:${uid}` : uid);

/** A name of the wire, on its own whatever direction it is written in. */
function named(text, name = "bdi") {
  const shown = visible(text);
  return make(name, { class: "cut", title: shown }, shown);
}

let offset_s = 0; // of the host's clock, which logs and `liveness explain` show as well
const onHost = (ms) => new Date(ms + offset_s * 1e3).toISOString();
const clock = (ms) => onHost(ms).slice(11, 19);
function moment(ms) {
  const day = onHost(ms).slice(0, 10);
  return day === onHost(Date.now()).slice(0, 10) ? clock(ms) : `${day} ${clock(ms)}`;
}

/** A word for a shell; what cannot be seen is written as bash reads it. */
function quoted(word) {
  const isPlain = /^[\w.@%+=:,/-]+$/.test(word);
  const code = (one) => `\\U${one.codePointAt(0).toString(16).padStart(8, "0")}`;
  const isSeen = word.search(UNSEEN) < 0;
  const escaped = isSeen ? word.replaceAll("'", "'\\''") : word.replace(/[\\']/g, "\\$&").replace(UNSEEN, code);
  const safe = isPlain ? word : `${isSeen ? "" : "$"}'${escaped}'`;
  return word.startsWith("-") ? `-- ${safe}` : safe;
}

// --- the wheel ---------------------------------------------------------------------

const INNER = 128;
const OUTER = 206;
const LANE = 119; // inside the ring, where those who speak travel
const TURN = 2 * Math.PI;
const mod = (n, by) => ((n % by) + by) % by;
const at = (angle, radius) => `${(Math.sin(angle) * radius).toFixed(2)} ${(-Math.cos(angle) * radius).toFixed(2)}`;

/** A part of the ring, from one angle to another and from the inner edge to a radius. */
function sector(from, to, radius) {
  const large = to - from > Math.PI ? 1 : 0;
  return (
    `M${at(from, INNER)}A${INNER} ${INNER} 0 ${large} 1 ${at(to, INNER)}` +
    `L${at(to, radius)}A${radius} ${radius} 0 ${large} 0 ${at(from, radius)}Z`
  );
}

const wheel = {
  slots: 0,
  per: 1, // slots in a sector
  slot_s: 1,
  hand: 0, // as shown
  told: { hand: 0, at: 0 },
  runs: false,
  counts: [], // users in each sector, as told
  shown: [], // and as shown, on their way there
  top: 1, // the count that fills a sector, as shown
  users: 0,
  jobs: [], // dots to come, each with its moment
  dots: [],
  owed: { leaves: 0, comes: 0 },
  frames: 0,
  unpainted_s: 0, // since the sectors were painted
  chosen: null, // {place} where somebody points, {ahead} where the keys are
  found: null, // the place of the user who is explained

  take(told, isNext) {
    const before = this.counts;
    if (told.slots !== this.slots) this.build(told.slots);
    this.slot_s = told.slot_s;
    this.users = told.users;
    this.told = { hand: told.hand, at: performance.now() };
    this.runs = !told.stands;
    this.counts = Array(Math.ceil(told.slots / this.per)).fill(0);
    told.slot_users.forEach((users, slot) => (this.counts[Math.floor(slot / this.per)] += users));
    const isFirst = before.length !== this.counts.length;
    if (isFirst || REDUCED.matches || document.hidden) {
      this.shown = [...this.counts];
      this.top = Math.max(1, ...this.counts);
      this.hand = told.hand;
    }
    if (isNext && !isFirst && !REDUCED.matches && !document.hidden) this.plan(before, told);
    byId("hand").classList.toggle("stands", told.stands);
    put(byId("hand-caption"), told.stands ? "the hand stands" : "");
    const digits = whole(told.users);
    put(byId("users"), digits);
    const size = digits.length < 8 ? 54 : digits.length < 10 ? 44 : 34;
    byId("users").style.setProperty("font-size", `${size}px`);
    this.tell(told);
    this.paint(0);
  },

  /** As many sectors as there are slots, or fewer that each stand for several. */
  build(slots) {
    this.slots = slots;
    this.per = Math.ceil(slots / MOST_SECTORS);
    this.counts = [];
    byId("sectors").replaceChildren();
    for (let n = 0; n * this.per < slots; n++) byId("sectors").append(draw("path"));
    set(byId("ring"), { "aria-valuemax": Math.ceil(slots / this.per) });
    const ticks = byId("ticks");
    ticks.replaceChildren();
    const step = this.per * [1, 5, 10].find((one) => slots / this.per / one <= MOST_LABELS);
    for (let slot = 0; slot < slots; slot += this.per) {
      const angle = (slot / slots) * TURN;
      const isNamed = slot % step === 0 && slots - slot >= step / 2;
      const [[x1, y1], [x2, y2]] = [OUTER + 8, OUTER + (isNamed ? 16 : 12)].map((r) => at(angle, r).split(" "));
      ticks.append(draw("line", { x1, y1, x2, y2 }));
      if (!isNamed) continue;
      const [x, y] = at(angle, OUTER + 27).split(" ");
      const text = draw("text", { x, y });
      text.textContent = slot;
      ticks.append(text);
    }
  },

  /** How many sectors the hand has to go to one; 0: it is in it. */
  steps(n) {
    return mod(n - Math.floor(this.hand / this.per), this.counts.length);
  },

  /**
   * What share of a revolution the hand has to go to a sector. The one it is in is the
   * furthest: nearly all of its users have just been put behind the hand.
   */
  ahead(n) {
    return this.steps(n) ? mod((n + 0.5) * this.per - this.hand, this.slots) / this.slots : 1;
  },

  /** Dots for the coming second: who left the slots ahead, who was let go, who came. */
  plan(before, told) {
    const now = performance.now();
    const left = before.map((users, n) => {
      const steps = this.steps(n);
      const isPassed = steps > this.counts.length - 1 - told.second.over_s / this.slot_s / this.per;
      return !steps || isPassed ? 0 : Math.max(0, users - this.counts[n]);
    });
    let sum = left.reduce((a, b) => a + b, 0);
    const jumps = Math.min(JUMPS_PER_S, sum);
    for (let k = 0; k < jumps; k++) {
      let pick = Math.random() * sum;
      const n = left.findIndex((users) => (pick -= users) < 0);
      if (n >= 0) this.jobs.push({ at: now + Math.random() * 1000, kind: "jump", n });
    }
    const { events, offlines, over_s } = told.second;
    const due = { leaves: (offlines.silence ?? 0) + (offlines.gateway_lost ?? 0), comes: events.login ?? 0 };
    for (const kind of ["leaves", "comes"]) {
      this.owed[kind] = Math.min(LEAVES_PER_S, this.owed[kind] + Math.round(due[kind] * over_s));
      for (; this.owed[kind] >= 1; this.owed[kind]--) this.jobs.push({ at: now + Math.random() * 1000, kind });
    }
    this.jobs = this.jobs.slice(-MOST_DOTS);
  },

  launch({ kind, n }, now) {
    if (this.dots.length >= MOST_DOTS) return;
    const slot = TURN / this.slots;
    const hand = this.hand * slot;
    const circle = draw("circle", { r: kind === "leaves" ? 2.4 : 1.9, opacity: 0 });
    byId("dots").append(circle);
    const lies = this.radius(n ?? 0);
    if (kind === "leaves") {
      circle.classList.add("fired");
      const angle = hand + (Math.random() - 0.5) * slot;
      const over = (Math.random() - 0.3) * 0.16;
      this.dots.push({ circle, now, ms: 1500, from: angle, over, start: INNER + 6, end: OUTER + 46, dip: 0, kind });
      return;
    }
    const ms = kind === "jump" ? 900 + 500 * (1 - this.ahead(n)) : 700;
    // Where the hand is when the dot arrives, and a little behind it.
    const goal = hand + (ms / 1000 / this.slot_s - Math.random() * Math.min(1, 0.5 * this.per)) * slot;
    const end = INNER + 4 + Math.random() * 40;
    if (kind === "comes") {
      this.dots.push({ circle, now, ms, from: goal, over: 0, start: 84, end, dip: 0, kind });
      return;
    }
    const from = (n + 0.2 + 0.6 * Math.random()) * this.per * slot;
    const over = mod(goal - from, TURN);
    const start = INNER + 3 + Math.random() * Math.max(2, lies - INNER - 6);
    this.dots.push({ circle, now, ms, from, over, start, end, dip: 1, kind });
  },

  fly(now) {
    this.dots = this.dots.filter(({ circle, now: began, ms, from, over, start, end, dip, kind }) => {
      const t = (now - began) / ms;
      if (t >= 1) {
        circle.remove();
        return false;
      }
      const eased = kind === "leaves" ? 1 - (1 - t) ** 2 : t < 0.5 ? 4 * t ** 3 : 1 - (2 - 2 * t) ** 3 / 2;
      const inLane = dip * Math.sin(Math.PI * t) ** 0.5;
      const radius = (start + (end - start) * eased) * (1 - inLane) + LANE * inLane;
      const [cx, cy] = at(from + over * eased, radius).split(" ");
      const opacity = kind === "leaves" ? 1 - t ** 2 : Math.min(1, 5 * t, 4 * (1 - t));
      set(circle, { cx, cy, opacity: opacity.toFixed(2) });
      return true;
    });
  },

  radius(n) {
    const users = this.shown[n] ?? 0;
    if (users < 0.5) return INNER;
    // By area, as the eye compares areas; the smallest can still be seen.
    const share = Math.min(1, users / this.top);
    return Math.max(INNER + 2, Math.sqrt(INNER ** 2 + (OUTER ** 2 - INNER ** 2) * share));
  },

  paint(passed_s) {
    this.paintSectors(passed_s);
    this.paintHand();
  },

  paintSectors(passed_s) {
    const ease = passed_s ? 1 - Math.exp(-passed_s * 5) : 0;
    this.top += (Math.max(1, ...this.counts) - this.top) * ease;
    const gap = this.counts.length <= 60 ? 0.7 / INNER : 0;
    const chosen = this.chosenSector();
    byId("sectors").childNodes.forEach((path, n) => {
      this.shown[n] += (this.counts[n] - this.shown[n]) * ease;
      const ahead = this.ahead(n);
      const [from, to] = [n, n + 1].map((one) => (Math.min(one * this.per, this.slots) / this.slots) * TURN);
      const radius = this.radius(n);
      set(path, {
        d: radius > INNER ? sector(from + gap, to - gap, radius) : "",
        "fill-opacity": (0.2 + 0.8 * ahead ** 0.8).toFixed(2),
        class: [this.steps(n) === 1 && this.counts.length > 2 ? "near" : "", n === chosen ? "chosen" : ""].join(" ").trim(),
      });
    });
  },

  paintHand() {
    set(byId("hand"), { transform: `rotate(${((this.hand / (this.slots || 1)) * 360).toFixed(2)})` });
    const marker = byId("marker");
    set(marker, { visibility: this.found === null ? "hidden" : "visible" });
    if (this.found !== null) set(marker, { transform: `rotate(${(((this.found + 0.5) / this.slots) * 360).toFixed(2)})` });
  },

  /** The place of the hand that was last told, gone on by its speed. */
  move(now, passed_s) {
    if (!this.slots) return;
    if (this.runs && !REDUCED.matches) {
      const place = this.told.hand + (now - this.told.at) / 1000 / this.slot_s;
      this.hand += passed_s / this.slot_s;
      const off = mod(place - this.hand + this.slots / 2, this.slots) - this.slots / 2;
      // Small differences are made up for unseen; after a pause the hand is put right.
      this.hand = mod(this.hand + off * (Math.abs(off) * this.slot_s > 2 ? 1 : Math.min(1, 2 * passed_s)), this.slots);
      const due = this.jobs.filter((job) => job.at <= now);
      if (due.length) this.jobs = this.jobs.filter((job) => job.at > now);
      for (const job of due) this.launch(job, now);
    }
    this.fly(now);
    this.paintHand();
    this.unpainted_s += passed_s;
    if (++this.frames % SECTORS_EVERY) return;
    this.paintSectors(this.unpainted_s);
    this.unpainted_s = 0;
  },

  stop() {
    this.runs = false;
    this.jobs = [];
  },

  clear() {
    this.jobs = [];
    for (const { circle } of this.dots) circle.remove();
    this.dots = [];
  },

  chosenSector() {
    if (!this.chosen || !this.counts.length) return -1;
    if ("place" in this.chosen) return Math.floor(this.chosen.place / this.per);
    return mod(Math.floor(this.hand / this.per) + 1 + this.chosen.ahead, this.counts.length);
  },

  /** The line under the ring: the slot that is looked at, or the wheel as a whole. */
  tell(told = latest) {
    if (!told) return;
    const n = this.chosenSector();
    const beyond = told.users - told.due - told.slot_users.reduce((a, b) => a + b, 0);
    let text = `${whole(told.slots)} slots of ${seconds(told.slot_s)}, a revolution is the timeout of ${seconds(told.timeout)}`;
    if (beyond > 0) text = `${text}; ${many(beyond, "user")} have longer, and lie beyond`;
    if (n >= 0) {
      const [first, last] = [n * this.per, Math.min((n + 1) * this.per, this.slots) - 1];
      const to_go = mod(first - this.hand, this.slots) * this.slot_s;
      const is_under = mod(this.hand - first, this.slots) < this.per;
      const users = this.counts[n];
      const share = this.users ? `, ${((100 * users) / this.users).toFixed(1)} %` : "";
      const name = first === last ? `Slot ${first}` : `Slots ${first} to ${last}`;
      const when = is_under ? "the hand is in it" : `the hand comes in ${Math.ceil(to_go)} s`;
      text = `${name}: ${many(users, "user")}${share}; ${when}`;
    }
    put(byId("slot-told"), text);
    set(byId("ring"), { "aria-valuetext": text, "aria-valuenow": (this.chosen?.ahead ?? 0) + 1 });
  },
};

function watchTheRing() {
  const ring = byId("ring");
  const choose = (chosen) => {
    wheel.chosen = chosen;
    wheel.tell();
    wheel.paint(0);
  };
  ring.addEventListener("pointermove", (event) => {
    const box = ring.getBoundingClientRect();
    const scale = 512 / box.width;
    const x = (event.clientX - box.left) * scale - 256;
    const y = (event.clientY - box.top) * scale - 256;
    const isOn = wheel.slots && Math.hypot(x, y) > INNER - 20;
    choose(isOn ? { place: mod((Math.atan2(x, -y) / TURN) * wheel.slots, wheel.slots) } : null);
  });
  ring.addEventListener("pointerleave", () => choose(null));
  ring.addEventListener("blur", () => choose(null));
  ring.addEventListener("keydown", (event) => {
    const now = wheel.chosen?.ahead ?? -1;
    const last = wheel.counts.length - 1;
    const to = { ArrowRight: now + 1, ArrowUp: now + 1, ArrowLeft: now - 1, ArrowDown: now - 1, Home: 0, End: last }[event.key];
    if (event.key === "Escape") choose(null);
    if (to === undefined || last < 0) return;
    event.preventDefault();
    choose({ ahead: Math.max(0, Math.min(last, to)) });
  });
}

// --- the last minutes --------------------------------------------------------------

const past = { every_s: 1, at: [], users: [], events: {}, offlines: {} };
const WIDTH = 300; // units across, one a second
const HEIGHT = 100;
let looked = null; // the moment that somebody looks at, in all charts

const NAMES = { gateway_lost: "gateway lost" };

class Chart {
  /**
   * @param {string} id Of the section.
   * @param {string[]} series Lowest first; none: the users.
   * @param {"curve" | "areas" | "bars"} form What it is drawn as.
   */
  constructor(id, series, form) {
    this.section = byId(id);
    this.title = this.section.querySelector("h2").textContent;
    this.series = series;
    this.form = form;
    this.column = id.replace("chart-", "");
    this.legend = make("ul", { class: "legend" });
    this.when = make("time");
    this.values = (series.length ? series : [""]).map((name) => {
      const value = make("b", {}, "–");
      const label = name ? [make("i", { class: `t-${name}` }), `${NAMES[name] ?? name} `] : [];
      this.legend.append(make("li", {}, ...label, value));
      return value;
    });
    this.svg = draw("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true", focusable: "false" });
    for (const y of [0, HEIGHT / 2, HEIGHT]) {
      this.svg.append(draw("line", { class: y === HEIGHT ? "base" : "grid", x1: 0, x2: WIDTH, y1: y, y2: y }));
    }
    this.paths = (series.length ? series : ["curve"]).map((name) => draw("path", { class: series.length ? `t-${name}` : "curve" }));
    this.cursor = draw("line", { class: "cursor", y1: 0, y2: HEIGHT, visibility: "hidden" });
    this.svg.append(...[...this.paths].reverse(), this.cursor);
    this.top = make("span", { class: "top" });
    this.bottom = make("span", { class: "bottom" });
    this.plot = make("div", { class: "plot", role: "slider", tabindex: 0, "aria-label": `${this.title}, over the last five minutes`, "aria-valuemin": 0, "aria-valuemax": 0, "aria-valuenow": 0, "aria-valuetext": "no figures yet" });
    this.plot.append(this.svg, this.top, this.bottom);
    this.section.append(this.when, this.legend, this.plot);
    this.listen();
  }

  listen() {
    const point = (event) => {
      const box = this.plot.getBoundingClientRect();
      look(end() - (1 - (event.clientX - box.left) / box.width) * WIDTH * 1000);
    };
    this.plot.addEventListener("pointermove", point);
    this.plot.addEventListener("pointerdown", point);
    this.plot.addEventListener("pointerleave", () => look(null));
    this.plot.addEventListener("blur", () => look(null));
    this.plot.addEventListener("keydown", (event) => {
      const last = past.at.length - 1;
      const now = indexOf(looked);
      const to = { ArrowLeft: now - 1, ArrowDown: now - 1, ArrowRight: now + 1, ArrowUp: now + 1, PageUp: now - 30, PageDown: now + 30, Home: 0, End: last }[event.key];
      if (event.key === "Escape") look(null);
      if (to === undefined || last < 0) return;
      event.preventDefault();
      look(past.at[Math.max(0, Math.min(last, to))]);
    });
  }

  columns() {
    return this.series.length ? this.series.map((name) => past[this.column][name] ?? []) : [past.users];
  }

  paint() {
    const columns = this.columns();
    const points = past.at.length;
    const sums = past.at.map((_, i) => columns.reduce((sum, column) => sum + (column[i] ?? 0), 0));
    let [low, high] = [0, nice(Math.max(1, ...sums))];
    if (this.form === "curve" && points) [low, high] = around(Math.min(...sums), Math.max(...sums));
    const x = (i) => (WIDTH - (end() - past.at[i]) / 1000).toFixed(1);
    const y = (value) => (HEIGHT * (1 - (value - low) / (high - low))).toFixed(1);
    const below = Array(points).fill(0);
    columns.forEach((column, s) => {
      const above = below.map((value, i) => value + (column[i] ?? 0));
      set(this.paths[s], { d: this[this.form](x, y, below, above) });
      above.forEach((value, i) => (below[i] = value));
    });
    put(this.top, short(high));
    put(this.bottom, short(low));
    this.read();
  }

  curve(x, y, _, above) {
    return runs().map((run) => `M${run.map((i) => `${x(i)} ${y(above[i])}`).join("L")}`).join("");
  }

  areas(x, y, below, above) {
    return runs()
      .map((run) => {
        const over = run.map((i) => `${x(i)} ${y(above[i])}`);
        const under = [...run].reverse().map((i) => `${x(i)} ${y(below[i])}`);
        return `M${over.join("L")}L${under.join("L")}Z`;
      })
      .join("");
  }

  bars(x, y, below, above) {
    const bars = past.at.map((_, i) => {
      if (above[i] <= below[i]) return "";
      return `M${(x(i) - 0.9).toFixed(1)} ${y(below[i])}V${y(above[i])}h.8V${y(below[i])}Z`;
    });
    return bars.join("");
  }

  /** The values at the moment that is looked at, or the newest. */
  read() {
    const i = indexOf(looked);
    if (i < 0) return;
    this.columns().forEach((column, s) => put(this.values[s], this.series.length ? rate(column[i] ?? 0) : whole(column[i])));
    put(this.when, looked === null ? "" : clock(past.at[i]));
    set(this.cursor, { visibility: looked === null ? "hidden" : "visible" });
    const x = WIDTH - (end() - past.at[i]) / 1000;
    set(this.cursor, { x1: x, x2: x });
    const read = this.series.map((name, s) => `${NAMES[name] ?? name} ${this.values[s].textContent}`);
    const text = `${clock(past.at[i])}: ${read.join(", ") || this.values[0].textContent}`;
    set(this.plot, { "aria-valuemax": past.at.length - 1, "aria-valuenow": i, "aria-valuetext": text });
  }
}

const end = () => past.at[past.at.length - 1] ?? 0;

/** Which of the points is nearest to a moment; the newest for none. */
function indexOf(ms) {
  if (ms === null) return past.at.length - 1;
  let best = past.at.length - 1;
  for (let i = best; i >= 0; i--) if (Math.abs(past.at[i] - ms) < Math.abs(past.at[best] - ms)) best = i;
  return best;
}

/** The points in stretches: where nothing was told nothing is drawn. */
function runs() {
  const found = [];
  past.at.forEach((ms, i) => {
    if (i && ms - past.at[i - 1] <= 2_500 * past.every_s) found[found.length - 1].push(i);
    else found.push([i]);
  });
  return found;
}

/** A round number that is not less. */
function nice(n) {
  const unit = 10 ** Math.floor(Math.log10(n));
  return unit * [1, 1.5, 2, 3, 4, 5, 6, 8, 10].find((one) => one * unit >= n * 0.9999);
}

/** A round range that holds both, and is wide enough that noise looks like noise. */
function around(low, high) {
  const room = Math.max(high - low, 0.08 * high, 2);
  const step = nice(room / 2);
  const bottom = Math.max(0, Math.floor((low - room / 4) / step) * step);
  return [bottom, Math.max(bottom + 2 * step, Math.ceil(high / step) * step)];
}

function look(ms) {
  looked = ms;
  for (const chart of charts) chart.read();
}

function remember(told) {
  // The clock of the host may be set back: what was later than now is no past.
  const columns = [past.at, past.users, ...Object.values(past.events), ...Object.values(past.offlines)];
  while (end() >= told.at) for (const column of columns) column.pop();
  const keep = (column, value) => {
    column.push(value);
    while (column.length > HISTORY_POINTS) column.shift();
  };
  keep(past.at, told.at);
  keep(past.users, told.users);
  for (const group of ["events", "offlines"]) {
    const names = new Set([...Object.keys(past[group]), ...Object.keys(told.second[group])]);
    for (const name of names) {
      past[group][name] ??= Array(past.at.length - 1).fill(0);
      keep(past[group][name], told.second[group][name] ?? 0);
    }
  }
}

const charts = [];

// --- lateness ----------------------------------------------------------------------

const STAGES = { decided: "decided", durable: "on disk", sent: "sent" };
const FASTEST_S = 1e-4;
const SLOWEST_S = 1;
const along = (s) => {
  const share = Math.log(Math.max(s, FASTEST_S) / FASTEST_S) / Math.log(SLOWEST_S / FASTEST_S);
  return `${(100 * Math.min(1, share)).toFixed(2)}%`;
};
const stages = {};

function buildLateness() {
  const heads = ["", "", "p50", "p99"].map((text) => make("span", {}, text));
  byId("stages").append(make("div", { class: "stage heads" }, ...heads));
  for (const [stage, name] of Object.entries(STAGES)) {
    const scale = make("div", { class: "scale", "aria-hidden": "true" });
    for (const part of ["within", "beyond", "promise", "span", "p50", "p99"]) scale.append(make("i", { class: part }));
    const [p50, p99] = [make("b", {}, "–"), make("b", {}, "–")];
    byId("stages").append(make("div", { class: "stage" }, make("span", {}, name), scale, p50, p99));
    stages[stage] = { scale, p50, p99 };
  }
  const axis = make("div", { class: "scale", "aria-hidden": "true" });
  byId("stages").append(make("div", { class: "stage" }, make("span"), axis));
  stages.axis = axis;
}

function tellLateness({ lateness }) {
  const { promise_s, over_s } = lateness;
  for (const stage of Object.keys(STAGES)) {
    const { count, p50_s, p99_s } = lateness[stage];
    const { scale, p50, p99 } = stages[stage];
    scale.style.setProperty("--promise", along(promise_s));
    for (const [part, s] of [["p50", p50_s], ["p99", p99_s]]) {
      if (count) scale.style.setProperty(`--${part}`, along(s));
    }
    for (const ticket of scale.querySelectorAll(".span, .p50, .p99")) ticket.hidden = !count;
    scale.classList.toggle("late", Boolean(count) && p99_s > promise_s);
    put(p50, count ? seconds(p50_s) : "–");
    put(p99, count ? seconds(p99_s) : "–");
  }
  const labels = [0.001, 0.01, promise_s, SLOWEST_S];
  labels.forEach((s, n) => {
    const label = stages.axis.childNodes[n] ?? stages.axis.appendChild(make("span"));
    label.style.setProperty("--at", along(s));
    label.classList.toggle("named", n === 2);
    put(label, n === 2 ? `promise ${seconds(s)}` : seconds(s));
  });
  const { count, p99_s } = lateness.decided;
  const verdict = byId("verdict");
  const isMet = count && p99_s <= promise_s;
  verdict.className = `verdict ${count ? (isMet ? "met" : "missed") : ""}`;
  const span = `over ${seconds(over_s)}`;
  put(verdict, !count ? `nobody fell silent ${span}` : isMet ? `within the promise, ${span}` : `p99 beyond the promise of ${seconds(promise_s)}, ${span}`);
}

// --- figures, gateways, notices ----------------------------------------------------

const vitals = new Map();

function vital(name, value, { is = "", title = "" } = {}) {
  let cell = vitals.get(name);
  if (!cell) {
    cell = make("div", {}, make("dt", {}, name), make("dd"));
    vitals.set(name, cell);
    byId("vitals").append(cell);
  }
  cell.className = is;
  if (title) set(cell, { title });
  put(cell.lastChild, value);
}

function tellVitals(told) {
  const held = Object.values(told.held).reduce((a, b) => a + b, 0);
  const failed = told.timers.failed ?? 0;
  const late = told.lateness.promise_s;
  vital("Due now", whole(told.due), { title: "Their silence has lasted, and they wait to be judged" });
  vital("Held", whole(held), { is: held ? "warn" : "", title: Object.entries(told.held).map(([why, n]) => `${why} ${whole(n)}`).join(", ") || "Nobody's judgement is put off" });
  vital("Early", whole(told.early), { is: told.early ? "alert" : "", title: "Declared offline before their time. Always 0, or there is a fault" });
  vital("Moved a second", rate(told.rates.moved), { title: "Logged in through another gateway" });
  vital("Hand lag", told.stands ? "stands" : seconds(told.hand_lag_s), { is: told.stands || told.hand_lag_s > late ? "warn" : "", title: "How far the hand is behind the clock" });
  vital("Unattended", seconds(told.unattended_s), { title: "Time in which this process did not run; it counts for nobody's silence" });
  vital("Log, to be written", told.log_failure ? "fails" : whole(told.log_pending), { is: told.log_failure ? "alert" : "", title: `Records that wait for the disk. The newest has seq ${whole(told.seq)}` });
  vital("Watchers", whole(told.links.watcher ?? 0), { title: "Links that follow the records" });
  vital("Timers pending", whole(told.timers.pending ?? 0));
  vital("Timers failed", whole(failed), { is: failed ? "warn" : "", title: "Given up; `liveness timers list --state failed` shows them" });
}

const rows = new Map();

function tellGateways(told) {
  const body = byId("gateways");
  const held = new Map(told.storms.map((storm) => [storm.gateway, storm]));
  const gone = new Set(rows.keys());
  const most = Math.max(1, ...told.gateways.map(({ users }) => users));
  const tight = [];
  told.gateways.forEach((gateway, n) => {
    gone.delete(gateway.name);
    const row = rows.get(gateway.name) ?? newRow(gateway.name);
    const { interval } = gateway; // null until enough of them have spoken
    const isTight = interval !== null && gateway.timeout < 2 * interval;
    if (isTight) tight.push(gateway);
    put(row.tag, gateway.linked ? (held.has(gateway.name) ? "held" : "") : "not connected");
    put(row.users, whole(gateway.users));
    put(row.unacked, whole(gateway.unacked));
    put(row.due, whole(gateway.due));
    row.due.className = held.has(gateway.name) ? "warn" : "";
    put(row.timeout, seconds(gateway.timeout));
    put(row.interval, interval === null ? "–" : seconds(interval));
    row.timeout.className = row.interval.className = isTight ? "warn" : "";
    row.share.style.setProperty("--share", `${(100 * gateway.users) / most}%`);
    if (body.children[n] !== row.element) body.insertBefore(row.element, body.children[n] ?? null);
  });
  for (const name of gone) {
    rows.get(name).element.remove();
    rows.delete(name);
  }
  const notes = [];
  if (!told.gateways.length) notes.push("No gateway has connected yet. docs/gateway.md shows how one does.");
  if (told.gateways_more) notes.push(`${many(told.gateways_more, "more gateway")} with fewer users: see /v1/gateways.`);
  if (tight.length) notes.push("A timeout under twice the usual interval: one late sign of life, and a live user is declared offline. Have users speak more often, or give them more time.");
  put(byId("gateways-note"), notes.join(" "));
  const names = told.gateways.map(({ name }) => name);
  const list = byId("names");
  if (list.dataset.names !== String(names)) {
    list.dataset.names = String(names);
    list.replaceChildren(...names.map((name) => make("option", { value: name })));
  }
}

function newRow(name) {
  const cell = (label) => {
    const value = make("span");
    return [make("span", { role: "cell" }, make("small", {}, `${label} `), value), value];
  };
  const tag = make("span", { class: "tag" });
  const row = { tag, share: make("i", { class: "share", "aria-hidden": "true" }) };
  const cells = ["users", "unacked", "due", "timeout", "interval"].map((label) => {
    const [outer, value] = cell(label === "interval" ? "speak every" : label);
    row[label] = value;
    return outer;
  });
  row.element = make("div", { role: "row", class: "row" }, make("span", { role: "cell", class: "name" }, named(name), tag), ...cells, row.share);
  rows.set(name, row);
  return row;
}

const notices = new Map();

function tellNotices(told) {
  const wanted = [];
  if (told.early) wanted.push(["early", "alert", "Offline too early", `${many(told.early, "user was", "users were")} declared offline before their time. That must never be: keep the log, and report it.`]);
  if (told.log_failure) wanted.push(["log", "alert", "The log is not written", `${told.log_failure}. Nothing is told until it is; see LivenessWritesFail in docs/runbook.md.`]);
  const most = 5; // of storms, the largest first; /v1/guard has all
  for (const { gateway, users, left_s } of told.storms.slice(0, most)) {
    wanted.push([`storm ${gateway}`, "", `Storm guard holds ${many(users, "user")}`, "of ", named(gateway), `, all due at once, for ${seconds(Math.ceil(left_s))} more at most. Is that gateway well? To have them judged now: `, make("code", {}, `liveness guard release ${quoted(gateway)}`)]);
  }
  const more = told.storms.length - most + (told.storms_more ?? 0);
  if (more > 0) wanted.push(["storms", "", `${many(more, "more storm")}`, "are on: see /v1/guard, and ", make("code", {}, "liveness status")]);
  if (!told.ready) wanted.push(["ready", "alert", "Not ready", told.why.map(visible).join("; ") || "no reason is given"]);
  const gone = new Set(notices.keys());
  for (const [key, kind, title, ...text] of wanted) {
    gone.delete(key);
    let notice = notices.get(key);
    if (!notice) {
      notice = make("p", { class: `notice ${kind}` }, make("b"), make("span"));
      notices.set(key, notice);
      byId("notices").append(notice);
      say(title);
    }
    put(notice.firstChild, title);
    const line = make("span", {}, ...text);
    if (line.textContent !== notice.lastChild.textContent) notice.lastChild.replaceWith(line);
  }
  for (const key of gone) {
    notices.get(key).remove();
    notices.delete(key);
  }
}

function tellHead(told) {
  const ready = byId("ready");
  ready.hidden = false;
  ready.className = told.ready ? "ready" : "ready no";
  put(ready, told.ready ? "ready" : "not ready");
  put(byId("build"), `${told.version}, ${told.wheel} wheel, up ${seconds(told.uptime_s)}`);
  document.title = `${notices.size ? "(!) " : ""}${whole(told.users)} online – liveness`;
}

// --- the feed ----------------------------------------------------------------------

const feed = { filter: { kinds: [], uid: "", gateway: "" }, rows: [], waiting: [], isPaused: false, refused: "" };

function why(record) {
  const silent = record.silence === undefined ? "" : `${record.silence.toFixed(1)} s of silence`;
  const last = record.last ? `, last ${record.last}` : "";
  switch (`${record.kind} ${record.reason}`) {
    case "offline silence":
      return record.restored ? `${silent} since the restart` : silent + last;
    case "offline logout":
      return "logged out";
    case "offline gateway_lost":
      return `gateway lost, ${silent}`;
    case "moved login": {
      // Without a session to take over the user has stayed.
      const how = record.from_session === undefined ? "an older connection of" : "from";
      return `by login, ${how} ${visible(record.from)}`;
    }
    default:
      return `by ${record.reason}`;
  }
}

function recordRow(record, isOwn = false) {
  const uid = uidText(record.uid);
  const link = named(uid, "a");
  set(link, { href: `#uid=${encodeURIComponent(uid)}`, dir: "auto" });
  const when = make("time", { datetime: new Date(record.at).toISOString() }, isOwn ? moment(record.at) : clock(record.at));
  const reason = why(record);
  const cells = [when, make("span", { class: "kind" }, record.kind)];
  if (!isOwn) cells.push(make("span", { class: "cut" }, link));
  const gateway = named(record.gateway);
  gateway.classList.add("gateway");
  cells.push(gateway, make("span", { class: "why cut", title: reason }, reason));
  return make("li", { class: "record", "data-kind": record.kind, "data-reason": record.reason }, ...cells);
}

const breakRow = (text) => make("li", { class: "break" }, text);

function matches(record) {
  const { kinds, uid, gateway } = feed.filter;
  if (kinds.length && !kinds.includes(record.kind)) return false;
  if (uid && uidText(record.uid) !== uid) return false;
  return !gateway || [record.gateway, record.from].includes(gateway);
}

/** Whether a filter lets nothing through but what another does. */
function isWithin(filter, other) {
  const { kinds, uid, gateway } = filter;
  const areOfIts = !other.kinds.length || (kinds.length > 0 && kinds.every((kind) => other.kinds.includes(kind)));
  return areOfIts && [uid, ""].includes(other.uid) && [gateway, ""].includes(other.gateway);
}

/** Says above what is there that it is not all that the new filter lets through. */
function markTheChange(list) {
  if (list[0]?.isOfFilter) list.shift(); // nothing came in between
  list.unshift({ text: `Another filter since ${clock(latest.at)}: below is only what those before it let through.`, isOfFilter: true });
}

function tellFeed(told, breach) {
  const known = new Set([...feed.rows, ...feed.waiting].map(({ id }) => id));
  const rows = told.records.map((record) => ({ id: `${told.log}:${record.seq}`, record }));
  const fresh = rows.filter(({ id, record }) => matches(record) && !known.has(id));
  if (told.left_out) fresh.unshift({ text: `${many(told.left_out, "more record")} at ${clock(told.at)}` });
  if (breach) fresh.unshift({ text: breach });
  const to = feed.isPaused ? feed.waiting : feed.rows;
  to.unshift(...fresh.reverse());
  to.length = Math.min(to.length, FEED_ROWS);
  if (!feed.isPaused) showRows(fresh);
  tellPause();
}

function showRows(fresh) {
  const list = byId("records");
  list.prepend(...fresh.map(({ record, text }) => (record ? recordRow(record) : breakRow(text))));
  while (list.children.length > FEED_ROWS) list.lastChild.remove();
  tellFeedNote();
}

function tellFeedNote() {
  const { kinds, uid, gateway } = feed.filter;
  const asked = [kinds.join(" and "), uid && `of ${visible(uid)}`, gateway && `through ${visible(gateway)}`].filter(Boolean);
  const none = asked.length ? `Nothing yet: ${asked.join(" ")}.` : "Nothing yet. Whoever comes, goes or moves will be listed here.";
  put(byId("feed-note"), feed.refused || (feed.rows.some(({ record }) => record) ? "" : none));
}

function tellPause() {
  const button = byId("pause");
  set(button, { "aria-pressed": feed.isPaused });
  const waiting = feed.waiting.filter(({ record }) => record).length;
  put(button, feed.isPaused ? `Go on${waiting ? ` (${waiting}${waiting >= FEED_ROWS ? "+" : ""})` : ""}` : "Pause");
}

function watchTheFeed() {
  const form = byId("filter");
  const apply = () => {
    const data = new FormData(form);
    const kinds = data.getAll("kind");
    const all = form.querySelectorAll("[name=kind]").length;
    const before = feed.filter;
    feed.filter = { kinds: kinds.length === all ? [] : kinds, uid: data.get("uid").trim(), gateway: data.get("gateway").trim() };
    feed.refused = "";
    const isKept = ({ record }) => !record || matches(record);
    feed.rows = feed.rows.filter(isKept);
    feed.waiting = feed.waiting.filter(isKept);
    if (latest && !isWithin(feed.filter, before)) markTheChange(feed.isPaused ? feed.waiting : feed.rows);
    byId("records").replaceChildren();
    showRows(feed.rows);
    connect({ isOther: true });
  };
  form.addEventListener("change", apply);
  form.addEventListener("submit", (event) => event.preventDefault());
  byId("pause").addEventListener("click", () => {
    feed.isPaused = !feed.isPaused;
    if (!feed.isPaused) {
      const fresh = feed.waiting;
      feed.waiting = [];
      feed.rows = [...fresh, ...feed.rows].slice(0, FEED_ROWS);
      showRows(fresh);
    }
    tellPause();
  });
}

// --- the explanation of a user -----------------------------------------------------

const asking = { uid: null, number: 0, answer: null, at: 0 };

/**
 * A conn has up to 63 bits, a number here 53: where digits would be lost it is the text of
 * the answer, or nothing in a browser that does not keep that text.
 */
function exactly(key, value, context) {
  return key !== "conn" || value === null || Number.isSafeInteger(value) ? value : (context?.source ?? null);
}

function asked() {
  const found = /^#uid=(.*)$/s.exec(location.hash);
  if (!found) return null;
  try {
    return decodeURIComponent(found[1]);
  } catch {
    return null; // no address of ours
  }
}

async function explain({ isNew }) {
  const { uid } = asking;
  const number = ++asking.number;
  asking.at = performance.now();
  let answer;
  try {
    const response = await fetch(`/v1/users/${encodeURIComponent(uid)}`, { headers: { accept: "application/json" } });
    if (response.status === 401) return signIn();
    answer = JSON.parse(await response.text(), exactly);
  } catch {
    answer = { error: "The sidecar does not answer; ask again when this page is live." };
  }
  if (number !== asking.number) return; // somebody else was asked for meanwhile
  if (answer.error && !isNew) return; // the last good one stays
  showExplained(answer);
  if (isNew) say(answer.error ?? answer.told);
}

function showExplained(found) {
  asking.answer = found;
  const isOnRing = found.online && found.slot !== null && found.fires_in <= (latest?.timeout ?? 0);
  wheel.found = isOnRing ? found.slot : null;
  if (found.error) {
    byId("explained").replaceChildren(make("p", { class: "told" }, found.error));
    return;
  }
  const facts = make("dl", { class: "facts" });
  const fact = (name, value) => {
    if (value === null || value === undefined) return;
    facts.append(make("div", {}, make("dt", {}, name), make("dd", { class: "cut" }, value)));
  };
  fact("User", named(uidText(found.uid)));
  fact("Gateway", found.gateway === null ? null : named(found.gateway));
  fact("Last heard", found.seen === null ? null : moment(found.seen));
  fact("Last event", found.last);
  if (found.online) {
    fact("Fires in", found.held ? `held: ${found.held}` : found.fires_in === null ? null : seconds(found.fires_in));
    fact("Timeout", seconds(found.timeout));
    fact("Slot", found.slot === null ? null : found.layer ? `${found.slot} of layer ${found.layer}` : `${found.slot}`);
    fact("Connection", found.conn === null ? null : `${found.conn}`);
    fact("Session", found.session === null ? null : whole(found.session));
  }
  const records = make("ol", { class: "records", "aria-label": "Records of this user, the newest first" });
  records.append(...found.records.map((record) => recordRow(record, true)));
  byId("explained").replaceChildren(make("p", { class: "told", dir: "auto" }, found.told), facts, records);
  if (found.looked_back_to) {
    byId("explained").append(make("p", { class: "note" }, `Looked back to ${moment(found.looked_back_to.at)}, seq ${whole(found.looked_back_to.seq)}.`));
  }
}

function watchTheAsked() {
  const input = byId("explain-uid");
  const ask = () => {
    const uid = asked();
    asking.uid = uid || null;
    asking.answer = null;
    wheel.found = null;
    if (!uid) return;
    input.value = uid;
    explain({ isNew: true });
  };
  byId("explain").addEventListener("submit", (event) => {
    event.preventDefault();
    const hash = `#uid=${encodeURIComponent(input.value)}`;
    if (hash === location.hash) ask();
    else location.hash = hash;
  });
  addEventListener("hashchange", () => {
    ask();
    const box = byId("explain").getBoundingClientRect();
    if (asking.uid && (box.top < 0 || box.bottom > innerHeight)) {
      byId("explain").scrollIntoView({ block: "start", behavior: REDUCED.matches ? "auto" : "smooth" });
    }
  });
  ask();
}

/** Somebody who is online speaks on; what is said of them must not grow old. */
function renewExplained() {
  const isOld = performance.now() - asking.at > EXPLAIN_MS;
  if (asking.uid && asking.answer?.online && isOld && link.state === "live" && !document.hidden) explain({ isNew: false });
}

// --- the stream --------------------------------------------------------------------

const link = { stream: null, former: null, state: "connecting", heard: 0, opened: 0, retry: 0, wasLost: false };
let latest = null;

/** Opens the stream; with another filter, the one before goes on until it has told its second. */
function connect({ isOther = false } = {}) {
  clearTimeout(link.retry);
  link.retry = 0;
  link.former?.close();
  link.former = link.stream;
  if (!isOther) link.former?.close();
  const { kinds, uid, gateway } = feed.filter;
  const query = new URLSearchParams();
  if (kinds.length) query.set("kind", kinds.join(","));
  if (uid) query.set("uid", uid);
  if (gateway) query.set("gateway", gateway);
  const stream = new EventSource(`/v1/live${query.size ? `?${query}` : ""}`);
  link.stream = stream;
  link.opened = performance.now();
  stream.addEventListener("history", ({ data }) => {
    const { every_s, at: moments, users, events, offlines } = JSON.parse(data);
    Object.assign(past, { every_s, at: moments, users, events, offlines });
  });
  stream.addEventListener("summary", ({ data }) => {
    if (stream === link.stream) return tell(JSON.parse(data));
    stream.close();
    // What came as the filter was changed, which the stream with the new one may not have.
    tellFeed({ ...JSON.parse(data), left_out: 0 });
  });
  stream.addEventListener("error", () => {
    if (stream !== link.stream) return stream.close();
    lose();
    // A browser connects again by itself, unless it was refused; then we ask why.
    if (stream.readyState === EventSource.CLOSED) refused(stream);
  });
}

/** Asks, as a stream cannot, with what it was refused; whatever comes is of that stream alone. */
async function refused(stream) {
  const stopping = new AbortController();
  const late = setTimeout(() => stopping.abort(), LOST_MS);
  let status, error;
  try {
    const response = await fetch(stream.url, { signal: stopping.signal, headers: { accept: "application/json" } });
    status = response.status;
    if (!response.ok) ({ error } = await response.json());
  } catch {
    // not there, or not in time; it is tried again below, as after any other answer
  } finally {
    clearTimeout(late);
    stopping.abort();
  }
  if (stream !== link.stream) return; // another was opened meanwhile
  if (status === 401) return signIn();
  if (status === 400 && error) {
    feed.refused = `Refused: ${error}.`;
    tellFeedNote();
    setLink("refused", "refused: change the filter");
    return;
  }
  if (error) setLink("reconnecting", `reconnecting: ${error}`);
  link.retry = setTimeout(connect, RETRY_MS * (1 + Math.random()));
}

function signIn() {
  location.assign("/sign-in");
}

function setLink(state, text) {
  if (link.state === state && byId("link-told").textContent === text) return;
  link.state = state;
  byId("link").dataset.state = state;
  document.body.classList.toggle("stale", state !== "live" && state !== "connecting");
  put(byId("link-told"), text);
}

function lose() {
  wheel.stop();
  link.wasLost = true;
  setLink("reconnecting", link.heard ? "reconnecting…" : "connecting…");
  tellSince();
}

/** How old what is shown is; apart from the state, which is read out when it changes. */
function tellSince() {
  const since_s = Math.round((performance.now() - link.heard) / 1000);
  const text = link.state === "live" || !link.heard ? "" : `last heard ${seconds(Math.max(1, since_s))} ago`;
  put(byId("link-since"), link.state === "live" && latest ? clock(latest.at) : text);
}

function tell(told) {
  const breach = latest && breachBetween(latest, told);
  const isNext = latest !== null && !breach;
  latest = told;
  link.wasLost = false;
  link.heard = performance.now();
  if (offset_s !== told.utc_offset_s) {
    offset_s = told.utc_offset_s;
    if (asking.answer) showExplained(asking.answer); // its times were of another clock
  }
  setLink("live", "live");
  tellSince();
  remember(told);
  wheel.take(told, isNext);
  tellNotices(told);
  tellHead(told);
  tellVitals(told);
  tellLateness(told);
  tellGateways(told);
  tellFeed(told, breach);
  if (!document.hidden) for (const chart of charts) chart.paint();
}

/** What the feed cannot show between two summaries; nothing if they follow each other. */
function breachBetween(before, told) {
  if (before.log !== told.log) return `A new log begins at ${clock(told.at)}.`;
  if (!link.wasLost) return "";
  const written = told.seq - before.seq;
  const meanwhile = written ? `; up to ${many(written, "record")} of then are not here, but in liveness log` : "";
  return `Not connected from ${clock(before.at)} to ${clock(told.at)}${meanwhile}.`;
}

function watchTheLink() {
  setInterval(() => {
    const quiet_ms = performance.now() - Math.max(link.heard, link.opened);
    if (link.state === "live" && quiet_ms > QUIET_MS) lose();
    if (quiet_ms > LOST_MS && !link.retry && link.state !== "refused" && link.stream.readyState !== EventSource.CLOSED) connect();
    tellSince();
    renewExplained();
  }, 1000);
}

// --- all of it ---------------------------------------------------------------------

let framed = performance.now();

function frame(now) {
  wheel.move(now, Math.min(0.1, Math.max(0, (now - framed) / 1000)));
  framed = now;
  requestAnimationFrame(frame); // which does not come while nobody looks
}

document.addEventListener("visibilitychange", () => {
  wheel.clear();
  if (!document.hidden) for (const chart of charts) chart.paint();
});

charts.push(
  new Chart("chart-users", [], "curve"),
  new Chart("chart-events", ["keepalive", "message", "login", "logout"], "areas"),
  new Chart("chart-offlines", ["silence", "logout", "gateway_lost"], "bars"),
);
const minutes = make("div", { class: "minutes", "aria-hidden": "true" });
["5 min ago", "4", "3", "2", "1", "now"].forEach((text, n) => {
  const label = make("span", {}, text);
  label.style.setProperty("--at", `${20 * n}%`);
  minutes.append(label);
});
byId("chart-offlines").append(minutes);
buildLateness();
watchTheRing();
watchTheFeed();
watchTheAsked();
tellFeedNote();
connect();
watchTheLink();
requestAnimationFrame(frame);
