"""The display of a simulation and the files in its output folder.

words         numbers as text
curves        values read off the rounds; all displays use it
scales        ranges, ticks and labels of axes
progress      the live display, drawn by panel; summary, the lines at the end
files         the output folder: metrics, configuration, model; resumption
environment   the machine and the software
trackers      TensorBoard and MLflow, if the experiment asks for them
figures       the canvas, axes and files of every PNG
plots         a simulation's PNG files
report        one HTML file, with the charts of drawing
write_folder  all files that are written at the end
"""
