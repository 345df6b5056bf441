"""`search`: find an architecture, write everything about it into a folder, go on after an interruption."""

from l2l_nas.runs.search import SearchRun

prepared = SearchRun
