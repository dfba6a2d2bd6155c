"""A plugin of pytest: why a test failed, at once; a crash later on takes no reason away."""

from typing import Any

import pytest

_writers: list[Any] = []
MOST = 1500
"""Characters of a reason, its last ones."""


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    _writers[:] = [config.pluginmanager.get_plugin("terminalreporter")]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        _writers[0].write_line(f"\n{report.nodeid}\n{report.longreprtext[-MOST:]}")
