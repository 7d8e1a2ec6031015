"""What build_questions.py is made of, in the order in which a row passes through.

    registry.py    the data sets: where they are, which columns they have, how the paper uses them
    reading.py     rows from the Hugging Face hub or from a local file of the same format
    converters.py  a row -> Question, one function per format
    cleaning.py    duplicates, contamination with evaluation sets, over-long prompts, answers that cannot be scored
    near.py        near-duplicate questions
    output.py      Questions -> verl's parquet schema
"""
