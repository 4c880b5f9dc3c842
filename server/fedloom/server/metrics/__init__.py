"""Metrics of a server for Prometheus.

meters  counters and histograms, updated by the parts of a server
gauges  current values, read at each scrape
lag     measures the delay of the event loop
replica who drives, of one server of several
scrape  writes all of them as text
"""
