"""What `python -m verl_dots.doctor` judges, as pure functions: numbers in, findings out.

    finding.py     one finding: good, doubtful or wrong, and what to do
    batch.py       does the batch divide, is the pool large enough, can the replay give its share
    resources.py   logical CPUs, accelerators, TransferQueue's capacity, memory
    questions.py   do question ids, embeddings and predictor agree

Nothing here imports verl or ray; the numbers are read in `verl_dots/integration/doctor_*.py`.
"""
