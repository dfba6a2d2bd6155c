// The charts of what `found` and `knobs` hold; shared by the exported page and the lab.
const at = (id) => document.getElementById(id);

// A chart maps numbers to the pixels of one canvas.
function chart(id, xRange, yRange, labels, { square = false, right = 14, log = false } = {}) {
  const canvas = at("chart-" + id), scale = window.devicePixelRatio || 1;
  const width = canvas.clientWidth, height = canvas.clientHeight;
  if (canvas.width !== Math.round(width * scale)) canvas.width = Math.round(width * scale);
  if (canvas.height !== Math.round(height * scale)) canvas.height = Math.round(height * scale);
  const pen = canvas.getContext("2d");
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  pen.clearRect(0, 0, width, height);
  const look = getComputedStyle(canvas), color = (name) => look.getPropertyValue("--" + name).trim();
  const frame = { left: 48, right: width - right, top: 14, bottom: height - 40 };
  if (square) {
    const side = Math.min(frame.right - frame.left, frame.bottom - frame.top), middle = (frame.left + frame.right) / 2;
    frame.left = middle - side / 2; frame.right = middle + side / 2;
    frame.bottom = frame.top + side;
  }
  const x = (v) => frame.left + ((v - xRange[0]) / (xRange[1] - xRange[0])) * (frame.right - frame.left);
  const y = (v) => frame.bottom - ((v - yRange[0]) / (yRange[1] - yRange[0])) * (frame.bottom - frame.top);
  const it = { canvas, pen, color, frame, x, y, xRange, yRange, log };
  canvas.tips = [];
  it.tip = (a, b, words) => { if (Number.isFinite(b)) canvas.tips.push([x(a), y(b), words]); };
  it.axes = () => axes(it, labels);
  it.inside = (work) => {
    pen.save(); pen.beginPath();
    pen.rect(frame.left, frame.top, frame.right - frame.left, frame.bottom - frame.top); pen.clip();
    work(); pen.restore();
  };
  it.line = (points, name, thick, dash = []) => {
    pen.strokeStyle = color(name) || name; pen.lineWidth = thick; pen.setLineDash(dash); pen.lineJoin = "round";
    pen.beginPath();
    let down = false;
    for (const [a, b] of points) {
      if (!Number.isFinite(a) || !Number.isFinite(b)) { down = false; continue; }
      const [u, v] = [x(a), Math.max(-1e5, Math.min(1e5, y(b)))];
      if (down) pen.lineTo(u, v); else pen.moveTo(u, v);
      down = true;
    }
    pen.stroke(); pen.setLineDash([]);
  };
  it.spot = (a, b, size, fill, edge) => {
    pen.beginPath(); pen.arc(x(a), y(b), size, 0, 2 * Math.PI);
    if (fill) { pen.fillStyle = fill; pen.fill(); }
    if (edge) { pen.strokeStyle = edge; pen.lineWidth = 1.6; pen.stroke(); }
  };
  return it;
}

function ticks([low, high], count = 5, smallest = 0) {
  const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = Math.max(smallest, [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough * 0.999));
  const list = [];
  for (let v = Math.ceil(low / step - 1e-9) * step; v <= high + 1e-9 * step; v += step) list.push(Math.abs(v) < 1e-9 * step ? 0 : v);
  return list;
}

function axes({ pen, color, frame, x, y, xRange, yRange, log }, [xLabel, yLabel]) {
  const written = (v) => pidlab.general(log ? 10 ** v : v, 3);
  pen.font = "12px system-ui, sans-serif"; pen.strokeStyle = color("line"); pen.fillStyle = color("soft"); pen.lineWidth = 1;
  pen.textAlign = "center"; pen.textBaseline = "top";
  for (const v of ticks(xRange, 5, log || xLabel === "layer" ? 1 : 0)) {
    pen.beginPath(); pen.moveTo(x(v), frame.top); pen.lineTo(x(v), frame.bottom); pen.stroke();
    pen.fillText(written(v), x(v), frame.bottom + 5);
  }
  pen.textAlign = "right"; pen.textBaseline = "middle";
  for (const v of ticks(yRange, 5, log ? 1 : 0)) {
    pen.beginPath(); pen.moveTo(frame.left, y(v)); pen.lineTo(frame.right, y(v)); pen.stroke();
    pen.fillText(written(v), frame.left - 6, y(v));
  }
  pen.textAlign = "center"; pen.textBaseline = "top";
  pen.fillText(xLabel, (frame.left + frame.right) / 2, frame.bottom + 22);
  pen.save(); pen.translate(frame.left - 37, (frame.top + frame.bottom) / 2); pen.rotate(-Math.PI / 2);
  pen.textBaseline = "middle"; pen.fillText(yLabel, 0, 0); pen.restore();
}

function draw() {
  if (!at("chart-tokens")?.clientWidth) return;  // in a view that is not shown
  drawTokens(); drawAlike(); drawPoles(); drawRadius(); drawRegion();
  drawResponse("step", 1); drawResponse("disturbance", 0); drawFrequency();
  ["p", "i", "d"].forEach(drawLocus);
}

// What a chart says of the point below the pointer: the nearest of its tips, or of any place (`tipAt`).
const tipBox = Object.assign(document.createElement("div"), { className: "tip-box", hidden: true });
tipBox.style.cssText = "position:fixed;z-index:50";
document.addEventListener("pointermove", (event) => {
  const canvas = event.target.closest?.("canvas[id^=chart-]"), { clientX, clientY } = event;
  tipBox.hidden = true;
  if (!canvas) return;
  const box = canvas.getBoundingClientRect(), [u, v] = [clientX - box.left, clientY - box.top];
  let nearest = 16, words = canvas.tipAt?.(event) ?? "";
  for (const [a, b, text] of canvas.tips ?? []) {
    const far = Math.hypot(a - u, b - v);
    if (far < nearest) { nearest = far; words = text; }
  }
  if (!words) return;
  tipBox.textContent = words; tipBox.hidden = false;
  document.body.append(tipBox);
  const left = Math.min(clientX + 14, innerWidth - tipBox.offsetWidth - 4);
  tipBox.style.left = `${Math.max(4, left)}px`;
  tipBox.style.top = `${Math.max(4, clientY - tipBox.offsetHeight - 10)}px`;
});

function drawTokens() {
  const flat = (layers) => layers.flat().flatMap((row) => row.slice(0, 2)).map(Math.abs);
  const own = 1.15 * Math.max(...flat(found.free));
  const reach = Math.min(Math.max(own, 1.05 * Math.max(...flat(found.held))), 6 * own);
  const depth = layerShown ?? knobs.depth, last = Math.floor(depth), part = depth - last;
  const c = chart("tokens", [-reach, reach], [-reach, reach], ["first coordinate", "second coordinate"]);
  c.axes();
  c.inside(() => {
    for (const [layers, name, thick] of [[found.free, "free", 1.2], [found.held, "held", 1.8]]) {
      c.pen.globalAlpha = 0.7;
      const ends = [];
      for (let n = 0; n < knobs.tokens; n++) {
        const path = layers.slice(0, last + 1).map((rows) => rows[n].slice(0, 2));
        if (part > 0) {
          const [a, b] = [layers[last][n], layers[last + 1][n]];
          path.push([a[0] + part * (b[0] - a[0]), a[1] + part * (b[1] - a[1])]);
        }
        c.line(path, name, thick);
        ends.push(path[path.length - 1]);
      }
      c.pen.globalAlpha = 1;
      ends.forEach(([a, b], n) => {
        c.spot(a, b, 4.5, c.color(name));
        c.tip(a, b, `token ${n + 1} ${name === "held" ? "with" : "without"} control: ${pidlab.general(a, 3)}, ${pidlab.general(b, 3)}`);
      });
    }
    found.free[0].forEach((row) => c.spot(row[0], row[1], 5, null, c.color("soft")));
  });
  if (layerShown !== null) {
    c.pen.fillStyle = c.color("ink"); c.pen.textAlign = "left"; c.pen.textBaseline = "top";
    c.pen.fillText(`layer ${last}`, c.frame.left + 8, c.frame.top + 6);
  }
  c.canvas.setAttribute("aria-label", "Tokens over depth. " + found.verdict[1]);
}

function drawAlike() {
  const c = chart("alike", [0, knobs.depth], [-0.3, 1.05], ["layer", "mean cosine"], { right: 40 });
  c.axes();
  const rank = (v) => -0.3 + ((v - 0.8) / (6.2 - 0.8)) * 1.35;
  c.inside(() => {
    for (const [similarity, ranks, name] of [[found.freeSimilarity, found.freeRank, "free"], [found.similarity, found.rank, "held"]]) {
      c.line(similarity.map((v, l) => [l, v]), name, 3);
      const which = name === "held" ? "with" : "without";
      similarity.forEach((v, l) => c.tip(l, v, `layer ${l} ${which} control: mean cosine ${pidlab.general(v, 3)}, effective rank ${pidlab.general(ranks[l], 3)}`));
      ranks.forEach((v, l) => c.tip(l, rank(v), `layer ${l} ${which} control: effective rank ${pidlab.general(v, 3)}`));
      c.line(ranks.map((v, l) => [l, rank(v)]), name, 2, [2, 4]);
    }
  });
  c.pen.fillStyle = c.color("soft"); c.pen.textAlign = "left"; c.pen.textBaseline = "middle";
  for (let v = 1; v <= 6; v++) c.pen.fillText(v, c.frame.right + 6, c.y(rank(v)));
  c.pen.save(); c.pen.translate(c.frame.right + 28, (c.frame.top + c.frame.bottom) / 2); c.pen.rotate(-Math.PI / 2);
  c.pen.textAlign = "center"; c.pen.fillText("effective rank", 0, 0); c.pen.restore();
  const end = (list) => pidlab.general(list[list.length - 1], 3);
  c.canvas.setAttribute("aria-label", `At layer ${knobs.depth}: mean cosine ${end(found.freeSimilarity)} without and ${end(found.similarity)} with control; effective rank ${end(found.freeRank)} and ${end(found.rank)}.`);
}

function shade(share) {  // from violet over green to yellow
  const stops = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];
  const place = Math.min(3.999, Math.max(0, share * 4)), k = Math.floor(place), f = place - k;
  return `rgb(${stops[k].map((v, j) => Math.round(v + f * (stops[k + 1][j] - v))).join(",")})`;
}

// Roots [real, imaginary, share of the colours, words] and the circle in which they must be.
function drawRoots(id, roots) {
  const far = Math.max(...roots.map(([re, im]) => Math.hypot(re, im))), reach = Math.min(4, Math.max(1.15, 1.08 * far));
  const c = chart(id, [-reach, reach], [-reach, reach], ["Re z", "Im z"], { square: true });
  c.axes();
  c.inside(() => {
    const size = c.x(1) - c.x(0);
    c.pen.beginPath(); c.pen.arc(c.x(0), c.y(0), size, 0, 2 * Math.PI);
    c.pen.globalAlpha = 0.55; c.pen.fillStyle = c.color("stable"); c.pen.fill(); c.pen.globalAlpha = 1;
    c.pen.strokeStyle = c.color("soft"); c.pen.lineWidth = 1.4; c.pen.stroke();
    for (const [re, im, share, words] of roots) {
      const out = Math.hypot(re, im) >= 1 + 1e-9;
      c.spot(re, im, out ? 4 : 3.2, shade(share), out ? c.color("bad") : null);
      c.tip(re, im, `${words}: |pole| ${pidlab.general(Math.hypot(re, im), 3)}`);
    }
  });
  return [c, far];
}

const steps = (low, high, count) => Array.from({ length: count + 1 }, (_, k) => low + ((high - low) * k) / count);

function drawPoles() {
  const [c, far] = drawRoots("poles", steps(knobs.kappa_min, 1, 80).flatMap((kappa, k) =>
    pidlab.poles(kappa, found.gains).map((z) => [...z, k / 80, `kappa ${pidlab.general(kappa, 3)}`])));
  c.canvas.setAttribute("aria-label", `Poles of a layer. The outermost is ${pidlab.general(far, 3)} from the centre; the circle has radius 1.`);
}

function drawLocus(name) {
  const values = steps(1e-6, SETUP.limits[name].high, 120), kappa = knobs.kappa_min;
  const [c] = drawRoots("locus-" + name, pidlab.locus(kappa, found.gains, name, values).flatMap((roots, k) =>
    roots.map((z) => [...z, k / 120, `${name} ${pidlab.general(values[k], 2)}`])));
  const here = pidlab.poles(kappa, found.gains), sizes = here.map((z) => Math.hypot(...z));
  c.inside(() => here.forEach(([re, im]) => c.spot(re, im, 7, null, c.color("ink"))));
  c.canvas.setAttribute("aria-label", `Root locus over ${name} at kappa ${pidlab.general(kappa, 3)}; at ${name} = ${pidlab.general(knobs[name], 3)} the outermost pole is ${pidlab.general(Math.max(...sizes), 3)} from the centre.`);
}

function drawRadius() {
  const points = steps(-1, 1, 240).map((kappa) => [kappa, pidlab.radius(kappa, found.gains)]);
  const top = Math.min(3, Math.max(1.3, 1.05 * Math.max(...points.map((p) => p[1]))));
  const c = chart("radius", [-1, 1], [0, top], ["kappa (eigenvalue)", "largest |pole|"]);
  c.pen.fillStyle = c.color("line"); c.pen.globalAlpha = 0.5;
  c.pen.fillRect(c.x(knobs.kappa_min), c.frame.top, c.x(1) - c.x(knobs.kappa_min), c.frame.bottom - c.frame.top);
  c.pen.globalAlpha = 1;
  c.axes();
  c.line([[-1, 1], [1, 1]], "soft", 1.2);
  points.forEach(([a, b]) => c.tip(a, b, `kappa ${pidlab.general(a, 3)}: largest |pole| ${pidlab.general(b, 4)}`));
  c.inside(() => {
    for (const [name, wanted] of [["good", true], ["bad", false]])
      c.line(points.map(([a, b], k) => {
        const here = b < 1 - 1e-12 === wanted, next = points[k + 1] && points[k + 1][1] < 1 - 1e-12 === wanted;
        return here || next ? [a, b] : [NaN, NaN];
      }), name, 3);
    for (const value of found.eigenvalues) c.line([[value, 0], [value, 0.05 * top]], "held", 2);
  });
  c.canvas.setAttribute("aria-label", `Spectral radius over kappa; the worst is ${pidlab.general(found.report.radius, 4)} at kappa ${pidlab.general(found.report.kappa, 3)}.`);
}

let heat = { key: "", picture: null };
function drawRegion() {
  const [pTop, iTop] = [SETUP.limits.p.high, SETUP.limits.i.high];
  const c = chart("region", [0, pTop], [0, iTop], ["p", "i"]);
  const key = [knobs.d, knobs.step, knobs.implicit, knobs.kappa_min, c.color("stable")].join();
  if (heat.key !== key) heat = { key, picture: heatOf(c, pTop, iTop) };
  c.pen.imageSmoothingEnabled = true;
  c.pen.drawImage(heat.picture, c.frame.left, c.frame.top, c.frame.right - c.frame.left, c.frame.bottom - c.frame.top);
  c.axes();
  const most = pidlab.bound(knobs.kappa_min, found.gains) - pidlab.shareOfD(found.gains), sum = `2p + ${knobs.step === 1 ? "" : knobs.step + " "}i`;
  c.inside(() => {
    if (most > 0) c.line([[most, 0], [0, (2 * most) / knobs.step]], "bad", 2.4);
    star(c, ...found.fastest);
  });
  c.spot(knobs.p, knobs.i, 7.5, c.color(found.report.stable ? "good" : "bad"), "white");
  c.canvas.setAttribute("aria-label", `Stable region: ${sum} < ${pidlab.general(2 * most, 4)} for this d. These gains have ${sum} = ${pidlab.general(2 * knobs.p + knobs.step * knobs.i, 4)}.`);
  c.canvas.tipAt = (event) => {
    const { p, i } = c.canvas.pointAt(event), g = { ...found.gains, p, i };
    const worst = Math.max(pidlab.radius(knobs.kappa_min, g), pidlab.radius(1, g));
    return `p ${p}, i ${i}: ${worst < 1 ? "stable" : "not stable"}, largest |pole| ${pidlab.general(worst, 3)}`;
  };
  c.canvas.pointAt = (event) => {
    const box = c.canvas.getBoundingClientRect();
    const share = (v, low, high) => Math.min(1, Math.max(0, (v - low) / (high - low)));
    const step = (v, s) => Number((Math.round(v / s) * s).toFixed(6));
    return {
      p: step(share(event.clientX - box.left, c.frame.left, c.frame.right) * pTop, SETUP.limits.p.step),
      i: step(share(event.clientY - box.top, c.frame.bottom, c.frame.top) * iTop, SETUP.limits.i.step),
    };
  };
}

const kappaColor = (k) => shade(0.32 + 0.27 * k);  // visible on light and dark

function legend(c, kappas, top) {
  c.pen.textAlign = "left"; c.pen.textBaseline = "middle";
  kappas.forEach((kappa, k) => {
    c.pen.fillStyle = kappaColor(k);
    c.pen.fillRect(c.frame.right - 96, top + 16 * k - 1, 16, 3);
    c.pen.fillStyle = c.color("soft");
    c.pen.fillText(`kappa ${pidlab.general(kappa, 2)}`, c.frame.right - 74, top + 16 * k);
  });
}

function drawResponse(id, goal) {
  const rows = found[id], all = rows.flat(), last = rows[0].length - 1;
  const range = [Math.max(-1.5, Math.min(-0.1, 1.2 * Math.min(...all))), Math.min(3, Math.max(1.4, 1.08 * Math.max(...all)))];
  const c = chart(id, [0, last], range, ["layer", "value"]);
  c.axes();
  c.line([[0, goal], [last, goal]], "soft", 1.2, [3, 3]);
  c.inside(() => rows.forEach((row, k) => {
    c.line(row.flatMap((v, l) => [[l, v], [l + 1, v]]), kappaColor(k), 2.4);
    row.forEach((v, l) => c.tip(l, v, `kappa ${pidlab.general(found.kappas[k], 3)}, layer ${l}: ${pidlab.general(v, 4)}`));
  }));
  legend(c, found.kappas, c.frame.top + 12);
  const ends = rows.map((row, k) => `${pidlab.general(row[last], 3)} at kappa ${pidlab.general(found.kappas[k], 3)}`);
  c.canvas.setAttribute("aria-label", `Response to a ${id === "step" ? "step of the reference" : "constant disturbance"}: after ${last} layers ${ends.join(", ")}.`);
}

function drawFrequency() {
  const c = chart("frequency", [-2, Math.log10(Math.PI)], [-2, 1], ["omega, radians per layer", "size"], { log: true });
  let peak = 0;
  c.axes();
  c.line([[-2, 0], [Math.log10(Math.PI), 0]], "soft", 1.2);
  c.inside(() => found.kappas.forEach((kappa, k) => {
    const points = steps(-2, Math.log10(Math.PI), 160).map((power) => [power, pidlab.frequency(kappa, found.gains, 10 ** power), 10 ** power]);
    for (const [name, dash] of [["tracking", []], ["sensitivity", [5, 4]]]) {
      c.line(points.map(([a, sizes]) => [a, Math.log10(sizes[name])]), kappaColor(k), 2.2, dash);
      for (const [a, sizes, omega] of points)
        c.tip(a, Math.log10(sizes[name]), `kappa ${pidlab.general(kappa, 3)}, omega ${pidlab.general(omega, 2)}: |${name === "tracking" ? "T" : "S"}| ${pidlab.general(sizes[name], 3)}`);
    }
    peak = Math.max(peak, ...points.map((point) => point[1].sensitivity));
  }));
  legend(c, found.kappas, c.frame.bottom - 48);
  c.canvas.setAttribute("aria-label", `Frequency response; the largest sensitivity is ${pidlab.general(peak, 3)}.`);
}

function heatOf(c, pTop, iTop) {
  const side = 96, picture = document.createElement("canvas");
  picture.width = picture.height = side;
  const pen = picture.getContext("2d", { willReadFrequently: true }), pixels = pen.createImageData(side, side);
  const rgb = (name) => { pen.fillStyle = c.color(name); pen.fillRect(0, 0, 1, 1); return pen.getImageData(0, 0, 1, 1).data; };
  const [pale, deep, red] = ["stable", "stable-deep", "unstable"].map(rgb);
  for (let row = 0; row < side; row++) for (let column = 0; column < side; column++) {
    const g = { ...found.gains, p: (pTop * (column + 0.5)) / side, i: (iTop * (side - row - 0.5)) / side };
    const worst = Math.max(pidlab.radius(knobs.kappa_min, g), pidlab.radius(1, g));
    const share = Math.min(1, Math.max(0, (1 - worst) / 0.55));
    for (let k = 0; k < 3; k++)
      pixels.data[4 * (row * side + column) + k] = worst >= 1 ? red[k] : pale[k] + share * (deep[k] - pale[k]);
    pixels.data[4 * (row * side + column) + 3] = 255;
  }
  pen.putImageData(pixels, 0, 0);
  return picture;
}

function star(c, a, b) {
  c.pen.beginPath();
  for (let k = 0; k < 10; k++) {
    const size = k % 2 ? 3.6 : 8.5, angle = -Math.PI / 2 + (k * Math.PI) / 5;
    c.pen.lineTo(c.x(a) + size * Math.cos(angle), c.y(b) + size * Math.sin(angle));
  }
  c.pen.closePath(); c.pen.fillStyle = c.color("ink"); c.pen.fill();
  c.pen.strokeStyle = c.color("ground"); c.pen.lineWidth = 1.2; c.pen.stroke();
}

function play() {
  cancelAnimationFrame(timer);
  if (layerShown !== null) { layerShown = null; at("play").textContent = "Play"; drawTokens(); return; }
  const perLayer = window.matchMedia("(prefers-reduced-motion: reduce)").matches ? null : Math.min(350, 6000 / knobs.depth);
  if (perLayer === null) return;
  const begun = performance.now();
  at("play").textContent = "Stop";
  const step = (now) => {
    const layer = (now - begun) / perLayer;
    layerShown = layer >= knobs.depth ? null : Math.max(0, layer);
    drawTokens();
    if (layerShown === null) at("play").textContent = "Play"; else timer = requestAnimationFrame(step);
  };
  layerShown = 0;
  timer = requestAnimationFrame(step);
}

// The verdict: green, red, or neither where there is no control.
function say(box) {
  box.className = "verdict" + (found.kind === "softmax" ? "" : found.report.stable ? " good" : " bad");
  box.replaceChildren(...found.verdict.map((line) => Object.assign(document.createElement("p"), { textContent: line })));
}
