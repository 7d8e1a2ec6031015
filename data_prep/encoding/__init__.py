"""Parts of embed_questions.py: reading question files, encoding them in resumable shards."""
