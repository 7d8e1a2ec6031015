"""The model's tokenizer as verl loads it, the warm start's training pairs, and what is measured on a model."""

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from verl_dots.cpu.arithmetic import settings as settings_module
from verl_dots.cpu.arithmetic.measure import embed_questions, success_histogram, success_rates
from verl_dots.cpu.arithmetic.model import END_ID, PAD_ID, build_model, build_tokenizer, encode_questions
from verl_dots.cpu.arithmetic.settings import ModelSize, Stage, WarmStart
from verl_dots.cpu.arithmetic.task import CARRY_SLIPS, POOLS, Mix, Problems, draw_problems, running_values
from verl_dots.cpu.arithmetic.warm_start import IGNORED, demonstrations, warm_start


@pytest.fixture(scope="module")
def problems() -> Problems:
    return draw_problems(POOLS["x"], 40, np.random.default_rng(0))


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """The tokenizer as verl gets it: saved beside a model, loaded with AutoTokenizer."""
    folder = tmp_path_factory.mktemp("model")
    build_model(ModelSize(16, 1, 2), seed=0).save_pretrained(folder)
    build_tokenizer().save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder)


def test_chat_template_gives_the_prompts_the_warm_start_sees(loaded, problems):
    questions = problems.questions()
    expected = encode_questions(questions)
    for question, ids in zip(questions, expected.tolist(), strict=True):
        messages = [{"role": "user", "content": question}]
        rendered = loaded.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        assert rendered == ids
        assert loaded.decode(ids) == question


def test_tokenizer_has_what_verl_asks_for(loaded):
    assert len(loaded.encode("\n", add_special_tokens=False)) == 1
    assert loaded.convert_tokens_to_ids("<|im_end|>") == loaded.eos_token_id == END_ID
    assert loaded.pad_token_id == PAD_ID
    model = build_model(ModelSize(), seed=0)
    assert model.config.vocab_size == len(loaded)
    assert 105_000 < sum(p.numel() for p in model.parameters()) < 115_000


def test_models_differ_by_seed_only():
    first, again, other = (build_model(ModelSize(16, 1, 2), seed).lm_head.weight for seed in (0, 0, 1))
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_labels_are_the_next_tokens_of_the_response(loaded, problems):
    ids, labels = demonstrations(problems, running_values(problems))
    answers = problems.answers(running_values(problems))
    for row, (question, answer) in enumerate(zip(problems.questions(), answers, strict=True)):
        taught = labels[row][labels[row] != IGNORED]
        assert taught[-1] == END_ID and loaded.decode(taught[:-1]) == answer
        assert loaded.decode(ids[row, :15]) == question
        positions = torch.nonzero(labels[row] != IGNORED).squeeze(1)
        assert torch.equal(labels[row, positions], ids[row, positions + 1])
        assert positions[0] == 14  # the first response token is predicted at the `=`


@pytest.fixture(scope="module")
def trained():
    """A small model that has learned one-step additions: enough to be right sometimes."""
    stage = Stage(120, Mix((1, 0, 0, 0, 0, 0), ((1, 0, 0),)), CARRY_SLIPS, decay=0.1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(settings_module.STAGES, "additions", (stage,))
        losses = []
        model = warm_start(WarmStart("additions", ModelSize(32, 1, 2)), lambda step, loss: losses.append(loss))
    return model, losses


def test_warm_start_learns_and_reports_every_step(trained):
    _, losses = trained
    assert len(losses) == 120
    assert np.mean(losses[-10:]) < 0.7 * np.mean(losses[:10])


def test_success_rates_repeat_and_estimate_the_probability_of_the_answer(trained):
    model = trained[0].double()
    problems = draw_problems(Mix((1, 0, 0, 0, 0, 0), ((1, 0, 0),)), 30, np.random.default_rng(1))
    values = running_values(problems)
    rates = success_rates(model, problems.questions(), problems.answers(values), samples=200, seed=0)
    again = success_rates(model, problems.questions(), problems.answers(values), samples=200, seed=0)
    assert np.array_equal(rates, again)
    assert np.allclose(rates * 200 % 1, 0)
    ids, labels = demonstrations(problems, values)
    with torch.no_grad():
        log_probs = torch.log_softmax(model(input_ids=ids).logits, -1)
    chosen = log_probs.gather(2, labels.clamp(min=0)[:, :, None]).squeeze(2)  # (30, 28)
    expected = (chosen * (labels != IGNORED)).sum(1).exp().numpy()
    assert abs(rates.mean() - expected.mean()) < 4 * np.sqrt((expected * (1 - expected)).sum() / 200) / 30


def test_histogram():
    shares = success_histogram(np.array([0.0, 0.25, 0.5, 0.75, 0.9375, 1.0, 1.0, 1.0]))
    assert list(shares.values()) == [1 / 8, 1 / 8, 2 / 8, 1 / 8, 3 / 8]


def test_embeddings_are_mean_pooled_and_independent_of_batches(trained):
    model, _ = trained
    questions = draw_problems(POOLS["y"], 700, np.random.default_rng(2)).questions()
    vectors = embed_questions(model, questions)
    assert vectors.shape == (700, 32) and vectors.dtype == np.float32
    with torch.no_grad():
        hidden = model.model(input_ids=torch.from_numpy(encode_questions(questions[600:601]))).last_hidden_state
    np.testing.assert_allclose(vectors[600], hidden[0].mean(0).numpy(), atol=1e-5)
