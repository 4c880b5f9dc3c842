"""Studies: strategies compared over several seeds, and the published tables of McMahan et al. 2017.

    study          what a study compares, how a cell is measured, the runs in `results.json`
    runner         runs what is missing, and writes the report
    table          the table, in Markdown and CSV
    picture        the table as bars
    command        `fedloom reproduce`
    mcmahan2017/   rounds to a target accuracy at the best learning rate of a grid

The other modules are studies: each declares its cells in one `study` function.
"""
