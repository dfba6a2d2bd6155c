"""A contact sheet: many small pictures on one."""

from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageDraw

from pidformer.errors import InputError
from pidformer.files import atomic_path

CELL, MARGIN, LINE, COLUMNS = 112, 8, 16, 8
_GROUND, _INK, _DAMAGED = (255, 255, 255), (36, 41, 47), (192, 57, 43)


def contact_sheet(pictures: Sequence[tuple[str, Image.Image | None]], path: str | Path) -> None:
    """Write the pictures with their captions to `path` (PNG); a damaged one is a red box."""
    if Path(path).suffix.lower() != ".png":
        raise InputError(f"cannot write a contact sheet to {path}: the name must end in .png")
    if not pictures:
        raise InputError("there is no picture to show; a contact sheet is of images")
    columns = min(COLUMNS, len(pictures))
    rows = -(-len(pictures) // columns)
    step = CELL + MARGIN
    sheet = Image.new("RGB", (columns * step + MARGIN, rows * (step + LINE) + MARGIN), _GROUND)
    pen = ImageDraw.Draw(sheet)
    for place, (caption, picture) in enumerate(pictures):
        row, column = divmod(place, columns)
        left, top = MARGIN + column * step, MARGIN + row * (step + LINE)
        if picture is None:
            pen.rectangle((left, top, left + CELL - 1, top + CELL - 1), outline=_DAMAGED, width=3)
            pen.line((left, top, left + CELL - 1, top + CELL - 1), fill=_DAMAGED, width=3)
        else:
            small = _fitted(picture.convert("RGB"))
            sheet.paste(small, (left + (CELL - small.width) // 2, top + (CELL - small.height) // 2))
        pen.text((left, top + CELL + 2), _cut(pen, caption), fill=_INK)
    with atomic_path(path) as temporary:
        sheet.save(temporary, format="PNG")


def _fitted(picture: Image.Image) -> Image.Image:
    """As large as a cell; small pictures keep their pixels sharp."""
    scale = CELL / max(picture.size)
    size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
    how = Image.Resampling.NEAREST if scale > 2 else Image.Resampling.BICUBIC
    return picture.resize(size, how)


def _cut(pen: ImageDraw.ImageDraw, text: str) -> str:
    while text and pen.textlength(text) > CELL:
        text = text[:-1]
    return text
