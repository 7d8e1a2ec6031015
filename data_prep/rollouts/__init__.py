"""What collect_pass_rates.py is made of.

    engines.py    a model that writes responses: vLLM, or transformers
    chunks.py     the work cut into chunks, each a file of its own: what makes a run resumable and divisible
    labels.py     the table that comes out: who solved what how often
    published.py  published pass rates -> the same table
"""
