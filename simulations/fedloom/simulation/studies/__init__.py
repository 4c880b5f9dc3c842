"""Studies: strategies compared over several seeds, and published tables.

    study          cells, their measurement, and the runs in `results.json`
    runner         runs missing cells, and writes the report
    table          the table, in Markdown and CSV
    picture        the table as bars
    command        `fedloom reproduce`
    published      columns, claims and plain loops of published tables
    plain/         the plain numpy loops
    fedprox2020, scaffold2020, fedopt2021, fedbuff2022
                   published tables
    mcmahan2017/   rounds to a target accuracy at the best learning rate of a grid

The other modules are studies; each declares its cells in a `study` function.
"""
