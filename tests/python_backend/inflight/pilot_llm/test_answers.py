"""What a client reads: texts, stop strings, finish reasons, logprobs, in streams and in one piece. Live engine."""

import numpy as np
import pytest

from pilot_llm.request import PositionLogprobs
from pilot_testing.fake_llm import (
    EOS,
    HashRunner,
    LetterTokenizer,
    greedy_oracle,
    logits_after,
    running_engine,
    submit,
)

TOKENIZER = LetterTokenizer()


def assert_is_the_models(position: PositionLogprobs, context: list[int], token_id: int) -> None:
    """The chosen token first, then the best ones, each with the model's own logprob behind `context` and its rank."""
    logits = logits_after(context).astype(np.float64)
    logprobs = logits - np.log(np.exp(logits).sum())
    best_first = np.argsort(-logprobs)
    chosen, *best = position
    assert chosen.token_id == token_id
    assert [entry.token_id for entry in best] == best_first[: len(best)].tolist()
    for entry in position:
        assert entry.logprob == pytest.approx(logprobs[entry.token_id], abs=1e-5)
        assert best_first[entry.rank - 1] == entry.token_id


def oracle_text(prompt: list[int], num_tokens: int) -> str:
    return TOKENIZER.decode(greedy_oracle(prompt, num_tokens, eos=()))


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("start", [0, 3, 9])
@pytest.mark.parametrize("include", [True, False])
def test_stop_string_over_several_tokens_ends_the_answer_and_leaks_nothing(
    stream: bool, start: int, include: bool
) -> None:
    prompt = [4, 2]
    text = oracle_text(prompt, 30)
    stop = text[start : start + 3]
    with running_engine(HashRunner(100)) as engine:
        sink = submit(
            engine, prompt, stream=stream, max_tokens=30, ignore_eos=True,
            stop=["never", stop], include_stop_str_in_output=include,
        ).wait()  # fmt: skip
    assert sink.text() == text[: text.index(stop) + (3 if include else 0)]
    assert sink.finish_reason() == "stop"
    assert sink.outputs[-1].sequences[0].stop_reason == stop
    assert len(sink.token_ids()) == text.index(stop) + 3
    assert engine._loop.pool.num_held == 0


def test_stop_string_ends_generation_in_the_engine_promptly() -> None:
    prompt = [4, 2]
    runner = HashRunner(400)
    with running_engine(runner) as engine:
        submit(engine, prompt, max_tokens=1000, ignore_eos=True, stop=oracle_text(prompt, 3)[1:]).wait()
        submit(engine, [1], max_tokens=1).wait()
    assert runner.num_forwards < 60


@pytest.mark.parametrize("stream", [True, False])
def test_text_that_ends_in_the_beginning_of_a_stop_string_is_delivered_whole(stream: bool) -> None:
    prompt = [4, 2]
    text = oracle_text(prompt, 12)
    with running_engine(HashRunner(100)) as engine:
        sink = submit(engine, prompt, stream=stream, max_tokens=12, ignore_eos=True, stop=text[-3:] + "~").wait()
    assert (sink.text(), sink.finish_reason()) == (text, "length")


def test_stream_and_single_answer_have_the_same_text() -> None:
    with running_engine(HashRunner(200)) as engine:
        for first in range(12):
            wishes = {"max_tokens": 25, "stop": ["a", "b7"]}
            streamed, whole = (submit(engine, [first, 5], stream=stream, **wishes).wait() for stream in (True, False))
            assert streamed.text() == whole.text()
            assert streamed.token_ids() == whole.token_ids()
            assert len(whole.outputs) == 1


def test_first_message_of_a_stream_is_not_empty() -> None:
    prompt = [4, 2]
    text = oracle_text(prompt, 12)
    with running_engine(HashRunner(100)) as engine:
        sink = submit(engine, prompt, stream=True, max_tokens=12, ignore_eos=True, stop=text[:4] + "~").wait()
    assert all(output.sequences[0].text for output in sink.outputs)
    assert sink.text() == text


def prompt_that_meets_eos(after: int) -> list[int]:
    return next([first, 3] for first in range(60) if after < len(greedy_oracle([first, 3], 60)) < 60)


@pytest.mark.parametrize("skip", [True, False])
def test_eos_ends_the_answer_and_is_not_part_of_its_text(skip: bool) -> None:
    prompt = prompt_that_meets_eos(after=2)
    with running_engine(HashRunner(100)) as engine:
        sink = submit(engine, prompt, max_tokens=60, skip_special_tokens=skip).wait()
    assert sink.token_ids()[-1] == EOS
    assert "<eos>" not in sink.text()
    assert (sink.finish_reason(), sink.outputs[-1].sequences[0].stop_reason) == ("stop", None)


def test_stop_string_that_is_a_special_token_matches_although_its_text_is_hidden() -> None:
    prompt = prompt_that_meets_eos(after=2)
    length = len(greedy_oracle(prompt, 60))
    with running_engine(HashRunner(100)) as engine:
        sink = submit(engine, prompt, max_tokens=60, ignore_eos=True, stop="<eos>").wait()
    assert (sink.finish_reason(), len(sink.token_ids())) == ("stop", length)


def test_min_tokens_hold_back_a_stop_string_that_is_a_special_token() -> None:
    prompt = prompt_that_meets_eos(after=2)
    length = len(greedy_oracle(prompt, 60))
    with running_engine(HashRunner(100)) as engine:
        sink = submit(engine, prompt, max_tokens=60, min_tokens=length + 1, ignore_eos=True, stop="<eos>").wait()
    assert len(sink.token_ids()) > length


def test_stop_token_ends_the_answer_and_is_named() -> None:
    prompt = [4, 2]
    tokens = greedy_oracle(prompt, 10, eos=())
    with running_engine(HashRunner(100)) as engine:
        sink = submit(engine, prompt, max_tokens=20, ignore_eos=True, stop_token_ids=[tokens[4]]).wait()
    expected = tokens[: tokens.index(tokens[4]) + 1]
    assert sink.token_ids() == expected
    assert sink.text() == TOKENIZER.decode(expected[:-1])
    assert sink.outputs[-1].sequences[0].stop_reason == tokens[4]


def test_min_tokens_hold_with_several_ways_to_end() -> None:
    with running_engine(HashRunner(100)) as engine:
        for first in range(20):
            sink = submit(engine, [first], min_tokens=6, max_tokens=8, stop_token_ids=list(range(40)), stop="a").wait()
            assert len(sink.token_ids()) >= 6


def test_default_is_sixteen_tokens_and_finish_reason_length() -> None:
    with running_engine(HashRunner(100)) as engine:
        sink = submit(engine, [4, 2], ignore_eos=True).wait()
    assert (len(sink.token_ids()), sink.finish_reason()) == (16, "length")


def test_answer_ends_where_the_context_ends() -> None:
    with running_engine(HashRunner(100, max_model_len=20)) as engine:
        for wish in ({"max_tokens": 2**31}, {"max_tokens": None}):
            sink = submit(engine, [4] * 15, ignore_eos=True, **wish).wait()
            assert (len(sink.token_ids()), sink.finish_reason()) == (5, "length")
        assert len(submit(engine, [4] * 19, ignore_eos=True).wait().token_ids()) == 1


def test_configured_max_model_len_is_the_limit() -> None:
    with running_engine(HashRunner(100), max_model_len=12) as engine:
        assert len(submit(engine, [4] * 9, ignore_eos=True).wait().token_ids()) == 3


def test_logprobs_come_for_every_token_with_the_chosen_one_first() -> None:
    with running_engine(HashRunner(100)) as engine:
        sink = submit(engine, [4, 2], stream=True, max_tokens=6, ignore_eos=True, logprobs=3).wait()
    positions = [position for output in sink.outputs for position in output.sequences[0].logprobs or ()]
    assert [position[0].token_id for position in positions] == sink.token_ids()
    assert all(len(position) == 4 and position[0].rank == 1 for position in positions)
    for index, position in enumerate(positions):
        assert_is_the_models(position, [4, 2, *sink.token_ids()[:index]], sink.token_ids()[index])
    assert "".join(position[0].decoded_token for position in positions) == sink.text()
    assert sink.outputs[-1].sequences[0].cumulative_logprob == pytest.approx(
        sum(position[0].logprob for position in positions)
    )


@pytest.mark.parametrize("budget", [8, 64])
@pytest.mark.parametrize("num_blocks", [12, 100])
def test_prompt_logprobs_come_once_for_every_position_but_the_first(budget: int, num_blocks: int) -> None:
    prompt = list(range(20))
    with running_engine(HashRunner(num_blocks), max_num_batched_tokens=budget) as engine:
        others = [submit(engine, [first] * 9, max_tokens=20, ignore_eos=True) for first in range(4)]
        submit(engine, prompt, max_tokens=1).wait()
        sink = submit(engine, prompt, stream=True, max_tokens=4, ignore_eos=True, prompt_logprobs=2).wait()
        for other in others:
            other.wait()
    (first,) = [output for output in sink.outputs if output.prompt_logprobs is not None]
    assert first.prompt_token_ids == tuple(prompt)
    assert first.prompt_logprobs is not None
    assert first.prompt_logprobs[0] is None
    assert len(first.prompt_logprobs) == len(prompt)
    for index, position in enumerate(first.prompt_logprobs[1:], start=1):
        assert position is not None
        assert_is_the_models(position, prompt[:index], prompt[index])
    assert sink.outputs[-1].num_cached_tokens == 0
    assert sink.token_ids() == greedy_oracle(prompt, 4, eos=())


def test_prompt_of_one_token_has_prompt_logprobs_for_no_position() -> None:
    with running_engine() as engine:
        sink = submit(engine, [7], max_tokens=2, ignore_eos=True, prompt_logprobs=2).wait()
    assert sink.outputs[-1].prompt_logprobs == (None,)


def test_n_sequences_come_with_their_index_and_end_each_by_itself() -> None:
    with running_engine(HashRunner(100)) as engine:
        sink = submit(engine, [4, 2], n=4, temperature=1.5, seed=3, max_tokens=40, stream=True, logprobs=1).wait()
    assert all(sink.finish_reason(index) in ("stop", "length") for index in range(4))
    assert all(len(sink.token_ids(index)) == 40 or sink.token_ids(index)[-1] == EOS for index in range(4))
    assert len({tuple(sink.token_ids(index)) for index in range(4)}) == 4
    assert sink.num_finals == 1


def test_truncated_prompt_keeps_its_end() -> None:
    with running_engine(HashRunner(100)) as engine:
        sink = submit(engine, list(range(30)), max_tokens=4, truncate_prompt_tokens=5).wait()
        assert sink.token_ids() == greedy_oracle(list(range(25, 30)), 4)
        assert sink.outputs[-1].num_prompt_tokens == 5


def test_truncated_prompt_of_megabytes_is_encoded_at_its_end_only() -> None:
    encoded: list[int] = []

    class CountingTokenizer(LetterTokenizer):
        def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
            encoded.append(len(text))
            return super().encode(text, add_special_tokens=add_special_tokens)

    with running_engine(HashRunner(20, max_model_len=64), tokenizer=CountingTokenizer()) as engine:
        long = submit(engine, "a" * 3_000_000 + "bcdef", max_tokens=4, truncate_prompt_tokens=5).wait()
        assert long.token_ids() == greedy_oracle([1, 2, 3, 4, 5], 4)
        assert submit(engine, "a" * 3_000_000, max_tokens=1, truncate_prompt_tokens=-1).wait().error is None
        refused = submit(engine, "a" * 3_000_000, truncate_prompt_tokens=10**30).wait()
        assert refused.error is not None
        assert "is more than 64 tokens" in refused.error.message
    assert sum(encoded) < 1000


def test_requests_with_and_without_every_optional_wish_share_a_step() -> None:
    wishes: list[dict[str, object]] = [
        {}, {"logprobs": 2}, {"prompt_logprobs": 1}, {"min_tokens": 3}, {"stop": "zz"}, {"logit_bias": {5: 1.0}},
        {"repetition_penalty": 1.1}, {"temperature": 1.0, "seed": 1}, {"temperature": 1.0, "top_k": 3, "seed": 2},
        {"temperature": 1.0, "n": 2, "seed": 3}, {"allowed_token_ids": [1, 2, 3]}, {"bad_words": ["a"]},
    ]  # fmt: skip
    with running_engine(HashRunner(400)) as engine:
        alone = [submit(engine, [7, 7], max_tokens=6, **wish).wait() for wish in wishes]
    with running_engine(HashRunner(400), max_num_seqs=64, max_num_batched_tokens=128) as engine:
        pairs = [(one, other) for one in range(len(wishes)) for other in range(len(wishes))]
        sinks = [(index, submit(engine, [7, 7], max_tokens=6, **wishes[index])) for pair in pairs for index in pair]
        for index, sink in sinks:
            assert sink.wait().token_ids() == alone[index].token_ids()


def test_times_of_a_request_are_in_order() -> None:
    with running_engine(HashRunner(100)) as engine:
        times = submit(engine, [4, 2], max_tokens=5, ignore_eos=True).wait().outputs[-1].times
    assert times is not None
    assert times.first_scheduled_s is not None
    assert times.first_token_s is not None
    assert times.last_token_s is not None
    assert times.arrival_s <= times.first_scheduled_s <= times.first_token_s < times.last_token_s
