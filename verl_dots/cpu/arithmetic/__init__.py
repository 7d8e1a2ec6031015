"""A small task with a verifiable reward: arithmetic modulo 100, digit by digit.

`task` questions, answers and noisy demonstrations (numpy) · `model` the Qwen2-like model and its tokenizer ·
`warm_start` supervised training on the noisy demonstrations · `measure` success rates and embeddings of questions ·
`reward` the function verl calls.

The noise of the demonstrations decides how hard a question is for the warm-started model: the errors depend on the
operations and the operands, so the difficulty can be predicted from the question. That is built in, and whoever
shows numbers from this task should say so.
"""
