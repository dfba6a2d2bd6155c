"""A page in headless Chromium: what it logs, and what axe-core says of it."""

import html
import importlib.util
import json
import re
import subprocess
from pathlib import Path

from tests import chromium

_RUN = """
const told = [];
addEventListener("error", event => told.push(String(event.message)));
addEventListener("load", () => axe.run(document, {resultTypes: ["violations"]}).then(found => {
  const box = document.createElement("pre");
  box.id = "axe-result";
  box.textContent = JSON.stringify({errors: told, wide: document.documentElement.scrollWidth,
    found: found.violations.map(v => ({id: v.id, impact: v.impact, count: v.nodes.length,
      first: v.nodes[0].html.slice(0, 200)}))});
  document.body.append(box);
}));
"""


def axe_source():
    """axe-core's script, from the package axe-core-python; None without it."""
    found = importlib.util.find_spec("axe_core_python")
    return None if found is None else Path(found.origin).with_name("axe.min.js").read_text()


def inspect(page, folder, *, width=1280, dark=False):
    """axe's violations, script errors, console lines and the page's width in pixels."""
    text = page.read_text(encoding="utf-8")
    scripts = f"<script>{axe_source()}</script><script>{_RUN}</script></head>"
    copy = folder / "with-axe.html"
    copy.write_text(text.replace("</head>", scripts, 1), encoding="utf-8")
    done = subprocess.run(
        [
            chromium.needed(),
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--enable-logging=stderr",
            f"--user-data-dir={folder / 'profile'}",
            f"--window-size={width},900",
            "--virtual-time-budget=20000",
            *(["--blink-settings=preferredColorScheme=0"] if dark else []),
            "--dump-dom",
            copy.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    (shown,) = re.findall(r'<pre id="axe-result">(.*?)</pre>', done.stdout, flags=re.DOTALL)
    logged = [line for line in done.stderr.splitlines() if ":CONSOLE" in line]
    return json.loads(html.unescape(shown)) | {"console": logged}
