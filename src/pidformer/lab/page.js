// The page: reads the knobs, draws the charts, keeps the address.
const names = Object.keys(SETUP.defaults);
const whole = ["tokens", "depth", "seed"], boxes = ["implicit", "causal"];
let knobs = fromAddress(), found = null, layerShown = null, waiting = false, timer = 0;

function fromAddress() {
  const given = new URLSearchParams(location.hash.slice(1) || location.search), read = { ...SETUP.defaults };
  for (const name of names) {
    if (!given.has(name)) continue;
    if (boxes.includes(name)) { read[name] = ["1", "true", "True"].includes(given.get(name)); continue; }
    const value = Number(given.get(name)), limits = SETUP.limits[name];
    if (given.get(name) !== "" && value >= limits.low && value <= limits.high) read[name] = whole.includes(name) ? Math.trunc(value) : value;
  }
  return read;
}

function address() {
  const changed = names.filter((name) => knobs[name] !== SETUP.defaults[name]);
  return new URLSearchParams(changed.map((name) => [name, String(Number(knobs[name]))])).toString();
}

function command() {
  const g = (name) => pidlab.general(knobs[name]), beta = knobs.beta === 1 ? "" : "," + g("beta");
  const form = (knobs.implicit ? " --derivative implicit" : "") + (knobs.step === 1 ? "" : ` --step ${g("step")}`);
  return `pidformer stability --gains ${g("p")},${g("i")},${g("d")}${beta} --kappa-min ${g("kappa_min")}${form}`;
}

function set(changes) { knobs = { ...knobs, ...changes }; layerShown = null; refresh(); }

function refresh() {  // at most once a frame
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => { waiting = false; show(); });
}

function show() {
  for (const name of names) {
    if (boxes.includes(name)) { at(name).checked = knobs[name]; continue; }
    at(name).value = knobs[name];
    at(`${name}-shown`).textContent = pidlab.general(knobs[name]);
    at(name).setAttribute("aria-valuetext", `${name} ${pidlab.general(knobs[name])}`);
  }
  found = pidlab.look(knobs);
  say(at("verdict"));
  at("command").textContent = command();
  fillNumbers();
  draw();
  try { history.replaceState(null, "", "#" + address()); } catch { /* some browsers forbid it for files */ }
}

function fillNumbers() {
  const r = found.report, end = (list) => list[list.length - 1];
  const facts = {
    stable: Number(r.stable), "worst radius": r.radius, "worst kappa": r.kappa, "gain margin": r.margin,
    "settling depth": r.settling ?? NaN, "smallest eigenvalue": found.eigenvalues[0],
    "first token ends at x": end(found.held)[0][0], "and without control": end(found.free)[0][0],
  };
  const text = (value) => !Number.isFinite(value) ? (value === Infinity ? "unlimited" : "none") : pidlab.general(value, 4);
  const cell = ([value, shown]) => `<td data-value="${value}">${shown}</td>`;
  const row = (title, cells) => `<tr><th scope="row">${title}</th>${cells.map(cell).join("")}</tr>`;
  at("facts").tBodies[0].innerHTML = Object.entries(facts).map(([name, value]) =>
    row(name, [[value, name === "stable" ? (value ? "yes" : "no") : text(value)]])).join("");
  at("layers").tBodies[0].innerHTML = found.similarity.map((_, l) =>
    row(l, [found.freeSimilarity[l], found.similarity[l], found.freeRank[l], found.rank[l]].map(
      (value) => [value, Number.isFinite(value) ? value.toFixed(3) : "none"]))).join("");
}

async function copy(text, what) {
  try { await navigator.clipboard.writeText(text); at("copied").textContent = `${what} copied`; }
  catch { at("copied").textContent = "the browser forbids copying; select the text"; }
  setTimeout(() => { at("copied").textContent = ""; }, 2500);
}

for (const name of names) at(name).addEventListener("input", (event) => {
  cancelAnimationFrame(timer); at("play").textContent = "Play";
  set({ [name]: boxes.includes(name) ? event.target.checked : Number(event.target.value) });
});
for (const button of document.querySelectorAll("[data-preset]"))
  button.addEventListener("click", () => set(SETUP.presets[button.dataset.preset]));
for (const button of document.querySelectorAll("[data-design]"))
  button.addEventListener("click", () => {
    const made = pidlab.design(button.dataset.design, Math.max(knobs.kappa_min, -0.99), knobs.d, knobs), changes = {};
    for (const name of ["p", "i", "d"]) {
      const { step, high } = SETUP.limits[name];
      changes[name] = Math.min(high, Number((Math.round(made[name] / step) * step).toFixed(6)));
    }
    set(changes);
  });
for (const kind of ["pointerdown", "pointermove"]) at("chart-region").addEventListener(kind, (event) => {
  if (kind === "pointerdown") event.target.setPointerCapture(event.pointerId);
  if (event.buttons & 1) set(event.target.pointAt(event));
});
at("play").addEventListener("click", play);
at("copy-address").addEventListener("click", () => copy(location.href, "address"));
at("copy-command").addEventListener("click", () => copy(command(), "command"));
window.addEventListener("resize", () => found && draw());
window.addEventListener("hashchange", () => { if (location.hash.slice(1) !== address()) { knobs = fromAddress(); refresh(); } });
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => found && draw());
show();
