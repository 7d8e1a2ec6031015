"""The parts of `python -m verl_dots.report`: reading finished runs, comparing them, drawing them, one page.

    readers.py     files of verl, TensorBoard and wandb -> (step, metric, value)
    runs.py        a RUN argument -> `Run`: series by metric, the question log, the configuration
    questions.py   the question log of a run as columns
    quantities.py  accuracy, hours, generated tokens, seconds per part of a step
    compare.py     the time to the baseline's final accuracy, and the paper's three reductions
    style.py       colours, line styles, thinning of long series
    curves.py, belief.py, costs.py   the figures
    text.py        numbers and names as people read them
    page.py        everything -> one HTML file

Nothing here imports verl, ray or torch: a report can be made on a laptop from copied logs.
"""
