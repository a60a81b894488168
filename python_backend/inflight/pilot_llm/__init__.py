"""An LLM engine with continuous batching, a paged KV cache and prefix reuse. Triton's model.py is a thin door to it.

The life of a request, top to bottom:

    client thread      model.py, contracts/      tensors -> Request (request.py, sampling.py)
                       Engine.submit             accepted or refused at once (engine.py, waiting_room.py)
                            | mailbox.py
    tokeniser thread   Admission.prepare         text -> tokens; limits; can it ever fit? (admission.py, limits.py)
                            | mailbox.py
    engine thread      StepLoop                  one step after the other (step_loop.py):
                         Scheduler.schedule        decodes, prompt chunks, admissions, preemption (scheduler.py)
                           BlockPool               which KV blocks, which are shared (block_pool.py, block_keys.py)
                         run_step                  plan -> batch -> logits -> tokens (step.py):
                           build_batch               flat ragged arrays (batch.py)
                           Runner.forward            the model (runner.py, torch_runner.py, models/, attention/)
                           sample                    logits -> one token a row (sampler.py)
                         Scheduler.commit          tokens to sequences; what has ended gives its blocks back
                            | news
    responder thread   Responder                 which stream, when (responder.py)
                         ResponseStream            text, stop strings, logprobs, deltas (response_stream.py,
                                                   detokenizer.py, stop.py, tokenizer.py)
                         sink.send                 to the client; exactly one output is final
    watcher thread     Watcher                   cancelled clients, deadlines, a step that hangs (watcher.py)

The states of a block are drawn in block_pool.py, those of a sequence in scheduler.py and sequence.py, the shared state
of the threads in engine.py. Settings are in config.py, exceptions in errors.py, counters in metrics.py.

Everything up to run_step is pure Python: it imports neither torch nor Triton, so it is tested in microseconds.
"""
