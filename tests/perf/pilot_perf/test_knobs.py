from pilot_perf.knobs import UNTUNED, Knobs

PIPELINE = Knobs(members=(("net", Knobs(max_batch=8, instances=2)), ("text", Knobs(instances=3))))


def test_knobs_are_read_back_equal_from_what_they_are_stored_as() -> None:
    for knobs in (UNTUNED, Knobs("int8", 2, 1, 8, 1000, 4), Knobs(max_num_seqs=8, block_size=16), PIPELINE):
        assert Knobs.from_dict(knobs.as_dict()) == knobs


def test_a_member_that_is_left_as_installed_is_left_out() -> None:
    knobs = UNTUNED.with_member("text", Knobs(instances=3)).with_member("net", Knobs(max_batch=8, instances=2))
    assert knobs == PIPELINE
    assert knobs.with_member("text", UNTUNED).members == PIPELINE.members[:1]
    assert knobs.with_member("text", UNTUNED).with_member("net", UNTUNED).is_untuned


def test_the_threads_of_all_members_count_together() -> None:
    assert not Knobs(members=(("a", Knobs(instances=2)), ("b", Knobs(intra_op_threads=2)))).oversubscribes(4)
    assert Knobs(members=(("a", Knobs(instances=2)), ("b", Knobs(intra_op_threads=3)))).oversubscribes(4)


def test_all_that_is_set_is_named_for_a_person() -> None:
    assert str(Knobs(max_batch=8, queue_delay_us=500, preferred_batch=4)) == (
        "max batch 8, preferred batch 4, delay us 500"
    )
    assert str(Knobs(max_num_seqs=8, max_num_batched_tokens=256)) == "max seqs 8, max batched tokens 256"
    assert str(PIPELINE) == "net (instances 2, max batch 8), text (instances 3)"
