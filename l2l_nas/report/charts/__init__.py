"""What each chart shows, described once as data: one module a chart.

`chart.py` has the parts that charts consist of. `report/png.py` draws a description as a file, `report/html/` on the
page, `report/text_chart.py` in the terminal.
"""
