"""What the site does beyond Markdown: mathematics, and pages made from files outside docs/.

Formulas become MathML when the site is built, so no script or font is fetched to show them.
CONTRIBUTING.md, SECURITY.md, CHANGELOG.md and the notebooks become pages.
"""

import base64
import html
import json
import posixpath
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
NOTEBOOKS = "examples/notebooks"
FORMULA = re.compile(
    r'<(?P<tag>span|div) class="arithmatex">\\(?:\(|\[)(?P<tex>.*?)\\(?:\)|\])</(?P=tag)>',
    re.DOTALL,
)
LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)#]+)")
PAGES = {
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
}
"""A file of the repository, and the page it becomes."""


def on_files(files: Files, config: Any) -> Files:
    for name, page in PAGES.items():
        text = moved_links((ROOT / name).read_text(encoding="utf-8"), "")
        files.append(File.generated(config, page, content=text))
    for path in sorted((ROOT / NOTEBOOKS).glob("*.ipynb")):
        text, pictures = notebook_page(json.loads(path.read_text(encoding="utf-8")), path.stem)
        files.append(File.generated(config, f"examples/{path.stem}.md", content=text))
        for name, data in pictures.items():
            files.append(File.generated(config, f"examples/{name}", content=data))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links out of docs/ lead to the page that was made of the file."""
    if page.file.generated_by:
        return markdown
    return moved_links(markdown, posixpath.join("docs", posixpath.dirname(page.file.src_uri)))


def on_page_content(content: str, **_: Any) -> str:
    return FORMULA.sub(mathml, content)


def moved_links(text: str, folder: str) -> str:
    """Links of a file in `folder` of the repository, as its page on the site needs them."""
    here = posixpath.relpath(folder, "docs") if folder else "."

    def moved(found: re.Match[str]) -> str:
        place = posixpath.normpath(posixpath.join(folder, found[1]))
        if place.startswith("docs/"):
            return posixpath.relpath(place.removeprefix("docs/"), here)
        return posixpath.relpath(PAGES.get(place, place), here)

    return LINK.sub(moved, text)


def mathml(found: re.Match[str]) -> str:
    """A formula of arithmatex as MathML; in a box that scrolls, if it stands alone."""
    tex, alone = html.unescape(found["tex"]).strip(), found["tag"] == "div"
    text = convert(tex, display="block" if alone else "inline")
    return f'<div class="formula">{text}</div>' if alone else text


def notebook_page(notebook: dict[str, Any], name: str) -> tuple[str, dict[str, bytes]]:
    """A notebook as Markdown, and its pictures by file name."""
    parts, pictures = [], {}
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if "image/png" in data:
                file = f"{name}-{len(pictures) + 1}.png"
                pictures[file] = base64.b64decode(data["image/png"])
                parts.append(f"![Output of the cell above]({file})")
            elif text := "".join(output.get("text", data.get("text/plain", ""))):
                parts.append(f"```text\n{text.rstrip()}\n```")
        if len(parts) == 1:
            parts.append(f"*The notebook `{NOTEBOOKS}/{name}.ipynb`, with what it printed.*")
    return "\n\n".join(parts), pictures
