"""Look at a folder of data before training on it: layout, counts, damage, a contact sheet."""

from pidformer.data.check.report import Checked, SplitReport, check_data
from pidformer.data.check.sheet import contact_sheet

__all__ = ["Checked", "SplitReport", "check_data", "contact_sheet"]
