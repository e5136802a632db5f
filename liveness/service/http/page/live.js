/*
 * The live page: draws what the sidecar reports once a second.
 *
 * One EventSource (`/v1/live`) sends the last minutes and the newest records when it opens,
 * then a summary each second. A change of the filter opens a new one. Between two summaries only the wheel
 * moves: the hand continues at its known speed, and dots show users who sent something and
 * users who went offline. If no summary comes, the hand stops, and the page shows since when.
 *
 * Text from the server is only ever set as text, never as HTML.
 */

const HISTORY_POINTS = 300; // as many as the stream's history has at most
const FEED_ROWS = 200; // more than anyone reads; each is several elements
const MOST_SECTORS = 120; // narrower ones could not be distinguished
const MOST_LABELS = 12; // around the ring, as on a clock
const JUMPS_PER_S = 40; // dots for users who sent something: more is a blur
const LEAVES_PER_S = 24;
const SECTORS_EVERY = 4; // frames; sectors change slowly, and are most of the work
const MOST_DOTS = 160;
const QUIET_MS = 3_500; // a summary comes each second: three were missed
const LOST_MS = 10_000; // after so long the connection is dead, even if no error came
const RETRY_MS = 2_000;
const LEAST_TIMES = 1.8; // usual intervals in a timeout that is not too short, as in cadence.py
const EXPLAIN_MS = 5_000; // how often the explanation of an online user is refreshed

const SVG = "http://www.w3.org/2000/svg";
const REDUCED = matchMedia("(prefers-reduced-motion: reduce)");

// --- elements and texts ------------------------------------------------------------

const byId = (id) => document.getElementById(id);

/** An element with attributes and children; a string child is text. */
function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  setAttributes(element, attributes);
  element.append(...children);
  return element;
}

function draw(name, attributes = {}) {
  const element = document.createElementNS(SVG, name);
  setAttributes(element, attributes);
  return element;
}

function setAttributes(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
  }
}

/** Sets a text only if it differs, to keep the reader's selection. */
function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Have a screen reader say something once. */
function announce(text) {
  byId("announcement").textContent = text;
}

const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const whole = (n) => WHOLE.format(n);
const plural = (n, singular, many = `${singular}s`) => `${whole(n)} ${n === 1 ? singular : many}`;

/** A count per second: whole, with one decimal below 10. */
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

/** Escapes characters that are invisible or look like a space, as the command line does. */
function visible(text) {
  return text.replace(new RegExp(`${UNSEEN.source}|\\\\`, "gu"), (char) => {
    const code = char.codePointAt(0);
    if (char === "\\") return "\\\\";
    const [letter, digits] = code < 256 ? ["x", 2] : code < 65_536 ? ["u", 4] : ["U", 8];
    return `\\${letter}${code.toString(16).padStart(digits, "0")}`;
  });
}

const uidText = (uid) => (typeof uid === "number" ? `${uid}` : uid);

/** A conn's digits. Numbers here are exact up to 2^53; a larger one comes as the text int:N. */
const connText = (conn) => `${conn}`.replace("int:", "");

/** An element with a name from the wire; <bdi> isolates its writing direction. */
function named(text, name = "bdi") {
  const shown = visible(text);
  return make(name, { class: "cut", title: shown }, shown);
}

let offset_s = 0; // of the host's time zone, in which logs and `liveness explain` are
const onHost = (ms) => new Date(ms + offset_s * 1e3).toISOString();
const clock = (ms) => onHost(ms).slice(11, 19);
function moment(ms) {
  const day = onHost(ms).slice(0, 10);
  return day === onHost(Date.now()).slice(0, 10) ? clock(ms) : `${day} ${clock(ms)}`;
}

// --- the wheel ---------------------------------------------------------------------

const INNER = 128;
const OUTER = 206;
const LANE = 119; // the track inside the ring on which dots move ahead
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
  hand: 0, // its position as shown, in slots
  reported: { hand: 0, at: 0 },
  isMoving: false,
  counts: [], // users in each sector, as reported
  shown: [], // and as drawn, on the way to that
  top: 1, // the count that fills a sector, as drawn
  users: 0,
  jobs: [], // dots to launch, each at its moment
  dots: [],
  pending: { leaves: 0, comes: 0 },
  frames: 0,
  unpainted_s: 0, // since the sectors were painted
  chosen: null, // a sector: {place} by the pointer, {ahead} of the hand by the keys
  found: null, // the slot of the user who is explained

  take(summary, isNext) {
    const before = this.counts;
    if (summary.slots !== this.slots) this.build(summary.slots);
    this.slot_s = summary.slot_s;
    this.users = summary.users;
    this.reported = { hand: summary.hand, at: performance.now() };
    this.isMoving = !summary.stands;
    this.counts = Array(Math.ceil(summary.slots / this.per)).fill(0);
    summary.slot_users.forEach((users, slot) => (this.counts[Math.floor(slot / this.per)] += users));
    const isFirst = before.length !== this.counts.length;
    if (isFirst || REDUCED.matches || document.hidden) {
      this.shown = [...this.counts];
      this.top = Math.max(1, ...this.counts);
      this.hand = summary.hand;
    }
    if (isNext && !isFirst && !REDUCED.matches && !document.hidden) this.plan(before, summary);
    byId("hand").classList.toggle("stands", summary.stands);
    setText(byId("hand-caption"), summary.stands ? "the hand is paused" : "");
    byId("filter-devices").hidden = !summary.device_separator;
    setText(document.querySelector("#chart-users h2"), summary.device_separator ? "Devices online" : "Users online");
    setText(byId("users-caption"), summary.device_separator ? `devices of ${plural(summary.distinct_users, "user")}` : "users online");
    const digits = whole(summary.users);
    setText(byId("users"), digits);
    const size = digits.length < 8 ? 54 : digits.length < 10 ? 44 : 34;
    byId("users").style.setProperty("font-size", `${size}px`);
    this.describe(summary);
    this.paint(0);
  },

  /** Draws a sector for each slot, or for several slots if there are many. */
  build(slots) {
    this.slots = slots;
    this.per = Math.ceil(slots / MOST_SECTORS);
    this.counts = [];
    byId("sectors").replaceChildren();
    for (let n = 0; n * this.per < slots; n++) byId("sectors").append(draw("path"));
    setAttributes(byId("ring"), { "aria-valuemax": Math.ceil(slots / this.per) });
    const ticks = byId("ticks");
    ticks.replaceChildren();
    const step = this.per * [1, 5, 10].find((n) => slots / this.per / n <= MOST_LABELS);
    for (let slot = 0; slot < slots; slot += this.per) {
      const angle = (slot / slots) * TURN;
      const hasLabel = slot % step === 0 && slots - slot >= step / 2;
      const [[x1, y1], [x2, y2]] = [OUTER + 8, OUTER + (hasLabel ? 16 : 12)].map((r) => at(angle, r).split(" "));
      ticks.append(draw("line", { x1, y1, x2, y2 }));
      if (!hasLabel) continue;
      const [x, y] = at(angle, OUTER + 27).split(" ");
      const text = draw("text", { x, y });
      text.textContent = slot;
      ticks.append(text);
    }
  },

  /** How many sectors the hand is away from one; 0: it is in it. */
  steps(n) {
    return mod(n - Math.floor(this.hand / this.per), this.counts.length);
  },

  /**
   * What share of a revolution the hand is away from a sector: 1 for the sector it is in,
   * since nearly all users there have just been put behind the hand.
   */
  ahead(n) {
    return this.steps(n) ? mod((n + 0.5) * this.per - this.hand, this.slots) / this.slots : 1;
  },

  /** Plans dots for the coming second: users who left slots ahead, went offline, logged in. */
  plan(before, summary) {
    const now = performance.now();
    const departed = before.map((users, n) => {
      const steps = this.steps(n);
      const isPassed = steps > this.counts.length - 1 - summary.second.over_s / this.slot_s / this.per;
      return !steps || isPassed ? 0 : Math.max(0, users - this.counts[n]);
    });
    let sum = departed.reduce((a, b) => a + b, 0);
    const jumps = Math.min(JUMPS_PER_S, sum);
    for (let k = 0; k < jumps; k++) {
      let pick = Math.random() * sum;
      const n = departed.findIndex((users) => (pick -= users) < 0);
      if (n >= 0) this.jobs.push({ at: now + Math.random() * 1000, kind: "jump", n });
    }
    const { events, offlines, over_s } = summary.second;
    const due = { leaves: (offlines.silence ?? 0) + (offlines.gateway_lost ?? 0), comes: events.login ?? 0 };
    for (const kind of ["leaves", "comes"]) {
      this.pending[kind] = Math.min(LEAVES_PER_S, this.pending[kind] + Math.round(due[kind] * over_s));
      for (; this.pending[kind] >= 1; this.pending[kind]--) this.jobs.push({ at: now + Math.random() * 1000, kind });
    }
    this.jobs = this.jobs.slice(-MOST_DOTS);
  },

  launch({ kind, n }, now) {
    if (this.dots.length >= MOST_DOTS) return;
    const slot = TURN / this.slots;
    const hand = this.hand * slot;
    const circle = draw("circle", { r: kind === "leaves" ? 2.4 : 1.9, opacity: 0 });
    byId("dots").append(circle);
    const outer = this.radius(n ?? 0);
    if (kind === "leaves") {
      circle.classList.add("fired");
      const angle = hand + (Math.random() - 0.5) * slot;
      const over = (Math.random() - 0.3) * 0.16;
      this.dots.push({ circle, now, ms: 1500, from: angle, over, start: INNER + 6, end: OUTER + 46, dip: 0, kind });
      return;
    }
    const ms = kind === "jump" ? 900 + 500 * (1 - this.ahead(n)) : 700;
    // A little behind where the hand will be when the dot arrives.
    const goal = hand + (ms / 1000 / this.slot_s - Math.random() * Math.min(1, 0.5 * this.per)) * slot;
    const end = INNER + 4 + Math.random() * 40;
    if (kind === "comes") {
      this.dots.push({ circle, now, ms, from: goal, over: 0, start: 84, end, dip: 0, kind });
      return;
    }
    const from = (n + 0.2 + 0.6 * Math.random()) * this.per * slot;
    const over = mod(goal - from, TURN);
    const start = INNER + 3 + Math.random() * Math.max(2, outer - INNER - 6);
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
      setAttributes(circle, { cx, cy, opacity: opacity.toFixed(2) });
      return true;
    });
  },

  radius(n) {
    const users = this.shown[n] ?? 0;
    if (users < 0.5) return INNER;
    // Proportional by area, as the eye compares areas; at least 2, so that it is visible.
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
      const [from, to] = [n, n + 1].map((edge) => (Math.min(edge * this.per, this.slots) / this.slots) * TURN);
      const radius = this.radius(n);
      setAttributes(path, {
        d: radius > INNER ? sector(from + gap, to - gap, radius) : "",
        "fill-opacity": (0.2 + 0.8 * ahead ** 0.8).toFixed(2),
        class: [this.steps(n) === 1 && this.counts.length > 2 ? "near" : "", n === chosen ? "chosen" : ""].join(" ").trim(),
      });
    });
  },

  paintHand() {
    setAttributes(byId("hand"), { transform: `rotate(${((this.hand / (this.slots || 1)) * 360).toFixed(2)})` });
    const marker = byId("marker");
    setAttributes(marker, { visibility: this.found === null ? "hidden" : "visible" });
    if (this.found !== null) setAttributes(marker, { transform: `rotate(${(((this.found + 0.5) / this.slots) * 360).toFixed(2)})` });
  },

  /** Moves the hand on from where it was last reported, by its speed. */
  move(now, passed_s) {
    if (!this.slots) return;
    if (this.isMoving && !REDUCED.matches) {
      const place = this.reported.hand + (now - this.reported.at) / 1000 / this.slot_s;
      this.hand += passed_s / this.slot_s;
      const off = mod(place - this.hand + this.slots / 2, this.slots) - this.slots / 2;
      // Correct small differences smoothly, and large ones, as after a pause, at once.
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
    this.isMoving = false;
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

  /** Writes the line under the ring: on the chosen slot, or on the whole wheel. */
  describe(summary = latest) {
    if (!summary) return;
    const n = this.chosenSector();
    const beyond = summary.users - summary.due - summary.slot_users.reduce((a, b) => a + b, 0);
    let text = `${whole(summary.slots)} slots of ${seconds(summary.slot_s)}, a revolution is the timeout of ${seconds(summary.timeout)}`;
    if (beyond > 0) text = `${text}; ${plural(beyond, "user has", "users have")} a longer timeout, on an outer layer`;
    if (n >= 0) {
      const [first, last] = [n * this.per, Math.min((n + 1) * this.per, this.slots) - 1];
      const wait_s = mod(first - this.hand, this.slots) * this.slot_s;
      const is_under = mod(this.hand - first, this.slots) < this.per;
      const users = this.counts[n];
      const share = this.users ? `, ${((100 * users) / this.users).toFixed(1)} %` : "";
      const name = first === last ? `Slot ${first}` : `Slots ${first} to ${last}`;
      const when = is_under ? "the hand is in it" : `the hand comes in ${Math.ceil(wait_s)} s`;
      text = `${name}: ${plural(users, "user")}${share}; ${when}`;
    }
    setText(byId("slot-text"), text);
    setAttributes(byId("ring"), { "aria-valuetext": text, "aria-valuenow": (this.chosen?.ahead ?? 0) + 1 });
  },
};

function watchRing() {
  const ring = byId("ring");
  const choose = (chosen) => {
    wheel.chosen = chosen;
    wheel.describe();
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
let inspected = null; // the moment whose values all charts show

const NAMES = { gateway_lost: "gateway lost" };

class Chart {
  /**
   * @param {string} id The id of its section.
   * @param {string[]} series Lowest first; none for the number of users.
   * @param {"curve" | "areas" | "bars"} form How it is drawn.
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
      inspect(end() - (1 - (event.clientX - box.left) / box.width) * WIDTH * 1000);
    };
    this.plot.addEventListener("pointermove", point);
    this.plot.addEventListener("pointerdown", point);
    this.plot.addEventListener("pointerleave", () => inspect(null));
    this.plot.addEventListener("blur", () => inspect(null));
    this.plot.addEventListener("keydown", (event) => {
      const last = past.at.length - 1;
      const now = indexOf(inspected);
      const to = { ArrowLeft: now - 1, ArrowDown: now - 1, ArrowRight: now + 1, ArrowUp: now + 1, PageUp: now - 30, PageDown: now + 30, Home: 0, End: last }[event.key];
      if (event.key === "Escape") inspect(null);
      if (to === undefined || last < 0) return;
      event.preventDefault();
      inspect(past.at[Math.max(0, Math.min(last, to))]);
    });
  }

  columns() {
    return this.series.length ? this.series.map((name) => past[this.column][name] ?? []) : [past.users];
  }

  paint() {
    const columns = this.columns();
    const sums = past.at.map((_, i) => columns.reduce((sum, column) => sum + (column[i] ?? 0), 0));
    // All begin at 0, so that heights can be compared. A curve needs some room above it.
    const high = nice(Math.max(1, ...sums) * (this.form === "curve" ? 1.05 : 1));
    const x = (i) => (WIDTH - (end() - past.at[i]) / 1000).toFixed(1);
    const y = (value) => (HEIGHT * (1 - value / high)).toFixed(1);
    const below = Array(past.at.length).fill(0);
    columns.forEach((column, s) => {
      const above = below.map((value, i) => value + (column[i] ?? 0));
      setAttributes(this.paths[s], { d: this[this.form](x, y, below, above) });
      above.forEach((value, i) => (below[i] = value));
    });
    setText(this.top, short(high));
    setText(this.bottom, short(0));
    this.read();
  }

  curve(x, y, _, above) {
    return stretches().map((run) => `M${run.map((i) => `${x(i)} ${y(above[i])}`).join("L")}`).join("");
  }

  areas(x, y, below, above) {
    return stretches()
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

  /** Shows the values at the inspected moment, or the newest. */
  read() {
    const i = indexOf(inspected);
    if (i < 0) return;
    this.columns().forEach((column, s) => setText(this.values[s], this.series.length ? rate(column[i] ?? 0) : whole(column[i])));
    setText(this.when, inspected === null ? "" : clock(past.at[i]));
    setAttributes(this.cursor, { visibility: inspected === null ? "hidden" : "visible" });
    const x = WIDTH - (end() - past.at[i]) / 1000;
    setAttributes(this.cursor, { x1: x, x2: x });
    const read = this.series.map((name, s) => `${NAMES[name] ?? name} ${this.values[s].textContent}`);
    const text = `${clock(past.at[i])}: ${read.join(", ") || this.values[0].textContent}`;
    setAttributes(this.plot, { "aria-valuemax": past.at.length - 1, "aria-valuenow": i, "aria-valuetext": text });
  }
}

const end = () => past.at[past.at.length - 1] ?? 0;

/** The index of the point nearest to a moment; of the newest for null. */
function indexOf(ms) {
  if (ms === null) return past.at.length - 1;
  let best = past.at.length - 1;
  for (let i = best; i >= 0; i--) if (Math.abs(past.at[i] - ms) < Math.abs(past.at[best] - ms)) best = i;
  return best;
}

/** The stretches of points without gaps: nothing is drawn where no summary came. */
function stretches() {
  const found = [];
  past.at.forEach((ms, i) => {
    if (i && ms - past.at[i - 1] <= 2_500 * past.every_s) found[found.length - 1].push(i);
    else found.push([i]);
  });
  return found;
}

/** The next round number above. */
function nice(n) {
  const unit = 10 ** Math.floor(Math.log10(n));
  return unit * [1, 1.5, 2, 3, 4, 5, 6, 8, 10].find((factor) => factor * unit >= n * 0.9999);
}

function inspect(ms) {
  inspected = ms;
  for (const chart of charts) chart.read();
}

/**
 * The events of users. A gateway also logs out the connections that a record had it close: such
 * a logout ends no session, and is no user's. So count the sessions that a logout ended.
 */
function ofUsers(events, offlines) {
  return "logout" in offlines ? { ...events, logout: offlines.logout } : events;
}

function addToHistory({ at, users, second }) {
  // If the host's clock was set back, drop the points that are now in the future.
  const columns = [past.at, past.users, ...Object.values(past.events), ...Object.values(past.offlines)];
  while (end() >= at) for (const column of columns) column.pop();
  const keep = (column, value) => {
    column.push(value);
    while (column.length > HISTORY_POINTS) column.shift();
  };
  keep(past.at, at);
  keep(past.users, users);
  const counted = { events: ofUsers(second.events, second.offlines), offlines: second.offlines };
  for (const group of ["events", "offlines"]) {
    const names = new Set([...Object.keys(past[group]), ...Object.keys(counted[group])]);
    for (const name of names) {
      past[group][name] ??= Array(past.at.length - 1).fill(0);
      keep(past[group][name], counted[group][name] ?? 0);
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
    const parts = stage === "decided" ? ["within", "beyond", "promise"] : ["within"];
    for (const part of [...parts, "span", "p50", "p99"]) scale.append(make("i", { class: part }));
    const [p50, p99] = [make("b", {}, "–"), make("b", {}, "–")];
    byId("stages").append(make("div", { class: "stage" }, make("span", {}, name), scale, p50, p99));
    stages[stage] = { scale, p50, p99 };
  }
  const axis = make("div", { class: "scale", "aria-hidden": "true" });
  byId("stages").append(make("div", { class: "stage" }, make("span"), axis));
  stages.axis = axis;
}

function showLateness({ lateness }) {
  const { promise_s, over_s } = lateness;
  for (const stage of Object.keys(STAGES)) {
    const { count, p50_s, p99_s } = lateness[stage];
    const { scale, p50, p99 } = stages[stage];
    scale.style.setProperty("--promise", stage === "decided" ? along(promise_s) : "100%");
    for (const [part, s] of [["p50", p50_s], ["p99", p99_s]]) {
      if (count) scale.style.setProperty(`--${part}`, along(s));
    }
    for (const mark of scale.querySelectorAll(".span, .p50, .p99")) mark.hidden = !count;
    setText(p50, count ? seconds(p50_s) : "–");
    setText(p99, count ? seconds(p99_s) : "–");
  }
  const labels = [0.001, 0.01, promise_s, SLOWEST_S];
  labels.forEach((s, n) => {
    const label = stages.axis.childNodes[n] ?? stages.axis.appendChild(make("span"));
    label.style.setProperty("--at", along(s));
    label.classList.toggle("named", n === 2);
    setText(label, seconds(s));
  });
  // Only the decision is promised, so its row alone is judged, as the words are.
  const { count, p99_s } = lateness.decided;
  const isMissed = count > 0 && p99_s > promise_s;
  stages.decided.scale.classList.toggle("late", isMissed);
  const verdict = byId("verdict");
  verdict.className = `verdict ${count ? (isMissed ? "missed" : "met") : ""}`;
  const promise = `promised ${seconds(promise_s)} at p99, over ${seconds(over_s)}`;
  setText(verdict, !count ? `nobody fell silent over ${seconds(over_s)}` : `decided ${isMissed ? "beyond" : "within"} the ${promise}`);
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
  if (title) setAttributes(cell, { title });
  setText(cell.lastChild, value);
}

function showVitals(summary) {
  const held = Object.values(summary.held).reduce((a, b) => a + b, 0);
  const failed = summary.timers.failed ?? 0;
  const late = summary.lateness.promise_s;
  vital("Due now", whole(summary.due), { title: "Users past their deadline who are still online" });
  vital("Held", whole(held), { is: held ? "warn" : "", title: Object.entries(summary.held).map(([why, n]) => `${why} ${whole(n)}`).join(", ") || "No users are held" });
  vital("Early", whole(summary.early), { is: summary.early ? "alert" : "", title: "Declared offline before their deadline. Always 0, unless the sidecar has a fault" });
  vital("Moved a second", rate(summary.rates.moved), { title: "Users who logged in on a newer connection" });
  vital("Hand lag", summary.stands ? "paused" : seconds(summary.hand_lag_s), { is: summary.stands || summary.hand_lag_s > late ? "warn" : "", title: "How far the hand is behind the clock" });
  vital("Unattended", seconds(summary.unattended_s), { title: "Time in which this process did not run. It does not count as silence" });
  vital("Log, to be written", summary.log_failure ? "fails" : whole(summary.log_pending), { is: summary.log_failure ? "alert" : "", title: `Records that wait for the disk. The newest has seq ${whole(summary.seq)}` });
  vital("Watchers", whole(summary.links.watcher ?? 0), { title: "Links that only read records" });
  vital("Timers pending", whole(summary.timers.pending ?? 0));
  if (summary.cluster) {
    const { state, since, users, lag_records, lag_s, detail } = summary.cluster;
    const isWell = state === "following";
    vital("Users on all hosts", whole(users), { title: "As far as Redis’ last answers said" });
    vital("Cluster", isWell ? `${whole(lag_records)} behind` : state, { is: isWell ? "" : state === "beginning" ? "warn" : "alert", title: detail || `${isWell ? "Following" : "In this state"} since ${clock(since)}; the oldest change that Redis does not have is ${seconds(lag_s)} old` });
  }
  vital("Timers failed", whole(failed), { is: failed ? "warn" : "", title: "Timers without attempts left; `liveness timers list --state failed` shows them" });
}

const rows = new Map();

function showGateways(summary) {
  const body = byId("gateways");
  const held = new Map(summary.storms.map((storm) => [storm.gateway, storm]));
  const stalled = new Set(summary.stalled.filter(({ role }) => role === "gateway").map(({ name }) => name));
  const obsolete = new Set(rows.keys());
  const most = Math.max(1, ...summary.gateways.map(({ users }) => users));
  const tight = [];
  summary.gateways.forEach((gateway, n) => {
    obsolete.delete(gateway.name);
    const row = rows.get(gateway.name) ?? newRow(gateway.name);
    const { interval } = gateway; // null until enough users have sent something
    const isTight = interval !== null && gateway.timeout < LEAST_TIMES * interval;
    if (isTight) tight.push(gateway);
    setText(row.tag, gateway.linked ? (held.has(gateway.name) ? "held" : "") : "not connected");
    setText(row.users, whole(gateway.users));
    setText(row.unacked, whole(gateway.unacked));
    row.unacked.className = stalled.has(gateway.name) ? "warn" : "";
    setText(row.due, whole(gateway.due));
    row.due.className = held.has(gateway.name) ? "warn" : "";
    setText(row.timeout, seconds(gateway.timeout));
    setText(row.interval, interval === null ? "–" : seconds(interval));
    row.timeout.className = row.interval.className = isTight ? "warn" : "";
    row.share.style.setProperty("--share", `${(100 * gateway.users) / most}%`);
    if (body.children[n] !== row.element) body.insertBefore(row.element, body.children[n] ?? null);
  });
  for (const name of obsolete) {
    rows.get(name).element.remove();
    rows.delete(name);
  }
  const notes = [];
  if (!summary.gateways.length) notes.push("No gateway has connected yet. docs/gateway.md shows how to connect one.");
  if (summary.gateways_more) notes.push(`${plural(summary.gateways_more, "more gateway")} with fewer users: see /v1/gateways.`);
  if (tight.length) notes.push(`A timeout is under ${LEAST_TIMES} times the usual interval, so one late keepalive makes a live user offline. Have users send more often, or raise the timeout.`);
  for (const { role, name, why, unacked, for_s } of summary.stalled.slice(0, 8)) {
    const what = why === "unacknowledged" ? `has not acknowledged ${plural(unacked, "record")}` : "does not read its link";
    notes.push(`The ${role} ${visible(name)} ${what} for ${seconds(for_s)}, and gets no more.`);
  }
  setText(byId("gateways-note"), notes.join(" "));
  const names = summary.gateways.map(({ name }) => name);
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
    const [outer, value] = cell(label === "interval" ? "usual interval" : label);
    row[label] = value;
    return outer;
  });
  row.element = make("div", { role: "row", class: "row" }, make("span", { role: "cell", class: "name" }, named(name), tag), ...cells, row.share);
  rows.set(name, row);
  return row;
}

function showOutlets({ outlets }) {
  const list = make("div", { role: "rowgroup", id: "outlets" }, ...outlets.map(outletRow));
  const shown = byId("outlets");
  if (list.textContent !== shown.textContent) shown.replaceWith(list); // a selection stays
  byId("outlets-section").hidden = !outlets.length;
  byId("outlets-note").hidden = !outlets.some((outlet) => outlet.dead_kept);
}

function outletRow({ outlet, state, since, detail, lag_records, lag_s, sent, dead_kept, damped }) {
  const titles = [...document.querySelectorAll("#outlets-section abbr")].map(({ title }) => title);
  const cell = (label, value, is = "") => make("span", { role: "cell", class: is, title: titles.shift() }, make("small", {}, `${label} `), value);
  const isWell = state === "following";
  const tag = make("span", { class: state === "stopped" ? "tag alert" : "tag" }, isWell ? "" : state);
  const row = make("div", { role: "row", class: "row" }, make("span", { role: "cell", class: "name" }, named(outlet), tag));
  row.append(cell("behind", whole(lag_records)), cell("for", seconds(lag_s)), cell("sent", whole(sent)), cell("dead letters", whole(dead_kept), dead_kept ? "warn" : ""), cell("left out", whole(damped)));
  if (!isWell) row.append(make("span", { role: "cell", class: "reason" }, `Since ${clock(since)}: ${visible(detail)}`));
  return row;
}

function showTroubles({ link_troubles: troubles = [] }) {
  const most = 8; // the latest first; `liveness status --json` has all
  const lines = troubles.slice(0, most).map(({ role, name, what, code, times, at, pid, unix_user }) => {
    const who = name === null ? ["a link without a hello"] : [`${role} `, named(name)];
    const process = `${pid ? `process ${pid}` : "a process"} of Unix user ${unix_user}`;
    return make("li", {}, ...who, `: ${what === "replaced" ? "replaced by another process" : `refused (${code})`}, ${times === 1 ? "once" : `${whole(times)} times`}, last at ${clock(at)}, ${process}`);
  });
  if (troubles.length > most) lines.push(make("li", {}, `${whole(troubles.length - most)} more: see liveness status --json`));
  const list = make("ul", { id: "troubles-list" }, ...lines);
  const shown = byId("troubles-list");
  if (list.textContent !== shown.textContent) shown.replaceWith(list); // a selection stays
  byId("troubles").hidden = !troubles.length;
}

const notices = new Map();
const CLUSTER_TROUBLES = {
  away: ["Redis does not answer", "LivenessClusterAway"],
  replaced: ["Another process has the name of this host", "LivenessClusterReplaced"],
  refused: ["Other hosts see nothing of this one", "LivenessClusterNotFollowing"],
};

function showNotices(summary) {
  const current = [];
  if (summary.early) current.push(["early", "alert", "Offline too early", `${plural(summary.early, "user was", "users were")} declared offline before their deadline. This is a fault of the sidecar: keep the log, and report it.`]);
  if (summary.log_failure) current.push(["log", "alert", "The log cannot be written", `${summary.log_failure}. Until it can, no records are sent; see LivenessWritesFail in docs/runbook.md.`]);
  if (summary.cluster && CLUSTER_TROUBLES[summary.cluster.state]) {
    const { state, since, detail } = summary.cluster;
    const [title, alert] = CLUSTER_TROUBLES[state];
    current.push([`cluster ${state}`, "alert", title, `Since ${clock(since)}: ${visible(detail)}. Users and gateways of this host are not affected. See ${alert} in docs/runbook.md.`]);
  }
  for (const { outlet, since, detail } of summary.outlets.filter(({ state }) => state === "stopped")) {
    current.push([`outlet ${outlet}`, "alert", `${outlet} is stopped`, `Since ${clock(since)}: ${visible(detail)}. Its records wait in the log; nobody else is affected. See LivenessOutletStopped in docs/runbook.md.`]);
  }
  const most = 5; // of storms, the largest first
  for (const { gateway, users, left_s } of summary.storms.slice(0, most)) {
    current.push([`storm ${gateway}`, "", `Storm guard holds ${plural(users, "user")}`, "of ", named(gateway), `, all due at once, for ${seconds(Math.ceil(left_s))} more at most. Check that gateway.`]);
  }
  const more = summary.storms.length - most + (summary.storms_more ?? 0);
  if (more > 0) current.push(["storms", "", `${plural(more, "more storm")}`, "at other gateways: see ", make("code", {}, "liveness status")]);
  if (!summary.ready) current.push(["ready", "alert", "Not ready", summary.why.map(visible).join("; ") || "no reason is given"]);
  const obsolete = new Set(notices.keys());
  for (const [key, kind, title, ...text] of current) {
    obsolete.delete(key);
    let notice = notices.get(key);
    if (!notice) {
      notice = make("p", { class: `notice ${kind}` }, make("b"), make("span"));
      notices.set(key, notice);
      byId("notices").append(notice);
      announce(title);
    }
    setText(notice.firstChild, title);
    const line = make("span", {}, ...text);
    if (line.textContent !== notice.lastChild.textContent) notice.lastChild.replaceWith(line);
  }
  for (const key of obsolete) {
    notices.get(key).remove();
    notices.delete(key);
  }
}

function showHead(summary) {
  const ready = byId("ready");
  ready.hidden = false;
  ready.className = summary.ready ? "ready" : "ready no";
  setText(ready, summary.ready ? "ready" : "not ready");
  setText(byId("build"), `${summary.version}, ${summary.wheel} wheel, up ${seconds(summary.uptime_s)}`);
  document.title = `${notices.size ? "(!) " : ""}${whole(summary.users)} online – liveness`;
}

// --- the feed ----------------------------------------------------------------------

const FEED_KINDS = ["online", "offline", "moved"];
const feed = {
  filter: { kinds: FEED_KINDS, uid: "", gateway: "", users: false },
  rows: [], // as shown, the newest first
  waiting: [], // the same, while the list is paused
  isPaused: false,
  isOld: true, // the rows are those of the filter before
  searched: 0, // how many of the newest records it began with; 0: all
  missed: null, // what a stream that was opened again began with
  refused: "",
};

/** Whether a user came or left with a record, rather than one of several devices. */
const isOfUsers = ({ kind, devices }) => kind !== "moved" && (devices === undefined || devices === (kind === "online" ? 1 : 0));

const devicesOf = ({ devices }) => (devices === undefined ? "" : `, ${plural(devices, "device")} online`);

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
      // Without from_session the login was on an older connection: the user stayed.
      const how = record.from_session === undefined ? "an older connection of" : "from";
      return `by login, ${how} ${visible(record.from)}`;
    }
    default:
      return `by ${record.reason}${record.kind === "moved" ? `, from ${visible(record.from)}` : ""}`;
  }
}

/** A line of the feed or, with *owner*, of the records of that explained user. */
function recordRow(record, owner = null) {
  const uid = uidText(record.uid);
  const link = named(uid, "a");
  setAttributes(link, { href: `#uid=${encodeURIComponent(uid)}`, dir: "auto" });
  const when = make("time", { datetime: new Date(record.at).toISOString() }, owner ? moment(record.at) : clock(record.at));
  const device = owner && uid !== owner ? `${visible(uid)}: ` : "";
  const reason = device + why(record) + devicesOf(record);
  const cells = [when, make("span", { class: "kind" }, record.kind)];
  if (!owner) cells.push(make("span", { class: "cut" }, link));
  const gateway = named(record.gateway);
  gateway.classList.add("gateway");
  cells.push(gateway, make("span", { class: owner ? "why" : "why cut", title: reason }, reason));
  return make("li", { class: "record", "data-kind": record.kind, "data-reason": record.reason }, ...cells);
}

const breakRow = (text) => make("li", { class: "break" }, text);

function matches(record) {
  const { kinds, uid, gateway, users } = feed.filter;
  if (!kinds.includes(record.kind)) return false;
  if (users && !isOfUsers(record)) return false;
  if (uid && ![record.uid, record.user].map(uidText).includes(uid)) return false;
  return !gateway || [record.gateway, record.from].includes(gateway);
}

const rowsOf = (records) => records.map((record) => ({ record }));

/** Takes the newest records that a stream begins with. */
function openFeed(id, { records, records_after }) {
  const [log, newest] = id.split(":");
  feed.refused = "";
  feed.searched = records_after ? newest - records_after : 0;
  if (!feed.isOld) {
    feed.missed = { log, records, after: records_after }; // shown with the next summary
    return;
  }
  feed.isOld = false;
  feed.missed = null;
  feed.rows = rowsOf(records).reverse();
  if (records.length && records_after) feed.rows.push({ text: "Older records are in the log: see liveness log." });
  feed.waiting = [];
  byId("records").replaceChildren();
  showRows(feed.rows);
  showPause();
}

function showFeed(summary, gap) {
  const fresh = rowsOf(summary.records);
  if (summary.left_out) fresh.unshift({ text: `${plural(summary.left_out, "more record")} at ${clock(summary.at)}` });
  if (gap) fresh.unshift({ text: gap });
  const to = feed.isPaused ? feed.waiting : feed.rows;
  to.unshift(...fresh.reverse());
  to.length = Math.min(to.length, FEED_ROWS);
  if (!feed.isPaused) showRows(fresh);
  showPause();
}

function showRows(fresh) {
  const list = byId("records");
  list.prepend(...fresh.map(({ record, text }) => (record ? recordRow(record) : breakRow(text))));
  while (list.children.length > FEED_ROWS) list.lastChild.remove();
  showFeedNote();
}

function showFeedNote() {
  const { kinds, uid, gateway, users } = feed.filter;
  const areAll = kinds.length === FEED_KINDS.length;
  const conditions = [!areAll && kinds.join(" and "), uid && `of ${visible(uid)}`, gateway && `through ${visible(gateway)}`, users && "of users only"].filter(Boolean);
  const place = feed.searched ? `None among the newest ${plural(feed.searched, "record")}` : "Nothing yet";
  const none = conditions.length ? `${place}: ${conditions.join(" ")}.` : "Nothing yet. Users who come online, go offline or move are listed here.";
  setText(byId("feed-note"), feed.refused || (feed.rows.some(({ record }) => record) ? "" : none));
}

function showPause() {
  const button = byId("pause");
  setAttributes(button, { "aria-pressed": feed.isPaused });
  const waiting = feed.waiting.filter(({ record }) => record).length;
  setText(button, feed.isPaused ? `Resume${waiting ? ` (${waiting}${waiting >= FEED_ROWS ? "+" : ""})` : ""}` : "Pause");
}

function watchFeed() {
  const form = byId("filter");
  const apply = () => {
    const data = new FormData(form);
    const kinds = data.getAll("kind");
    feed.filter = {
      kinds: kinds.length ? kinds : FEED_KINDS,
      uid: data.get("uid").trim(),
      gateway: data.get("gateway").trim(),
      users: data.has("users"),
    };
    feed.refused = "";
    // What is here and matches, until the new stream begins with the newest that match.
    feed.isOld = true;
    const isKept = ({ record }) => record && matches(record);
    feed.rows = feed.rows.filter(isKept);
    feed.waiting = feed.waiting.filter(isKept);
    byId("records").replaceChildren();
    showRows(feed.rows);
    connect();
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
    showPause();
  });
}

// --- the explanation of a user -----------------------------------------------------

const explained = { uid: null, number: 0, answer: null, at: 0, isNew: false };

function uidInAddress() {
  const found = /^#uid=(.*)$/s.exec(location.hash);
  if (!found) return null;
  try {
    return decodeURIComponent(found[1]);
  } catch {
    return null; // not valid %XX
  }
}

async function explain({ isNew }) {
  const { uid } = explained;
  const number = ++explained.number;
  explained.at = performance.now();
  let answer;
  try {
    const response = await fetch(`/v1/users/${encodeURIComponent(uid)}`, { headers: { accept: "application/json" } });
    answer = await response.json();
  } catch {
    answer = { error: "The sidecar does not answer; ask again when this page is live." };
  }
  if (number !== explained.number) return; // another user was asked for meanwhile
  if (answer.error && !isNew) return; // keep the last good answer
  showExplained(answer);
  revealExplained();
  if (isNew) announce(answer.error ?? answer.told);
}

function showExplained(found) {
  explained.answer = found;
  markExplained();
  if (found.error) {
    byId("explained").replaceChildren(make("p", { class: "sentence" }, found.error));
    return;
  }
  const facts = make("dl", { class: "facts" });
  const fact = (name, value, is = "cut") => {
    if (value === null || value === undefined) return;
    facts.append(make("div", { class: is === "whole" ? "wide" : "" }, make("dt", {}, name), make("dd", { class: is }, value)));
  };
  fact("User", named(uidText(found.uid)));
  fact("Gateway", found.gateway === null ? null : named(found.gateway));
  fact("Last heard", found.seen === null ? null : moment(found.seen));
  fact("Last event", found.last);
  if (found.online) {
    fact("Fires in", found.held ? `held: ${found.held}` : found.fires_in === null ? null : seconds(found.fires_in));
    fact("Timeout", found.timeout === null ? null : seconds(found.timeout));
    fact("Slot", found.slot === null ? null : found.layer ? `${found.slot} of layer ${found.layer}` : `${found.slot}`);
    fact("Connection", found.conn === null ? null : connText(found.conn), "whole");
    fact("Session", found.session === null ? null : whole(found.session));
  }
  const records = make("ol", { class: "records", "aria-label": "Records of this user, the newest first" });
  records.append(...found.records.map((record) => recordRow(record, uidText(found.uid))));
  byId("explained").replaceChildren(make("p", { class: "sentence", dir: "auto" }, found.told), facts, records);
  if (found.looked_back_to) {
    byId("explained").append(make("p", { class: "note" }, `Searched back to ${moment(found.looked_back_to.at)}, seq ${whole(found.looked_back_to.seq)}.`));
  }
}

/** Marks the explained user on the ring, once both the answer and a summary have come. */
function markExplained() {
  const { answer } = explained;
  // Of a user with devices, the one that logged in last.
  const shown = answer?.gateway === null && answer.devices?.length ? answer.devices.at(-1) : answer;
  const isOnRing = latest && answer?.online && shown.slot !== null && shown.fires_in <= latest.timeout;
  wheel.found = isOnRing ? shown.slot : null;
}

/** Scrolls to a new answer, unless it can be seen: on a page just opened, below the figures. */
function revealExplained() {
  if (!explained.isNew || !explained.answer || !latest) return;
  explained.isNew = false;
  const box = byId("explain").getBoundingClientRect();
  if (box.top >= 0 && box.bottom <= innerHeight) return;
  byId("explain").scrollIntoView({ block: "start", behavior: REDUCED.matches ? "auto" : "smooth" });
}

function watchExplain() {
  const input = byId("explain-uid");
  const ask = () => {
    const uid = uidInAddress();
    explained.uid = uid || null;
    explained.answer = null;
    explained.isNew = Boolean(uid);
    markExplained();
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
  addEventListener("hashchange", ask);
  ask();
}

/** Refreshes the explanation of an online user, who may have sent something since. */
function refreshExplained() {
  const isOld = performance.now() - explained.at > EXPLAIN_MS;
  if (explained.uid && explained.answer?.online && isOld && link.state === "live" && !document.hidden) explain({ isNew: false });
}

// --- the stream --------------------------------------------------------------------

const link = { stream: null, state: "connecting", heard: 0, opened: 0, retry: 0, wasLost: false };
let latest = null;

function connect() {
  clearTimeout(link.retry);
  link.retry = 0;
  link.stream?.close();
  const { kinds, uid, gateway, users } = feed.filter;
  const query = new URLSearchParams({ kind: kinds });
  if (uid) query.set("uid", uid);
  if (gateway) query.set("gateway", gateway);
  if (users) query.set("users", "true");
  const stream = new EventSource(`/v1/live?${query}`);
  link.stream = stream;
  link.opened = performance.now();
  const whileOpen = (show) => (event) => {
    if (stream === link.stream) show(JSON.parse(event.data), event.lastEventId);
  };
  const showHistory = (history, id) => {
    const { every_s, at: moments, users, events, offlines } = history;
    Object.assign(past, { every_s, at: moments, users, events: ofUsers(events, offlines), offlines });
    openFeed(id, history);
  };
  stream.addEventListener("history", whileOpen(showHistory));
  stream.addEventListener("summary", whileOpen(showSummary));
  stream.addEventListener("error", () => {
    if (stream !== link.stream) return stream.close();
    connectionLost();
    // A browser reconnects by itself, unless the stream was refused. Then ask why.
    if (stream.readyState === EventSource.CLOSED) explainRefusal(stream);
  });
}

/** Fetches the URL of a refused stream: EventSource does not show the status or the error. */
async function explainRefusal(stream) {
  const abort = new AbortController();
  const timeout = setTimeout(() => abort.abort(), LOST_MS);
  let status, error;
  try {
    const response = await fetch(stream.url, { signal: abort.signal, headers: { accept: "application/json" } });
    status = response.status;
    if (!response.ok) ({ error } = await response.json());
  } catch {
    // no answer, or a late one: reconnect below
  } finally {
    clearTimeout(timeout);
    abort.abort();
  }
  if (stream !== link.stream) return; // another stream was opened meanwhile
  if (status === 400 && error) {
    feed.refused = `Refused: ${error}.`;
    showFeedNote();
    setLink("refused", "refused: change the filter");
    return;
  }
  if (error) setLink("reconnecting", `reconnecting: ${error}`);
  link.retry = setTimeout(connect, RETRY_MS * (1 + Math.random()));
}

function setLink(state, text) {
  if (link.state === state && byId("link-state").textContent === text) return;
  link.state = state;
  byId("link").dataset.state = state;
  document.body.classList.toggle("stale", state !== "live" && state !== "connecting");
  setText(byId("link-state"), text);
}

function connectionLost() {
  wheel.stop();
  link.wasLost = true;
  setLink("reconnecting", link.heard ? "reconnecting…" : "connecting…");
  showAge();
}

/** Shows the age of the figures, apart from the state: a screen reader reads that out. */
function showAge() {
  const since_s = Math.round((performance.now() - link.heard) / 1000);
  const text = link.state === "live" || !link.heard ? "" : `last heard ${seconds(Math.max(1, since_s))} ago`;
  setText(byId("link-since"), link.state === "live" && latest ? clock(latest.at) : text);
}

function showSummary(summary) {
  const before = latest;
  const { missed } = feed;
  const gap = before && gapBetween(before, summary, missed);
  latest = summary;
  feed.missed = null;
  link.wasLost = false;
  link.heard = performance.now();
  if (offset_s !== summary.utc_offset_s) {
    offset_s = summary.utc_offset_s;
    if (explained.answer) showExplained(explained.answer); // its times were in another zone
  }
  setLink("live", "live");
  showAge();
  addToHistory(summary);
  markExplained();
  wheel.take(summary, before !== null && !gap);
  showNotices(summary);
  showHead(summary);
  showVitals(summary);
  showLateness(summary);
  showGateways(summary);
  showTroubles(summary);
  showOutlets(summary);
  showFeed(missed ? withMissed(before, summary, missed) : summary, gap);
  revealExplained();
  if (!document.hidden) for (const chart of charts) chart.paint();
}

/** A line for a time without summaries; empty if there was none. */
function gapBetween(before, summary, missed) {
  if (before.log !== summary.log) return `A new log begins at ${clock(summary.at)}.`;
  if (!link.wasLost) return "";
  const missing = missed ? Math.max(0, missed.after - before.seq) : 0;
  const meanwhile = missing ? `; up to ${plural(missing, "record")} of that time are missing here: see liveness log` : "";
  return `Not connected from ${clock(before.at)} to ${clock(summary.at)}${meanwhile}.`;
}

/** A summary with the records from before its stream was opened, and after the one before. */
function withMissed(before, summary, { log, records }) {
  const isNew = ({ seq }) => before?.log !== log || seq > before.seq;
  return { ...summary, records: [...records.filter(isNew), ...summary.records] };
}

function watchLink() {
  setInterval(() => {
    const quiet_ms = performance.now() - Math.max(link.heard, link.opened);
    if (link.state === "live" && quiet_ms > QUIET_MS) connectionLost();
    if (quiet_ms > LOST_MS && !link.retry && link.state !== "refused" && link.stream.readyState !== EventSource.CLOSED) connect();
    showAge();
    refreshExplained();
  }, 1000);
}

// --- start ---------------------------------------------------------------------

let framed = performance.now();

function frame(now) {
  wheel.move(now, Math.min(0.1, Math.max(0, (now - framed) / 1000)));
  framed = now;
  requestAnimationFrame(frame); // does not run while the page is hidden
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
watchRing();
watchFeed();
watchExplain();
showFeedNote();
connect();
watchLink();
requestAnimationFrame(frame);
