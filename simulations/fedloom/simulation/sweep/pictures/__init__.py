"""A sweep's pictures: curves, the objective and the time by setting, parallel coordinates, history.

Optuna's matplotlib plots were rejected. They number trials from 0, where the table counts from 1.
They omit pruned and failed trials and derived settings, do not mark the best trial, cut off the
legend, and change pyplot's style for the whole process.
"""
