"""`report.html`: a view gathers what the page shows, `page.html.j2` is the page."""
