"""What a person looks at after a search: tables in the terminal (rich), a page, pictures (matplotlib, extra `plots`).

    text.py      numbers and architectures as short text
    table.py     the best trials, the Pareto front, the runs of a sweep
    figures.py   what all pictures share: colours, an empty figure, PNG bytes
    plots.py     best so far, and the Pareto front
    coverage.py  how often each candidate was trained
    drawing.py   an architecture as a chain of boxes
    pictures.py  the pictures of a run's folder
    page.py      a run's page, from its networks.py and sections.py, made of parts.py, charts.py and blocks.py; all
                 written by svg.py
    summary.py   what the page shows: with card.py (the pool as data), history.py (the log), network.py (what one is
                 worth as a trial, and after training), importance.py

Everything here reads plain records and a pool; nothing trains, and nothing here is imported by the rooms below.
"""
