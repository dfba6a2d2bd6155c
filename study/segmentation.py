"""Segmentation: mIoU at one and at many scales, under threats, and class by class."""
# N pairs, K classes

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from pidformer.report.collect import PublishedRun
from pidformer.report.metrics import Metric, areas, compare_miou
from pidformer.report.table1 import TITLES
from pidformer.results import Record
from study.records import Study
from study.registered import registered_sections
from study.section import Section, metrics_section
from study.tables import by_seed

_CLASSES = {
    "camvid": ("sky", "building", "pole", "road", "pavement", "tree", "sign", "fence", "car",
               "pedestrian", "bicyclist"),
}  # fmt: skip
"""Of a data set, in the order of its labels: records number them."""
_BY_CLASS = ("clean", "corruption/gaussian_noise/3", "corruption/contrast/3")
_SHARE = (
    "IoU in per cent, single scale; below it the pixels that are called so, over those that are. "
    "Intervals are over seeds alone."
)
_TITLES = {"single": "mIoU, single scale", "multi": "mIoU, multi-scale"}


def segmentation_sections(study: Study) -> list[Section]:
    """The clean set at both scales; then what threats make of it, group by group."""
    clean = _clean(study)
    images = next(r.metrics["images"] for run in study.runs for r in run.of("segmentation"))
    words = f"mIoU in per cent over the {images:.0f} images of the validation set."
    seeds = ["By seed:", by_seed(study, [*clean, *_accuracies(study)])]
    sections = [metrics_section(study, "", words, clean, more=seeds)]
    groups = study.groups
    for name, own in groups.items():
        sections += _under_threat(own, f", `{name}`" if len(groups) > 1 else "")
    return [*sections, *registered_sections(study, segmentation_metrics(study))]


def _under_threat(study: Study, where: str) -> list[Section]:
    sections = []
    if under_threat := _threats(study):
        reprs = {
            _row_title(str(r.settings["row"])): str(r.settings["threat"])
            for run in study.runs
            for r in run.of("segmentation", views="single")
            if r.settings.get("row") in under_threat and "corruption/" not in str(r.settings["row"])
        }
        attacks = "Attack: " + "; ".join(f"{k}: `{v}`" for k, v in reprs.items()) + "."
        more, metrics = [attacks] if reprs else [], [*under_threat.values()]
        words = "mIoU, single scale."
        sections.append(metrics_section(study, f"Under threats{where}", words, metrics, more=more))
        rows = [row for row in _BY_CLASS if row in {"clean", *under_threat}]
        sections += _by_class(study, rows, where)
    return sections


def segmentation_metrics(study: Study) -> dict[str, Metric]:
    """mIoU, clean at both scales and under threats, by title."""
    return {metric.title: metric for metric in (*_clean(study), *_threats(study).values())}


def _clean(study: Study) -> list[Metric]:
    return [
        _metric(_TITLES[views], "clean", views)
        for views in _TITLES
        if any(run.one("segmentation", row="clean", views=views) for run in study.runs)
    ]


def _threats(study: Study) -> dict[str, Metric]:
    """By row."""
    return {
        row: _metric(_row_title(row), row, "single")
        for run in study.runs
        for r in run.of("segmentation", views="single")
        if (row := str(r.settings.get("row"))) not in ("None", "clean")
    }


def _metric(title: str, row: str, views: str) -> Metric:
    return Metric(
        title=title,
        find=partial(_find, row=row, views=views),
        read=lambda record: record.metrics["miou"],
        compare=compare_miou,
    )


def _by_class(study: Study, rows: Sequence[str], where: str) -> list[Section]:
    """What becomes of each class in some rows; nothing of data whose classes have no name here."""
    names = _CLASSES.get(str(study.runs[0].header.settings.get("data")), ())
    clean = _find(study.runs[0], "clean", "single")
    is_known = clean is not None and areas(clean).shape[-1] == len(names)
    found = []
    for row in rows if is_known else ():
        find = partial(_find, row=row, views="single")
        metrics = [
            Metric(title=f"{name}{more}", find=find, read=partial(read, place=place), digits=digits,
                   difference_digits=digits)
            for more, read, digits in (("", _iou, 1), (", called so", _called, 2))
            for place, name in enumerate(names)
        ]  # fmt: skip
        section = metrics_section(study, f"By class, {_row_title(row)}{where}", _SHARE, metrics)
        found.append(replace(section, findings=[], compared=[]))
    return found


def _iou(record: Record, place: int) -> float:
    hits, true, called = areas(record).sum(0)[:, place]
    return 100 * hits / max(true + called - hits, 1)


def _called(record: Record, place: int) -> float:
    _, true, called = areas(record).sum(0)[:, place]
    return called / max(true, 1)


def _accuracies(study: Study) -> list[Metric]:
    names = {"pixel_accuracy": "pixel accuracy", "mean_accuracy": "mean accuracy"}
    find = partial(_find, row="clean", views="single")
    return [
        Metric(title=f"{title}, single scale", find=find, read=_reader(name))
        for name, title in names.items()
    ]


def _reader(name: str) -> Callable[[Record], float]:
    return lambda record: record.metrics[name]


def _find(run: PublishedRun, row: str, views: str) -> Record | None:
    return run.one("segmentation", row=row, views=views)


def _row_title(row: str) -> str:
    parts = row.split("/")
    if len(parts) == 3:
        return f"{parts[1].replace('_', ' ')}, severity {parts[2]}"
    return TITLES.get(row, row)
