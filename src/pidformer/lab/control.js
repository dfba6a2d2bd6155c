// The mathematics of the Controller view, for pages with and without a server. The numbers are those
// of pidformer.control: tests/lab/test_static.py compares them.
"use strict";
const pidlab = (() => {
  const FEATURES = 4, VALUES = 6, GRID = 2001, SETTLED = 0.01, VANISHED = 1e-6, RESPONSE = 24;

  // Standard normal numbers: mulberry32, then Box and Muller.
  function draws(seed, count) {
    let state = (Math.imul(seed, 0x9e3779b1) + 0x6d2b79f5) >>> 0;
    const uniform = () => {
      state = (state + 0x6d2b79f5) >>> 0;
      let t = Math.imul(state ^ (state >>> 15), state | 1);
      t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
      return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
    };
    return Array.from({ length: count }, () => {
      const radius = Math.sqrt(-2 * Math.log(1 - uniform()));
      return radius * Math.cos(2 * Math.PI * uniform());
    });
  }

  function start(knobs) {
    const width = FEATURES + VALUES, numbers = draws(knobs.seed, knobs.tokens * width);
    const rows = Array.from({ length: knobs.tokens }, (_, n) => numbers.slice(n * width, (n + 1) * width));
    return { features: rows.map((r) => r.slice(0, FEATURES)), values: rows.map((r) => r.slice(FEATURES)) };
  }

  const dot = (a, b) => a.reduce((sum, x, k) => sum + x * b[k], 0);

  // softmax(sharpness x x^T / 2), row by row; a causal row ends at its own token.
  function kernelOf(knobs) {
    const x = start(knobs).features;
    return x.map((row, i) => {
      const scores = x.map((other, j) => (knobs.causal && j > i ? -Infinity : (knobs.sharpness * dot(row, other)) / 2));
      const top = Math.max(...scores), weights = scores.map((s) => Math.exp(s - top));
      const sum = weights.reduce((a, b) => a + b, 0);
      return weights.map((w) => w / sum);
    });
  }

  // Eigenvalues of a symmetric matrix by Jacobi's rotations, ascending.
  function symmetricEigenvalues(matrix) {
    const a = matrix.map((row) => row.slice()), n = a.length;
    for (let sweep = 0; sweep < 60; sweep++) {
      let off = 0;
      for (let i = 0; i < n; i++) for (let j = 0; j < i; j++) off += a[i][j] * a[i][j];
      if (off < 1e-30) break;
      for (let p = 0; p < n; p++) for (let q = p + 1; q < n; q++) {
        if (a[p][q] === 0) continue;
        const theta = (a[q][q] - a[p][p]) / (2 * a[p][q]);
        const t = (theta >= 0 ? 1 : -1) / (Math.abs(theta) + Math.hypot(theta, 1));
        const c = 1 / Math.hypot(t, 1), s = t * c;
        for (let k = 0; k < n; k++) {
          const u = a[k][p], v = a[k][q];
          a[k][p] = c * u - s * v; a[k][q] = s * u + c * v;
        }
        for (let k = 0; k < n; k++) {
          const u = a[p][k], v = a[q][k];
          a[p][k] = c * u - s * v; a[q][k] = s * u + c * v;
        }
      }
    }
    return a.map((row, k) => row[k]).sort((x, y) => x - y);
  }

  // A causal kernel is triangular. The other is similar to the symmetric sqrt(K_ij K_ji): the
  // scores are symmetric, so K = diag(r)^-1 S and both off-diagonal products agree.
  function eigenvalues(kernel, causal) {
    if (causal) return kernel.map((row, k) => row[k]).sort((x, y) => x - y);
    return symmetricEigenvalues(kernel.map((row, i) => row.map((x, j) => Math.sqrt(x * kernel[j][i]))));
  }

  // Gains in steps h of depth, their derivative explicit or implicit, are explicit gains of whole
  // steps at eigenvalues slope kappa + shift: a layer goes the share s = h or h / (1 + d).
  function law({ p, i, d, step = 1, implicit = false }) {
    const s = step / (implicit ? 1 + d : 1);
    return { p: s * p, i: s * step * i, d: implicit ? 0 : d, slope: s, shift: 1 - s };
  }

  // v(l+1) = K v(l) + control(l); the first layer sets the reference and is not controlled.
  function simulate(kernel, first, gains, steps) {
    const found = [first], { p, i, d, slope, shift } = law(gains ?? { p: 0, i: 0, d: 0 });
    let value = first, integral = first.map((row) => row.map(() => 0)), previous = first;
    for (let layer = 0; layer < steps; layer++) {
      const mixed = kernel.map((row, n) => value[0].map((_, c) => slope * row.reduce((sum, w, j) => sum + w * value[j][c], 0) + shift * value[n][c]));
      if (layer > 0 && gains) {
        for (let n = 0; n < mixed.length; n++) for (let c = 0; c < mixed[n].length; c++) {
          const error = gains.beta * first[n][c] - value[n][c];
          integral[n][c] += error;
          mixed[n][c] += p * error + i * integral[n][c] + d * (previous[n][c] - value[n][c]);
        }
      }
      previous = value; value = mixed; found.push(value);
    }
    return found;
  }

  // Roots of z^2 + b z + c as pairs [real, imaginary].
  function quadratic(b, c) {
    const inner = b * b / 4 - c;
    if (inner < 0) { const h = Math.sqrt(-inner); return [[-b / 2, h], [-b / 2, -h]]; }
    const large = -b / 2 + (b > 0 ? -1 : 1) * Math.sqrt(inner);
    return [[large, 0], [large === 0 ? 0 : c / large, 0]];
  }

  // z^3 + a z^2 + b z + c: one real root by halving and Newton, the others from what is left.
  function cubic(a, b, c) {
    if (c === 0) return [...quadratic(a, b), [0, 0]];
    const at = (z) => ((z + a) * z + b) * z + c;
    let high = 1 + Math.max(Math.abs(a), Math.abs(b), Math.abs(c)), low = -high;
    for (let k = 0; k < 60 && high - low > 1e-15 * Math.max(1, Math.abs(low)); k++) {
      const middle = (low + high) / 2;
      if (at(middle) > 0) high = middle; else low = middle;
    }
    let root = (low + high) / 2;
    const slope = (3 * root + 2 * a) * root + b;
    if (Math.abs(slope) > 1e-6) root -= at(root) / slope;
    return [[root, 0], ...quadratic(a + root, (a + root) * root + b)];
  }

  // Roots of the characteristic polynomial of the loop at eigenvalue kappa.
  function poles(kappa, g) {
    const { p, i, d, slope, shift } = law(g), k = slope * kappa + shift;
    return i > 0 ? cubic(p + i + d - 1 - k, k - p - 2 * d, d) : cubic(p + d - k, -d, 0);
  }

  // The poles as one gain takes `values` and the others stay.
  const locus = (kappa, g, name, values) => values.map((value) => poles(kappa, { ...g, [name]: value }));

  const radius = (kappa, g) => Math.max(...poles(kappa, g).map(([re, im]) => Math.hypot(re, im)));

  const kind = (g) => (g.p > 0 ? "P" : "") + (g.i > 0 ? "I" : "") + (g.d > 0 ? "D" : "") || "softmax";

  function isStable(g, kappaMin) {
    const { p, i, d, slope, shift } = law(g);
    if (d >= 1 || i >= 4 * (1 + d)) return false;
    const low = p + i / 2 + 2 * d - 1, high = 1 + p + (d * i) / (1 + d);
    return low < slope * kappaMin + shift && slope + shift < high;
  }

  // Stable gains with p > 0 have p + h i / 2 + 2 d / h < 2 / h - 1 + kappa_min (implicit: - 2 d / h).
  const bound = (kappaMin, { step = 1 }) => 2 / step - 1 + kappaMin;
  const shareOfD = ({ d, step = 1, implicit = false }) => ((implicit ? -2 : 2) * d) / step;

  function report(g, kappaMin) {
    let worst = -1, where = kappaMin;
    for (let k = 0; k < GRID; k++) {
      const kappa = kappaMin + ((1 - kappaMin) * k) / (GRID - 1), r = radius(kappa, g);
      if (r > worst + 1e-13) { worst = r; where = kappa; }
    }
    const load = g.p + ((g.step ?? 1) * g.i) / 2 + shareOfD(g), stable = isStable(g, kappaMin);
    const settling = !stable || worst >= 1 ? null
      : worst > 0 ? Math.max(1, Math.ceil(Math.log(SETTLED) / Math.log(worst) - 1e-9)) : 1;
    return { stable, radius: worst, kappa: where, margin: load > 1e-12 ? bound(kappaMin, g) / load : Infinity, settling };
  }

  // One mode from rest, v_0 .. v_layers: the reference steps to `reference`, and every layer adds `disturbance`.
  function respond(kappa, g, layers, reference, disturbance) {
    const { p, i, d, slope, shift } = law(g);
    let value = 0, integral = 0, previous = 0;
    const found = [0];
    for (let layer = 0; layer < layers; layer++) {
      const error = reference - value;
      integral += error;
      value = (slope * kappa + shift) * value + p * error + i * integral + d * (error - previous) + disturbance;
      previous = error;
      found.push(value);
    }
    return found;
  }

  // Sizes of T (reference to value) and S (sensitivity) at z = e^(i omega): L = C / (z - kappa).
  function frequency(kappa, g, omega) {
    const over = ([a, b], [c, d]) => { const n = c * c + d * d; return [(a * c + b * d) / n, (b * c - a * d) / n]; };
    const { p, i, d, slope, shift } = law(g), z = [Math.cos(omega), Math.sin(omega)], less = [z[0] - 1, z[1]];
    const sum = over(z, less), change = over(less, z);
    const control = [p + i * sum[0] + d * change[0], i * sum[1] + d * change[1]];
    const loop = over(control, [z[0] - slope * kappa - shift, z[1]]), rest = Math.hypot(1 + loop[0], loop[1]);
    return { tracking: Math.hypot(...loop) / rest, sensitivity: 1 / rest };
  }

  // Mean cosine between different tokens, and the effective rank exp(-sum s log s).
  function alike(layers) {
    const size = (rows) => Math.sqrt(rows.reduce((sum, row) => sum + dot(row, row), 0));
    const first = size(layers[0]), similarity = [], rank = [];
    for (const rows of layers) {
      const whole = size(rows);
      if (!(whole > VANISHED * first) || !isFinite(whole)) { similarity.push(NaN); rank.push(NaN); continue; }
      const scaled = rows.map((row) => row.map((x) => x / whole)), total = Array(VALUES).fill(0);
      for (const row of scaled) {
        const length = Math.max(Math.sqrt(dot(row, row)), 1e-12);
        row.forEach((x, c) => { total[c] += x / length; });
      }
      const n = rows.length;
      similarity.push((dot(total, total) - n) / (n * (n - 1)));
      const columns = total.map((_, c) => scaled.map((row) => row[c]));
      const few = n <= VALUES ? scaled : columns;
      const gram = few.map((a) => few.map((b) => dot(a, b)));
      const sizes = symmetricEigenvalues(gram).map((x) => Math.sqrt(Math.max(0, x)));
      const sum = sizes.reduce((a, b) => a + b, 0);
      rank.push(Math.exp(sizes.reduce((h, s) => h - (s > 0 ? (s / sum) * Math.log(s / sum) : 0), 0)));
    }
    return { similarity, rank };
  }

  // Fastest p (and i) for a fixed d; closed form without an explicit d, else a grid that closes in.
  function design(kindWanted, kappaMin, d, { step = 1, implicit = false } = {}) {
    const hasIntegral = kindWanted.includes("I"), fixed = kindWanted.includes("D") ? d : 0;
    const m = (1 + kappaMin) / 2 + 1 / law({ d: fixed, step, implicit }).slope - 1;
    let best = { p: m, i: hasIntegral ? m / step : 0, d: fixed };
    if (!fixed || implicit) return best;
    const cost = (p, i) => {
      let worst = 0;
      for (let k = 0; k <= 24; k++) worst = Math.max(worst, radius(kappaMin + ((1 - kappaMin) * k) / 24, { p, i, d: fixed, step }));
      return worst;
    };
    let reach = 1, lowest = cost(best.p, best.i);
    for (let level = 0; level < 16; level++) {
      const { p, i } = best;
      for (let a = -6; a <= 6; a++) for (let b = hasIntegral ? -6 : 0; b <= (hasIntegral ? 6 : 0); b++) {
        const x = p + (a * reach) / 6, y = hasIntegral ? i + (b * reach) / 6 : 0;
        if (x < 0 || y < 0 || (hasIntegral && y < 1e-3)) continue;
        const value = cost(x, y);
        if (value < lowest) { lowest = value; best = { p: x, i: y, d: fixed }; }
      }
      reach *= 0.6;
    }
    return best;
  }

  function look(knobs) {
    const { p, i, d, beta, step, implicit } = knobs, gains = { p, i, d, beta, step, implicit };
    const kernel = kernelOf(knobs), first = start(knobs).values;
    const free = simulate(kernel, first, null, knobs.depth), held = simulate(kernel, first, gains, knobs.depth);
    const without = alike(free), withControl = alike(held);
    const fastest = design(i > 0 ? "PI" : "P", Math.max(knobs.kappa_min, -0.99), 0, knobs);
    const kappas = [knobs.kappa_min, (1 + knobs.kappa_min) / 2, 1];
    const found = {
      knobs, gains, kind: kind(gains), report: report(gains, knobs.kappa_min),
      eigenvalues: eigenvalues(kernel, knobs.causal), free, held,
      freeSimilarity: without.similarity, similarity: withControl.similarity,
      freeRank: without.rank, rank: withControl.rank, fastest: [fastest.p, fastest.i], kappas,
      step: kappas.map((kappa) => respond(kappa, gains, RESPONSE, 1, 0)),
      disturbance: kappas.map((kappa) => respond(kappa, gains, RESPONSE, 0, 1)),
    };
    found.verdict = verdict(found);
    return found;
  }

  // A number as Python's :g writes it, with `digits` significant ones.
  function general(x, digits = 6) {
    if (x !== 0 && (Math.abs(x) < 1e-4 || Math.abs(x) >= 10 ** digits)) {
      const [left, power] = x.toExponential(digits - 1).split("e");
      const sign = power[0], size = power.slice(1).padStart(2, "0");
      return `${Number(left)}e${sign}${size}`;
    }
    return String(Number(x.toPrecision(digits)));
  }

  function verdict(found) {
    const { knobs, report: r, kind: which } = found, where = `kappa from ${general(knobs.kappa_min)} to 1`;
    const edge = r.radius <= 1 + 1e-9, lines = [];
    if (["softmax", "D"].includes(which) && edge)
      lines.push("No control: the constant mode (kappa = 1) neither grows nor decays, all others fade. What is left is what all tokens share.");
    else if (r.stable)
      lines.push(`Stable for ${where}. The slowest mode shrinks to ${r.radius.toFixed(3)} of its size per layer and is down to 1 % after ${r.settling} layers; all gains could be ${Number.isFinite(r.margin) ? r.margin.toFixed(2) : "any number of"} times as large.`);
    else if (edge) lines.push(`On the edge for ${where}: one mode neither grows nor decays.`);
    else
      lines.push(`Unstable for ${where}: the mode at kappa = ${general(r.kappa, 3)} grows ${r.radius.toFixed(3)}x per layer. `
        + (knobs.kappa_min === -1 && law(found.gains).slope === 1 ? "At kappa_min = -1 no gains are stable: raise it." : `Scale the gains by less than ${r.margin.toFixed(2)}, or design them.`));
    const show = (x) => (Number.isNaN(x) ? "undefined (they vanished)" : x.toFixed(3));
    const end = (list) => list[list.length - 1], reach = (rows) => Math.max(...rows.flat().map(Math.abs));
    const grown = reach(end(found.held)) / reach(found.held[0]);
    const text = `After ${knobs.depth} layers the tokens' mean cosine is ${show(end(found.freeSimilarity))} without`;
    lines.push(grown > 20
      ? `${text} control; with it they have grown ${general(grown, 3)}-fold under this attention and mean nothing any more.`
      : `${text} and ${show(end(found.similarity))} with control (1: all alike).`);
    if (!r.stable && !edge) lines.push("The limit that continuous time promises is never reached: a layer is a whole step.");
    else if (knobs.i > 0 && knobs.p > 0)
      lines.push(`In the end every token is back ${knobs.beta === 1 ? "where it began" : `at ${general(knobs.beta)} times where it began`}.`);
    else if (knobs.i > 0) lines.push("Without p the constant mode swings for ever; add some p.");
    else if (knobs.p > 0) lines.push("P control alone ends between the reference and what attention would mix.");
    else lines.push("Nothing brings back what attention has mixed away.");
    return lines;
  }

  return { draws, kernelOf, eigenvalues, simulate, poles, locus, radius, respond, frequency, report, isStable, bound, shareOfD, design, look, kind, general };
})();
