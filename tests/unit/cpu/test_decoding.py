"""Batched sampling: against plain references, and the claim that a request's result depends on that request only."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import Qwen2Config, Qwen2ForCausalLM

from verl_dots.cpu.decoding import BatchDecoder, Request, keep_probable, sample_by_inversion

VOCABULARY, END = 11, 1


@pytest.fixture(scope="module")
def model() -> Qwen2ForCausalLM:
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Qwen2ForCausalLM(config).double().eval()
        for parameter in model.parameters():  # large enough weights that context matters
            parameter.data.mul_(8)
    return model


@pytest.fixture(scope="module")
def decoder(model) -> BatchDecoder:
    return BatchDecoder(model, [END], pad_id=0, detokenize=lambda tokens: "".join(chr(97 + t) for t in tokens))


def request(seed: int = 0, prompt=(3, 4, 5), max_tokens: int = 12, **settings) -> Request:
    return Request(tuple(prompt), max_tokens, seed, **settings)


def mixed_requests() -> list[Request]:
    rng = np.random.default_rng(7)
    return [
        request(
            seed=int(rng.integers(2**62)),
            prompt=rng.integers(2, VOCABULARY, size=rng.integers(1, 9)).tolist(),
            max_tokens=int(rng.integers(1, 14)),
            temperature=float(rng.choice([0.0, 0.7, 1.0, 1.6])),
            top_k=int(rng.choice([-1, 3])),
            top_p=float(rng.choice([0.6, 1.0])),
        )
        for _ in range(24)
    ]


def naive_decode(model, request: Request) -> tuple[list[int], list[float]]:
    """One request, no batch, no cache, no padding; the cumulative sum walked in a loop."""
    rng = np.random.default_rng([request.seed, len(request.prompt)])
    tokens, log_probs = list(request.prompt), []
    for uniform in rng.random(request.max_tokens):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([tokens])).logits[0, -1].numpy().astype(float)
        scaled = logits / (request.temperature or 1.0)
        p = np.exp(scaled - scaled.max())
        p /= p.sum()
        if request.temperature == 0:
            token = int(np.argmax(logits))
        else:
            kept = naive_keep(p, request.top_k, request.top_p)
            walked = 0.0
            for token in range(len(p)):  # noqa: B007  the token at which the sum passes the uniform number
                walked += kept[token]
                if walked > uniform * kept.sum():
                    break
        tokens.append(token)
        log_probs.append(float(np.log(p[token])))
        if token == END:
            break
    return tokens[len(request.prompt) :], log_probs


def naive_keep(p: np.ndarray, top_k: int, top_p: float) -> np.ndarray:
    ranked = sorted(range(len(p)), key=lambda i: -p[i])
    if top_k > 0:
        ranked = ranked[:top_k]
    total, kept, gathered = sum(p[i] for i in ranked), np.zeros_like(p), 0.0
    for i in ranked:
        if gathered / total >= top_p:
            break
        kept[i] = p[i]
        gathered += p[i]
    return kept


def test_batch_with_cache_and_padding_gives_what_one_by_one_gives(model, decoder):
    requests = mixed_requests()
    for given_, completion in zip(requests, decoder.decode(requests), strict=True):
        tokens, log_probs = naive_decode(model, given_)
        assert completion.tokens == tokens
        np.testing.assert_allclose(completion.log_probs, log_probs, atol=1e-9)
        assert completion.finished


def test_result_does_not_depend_on_order_or_batch_mates(decoder):
    requests = mixed_requests()
    together = decoder.decode(requests)
    order = np.random.default_rng(3).permutation(len(requests))
    shuffled = decoder.decode([requests[i] for i in order])
    for position, i in enumerate(order):
        assert shuffled[position].tokens == together[i].tokens
        np.testing.assert_allclose(shuffled[position].log_probs, together[i].log_probs, atol=1e-12)
    for i in (0, 5, 23):
        assert decoder.decode([requests[i]])[0].tokens == together[i].tokens


def test_seed_decides(decoder):
    same, again, other = decoder.decode([request(seed=1), request(seed=1), request(seed=2)])
    assert same == again
    assert same.tokens != other.tokens


def test_resumed_request_draws_new_numbers():
    whole = request(seed=5, prompt=(3, 4)).uniforms()
    resumed = request(seed=5, prompt=(3, 4, 7)).uniforms()
    assert not np.isin(resumed, whole).any()


def test_sampled_frequencies_follow_the_model(model, decoder):
    size = 4000
    first = [c.tokens[0] for c in decoder.decode([request(seed=i, max_tokens=1) for i in range(size)])]
    with torch.no_grad():
        expected = torch.softmax(model(input_ids=torch.tensor([[3, 4, 5]])).logits[0, -1], -1).numpy()
    observed = np.bincount(first, minlength=VOCABULARY)
    counts = expected * size
    statistic = ((observed - counts) ** 2 / counts).sum()
    assert statistic < 29.6  # chi-square with 10 degrees of freedom, 0.1 %


def test_end_tokens_stop_tokens_and_ignore_eos(decoder):
    free = decoder.decode([request(seed=i, ignore_eos=True, max_tokens=30) for i in range(20)])
    assert all(len(c.tokens) == 30 for c in free)
    seed = next(i for i, c in enumerate(free) if END in c.tokens)
    ended, stopped = decoder.decode(
        [request(seed, max_tokens=30), request(seed, max_tokens=30, stop_token_ids=frozenset([free[seed].tokens[0]]))]
    )
    assert ended.tokens == free[seed].tokens[: free[seed].tokens.index(END) + 1]
    assert stopped.tokens == free[seed].tokens[:1]


def test_stop_strings_end_with_the_text_that_contains_them(decoder):
    free = decoder.decode([request(seed=3, ignore_eos=True)])[0].tokens
    text = "".join(chr(97 + t) for t in free)
    stop = text[2:4]
    stopped = decoder.decode([request(seed=3, ignore_eos=True, stop=(stop,))])[0].tokens
    assert stopped == free[: text.index(stop) + 2]


def test_abort_returns_what_there_is(decoder):
    asked = []

    def after_three() -> bool:
        asked.append(None)
        return len(asked) == 3

    completions = decoder.decode([request(seed=i, ignore_eos=True, max_tokens=20) for i in range(4)], after_three)
    assert [len(c.tokens) for c in completions] == [3] * 4
    assert not any(c.finished for c in completions)
    assert decoder.decode([request(seed=2, ignore_eos=True)])[0].tokens[:3] == completions[2].tokens


def test_no_requests(decoder):
    assert decoder.decode([]) == []


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.floats(0.01, 1.0), min_size=2, max_size=8),
    st.integers(-1, 9),
    st.floats(0.01, 1.0),
    st.floats(0.0, 1.0, exclude_max=True),
)
def test_truncation_and_inversion_match_the_references(weights, top_k, top_p, uniform):
    p = np.array(weights) / sum(weights)
    kept = keep_probable(torch.tensor(p)[None], torch.tensor([top_k]), torch.tensor([top_p], dtype=torch.float64))
    np.testing.assert_array_equal(kept[0] > 0, naive_keep(p, top_k, top_p) > 0)
    token = int(sample_by_inversion(kept, torch.tensor([uniform], dtype=torch.float64))[0])
    assert kept[0, token] > 0
    total, below = float(kept.sum()), float(kept[0, :token].sum())
    assert below <= uniform * total + 1e-12 and uniform * total <= below + float(kept[0, token]) + 1e-12


def test_impossible_tokens_are_never_drawn_at_the_ends_of_the_unit_interval():
    p = torch.tensor([[0.0, 0.5, 0.0, 0.5, 0.0]], dtype=torch.float64)
    assert sample_by_inversion(p, torch.tensor([0.0], dtype=torch.float64)).item() == 1
    assert sample_by_inversion(p, torch.tensor([np.nextafter(1.0, 0)], dtype=torch.float64)).item() == 3


def test_reads_verls_sampling_parameters():
    read = Request.from_sampling_params(
        np.array([3, 4]),
        {"temperature": 0.5, "top_p": 0.9, "top_k": 5, "repetition_penalty": 1.0, "logprobs": True, "stop": "x"},
        max_tokens=7,
        seed=11,
    )
    assert read == Request((3, 4), 7, 11, temperature=0.5, top_k=5, top_p=0.9, stop=("x",))
    overridden = Request.from_sampling_params([3], {"max_tokens": 2, "seed": 4}, max_tokens=7, seed=11)
    assert (overridden.max_tokens, overridden.seed) == (2, 4)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"repetition_penalty": 1.2}, "repetition_penalty is not supported"),
        ({"min_p": 0.1}, r"\['min_p'\] are not supported"),
        ({"top_p": 0.0}, "top_p 0.0 must be in"),
        ({"top_k": -2}, "top_k -2 must be"),
        ({"temperature": -1}, "temperature -1.0 must not be negative"),
        ({"max_tokens": 0}, "max_tokens 0 must be at least 1"),
    ],
)
def test_refuses_what_it_cannot_do(params, message):
    with pytest.raises(ValueError, match=message):
        Request.from_sampling_params([3], params, max_tokens=7, seed=0)


def test_refuses_an_empty_prompt():
    with pytest.raises(ValueError, match="empty prompt"):
        request(prompt=())
