"""Studies: strategies compared over several seeds, and the published tables of McMahan et al. 2017.

    study          cells, their measurement, and the runs in `results.json`
    runner         runs missing cells, and writes the report
    table          the table, in Markdown and CSV
    picture        the table as bars
    command        `fedloom reproduce`
    mcmahan2017/   rounds to a target accuracy at the best learning rate of a grid

The other modules are studies; each declares its cells in a `study` function.
"""
