"""verl-dots: train on questions the policy fails a little more often than not, replay what it has just learned from.

Data flow, one line per module:

    types         the records that flow: questions, groups, observations. Read it first.
    config        the `dots` block of verl's trainer YAML, checked
    embeddings    question vectors by question id
    difficulty/   what we believe about each question: predictor, observations, their combination
    selection     difficulty -> probabilities -> question ids
    sampler       the torch sampler that verl's dataloader draws from
    replay        FIFO of recent informative groups
    loss          policy losses for rollouts of an older policy
    integration/  the only package that imports verl: trainer, worker, store, plugin
    cpu/          verl on a CPU, for the quickstart, tests and benchmarks
    report        a finished run -> figures and a page
    doctor        preflight checks
"""

__version__ = "0.1.0"
