"""What a person reads after a search: tables in the terminal (rich), a page, pictures (matplotlib, extra `plots`).

    results.py   what was found: fronts, the best, effects; of networks (network.py) in a space (card.py)
    charts/      what each chart shows, described once as data
    styles.py    how things look, wherever they are drawn
    png.py       draws charts as files
    html/        a run's page: view.py gathers, page.html.j2 is the page, svg.html.j2 draws charts on it
    table.py     tables in the terminal
    summary.py   what the page shows besides: events (history.py), settings
    text.py      numbers and architectures as short text

Everything here reads plain records and a pool; nothing trains, and nothing here is imported by the packages below.
"""
