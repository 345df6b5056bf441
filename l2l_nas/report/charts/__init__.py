"""What each chart, grid, drawing and table shows, described once as data: one module each.

`chart.py` has the parts that charts consist of, `tables.py` tables, `diagram.py` the places of the boxes of a network.
`report/png.py` draws charts as files, `report/html/` on the page, `report/table.py` tables in the terminal.
"""
