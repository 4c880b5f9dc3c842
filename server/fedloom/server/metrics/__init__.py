"""What Prometheus reads of a server: events as they are counted, and how things stand.

meters  counters and histograms, which the parts of a server move as things happen
gauges  how things stand, looked at when somebody asks
lag     how late the event loop is
scrape  both together, as text
"""
